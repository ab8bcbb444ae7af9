//! What the XDP program needs of the kernel, and what a kernel that refuses it lacks. Asked only after a refusal, so that the
//! error can name the feature.

use aya::maps::MapType;
use aya::programs::{ProgramType, SchedClassifier, Xdp};
use aya::sys::{BpfHelper, is_helper_supported, is_map_supported, is_program_supported};

/// Something that the kernel has from a version on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Feature {
    pub(crate) name: &'static str,
    /// First Linux with it: major and minor.
    pub(crate) since: (u32, u32),
    probe: Probe,
}

#[derive(Clone, Copy, Debug)]
enum Probe {
    Program(ProgramType),
    Map(MapType),
    Helper(ProgramType, BpfHelper),
}

const fn feature(name: &'static str, since: (u32, u32), probe: Probe) -> Feature {
    Feature { name, since, probe }
}

const XDP: ProgramType = Xdp::PROGRAM_TYPE;
const CLASSIFIER: ProgramType = SchedClassifier::PROGRAM_TYPE;

/// The oldest that are not on every kernel first.
pub(crate) const NEEDED: [Feature; 13] = [
    feature("programs behind XDP (tc classifiers)", (4, 1), Probe::Program(CLASSIFIER)),
    feature("XDP programs", (4, 8), Probe::Program(XDP)),
    feature("maps of prefixes (LPM tries)", (4, 11), Probe::Map(MapType::LpmTrie)),
    feature("maps of maps", (4, 12), Probe::Map(MapType::ArrayOfMaps)),
    feature("the helper bpf_xdp_adjust_tail", (4, 18), xdp(BpfHelper::BPF_FUNC_xdp_adjust_tail)),
    feature("the helper bpf_skc_lookup_tcp", (5, 2), xdp(BpfHelper::BPF_FUNC_skc_lookup_tcp)),
    feature("the helper bpf_tcp_check_syncookie", (5, 2), xdp(BpfHelper::BPF_FUNC_tcp_check_syncookie)),
    feature("the helper bpf_jiffies64", (5, 5), xdp(BpfHelper::BPF_FUNC_jiffies64)),
    feature("ring buffers", (5, 8), Probe::Map(MapType::RingBuf)),
    feature("the helper bpf_skc_to_tcp_sock", (5, 9), xdp(BpfHelper::BPF_FUNC_skc_to_tcp_sock)),
    feature(
        "the helper bpf_skc_to_tcp_timewait_sock",
        (5, 9),
        Probe::Helper(CLASSIFIER, BpfHelper::BPF_FUNC_skc_to_tcp_timewait_sock),
    ),
    feature("the helper bpf_xdp_load_bytes", (5, 18), xdp(BpfHelper::BPF_FUNC_xdp_load_bytes)),
    feature("the helper bpf_ktime_get_tai_ns", (6, 1), xdp(BpfHelper::BPF_FUNC_ktime_get_tai_ns)),
];

const fn xdp(helper: BpfHelper) -> Probe {
    Probe::Helper(XDP, helper)
}

/// What this kernel lacks. What cannot be asked for is not held against it.
pub(crate) fn missing() -> Vec<Feature> {
    let lacks = |feature: &Feature| match feature.probe {
        Probe::Program(kind) => is_program_supported(kind).is_ok_and(|has| !has),
        Probe::Map(kind) => is_map_supported(kind).is_ok_and(|has| !has),
        Probe::Helper(kind, helper) => is_helper_supported(kind, helper).is_ok_and(|has| !has),
    };
    NEEDED.into_iter().filter(lacks).collect()
}

/// Why a kernel of this release refuses, given what it lacks.
pub(crate) fn reason(release: &str, missing: &[Feature]) -> String {
    if missing.is_empty() {
        return format!(
            "it has every feature that is asked for; the reason is below, and Linux 6.1 or newer is needed (this is \
             {release})"
        );
    }
    let names: Vec<String> = missing
        .iter()
        .map(|feature| format!("{} (Linux {}.{})", feature.name, feature.since.0, feature.since.1))
        .collect();
    format!(
        "it lacks {}; Linux 6.1 or newer is needed (this is {release}), built with its BPF features",
        names.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a kernel of this version would be found to lack.
    fn of(version: (u32, u32)) -> Vec<Feature> {
        NEEDED.into_iter().filter(|feature| feature.since > version).collect()
    }

    #[test]
    fn an_old_kernel_is_told_what_it_lacks() {
        let reason_of = |release: &str, version| reason(release, &of(version));
        assert_eq!(
            reason_of("5.15.0-101-generic", (5, 15)),
            "it lacks the helper bpf_xdp_load_bytes (Linux 5.18), the helper bpf_ktime_get_tai_ns (Linux 6.1); Linux 6.1 \
             or newer is needed (this is 5.15.0-101-generic), built with its BPF features"
        );
        let ancient = reason_of("4.9.0", (4, 9));
        for name in ["maps of prefixes (LPM tries) (Linux 4.11)", "maps of maps (Linux 4.12)", "ring buffers"]
        {
            assert!(ancient.contains(name), "{ancient}");
        }
        assert!(!ancient.contains("XDP programs"), "{ancient}");
        let new = reason_of("6.1.0", (6, 1));
        assert!(new.starts_with("it has every feature") && new.contains("6.1.0"), "{new}");
    }

    #[test]
    fn features_are_listed_by_age() {
        assert!(NEEDED.is_sorted_by_key(|feature| feature.since));
    }

    #[test]
    fn a_kernel_that_takes_the_program_lacks_nothing() {
        if crate::Program::load(&crate::LoadOptions::default()).is_ok() {
            assert_eq!(missing().iter().map(|feature| feature.name).collect::<Vec<_>>(), [""; 0]);
        }
    }
}
