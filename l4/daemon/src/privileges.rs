//! Gives up the rights that are not needed after the start: all but those that writing maps and making tables needs.

use std::io;

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

const KEPT: CapabilitySet = CapabilitySet::BPF.union(CapabilitySet::NET_ADMIN).union(CapabilitySet::PERFMON);

/// Drops every other capability, also for the announcement's command; says which are left.
///
/// # Errors
/// What the kernel says.
pub(crate) fn drop_all_but_bpf() -> io::Result<String> {
    let kept = capabilities(None)?.permitted.intersection(KEPT);
    set_capabilities(
        None,
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() },
    )?;
    Ok(kept.iter_names().map(|(name, _)| name.to_ascii_lowercase()).collect::<Vec<_>>().join(", "))
}
