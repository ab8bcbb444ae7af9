//! shard-bench against its own light target, from outside: the built program, its exit codes, its files.
#![expect(clippy::tests_outside_test_module, reason = "this whole crate is a test target")]

mod early_data;
mod faults;
mod open_loop;
mod protocols;
mod reports;
mod support;
