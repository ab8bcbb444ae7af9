//! Finds out what io_uring can do here by doing it: sets up a ring as the reactor does, asks the kernel for its
//! features and operations, and drops the ring. Called once, by [`super::host::Host::below`]; the `kernel` checks
//! judge the result.

use io_uring::{IoUring, Probe, opcode};

/// Sizes as in the reactor, because locked memory is charged by them.
const TRIAL_SUBMISSIONS: u32 = 1024;
const TRIAL_COMPLETIONS: u32 = 16_384;

/// What a ring setup brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RingState {
    /// A ring came up, with these abilities.
    Up(RingAbilities),
    /// The kernel refused `io_uring_setup`.
    Refused { errno: i32, message: String },
    /// Nobody asked, for this reason.
    NotProbed(String),
}

/// What the trial ring can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RingAbilities {
    /// SINGLE_ISSUER with DEFER_TASKRUN was accepted (Linux 6.1).
    pub(crate) defer_taskrun: bool,
    /// Ring features that the kernel lacks, of those the reactor counts on.
    pub(crate) features_missing: Vec<&'static str>,
    /// Operations that the kernel lacks, or why the list is not known.
    pub(crate) operations: Result<OperationsMissing, String>,
}

/// Operations that the kernel lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OperationsMissing {
    /// The reactor submits them.
    pub(crate) used: Vec<&'static str>,
    /// The reactor would submit them if it moved bytes through the ring; today it reads and writes by itself.
    pub(crate) unused: Vec<&'static str>,
}

const OPERATIONS_USED: [(&str, u8); 2] =
    [("POLL_ADD", opcode::PollAdd::CODE), ("POLL_REMOVE", opcode::PollRemove::CODE)];

const OPERATIONS_UNUSED: [(&str, u8); 7] = [
    ("ACCEPT", opcode::Accept::CODE),
    ("CONNECT", opcode::Connect::CODE),
    ("RECV", opcode::Recv::CODE),
    ("SEND", opcode::Send::CODE),
    ("ASYNC_CANCEL", opcode::AsyncCancel::CODE),
    ("MSG_RING", opcode::MsgRingData::CODE),
    ("SEND_ZC", opcode::SendZc::CODE),
];

/// Sets up a trial ring on the running kernel.
pub(crate) fn probe() -> RingState {
    let tuned = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .setup_submit_all()
        .setup_clamp()
        .setup_cqsize(TRIAL_COMPLETIONS)
        .build(TRIAL_SUBMISSIONS);
    let (ring, defer_taskrun) = match tuned {
        Ok(ring) => (ring, true),
        // EINVAL is how an older kernel answers a flag that it does not know; any other refusal is final.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => match IoUring::new(TRIAL_SUBMISSIONS) {
            Ok(ring) => (ring, false),
            Err(error) => return refused(&error),
        },
        Err(error) => return refused(&error),
    };
    let features = ring.params();
    let wanted = [
        ("NODROP", features.is_feature_nodrop()),
        ("EXT_ARG", features.is_feature_ext_arg()),
        ("CQE_SKIP", features.is_feature_skip_cqe_on_success()),
    ];
    let features_missing = wanted.iter().filter(|(_, has)| !has).map(|(name, _)| *name).collect();
    let mut probe = Probe::new();
    let operations = match ring.submitter().register_probe(&mut probe) {
        Ok(()) => {
            let missing = |list: &[(&'static str, u8)]| {
                list.iter().filter(|(_, code)| !probe.is_supported(*code)).map(|(name, _)| *name).collect()
            };
            Ok(OperationsMissing { used: missing(&OPERATIONS_USED), unused: missing(&OPERATIONS_UNUSED) })
        }
        Err(error) => Err(format!("IORING_REGISTER_PROBE: {error}")),
    };
    RingState::Up(RingAbilities { defer_taskrun, features_missing, operations })
}

fn refused(error: &std::io::Error) -> RingState {
    RingState::Refused { errno: error.raw_os_error().unwrap_or(0), message: error.to_string() }
}
