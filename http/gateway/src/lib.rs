//! Policy filters of the request path: a closed set, one file each, evaluated by [`chain`] in one fixed order.
//!
//! Everything here is pure: addresses, heads, time and random seeds come as arguments, answers are values. A
//! filter never sees a socket, and what it keeps between requests ([`client_limit::ClientLimiter`],
//! [`jwt::TokenCaches`]) belongs to one core. Called by http-proxy: `conn` for the address rules, `exchange` for the
//! chain and the field operations.
#![forbid(unsafe_code)]

pub mod acl;
pub mod body_limit;
pub mod chain;
pub mod cidr;
mod claims;
pub mod client_addr;
pub mod client_limit;
mod client_table;
pub mod cors;
pub mod fields;
pub mod jwt;
