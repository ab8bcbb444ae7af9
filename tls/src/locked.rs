//! Custody of secret bytes: memory that is locked, left out of core dumps and zeroed when it goes.
//!
//! Owns the crate's only `unsafe`: mapping pages of their own for each secret (a page that is shared with the
//! heap would be unlocked by its neighbour's `munlock`), `mlock`, `madvise(MADV_DONTDUMP)` and `prctl`.
//! Invariants: a secret's pages belong to exactly one [`SecretBytes`]; its bytes never reach `Debug`.
//! Locking may be refused (RLIMIT_MEMLOCK): the secret is kept all the same and says so in [`Custody`], so that
//! the daemon can warn. Called by everything in this crate that takes a private key or a ticket key.
#![expect(unsafe_code, reason = "page locking and PR_SET_DUMPABLE have no safe interface")]

use std::fmt;
use std::io;
use std::ptr::NonNull;

use zeroize::Zeroize;

/// Whether the pages of a secret are kept out of swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Custody {
    Locked,
    /// The kernel refused; `errno` says why (ENOMEM, EPERM: raise RLIMIT_MEMLOCK or grant CAP_IPC_LOCK).
    Unlocked {
        errno: i32,
    },
}

impl fmt::Display for Custody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Locked => f.write_str("locked in memory"),
            Self::Unlocked { errno } => {
                write!(
                    f,
                    "not locked in memory ({}): raise RLIMIT_MEMLOCK",
                    io::Error::from_raw_os_error(*errno)
                )
            }
        }
    }
}

enum Storage {
    Pages {
        start: NonNull<u8>,
        mapped_bytes: usize,
    },
    /// Only when the kernel gives no mapping; zeroed, but not locked.
    Heap(Vec<u8>),
}

/// Secret bytes in pages of their own. Not `Clone`: a copy is made by [`SecretBytes::duplicate`], in plain sight.
pub struct SecretBytes {
    storage: Storage,
    len: usize,
    custody: Custody,
}

// SAFETY: the mapping is owned by this value alone, is plain memory and is only reached through `&self`
// (shared reads) or `&mut self` (exclusive writes), like a `Box<[u8]>`.
unsafe impl Send for SecretBytes {}
// SAFETY: as above; no interior mutability.
unsafe impl Sync for SecretBytes {}

impl SecretBytes {
    /// `len` zero bytes, to be filled through [`SecretBytes::as_mut_slice`].
    pub fn zeroed(len: usize) -> Self {
        let page = page_bytes();
        let mapped_bytes = len.max(1).next_multiple_of(page);
        let Some(start) = map_pages(mapped_bytes) else {
            let custody = Custody::Unlocked { errno: last_errno() };
            return Self { storage: Storage::Heap(vec![0; len]), len, custody };
        };
        // SAFETY: `start..start + mapped_bytes` is the mapping made above. The result only matters for dumps,
        // which `forbid_core_dumps` also stops, so a kernel that does not know the advice is fine.
        unsafe { libc::madvise(start.as_ptr().cast(), mapped_bytes, libc::MADV_DONTDUMP) };
        // SAFETY: as above; locking does not change the contents.
        let refused = unsafe { libc::mlock(start.as_ptr().cast(), mapped_bytes) } != 0;
        let custody = if refused { Custody::Unlocked { errno: last_errno() } } else { Custody::Locked };
        Self { storage: Storage::Pages { start, mapped_bytes }, len, custody }
    }

    /// A copy of `bytes`; the caller remains responsible for the original.
    pub fn from_slice(bytes: &[u8]) -> Self {
        let mut secret = Self::zeroed(bytes.len());
        secret.as_mut_slice().copy_from_slice(bytes);
        secret
    }

    /// Takes `bytes` into custody and zeroes the original.
    pub fn from_vec(mut bytes: Vec<u8>) -> Self {
        let secret = Self::from_slice(&bytes);
        bytes.zeroize();
        secret
    }

