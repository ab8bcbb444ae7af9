//! What one load of the program is told, and its form in the program's constants.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

use l4_abi::hash::{HashKeys, cookie_key};
use l4_abi::{Config, FLOW_SEEN_TICKS_SHIFT, FLOW_WAYS};
use rustix::time::{ClockId, clock_getres};

use crate::{Error, Result};

/// Options of [`crate::Program::load`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadOptions {
    /// Folder on a bpffs below which maps and links are pinned. `None`: nothing outlives the process.
    pub pin_dir: Option<PathBuf>,
    /// Key of the flow hash; the same on every box of a fleet.
    pub hash_secret: [u8; 16],
    /// This host's tunnel addresses: source of what it encapsulates, destination of what it decapsulates.
    pub own4: Option<Ipv4Addr>,
    pub own6: Option<Ipv6Addr>,
    /// The largest packet on the link towards the owners, outer header included: 576 – 9216.
    pub mtu_bytes: u32,
    /// Capacity of the flow table, over all CPUs. Pinned maps keep the size that they were made with.
    pub flows_max: u32,
    /// A flow without a packet for this long is forgotten: 1 s – 1 h.
    pub flow_idle: Duration,
    /// New flows that one CPU remembers in a second; beyond it, it forwards without remembering.
    pub inserts_per_cpu_per_s: u32,
    /// Datagrams of unknown flows for which one CPU asks the row's previous owner in a second.
    pub questions_per_cpu_per_s: u32,
    /// ICMP errors that one CPU makes in a second.
    pub icmp_per_cpu_per_s: u32,
    /// SYNs of one VIP that one CPU passes on in a second; those beyond are answered with SYN cookies. `None`: never,
    /// and cookies of other boxes are not accepted. Needs Linux 6.9.
    pub syn_cookies_above: Option<u32>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            pin_dir: None,
            hash_secret: [0; 16],
            own4: None,
            own6: None,
            mtu_bytes: 1600,
            flows_max: 1 << 20,
            flow_idle: Duration::from_secs(300),
            inserts_per_cpu_per_s: 125_000,
            questions_per_cpu_per_s: 10_000,
            icmp_per_cpu_per_s: 100,
            syn_cookies_above: None,
        }
    }
}

impl LoadOptions {
    /// Sets of a flow table with room for `flows_max` flows.
    pub(crate) fn flow_sets(&self) -> Result<u32> {
        if !(1024..=1 << 26).contains(&self.flows_max) {
            return Err(out_of_range("flows_max", self.flows_max, "1,024 - 67,108,864"));
        }
        let ways = u32::try_from(FLOW_WAYS).unwrap_or(u32::MAX);
        Ok(self.flows_max.div_ceil(ways).next_power_of_two())
    }

    /// The program's constants. The flow table has `flow_sets` sets, a power of two.
    ///
    /// # Errors
    ///
    /// [`Error::Option`] for a value out of its range.
    pub(crate) fn config(&self, flow_sets: u32) -> Result<Config> {
        if !(576..=9216).contains(&self.mtu_bytes) {
            return Err(out_of_range("mtu_bytes", self.mtu_bytes, "576 - 9216"));
        }
        if !(1..=3600).contains(&self.flow_idle.as_secs()) {
            return Err(out_of_range("flow_idle (s)", self.flow_idle.as_secs(), "1 s - 1 h"));
        }
        let keys = HashKeys::new(&self.hash_secret);
        Ok(Config {
            hash_a: keys.a,
            hash_b: keys.b,
            cookie_key: cookie_key(&self.hash_secret),
            own4: self.own4.map_or([0; 4], |address| address.octets()),
            mtu_bytes: self.mtu_bytes,
            own6: self.own6.map_or([0; 16], |address| address.octets()),
            flow_set_mask: flow_sets - 1,
            flow_idle_units: (ticks(self.flow_idle) >> FLOW_SEEN_TICKS_SHIFT).max(1),
            window_ticks: ticks(Duration::from_secs(1)),
            inserts_per_window: self.inserts_per_cpu_per_s,
            icmp_per_window: self.icmp_per_cpu_per_s,
            cookies: self.syn_cookies_above.is_some().into(),
            syns_per_window: self.syn_cookies_above.unwrap_or(0),
            questions_per_window: self.questions_per_cpu_per_s,
        })
    }
}

fn out_of_range(name: &'static str, value: impl ToString, allowed: &'static str) -> Error {
    Error::Option { name, value: value.to_string(), allowed }
}

/// Length of a kernel tick (jiffy): the resolution of the coarse clock, which advances by ticks.
pub(crate) fn tick() -> Duration {
    let resolution = clock_getres(ClockId::MonotonicCoarse);
    let nanos = u32::try_from(resolution.tv_nsec).unwrap_or(4_000_000);
    Duration::from_nanos(u64::from(nanos.max(1)))
}

/// Ticks in `time`, at least one.
pub(crate) fn ticks(time: Duration) -> u32 {
    let count = time.as_nanos() / tick().as_nanos();
    u32::try_from(count).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_a_plausible_number_of_ticks() {
        assert!((100..=1000).contains(&ticks(Duration::from_secs(1))), "{:?}", tick());
    }

    #[test]
    fn values_out_of_range_are_named() {
        let small = LoadOptions { mtu_bytes: 100, ..LoadOptions::default() };
        let message = small.config(1024).expect_err("too small").to_string();
        assert!(message.contains("mtu_bytes is 100"), "{message}");
        assert!(LoadOptions::default().config(1024).is_ok());
    }
}
