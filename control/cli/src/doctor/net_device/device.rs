//! Which device is looked at, and what it has. Called by the checks of this family.

use super::super::host::Host;

/// The device to look at, or why there is none.
pub(super) struct Device {
    /// Empty when there is no device at all.
    pub(super) name: String,
    /// The driver's name and the queues, or why there is nothing to tune.
    pub(super) hardware: Result<Hardware, String>,
}

pub(super) struct Hardware {
    pub(super) driver: String,
    pub(super) receive_queues: Vec<String>,
    pub(super) transmit_queues: Vec<String>,
}

impl Device {
    pub(super) fn choose(host: &Host, wanted: Option<&str>) -> Self {
        let name = match wanted {
            Some(name) => name.to_owned(),
            None => match default_route(host) {
                Some(name) => name,
                None => {
                    return Self {
                        name: String::new(),
                        hardware: Err("no default route, and no --interface".to_owned()),
                    };
                }
            },
        };
        let hardware = Self::hardware(host, &name);
        Self { name, hardware }
    }

    fn hardware(host: &Host, name: &str) -> Result<Hardware, String> {
        let base = format!("/sys/class/net/{name}");
        if !host.exists(&base) {
            return Err(format!("there is no device {name}"));
        }
        let Ok(driver) = host.link_name(&format!("{base}/device/driver")) else {
            return Err(format!("{name} is a virtual device without a driver"));
        };
        let queues =
            host.list(&format!("{base}/queues")).map_err(|why| format!("queues of {name}: {why}"))?;
        let of = |kind: &str| queues.iter().filter(|q| q.starts_with(kind)).cloned().collect();
        Ok(Hardware { driver, receive_queues: of("rx-"), transmit_queues: of("tx-") })
    }

    pub(super) fn subject(&self, what: &str) -> String {
        let name = if self.name.is_empty() { "(none)" } else { &self.name };
        format!("{name} {what}")
    }
}

/// The device of the IPv4 default route (destination and mask zero), else of the IPv6 one.
fn default_route(host: &Host) -> Option<String> {
    let v4 = host.read("/proc/net/route").unwrap_or_default();
    let fields = v4.lines().skip(1).map(|l| l.split_whitespace().collect::<Vec<_>>());
    for line in fields {
        if let [name, "00000000", _, _, _, _, _, "00000000", ..] = line.as_slice() {
            return Some((*name).to_owned());
        }
    }
    let v6 = host.read("/proc/net/ipv6_route").unwrap_or_default();
    let lines = v6.lines().map(|l| l.split_whitespace().collect::<Vec<_>>());
    let zero = "0".repeat(32);
    lines.filter(|l| l.first() == Some(&zero.as_str()) && l.get(1) == Some(&"00")).find_map(|l| {
        let name = *l.get(9)?;
        (name != "lo").then(|| name.to_owned())
    })
}

/// A line `name: on|off [fixed]` of `ethtool -k`: whether on, whether fixed.
pub(super) fn feature(text: &str, name: &str) -> Option<(bool, bool)> {
    let value = text.lines().find_map(|l| l.trim().strip_prefix(name)?.strip_prefix(':'))?.trim();
    Some((value.starts_with("on"), value.contains("[fixed]")))
}
