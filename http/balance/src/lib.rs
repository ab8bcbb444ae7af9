//! Balancing and resilience of clusters, as pure decisions: time, random numbers and events in, decisions out.
//!
//! No socket, no clock, no random source, no shared state. The proxy calls these modules with its own; the simulation in
//! `tests/simulation` calls the same ones with a simulated fleet. Times are [`Duration`](std::time::Duration)s since any
//! fixed start, random numbers are 64 bits, keys are [`stable_hash`]es.
//!
//! # Two halves
//!
//! **Off the core**, the snapshot's compile makes one [`ClusterPlan`] for each cluster: rules, endpoints by position
//! (the positions of the snapshot's own list), hash tables, the rings of sticky sessions. It is immutable and `Send`.
//! For subsets it first keeps the endpoints that [`subset::subset`] names.
//!
//! **On the core**, a [`ClusterState`] and an [`Admission`] live as long as the cluster's name does, and are shown the
//! plan with every call:
//!
//! ```text
//! new snapshot     state.adopt(&plan, now, &mut events)             endpoints keep their Slot by EndpointId
//!                  admission.adopt(&plan.rules.admission)
//! request          admission.admit(rules, applicant, now)           Ticket, or Refusal: 503 + Retry-After
//!                  state.pick(&plan, pick, &mut events)             Slot, or NoEndpoint: 503
//!                  state.place(&plan, session, random, now, &mut events)   the same for sticky clusters
//! attempt          state.started(slot)
//!                  state.finished(&plan, slot, (outcome, latency), (now, random), &mut events)
//! it failed        retry::decide(rules, &mut admission.retries, attempted, now)
//!                                                                   Again, then pick with `exclude: Some(slot)`
//! it is silent     hedge::start(rules, &mut admission.hedges, body, mood, now)
//! request is over  admission.finished(rules, ticket, finished, now)
//! health           state.set_health(slot, health, now), state.ask(&plan, slot, wanted, now)
//! view             state.views(&plan, now)                          shardctl
//! ```
//!
//! A pool keeps its connections by [`Slot`]: a slot stays the endpoint's own until [`Event::Released`], over any number
//! of plans. Events are pushed to a vector that the caller keeps and empties, so that nothing is allocated per request;
//! each becomes a log line and a counter.
//!
//! The rules and their defaults beside those of other proxies are in docs/resilience.md.
#![forbid(unsafe_code)]

pub mod admission;
pub mod baseline;
pub mod breaker;
pub mod budget;
pub mod check;
pub mod cluster;
#[cfg(test)]
mod cluster_tests;
pub mod endpoint;
pub mod ewma;
pub mod generations;
pub mod gradient;
mod hash;
pub mod hashing;
pub mod hedge;
pub mod least_connections;
pub mod levels;
pub mod maglev;
pub mod mirror;
pub mod outcome;
pub mod outlier;
pub mod p2c;
pub mod plan;
pub mod retry;
pub mod ring;
mod rng;
pub mod round_robin;
pub mod sampler;
pub mod shed;
pub mod slow_start;
pub mod sticky;
pub mod subset;
pub mod tables;
#[cfg(test)]
mod testing;
mod time;
mod weights;
pub mod window;

pub use admission::Admission;
pub use cluster::{ClusterState, Event, NoEndpoint, Pick};
pub use endpoint::{EndpointId, Slot};
pub use hash::{mix, stable_hash};
pub use outcome::Outcome;
pub use plan::{ClusterPlan, ClusterRules, EndpointSpec};
pub use rng::Rng;
