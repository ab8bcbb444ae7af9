//! Cost of one `Balancer::pick`, by number of endpoints and kind of weights. The bound is 60 ns at 2,000 endpoints.
//!
//! `cargo bench -p http-proxy --bench balance`; with `SHARD_BENCH_SMOKE=1` only a few rounds, to see that it runs.
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]
#![expect(clippy::disallowed_methods, reason = "a bench reads the clock")]

use std::hint::black_box;
use std::time::Instant;

use http_proxy::balance::{Availability, Balancer, EndpointIndex, EndpointState, Rng};

fn balancer(endpoints: u32, weight_of: impl Fn(u32) -> u32) -> Balancer {
    Balancer::new((0..endpoints).map(|at| EndpointState {
        in_flight: at % 7,
        weight: weight_of(at),
        availability: Availability::Available,
    }))
}

fn main() {
    let rounds: u32 = if std::env::var_os("SHARD_BENCH_SMOKE").is_some() { 1_000 } else { 10_000_000 };
    println!("{:>9} {:>8} {:>9} {:>8}", "endpoints", "weights", "exclude", "ns/pick");
    for endpoints in [2u32, 20, 200, 2_000] {
        for (name, weighted) in [("equal", false), ("mixed", true)] {
            let balancer = balancer(endpoints, |at| if weighted { at % 13 + 1 } else { 1 });
            for (exclude_name, exclude) in [("none", None), ("one", Some(EndpointIndex(1)))] {
                let mut rng = Rng::new(7);
                let start = Instant::now();
                for _ in 0..rounds {
                    black_box(balancer.pick(rng.draw(), black_box(exclude)));
                }
                let ns = start.elapsed().as_secs_f64() * 1e9 / f64::from(rounds);
                println!("{endpoints:>9} {name:>8} {exclude_name:>9} {ns:>8.1}");
            }
        }
    }
}
