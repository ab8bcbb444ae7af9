//! Links whose frames carry a VLAN tag: the router puts a priority tag on all that it sends to boxes and proxies, and
//! what they send back carries it too, because the program answers in the frame that came.

use std::process::Command;

use aya::Ebpf;
use aya::programs::links::LinkOrder;
use aya::programs::tc::TcAttachOptions;
use aya::programs::{SchedClassifier, TcAttachType};

use crate::net::{Lab, run};

/// Tags while it lives.
#[derive(Debug)]
pub struct Tags {
    /// Holds the links.
    _ebpf: Ebpf,
}

impl Tags {
    /// Puts tags on the links of a lab.
    ///
    /// # Panics
    ///
    /// When the kernel refuses, with the reason: the calling test fails.
    #[must_use]
    pub fn on(lab: &Lab) -> Self {
        let object = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/tag.bpf.o"));
        let mut ebpf = Ebpf::load(object).expect("the object is sound");
        let program: &mut SchedClassifier =
            ebpf.program_mut("tag").expect("it is there").try_into().expect("a classifier");
        program.load().expect("the verifier agrees");
        for host in lab.boxes.iter().chain(&lab.proxies) {
            let interface = host.router_end();
            // A tag that is left to the card would reach the program beside the frame, not in it.
            run(Command::new("ethtool").args(["--offload", &interface, "txvlan", "off"]), &lab.router);
            let options = TcAttachOptions::TcxOrder(LinkOrder::default());
            lab.router
                .enter(|| program.attach_with_options(&interface, TcAttachType::Egress, options).map(drop))
                .expect("it is attached");
        }
        Self { _ebpf: ebpf }
    }
}
