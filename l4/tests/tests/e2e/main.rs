//! The program in network namespaces that these tests make: real TCP through a router, L4 boxes and proxies.
#![expect(clippy::tests_outside_test_module, reason = "this whole folder is a test target")]

mod changes;
mod cookies;
mod datagrams;
mod fleet;
mod floods;
mod path;
mod ports;
