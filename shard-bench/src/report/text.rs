//! The report on standard output.

use std::fmt::Write as _;

use super::document::{Document, PhasePart};
use super::units::{bytes_text, count_text, percent_text, span_of_us};
use crate::number::{ratio, whole};
use crate::tally::Phase;

/// Percentiles of the table's columns.
const COLUMNS: [f64; 8] = [50.0, 90.0, 99.0, 99.9, 99.99, 99.999, 100.0, 0.0];

/// The whole report.
pub(crate) fn render(document: &Document) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let written = write(document, &mut text);
    debug_assert!(written.is_ok());
    text
}

fn write(document: &Document, out: &mut String) -> std::fmt::Result {
    let plan = &document.plan;
    writeln!(out, "{} by {}", plan.target, document.tool)?;
    let shape = match plan.target_rate_per_s {
        Some(rate) => format!("open loop, {rate:.1} requests/s wanted, latency from the intended start"),
        None => {
            "closed loop (a stalled target stalls the load: its latency is not that of independent clients)"
                .to_owned()
        }
    };
    let per = if plan.is_connection_per_request { ", a connection for each request" } else { "" };
    writeln!(
        out,
        "{} over {} connections x {}{per}, {} core(s), {:.1} s measured after {:.1} s of warm-up, seed {}",
        plan.protocol,
        plan.connections,
        plan.depth,
        plan.cores,
        document.measured_s,
        plan.warmup_s,
        plan.seed
    )?;
    writeln!(out, "{shape}")?;
    if let Some(tls) = &document.tls {
        writeln!(out, "{} {} {} ALPN {}", tls.version, tls.cipher, tls.group, tls.alpn)?;
    }
    writeln!(out)?;
    counts(document, out)?;
    writeln!(out)?;
    phases(document, out)?;
    costs(document, out)?;
    for warning in &document.warnings {
        let mark = if warning.is_failure { "FAILED" } else { "WARNING" };
        writeln!(out, "{mark} {}: {}", warning.code, warning.text)?;
    }
    Ok(())
}

fn counts(document: &Document, out: &mut String) -> std::fmt::Result {
    let requests = &document.requests;
    writeln!(
        out,
        "requests    {} ok, {} failed, {:.1}/s   in {}/s, out {}/s",
        count_text(requests.ok),
        count_text(requests.failed),
        document.rate_per_s,
        bytes_text(per_second(document.bytes_in, document.measured_s)),
        bytes_text(per_second(document.bytes_out, document.measured_s)),
    )?;
    if requests.messages > 0 {
        let rate = per_second(requests.messages, document.measured_s);
        writeln!(out, "messages    {} received, {}/s", count_text(requests.messages), count_text(rate))?;
    }
    let statuses: Vec<_> = document.statuses.iter().map(|(s, n)| format!("{s} {}", count_text(*n))).collect();
    if !statuses.is_empty() {
        writeln!(out, "status      {}", statuses.join(", "))?;
    }
    let connections = &document.connections;
    let tls = match (connections.tls_full, connections.tls_resumed) {
        (0, 0) => String::new(),
        (full, resumed) => format!(", TLS {} full, {} resumed", count_text(full), count_text(resumed)),
    };
    let early = match (connections.early_data_accepted, connections.early_data_refused) {
        (0, 0) => String::new(),
        (yes, no) => format!(", early data {} accepted, {} refused", count_text(yes), count_text(no)),
    };
    writeln!(out, "connections {} opened{tls}{early}", count_text(connections.opened))?;
    if connections.goaways + connections.resets > 0 {
        writeln!(out, "frames      {} GOAWAY, {} RST_STREAM", connections.goaways, connections.resets)?;
    }
    for (class, count) in &document.errors {
        let share = percent_text(ratio(*count, requests.ok + requests.failed));
        let text = document.error_texts.get(class).map(|text| format!(": {text}")).unwrap_or_default();
        writeln!(out, "error       {} {class} ({share}){text}", count_text(*count))?;
    }
    if requests.late > 0 {
        writeln!(
            out,
            "late        {} requests were sent over 1 ms after their intended start",
            requests.late
        )?;
    }
    Ok(())
}

fn per_second(count: u64, seconds: f64) -> u64 {
    if seconds > 0.0 { whole(crate::number::float(count) / seconds) } else { 0 }
}

fn phases(document: &Document, out: &mut String) -> std::fmt::Result {
    write!(out, "{:12}", "")?;
    for percentile in COLUMNS {
        let name = match percentile {
            0.0 => "min".to_owned(),
            100.0 => "max".to_owned(),
            p => format!("{p}%"),
        };
        write!(out, "{name:>9}")?;
    }
    writeln!(out, "{:>9}{:>12}", "mean", "count")?;
    for phase in Phase::ALL {
        if let Some(part) = document.phase(phase) {
            row(phase.name(), part, out)?;
        }
    }
    Ok(())
}

fn row(name: &str, part: &PhasePart, out: &mut String) -> std::fmt::Result {
    write!(out, "{name:12}")?;
    for percentile in COLUMNS {
        // A percentile that fewer values than its inverse stand behind is the maximum by another name.
        write!(out, "{:>9}", span_of_us(part.at(percentile)))?;
    }
    writeln!(out, "{:>9}{:>12}", span_of_us(part.mean_us), count_text(part.count))
}

fn costs(document: &Document, out: &mut String) -> std::fmt::Result {
    let generator = &document.generator;
    writeln!(
        out,
        "\ngenerator   {:.2} µs CPU a request, {} busy",
        generator.cpu_us_per_request,
        percent_text(generator.busy)
    )?;
    if let Some(target) = &document.target {
        writeln!(
            out,
            "target      {:.2} µs CPU a request, {:.2} s in all, {} resident ({} before), {} process(es)",
            target.cpu_us_per_request,
            target.cpu_s,
            bytes_text(target.resident_bytes_after),
            bytes_text(target.resident_bytes_before),
            target.processes,
        )?;
    }
    Ok(())
}
