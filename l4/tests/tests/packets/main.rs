//! The XDP program, packet by packet: each path with packet in, packet out, verdict and counter.
#![expect(clippy::tests_outside_test_module, reason = "this whole folder is a test target")]

mod cookies;
mod datagrams;
mod encapsulated;
mod forward;
mod hostile;
mod icmp;
mod paths;
mod quic;
mod rules;
mod skips;
mod tunnel;
mod vlan;
