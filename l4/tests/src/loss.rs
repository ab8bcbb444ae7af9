//! Links that lose the head of each TCP flow, as a neighbour that is looked up anew or a short outage does.

use std::process::Command;

use aya::programs::links::LinkOrder;
use aya::programs::tc::TcAttachOptions;
use aya::programs::{SchedClassifier, TcAttachType};
use aya::{Ebpf, EbpfLoader};

use crate::net::{Lab, run};

/// Loses while it lives.
#[derive(Debug)]
pub struct Loss {
    /// Holds the link.
    _ebpf: Ebpf,
}

impl Loss {
    /// Has the router lose the first `packets` of each flow of the client's that are no SYN.
    ///
    /// # Panics
    ///
    /// When the kernel refuses, with the reason: the calling test fails.
    #[must_use]
    pub fn of_heads(lab: &Lab, packets: u32) -> Self {
        let object = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/loss.bpf.o"));
        let mut loader = EbpfLoader::new();
        let mut ebpf =
            loader.override_global("head_packets", &packets, true).load(object).expect("the object is sound");
        let program: &mut SchedClassifier =
            ebpf.program_mut("lose").expect("it is there").try_into().expect("a classifier");
        program.load().expect("the verifier agrees");
        let interface = lab.client.router_end();
        // Segments that were merged would be lost together.
        run(Command::new("ethtool").args(["--offload", &interface, "gro", "off"]), &lab.router);
        let options = TcAttachOptions::TcxOrder(LinkOrder::default());
        lab.router
            .enter(|| program.attach_with_options(&interface, TcAttachType::Ingress, options).map(drop))
            .expect("it is attached");
        Self { _ebpf: ebpf }
    }
}
