//! The L4 tier and the L7 proxies as they are run together: the built `shard-l4` and `shard-proxy` on every machine of
//! a fleet in network namespaces, told everything by files. What one program does alone is tested beside it
//! (l4/tests, l4/daemon, e2e).
//!
//! Where the kernel refuses BPF the tests are skipped, each with a line on standard error.
#![expect(clippy::tests_outside_test_module, reason = "this whole folder is a test target")]

mod control;
mod life;
mod site;
