//! CPU lists as the kernel prints them (`0-3,8`): parsing and printing.

use std::collections::BTreeSet;

use super::host::Unread;

/// More CPUs than any kernel numbers; a range beyond it is a broken file.
const CPUS_MAX: u32 = 8192;

/// A set of CPU numbers.
pub(crate) type CpuSet = BTreeSet<u32>;

/// Parses a kernel CPU list; the empty text is the empty set.
///
/// # Errors
/// `Failed` when the text is no list of numbers and ranges below [`CPUS_MAX`].
pub(crate) fn parse(text: &str) -> Result<CpuSet, Unread> {
    let mut set = CpuSet::new();
    for part in text.trim().split(',').filter(|p| !p.is_empty()) {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        let bounds = (low.trim().parse::<u32>(), high.trim().parse::<u32>());
        let (Ok(low), Ok(high)) = bounds else {
            return Err(Unread::Failed(format!("`{text}` is no CPU list")));
        };
        if low > high || high >= CPUS_MAX {
            return Err(Unread::Failed(format!("`{part}` is no CPU range")));
        }
        set.extend(low..=high);
    }
    Ok(set)
}

/// Prints a set as the kernel does.
pub(crate) fn print(set: &CpuSet) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for &cpu in set {
        match parts.last_mut() {
            Some((_, high)) if *high + 1 == cpu => *high = cpu,
            _ => parts.push((cpu, cpu)),
        }
    }
    let text = |(low, high): &(u32, u32)| {
        if low == high { low.to_string() } else { format!("{low}-{high}") }
    };
    parts.iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::{parse, print};

    #[test]
    fn lists_survive_a_round_trip() {
        for (text, cpus, printed) in [
            ("", 0, ""),
            ("0", 1, "0"),
            ("0-3\n", 4, "0-3"),
            ("0-1,4,6-7", 5, "0-1,4,6-7"),
            ("3,1,2", 3, "1-3"),
        ] {
            let set = parse(text).expect("a good list");
            assert_eq!((set.len(), print(&set).as_str()), (cpus, printed), "{text:?}");
        }
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for text in ["x", "1-", "-1", "3-1", "0-99999999", "1;2"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }
}
