//! The fleet simulation: share of flows that each event breaks, for shard's steering and for others. Prints a table
//! in Markdown; with a path as its last argument also writes the plot that docs/l4.md shows.
//!
//! `cargo run --release -p l4-steer --example fleet -- 3300000 docs/l4-simulation.svg`
#![expect(clippy::print_stdout, reason = "an example prints its figures")]

mod model;
mod plot;

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
    let mut arguments = std::env::args().skip(1);
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
