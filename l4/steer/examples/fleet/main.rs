//! The fleet simulation: share of flows that each event breaks, for shard's steering and for others. Prints a table
//! in Markdown; with a path as its last argument also writes the plot that docs/l4.md shows. With `skew` in front, the same
//! for one change that the machines learn of at different times.
//!
//! `cargo run --release -p l4-steer --example fleet -- 3300000 docs/l4-simulation.svg`
//! `cargo run --release -p l4-steer --example fleet -- skew 400000 docs/l4-skew.svg`
#![expect(clippy::print_stdout, reason = "an example prints its figures")]

mod model;
mod plot;
mod skew_plot;

use std::time::Duration;

use model::skew::{self, Asks, Case, Change};
use model::{Event, Measured, POLICIES, Policy, Router, Size};

const SEED: u64 = 20_260_901;

/// What one way of steering did at one kind of event, in shares of all flows.
pub(crate) struct Cell {
    pub(crate) event: Event,
    pub(crate) count: usize,
    pub(crate) cut_mean: f64,
    pub(crate) broken_mean: f64,
    pub(crate) broken_max: f64,
    pub(crate) rescued_mean: f64,
}

fn cells(measured: &[Measured]) -> Vec<Cell> {
    let cell = |event: Event| {
        let of: Vec<&Measured> = measured.iter().filter(|m| m.event == event).collect();
        let share = |m: &Measured, part: usize| part as f64 / m.flows as f64;
        let mean = |part: fn(&Measured) -> usize| {
            of.iter().map(|m| share(m, part(m))).sum::<f64>() / of.len() as f64
        };
        Cell {
            event,
            count: of.len(),
            cut_mean: mean(|m| m.cut),
            broken_mean: mean(|m| m.broken),
            broken_max: of.iter().map(|m| share(m, m.broken)).fold(0.0, f64::max),
            rescued_mean: mean(|m| m.rescued),
        }
    };
    Event::ALL.map(cell).into_iter().collect()
}

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.next_if(|word| word == "skew").is_some() {
        return skews(arguments);
    }
    let flows = arguments.next().and_then(|word| word.parse().ok()).unwrap_or(330_000);
    let plot_path = arguments.next();
    let size = Size { boxes: 8, proxies: 40, flows, seed: SEED };
    println!("{} boxes, {} proxies, {flows} flows, seed {SEED}; 1/N is {:.4} %", 8, 40, 100.0 / 40.0);
    let mut runs: Vec<(Policy, Router, Vec<Cell>)> = Vec::new();
    for router in [Router::Resilient, Router::Modulo] {
        println!(
            "\nRouter: {router:?} hashing. Broken flows in percent: mean (worst) of the events of a kind.\n"
        );
        let heads: String = POLICIES.iter().map(|policy| format!(" {} |", policy.name)).collect();
        println!("| event (times) | cut |{heads}\n|---|---|{}", "---|".repeat(POLICIES.len()));
        let of: Vec<_> = POLICIES.iter().map(|policy| cells(&model::run(size, *policy, router))).collect();
        for (at, first) in of[0].iter().enumerate() {
            let row: String = of
                .iter()
                .map(|cells| {
                    let cell = &cells[at];
                    format!(" {} ({}) |", percent(cell.broken_mean), percent(cell.broken_max))
                })
                .collect();
            println!("| {} ({}) | {} |{row}", first.event.words(), first.count, percent(first.cut_mean));
        }
        println!("\nRescued by second chance, mean percent: {}", rescued(&of[0]));
        runs.extend(POLICIES.into_iter().zip(of).map(|(policy, cells)| (policy, router, cells)));
    }
    if let Some(path) = plot_path {
        std::fs::write(path, plot::svg(&runs, 1.0 / f64::from(size.proxies)))?;
    }
    Ok(())
}

/// How far apart the machines are, in milliseconds.
const SKEWS_MS: [u64; 6] = [100, 300, 1_000, 3_000, 10_000, 30_000];

fn skews(mut arguments: impl Iterator<Item = String>) -> std::io::Result<()> {
    let flows = arguments.next().and_then(|word| word.parse().ok()).unwrap_or(100_000);
    let size = Size { boxes: 8, proxies: 40, flows, seed: SEED };
    println!("8 boxes, 40 proxies, {flows} flows, seed {SEED}; broken flows in percent; 1/N is 2.5 %\n");
    let heads: String = SKEWS_MS.iter().map(|skew| format!(" {} s |", *skew as f64 / 1000.0)).collect();
    println!(
        "| change | box lost meanwhile, router | a proxy asks |{heads}\n|---|---|---|{}",
        "---|".repeat(SKEWS_MS.len())
    );
    let mut lines = Vec::new();
    for change in [Change::ProxyDrained, Change::ProxyAdded] {
        for box_lost in [None, Some(Router::Resilient), Some(Router::Modulo)] {
            for asks in [Asks::Present, Asks::PreviousOnly, Asks::Nobody] {
                let case = |skew| Case { change, asks, box_lost, skew: Duration::from_millis(skew) };
                let shares = SKEWS_MS.map(|skew| skew::broken(size, case(skew)));
                let cells: String = shares.iter().map(|share| format!(" {} |", percent(*share))).collect();
                let router = box_lost.map_or("none lost".to_owned(), |router| format!("{router:?}"));
                println!("| {change:?} | {router} | {asks:?} |{cells}");
                lines.push((case(0), shares));
            }
        }
    }
    if let Some(path) = arguments.next() {
        let skews = SKEWS_MS.map(|skew| skew as f64 / 1000.0);
        std::fs::write(path, skew_plot::svg(&skews, &lines, 1.0 / f64::from(size.proxies)))?;
    }
    Ok(())
}

fn rescued(cells: &[Cell]) -> String {
    let of: Vec<String> = cells
        .iter()
        .filter(|cell| cell.rescued_mean > 0.0)
        .map(|cell| format!("{} {}", cell.event.words(), percent(cell.rescued_mean)))
        .collect();
    of.join(", ")
}

fn percent(share: f64) -> String {
    if share == 0.0 { "0".to_owned() } else { format!("{:.4}", share * 100.0) }
}
