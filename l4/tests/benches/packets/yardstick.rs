//! What a path is measured beside, in its own rounds: the yardstick (`yardstick.bpf.c`), and whatever other program
//! somebody has pinned.
//!
//! A machine that is slow today, or busy otherwise, is so for the yardstick as well: a figure in yardsticks can be
//! compared with one of another day, a figure in nanoseconds cannot.

use std::net::{IpAddr, SocketAddr};
use std::path::Path as FilePath;

use aya::maps::{Array, HashMap, Map};
use aya::programs::{TestRun as _, TestRunOptions, Xdp};
use aya::{Ebpf, EbpfLoader};
use aya_obj::programs::XdpAttachType;
use l4_abi::TABLE_ROWS;
use l4_tests::rig::{OWNER1, VIP, VIP4, ip};

/// The owner of all rows, as in the table of the program that is measured.
const OWNER: u32 = 1;

/// The yardstick for one path.
pub(crate) struct Yardstick(Ebpf);

impl Yardstick {
    /// A program that goes through as many flows as the path does, and remembers them if `remembers`.
    pub(crate) fn load(mask: u32, remembers: bool) -> Self {
        let object = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/yardstick.bpf.o"));
        let mut ebpf = EbpfLoader::new()
            .override_global("bench_mask", &mask, true)
            .override_global("bench_flows", &u32::from(remembers), true)
            .map_max_entries("flows", if remembers { 1 << 20 } else { 1 })
            .load(object)
            .expect("the object is sound");
        fill(&mut ebpf);
        let program: &mut Xdp =
            ebpf.program_mut("yardstick").expect("it is there").try_into().expect("an XDP program");
        program.load().expect("the verifier agrees");
        Self(ebpf)
    }

    /// Runs it `packets` times on a frame and returns what it did with the last.
    pub(crate) fn run(&self, frame: &[u8], packets: u32) -> u32 {
        let program: &Xdp =
            self.0.program("yardstick").expect("it is there").try_into().expect("an XDP program");
        test_run(program, frame, packets)
    }
}

fn fill(ebpf: &mut Ebpf) {
    let vip: SocketAddr = VIP4.parse().expect("an address with a port");
    let mut endpoint = [0_u8; 20];
    endpoint[..4].copy_from_slice(&octets(vip.ip()));
    endpoint[16..18].copy_from_slice(&vip.port().to_be_bytes());
    endpoint[18] = 6;
    let mut tunnel = [0_u8; 20];
    tunnel[..4].copy_from_slice(&octets(ip(OWNER1)));
    let mut vips: HashMap<_, [u8; 20], u64> = map(ebpf, "vips").try_into().expect("a hash map");
    vips.insert(endpoint, u64::from(VIP), 0).expect("a VIP is taken");
    let mut owners: Array<_, [u8; 20]> = map(ebpf, "owners").try_into().expect("an array");
    owners.set(OWNER, tunnel, 0).expect("an owner is taken");
    let mut ring: Array<_, u32> = map(ebpf, "ring").try_into().expect("an array");
    for row in 0..u32::try_from(TABLE_ROWS).expect("few") {
        ring.set(row, OWNER, 0).expect("a row is taken");
    }
}

fn map<'a>(ebpf: &'a mut Ebpf, name: &str) -> &'a mut Map {
    ebpf.map_mut(name).expect("it is there")
}

fn octets(address: IpAddr) -> [u8; 4] {
    match address {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(_) => unreachable!("the rig's first owner and VIP are of IPv4"),
    }
}

/// A program of somebody else's, ready for one path: its maps are filled, its flows remembered.
pub(crate) struct Beside(Xdp);

impl Beside {
    /// The folder that has, for each path that is to be measured so, a pinned program named as the path is.
    pub(crate) const FOLDER: &str = "SHARD_BENCH_BESIDE";

    /// The one for this path, if there is one.
    pub(crate) fn of(path: &str) -> Option<Self> {
        let pin = FilePath::new(&std::env::var_os(Self::FOLDER)?).join(path);
        pin.exists()
            .then(|| Self(Xdp::from_pin(&pin, XdpAttachType::Interface).expect("a pinned XDP program")))
    }

    /// As [`Yardstick::run`].
    pub(crate) fn run(&self, frame: &[u8], packets: u32) -> u32 {
        test_run(&self.0, frame, packets)
    }
}

fn test_run(program: &Xdp, frame: &[u8], packets: u32) -> u32 {
    let mut out = vec![0; frame.len() + 256];
    let options = TestRunOptions {
        data_in: Some(frame),
        data_out: Some(&mut out),
        repeat: packets,
        ..TestRunOptions::default()
    };
    program.test_run(options).expect("the kernel runs it").return_value
}
