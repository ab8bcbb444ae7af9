//! The plot of the simulation as a small SVG: bars on a logarithmic scale, one group an event, one bar a policy.

use std::fmt::Write;

use super::Cell;
use super::model::{Event, POLICIES, Policy, Router};

const WIDTH: f64 = 960.0;
const LEFT: f64 = 60.0;
const PLOT_HEIGHT: f64 = 190.0;
const TOP: f64 = 120.0;
const GAP: f64 = 80.0;
/// The lowest decade that is drawn: a bar below it has no height.
const FLOOR: f64 = 1e-6;
const DECADES: [&str; 7] = ["0.0001 %", "0.001 %", "0.01 %", "0.1 %", "1 %", "10 %", "100 %"];
const COLOURS: [&str; 6] = ["#0b6e4f", "#7cc6a4", "#3d5a99", "#c9a227", "#d1495b", "#7d1d3f"];
const EVENTS: [Event; 7] = [
    Event::ProxyDrained,
    Event::BoxLostInDrain,
    Event::WindowEnds,
    Event::ProxyReturns,
    Event::BoxLost,
    Event::ProxyCrashes,
    Event::ProxyAdded,
];

/// The worst broken share of each policy and event, for both routers, with the bound 1/N as a line.
pub(crate) fn svg(runs: &[(Policy, Router, Vec<Cell>)], bound: f64) -> String {
    let height = TOP + 2.0 * (PLOT_HEIGHT + GAP) - GAP / 2.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"18\" font-size=\"14\">Share of flows broken by one event (worst), beyond those \
         whose proxy is gone</text>\n"
    );
    for (at, (policy, colour)) in POLICIES.iter().zip(COLOURS).enumerate() {
        let (x, y) = (LEFT + 440.0 * (at / 3) as f64, 38.0 + 18.0 * (at % 3) as f64);
        add(
            &mut svg,
            format_args!("<rect x=\"{x}\" y=\"{y}\" width=\"10\" height=\"10\" fill=\"{colour}\"/>"),
        );
        add(&mut svg, format_args!("<text x=\"{}\" y=\"{}\">{}</text>", x + 15.0, y + 9.0, policy.name));
    }
    for (row, router) in [Router::Resilient, Router::Modulo].into_iter().enumerate() {
        let base = TOP + PLOT_HEIGHT + row as f64 * (PLOT_HEIGHT + GAP);
        let cells: Vec<&Vec<Cell>> = runs.iter().filter(|run| run.1 == router).map(|run| &run.2).collect();
        panel(&mut svg, base, router, &cells, bound);
    }
    svg.push_str("</svg>\n");
    svg
}

fn panel(svg: &mut String, base: f64, router: Router, policies: &[&Vec<Cell>], bound: f64) {
    let name = match router {
        Router::Resilient => "resilient hashing on the router",
        Router::Modulo => "plain modulo hashing on the router",
    };
    add(
        svg,
        format_args!("<text x=\"{LEFT}\" y=\"{}\" font-size=\"12\">{name}</text>", base - PLOT_HEIGHT - 8.0),
    );
    for (decade, label) in (0..).zip(DECADES) {
        let y = base - height_of(FLOOR * 10f64.powi(decade));
        add(svg, format_args!("<path d=\"M{LEFT} {y:.1}H{}\" stroke=\"#ddd\"/>", WIDTH - 10.0));
        let (x, y) = (LEFT - 5.0, y + 4.0);
        add(svg, format_args!("<text x=\"{x}\" y=\"{y:.1}\" text-anchor=\"end\">{label}</text>"));
    }
    let y = base - height_of(bound);
    add(
        svg,
        format_args!(
            "<path d=\"M{LEFT} {y:.1}H{}\" stroke=\"black\" stroke-dasharray=\"4 3\"/>",
            WIDTH - 10.0
        ),
    );
    add(svg, format_args!("<text x=\"{}\" y=\"{:.1}\">1/N</text>", LEFT + 3.0, y - 3.0));
    let group = (WIDTH - 10.0 - LEFT) / EVENTS.len() as f64;
    let bar = (group - 22.0) / policies.len() as f64;
    for (at, event) in EVENTS.into_iter().enumerate() {
        let left = LEFT + group * at as f64 + 11.0;
        for (index, (cells, colour)) in policies.iter().zip(COLOURS).enumerate() {
            let share = cells.iter().find(|cell| cell.event == event).map_or(0.0, |cell| cell.broken_max);
            let (x, h) = (left + bar * index as f64, height_of(share));
            if share == 0.0 {
                add(
                    svg,
                    format_args!(
                        "<text x=\"{:.1}\" y=\"{}\" fill=\"{colour}\">0</text>",
                        x + 3.0,
                        base - 3.0
                    ),
                );
            } else {
                let (y, w) = (base - h, bar - 2.0);
                add(
                    svg,
                    format_args!(
                        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{w:.1}\" height=\"{h:.1}\" fill=\"{colour}\"/>"
                    ),
                );
            }
        }
        let middle = left + (group - 22.0) / 2.0;
        add(
            svg,
            format_args!(
                "<text x=\"{middle:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                base + 16.0,
                event.words()
            ),
        );
    }
}

fn height_of(share: f64) -> f64 {
    if share <= FLOOR { 0.0 } else { (share / FLOOR).log10() / 6.0 * PLOT_HEIGHT }
}

fn add(svg: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(svg, "{line}").expect("a String takes everything");
}
