//! Which proxy owns a packet, as plain values: Maglev tables, how they change, and what an operator may say.
//!
//! Invariants: nothing here owns a socket, map, clock or random source; equal inputs make equal tables on every box
//! and architecture. Called by shard-l4, which puts the tables into the kernel, by the config compiler, which makes
//! the types of `config`, and by the fleet simulation.

#![forbid(unsafe_code)]

pub mod config;
pub mod maglev;
pub mod owner;
pub mod quic_lb;
pub mod rollout;