    /// Another copy, for another owner (one per core).
    pub fn duplicate(&self) -> Self {
        Self::from_slice(self.as_slice())
    }

    /// Whether the kernel locked the pages.
    pub fn custody(&self) -> Custody {
        self.custody
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn as_slice(&self) -> &[u8] {
        match &self.storage {
            // SAFETY: the mapping is live until `drop`, holds at least `len` initialised bytes (mmap gives zeroes)
            // and is not written while `&self` is held.
            Storage::Pages { start, .. } => unsafe { std::slice::from_raw_parts(start.as_ptr(), self.len) },
            Storage::Heap(bytes) => bytes.get(..self.len).unwrap_or(&[]),
        }
    }

    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        match &mut self.storage {
            // SAFETY: as in `as_slice`, and `&mut self` makes the access exclusive.
            Storage::Pages { start, .. } => unsafe {
                std::slice::from_raw_parts_mut(start.as_ptr(), self.len)
            },
            Storage::Heap(bytes) => bytes.get_mut(..self.len).unwrap_or(&mut []),
        }
    }

    /// Keeps the first `len` bytes and zeroes the rest; longer than the secret is no change.
    pub fn truncate(&mut self, len: usize) {
        if let Some(tail) = self.as_mut_slice().get_mut(len..) {
            tail.zeroize();
            self.len = len;
        }
    }
}

impl Drop for SecretBytes {
    fn drop(&mut self) {
        self.as_mut_slice().zeroize();
        if let Storage::Pages { start, mapped_bytes } = self.storage {
            // SAFETY: the mapping was made by `zeroed`, is unmapped only here, and no slice of it can outlive
            // `self`. Unmapping also unlocks.
            unsafe { libc::munmap(start.as_ptr().cast(), mapped_bytes) };
        }
    }
}

impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Forbids core dumps and `ptrace` by other processes of the same user (PR_SET_DUMPABLE 0).
///
/// # Errors
/// What the kernel answers; it does not refuse in practice.
pub fn forbid_core_dumps() -> io::Result<()> {
    // SAFETY: PR_SET_DUMPABLE takes one integer and touches no memory of ours.
    let refused = unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) } != 0;
    if refused { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn page_bytes() -> usize {
    // SAFETY: sysconf reads no memory of ours.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).ok().filter(|b| b.is_power_of_two()).unwrap_or(4096)
}

fn map_pages(bytes: usize) -> Option<NonNull<u8>> {
    // SAFETY: an anonymous private mapping at an address of the kernel's choice; it aliases nothing.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED { None } else { NonNull::new(start.cast()) }
}

fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_keep_their_bytes_and_do_not_print_them() {
        for len in [0, 1, 32, 4096, 4097, 20_000] {
            let bytes: Vec<u8> = (0..len).map(|i| u8::try_from(i % 251).expect("below 251")).collect();
            let secret = SecretBytes::from_vec(bytes.clone());
            assert_eq!(secret.as_slice(), bytes, "{len}");
            assert_eq!(secret.len(), len);
            assert_eq!(format!("{secret:?}"), "***");
            let copy = secret.duplicate();
            drop(secret);
            assert_eq!(copy.as_slice(), bytes, "a duplicate outlives the original");
        }
    }

    #[test]
    fn truncate_zeroes_what_it_cuts() {
        let mut secret = SecretBytes::from_slice(b"0123456789");
        secret.truncate(4);
        assert_eq!(secret.as_slice(), b"0123");
        secret.truncate(9);
        assert_eq!(secret.as_slice(), b"0123", "truncate never grows");
        secret.len = 10;
        assert_eq!(secret.as_slice(), b"0123\0\0\0\0\0\0");
    }

    #[test]
    fn core_dumps_can_be_forbidden() {
        forbid_core_dumps().expect("prctl");
        // SAFETY: PR_GET_DUMPABLE takes no pointer.
        assert_eq!(unsafe { libc::prctl(libc::PR_GET_DUMPABLE, 0, 0, 0, 0) }, 0);
    }
}
