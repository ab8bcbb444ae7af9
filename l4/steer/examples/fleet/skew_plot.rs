//! The plot of updates that are apart: broken flows over the skew, one panel a change, one line a case.

use std::fmt::Write;

use super::model::Router;
use super::model::skew::{Asks, Case, Change};

const PANEL: f64 = 400.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 40.0;
const HEIGHT: f64 = 240.0;
/// The lowest share that is drawn; less is drawn on the axis.
const FLOOR: f64 = 1e-6;
const DECADES: [&str; 6] = ["0.0001 %", "0.001 %", "0.01 %", "0.1 %", "1 %", "10 %"];

/// Lines of (case, share for each skew in seconds), with the bound 1/N.
pub(crate) fn svg<const N: usize>(skews: &[f64; N], lines: &[(Case, [f64; N])], bound: f64) -> String {
    let (width, height) = (LEFT + 2.0 * PANEL + 20.0, TOP + HEIGHT + 130.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (decade, label) in (0..).zip(DECADES) {
        let y = y_of(FLOOR * 10f64.powi(decade));
        add(&mut svg, format_args!("<path d=\"M{LEFT} {y:.1}H{}\" stroke=\"#ddd\"/>", width - 10.0));
        let x = LEFT - 5.0;
        add(
            &mut svg,
            format_args!("<text x=\"{x}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>", y + 4.0),
        );
    }
    let y = y_of(bound);
    add(&mut svg, format_args!("<path d=\"M{LEFT} {y:.1}H{}\" stroke=\"black\"/>", width - 10.0));
    add(&mut svg, format_args!("<text x=\"{}\" y=\"{:.1}\">1/N</text>", LEFT + 3.0, y - 3.0));
    let panels = [(Change::ProxyDrained, "a proxy is drained"), (Change::ProxyAdded, "a proxy is added")];
    for (index, (change, title)) in panels.into_iter().enumerate() {
        let left = LEFT + PANEL * index as f64 + 10.0;
        let x_of = |at: usize| left + 20.0 + (PANEL - 60.0) * at as f64 / (N - 1) as f64;
        add(&mut svg, format_args!("<text x=\"{left}\" y=\"20\" font-size=\"13\">{title}</text>"));
        for (at, skew) in skews.iter().enumerate() {
            let (x, y) = (x_of(at), TOP + HEIGHT + 16.0);
            add(
                &mut svg,
                format_args!("<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{skew} s</text>"),
            );
        }
        for (case, shares) in lines.iter().filter(|(case, _)| case.change == change) {
            let points: Vec<String> = shares
                .iter()
                .enumerate()
                .map(|(at, share)| format!("{:.1},{:.1}", x_of(at), y_of(*share)))
                .collect();
            let (colour, dash, _) = style(*case);
            add(
                &mut svg,
                format_args!(
                    "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" \
                     stroke-dasharray=\"{dash}\"/>",
                    points.join(" ")
                ),
            );
        }
    }
    let drained = lines.iter().filter(|(case, _)| case.change == Change::ProxyDrained);
    for (at, (case, _)) in drained.enumerate() {
        let (colour, dash, words) = style(*case);
        let (x, y) = (LEFT + 275.0 * (at / 3) as f64, TOP + HEIGHT + 50.0 + 20.0 * (at % 3) as f64);
        add(
            &mut svg,
            format_args!(
                "<path d=\"M{x} {y}h30\" stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dash}\"/>"
            ),
        );
        add(&mut svg, format_args!("<text x=\"{}\" y=\"{}\">{words}</text>", x + 36.0, y + 4.0));
    }
    let y = TOP + HEIGHT + 118.0;
    add(
        &mut svg,
        format_args!("<text x=\"{LEFT}\" y=\"{y}\">Broken flows over how far the machines are apart</text>"),
    );
    svg.push_str("</svg>\n");
    svg
}

/// Colour by what the router does, dashes by whom a proxy asks.
fn style(case: Case) -> (&'static str, &'static str, String) {
    let (colour, router) = match case.box_lost {
        None => ("#0b6e4f", "no box lost"),
        Some(Router::Resilient) => ("#3d5a99", "box lost, resilient"),
        Some(Router::Modulo) => ("#d1495b", "box lost, modulo"),
    };
    let (dash, asks) = match case.asks {
        Asks::Present => ("none", "shard"),
        Asks::PreviousOnly => ("6 3", "previous owner only"),
        Asks::Nobody => ("2 3", "no second chance"),
    };
    (colour, dash, format!("{router}: {asks}"))
}

fn y_of(share: f64) -> f64 {
    TOP + HEIGHT - (share.max(FLOOR) / FLOOR).log10() / 5.0 * HEIGHT
}

fn add(svg: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(svg, "{line}").expect("a String takes everything");
}
