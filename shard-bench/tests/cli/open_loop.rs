//! What an open loop promises: its rate, latency from the intended start, and stalls that show.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::{
    Folder, Target, bench, number, pass, percentile, read_json, run, text, wait_for_connections,
};
use rustix::process::Signal;

#[test]
fn the_schedule_is_kept() {
    let target = Target::start(&[]);
    let url = target.url("http", "/");
    let plain = run(&[&url, "--rate", "200", "-d", "2s", "-c", "16"]);
    assert!(number(&plain, &["requests", "expected"]) == 400.0);
    let started = number(&plain, &["requests", "started"]);
    assert!((390.0..=401.0).contains(&started), "{started}");
    let paced = number(&plain, &["phases", "pacing", "count"]);
    assert!((399.0..=401.0).contains(&paced), "{paced}");
    let spinning = run(&[&url, "--rate", "200", "-d", "1s", "-c", "16", "--spin", "200us"]);
    assert!(number(&spinning, &["requests", "started"]) >= 195.0, "{spinning:#}");
    let ramp = run(&[&url, "--stages", "1s:0-200,500ms:0,500ms:100", "--warmup", "0s", "-c", "16"]);
    let started = number(&ramp, &["requests", "started"]);
    assert!((145.0..=151.0).contains(&started), "100 of the ramp and 50 of the step: {started}");
    let burst = run(&[&url, "--burst", "20/500ms", "--warmup", "0s", "-d", "2s", "-c", "32"]);
    assert!(number(&burst, &["requests", "started"]) == 80.0, "{burst:#}");
}

#[test]
fn a_trace_is_replayed() {
    let folder = Folder::new("trace");
    let times: String = (0..50).map(|n| format!("{}\n", f64::from(n) * 0.02)).collect();
    let trace = folder.file("trace", times.as_bytes());
    let target = Target::start(&[]);
    let document = run(&[&target.url("http", "/"), "--trace", &trace, "-c", "8"]);
    assert!(number(&document, &["requests", "ok"]) == 50.0, "{document:#}");
    assert!(number(&document, &["measured_s"]) >= 0.98);
}

/// Coordinated omission: a target that stands still for a second must be seen by the percentiles.
#[test]
fn a_target_that_stalls_for_a_second_shows_in_the_percentiles() {
    let folder = Folder::new("stall");
    let json = folder.path("run.json");
    let target = Target::start(&[]);
    let url = target.url("http", "/");
    let mut child = Command::new(crate::support::PROGRAM)
        .args(["run", &url, "--rate", "200", "-d", "4s", "--warmup", "0s", "-c", "8", "--json", &json])
        .stdout(Stdio::null())
        .spawn()
        .expect("starts");
    wait_for_connections(&child, 8);
    pass(Duration::from_millis(500));
    target.signal(Signal::STOP);
    pass(Duration::from_secs(1));
    target.signal(Signal::CONT);
    let status = child.wait().expect("ends");
    assert!(matches!(status.code(), Some(0 | 2)), "{status}");
    let document = read_json(std::path::Path::new(&json));
    // A quarter of the starts fell into the stall and waited half a second on average.
    let (p50, p90, max) = (
        percentile(&document, "latency", 50.0),
        percentile(&document, "latency", 90.0),
        percentile(&document, "latency", 100.0),
    );
    assert!(p90 > 300_000.0, "p90 {p90} µs, p50 {p50} µs: {document:#}");
    assert!(max > 900_000.0, "max {max} µs");
    // Eight connections can hold eight of 200 requests: measured from the sending, the stall all but vanishes.
    let raw = percentile(&document, "raw", 90.0);
    assert!(raw < p90 / 4.0, "raw p90 {raw} µs against {p90} µs");
    // On a machine that is busy with other things the generator may be late as well, and then says that.
    let warnings = document["warnings"].to_string();
    assert!(warnings.contains("connections_busy") || warnings.contains("generator_late"), "{warnings}");
}

#[test]
fn a_rate_that_is_not_reached_is_loud() {
    let target = Target::start(&["--body-bytes", "100000"]);
    let url = target.url("http", "/");
    let words = ["run", &url, "--rate", "5000", "-d", "1s", "--warmup", "0s", "-c", "1", "--slow-read", "1M"];
    let output = bench(&words);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    let said = text(&output);
    assert!(said.contains("FAILED rate_not_reached") && said.contains("FAILED missed_starts"), "{said}");
}

#[test]
fn objectives_set_the_exit_code() {
    let target = Target::start(&[]);
    let url = target.url("http", "/");
    let closed = ["run", &url, "-n", "50", "-c", "2", "-d", "30s", "--slo"];
    let met = bench(&[&closed[..], &["p99<30s,err<1%,rate>0"]].concat());
    assert_eq!(met.status.code(), Some(0), "{}", text(&met));
    let broken = bench(&[&closed[..], &["p50<1us,err<1%"]].concat());
    assert_eq!(broken.status.code(), Some(1), "{}", text(&broken));
    assert!(text(&broken).contains("SLO p50<1us: NOT MET"), "{}", text(&broken));
}

#[test]
fn the_targets_cpu_is_read() {
    let target = Target::start(&[]);
    let pid = target.pid().to_string();
    let document =
        run(&[&target.url("http", "/"), "-d", "1s", "--warmup", "100ms", "-c", "4", "--pid", &pid]);
    let cpu = number(&document, &["target", "cpu_us_per_request"]);
    assert!(cpu > 0.1 && cpu < 10_000.0, "{cpu}");
    assert!(number(&document, &["target", "resident_bytes_after"]) > 1e6);
}

#[test]
fn a_signal_ends_the_run_with_its_report() {
    let target = Target::start(&[]);
    let url = target.url("http", "/");
    let child = Command::new(crate::support::PROGRAM)
        .args(["run", &url, "-d", "300s", "--warmup", "0s", "-c", "2"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    wait_for_connections(&child, 2);
    let pid = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw).expect("a pid");
    pass(Duration::from_millis(300));
    rustix::process::kill_process(pid, Signal::INT).expect("alive");
    let output = child.wait_with_output().expect("ends");
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    assert!(text(&output).contains("stopped before its end"), "{}", text(&output));
}

#[test]
fn a_thousand_connections_are_there_before_the_schedule() {
    let target = Target::start(&[]);
    let url = target.url("http", "/");
    let document = run(&[&url, "-c", "1000", "--stages", "1s:1000", "--warmup", "0s"]);
    assert!(number(&document, &["connections", "opened"]) == 1000.0, "{document:#}");
    assert!(number(&document, &["requests", "ok"]) >= 990.0, "{document:#}");
}

#[test]
fn a_run_lasts_to_its_end_when_nothing_more_is_due() {
    let target = Target::start(&[]);
    let url = target.url("http", "/");
    for load in [["--stages", "300ms:50,900ms:0"], ["--rate", "1.5"]] {
        let document =
            run(&[&[url.as_str(), "-d", "1200ms", "--warmup", "0", "-c", "2"], &load[..]].concat());
        assert!((number(&document, &["measured_s"]) - 1.2).abs() < 1e-6, "{document:#}");
    }
}
