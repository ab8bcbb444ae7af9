//! A fleet of proxies and endpoints in simulated time, driven through the very modules that the proxy uses. Seeded: a
//! failing story prints its seed in the message and plays the same way again.
#![expect(clippy::tests_outside_test_module, reason = "this whole file is a test target")]

mod backend;
mod balance;
mod deploy;
mod failure;
mod fleet;
mod slow;
mod stable;
mod tiny;
