//! CPUs: which ones this process may use, and pinning a thread to one.

use std::io;

/// The CPUs that this process may run on, ascending: one shard each by default.
///
/// # Errors
/// What `sched_getaffinity` says.
pub fn allowed_cpus() -> io::Result<Vec<usize>> {
    crate::sys::allowed_cpus()
}

/// Pins the calling thread to one CPU.
///
/// # Errors
/// `InvalidInput` for a CPU number out of range, else what `sched_setaffinity` says.
pub fn pin_thread(cpu: usize) -> io::Result<()> {
    crate::sys::pin_to_cpu(cpu)
}

/// User and system CPU time of the calling thread in nanoseconds, 0 where the kernel will not say.
pub fn thread_cpu_ns() -> u64 {
    crate::sys::thread_cpu_ns().unwrap_or(0)
}
