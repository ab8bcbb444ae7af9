//! Files that a run leaves, and A against B.

use std::path::Path;

use crate::support::{Folder, Target, bench, number, read_json, text};

#[test]
fn all_files_of_a_run() {
    let folder = Folder::new("files");
    let target = Target::start(&[]);
    let url = target.url("http", "/");
    let [json, csv, hdr, html] =
        ["run.json", "run.csv", "run.hlog", "run.html"].map(|name| folder.path(name));
    let words = ["run", &url, "--rate", "100", "-d", "2s", "--warmup", "100ms", "-c", "4"];
    let files = ["--label", "a stable", "--json", &json, "--csv", &csv, "--hdr", &hdr, "--html", &html];
    let output = bench(&[&words[..], &files[..]].concat());
    assert!(matches!(output.status.code(), Some(0 | 2)), "{}", text(&output));
    assert_eq!(
        folder.names(),
        ["run.csv", "run.hlog", "run.html", "run.json"],
        "whole files and nothing else"
    );
    let document = read_json(Path::new(&json));
    assert!(document["schema"] == "shard-bench/run" && document["version"] == 1);
    assert!(document["plan"]["target"] == "a stable");
    let read = |path: &str| std::fs::read_to_string(path).expect("text");
    assert!(read(&csv).lines().count() >= 3, "{}", read(&csv));
    assert!(read(&hdr).contains("HISTF"), "{}", read(&hdr));
    let page = read(&html);
    assert!(page.contains("\"shard-bench/run\"") && !page.contains("@DATA@"));
    let links = page.matches("http://").filter(|_| true).count();
    assert!(links <= 2 + page.matches(&target.addr.to_string()).count(), "nothing is loaded from a network");
    let merged = folder.path("both.html");
    let report = bench(&["report", &json, &json, "--html", &merged]);
    assert_eq!(report.status.code(), Some(0), "{}", text(&report));
    assert!(read(&merged).matches("\"shard-bench/run\"").count() == 2);
    let printed = bench(&["report", &json]);
    assert!(text(&printed).contains("open loop"), "{}", text(&printed));
}

#[test]
fn a_slower_target_is_found_and_sets_the_exit_code() {
    let folder = Folder::new("ab");
    let json = folder.path("ab.json");
    let html = folder.path("ab.html");
    let target = Target::start(&[]);
    // The same program; B's answers are a thousand times as large.
    let (a, b) = (target.url("http", "/bytes/1000"), target.url("http", "/bytes/1000000"));
    let short = ["-d", "200ms", "--warmup", "50ms", "--rounds", "6", "-c", "4"];
    let output = bench(&[&["ab", &a, &b, "--json", &json, "--html", &html], &short[..]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("B is slower"), "{}", text(&output));
    let document = read_json(Path::new(&json));
    assert!(document["schema"] == "shard-bench/ab" && document["verdict"] == "slower");
    assert!(number(&document, &["a", "rate_per_s"]) > number(&document, &["b", "rate_per_s"]));
    assert!(std::fs::read_to_string(&html).expect("text").contains("\"verdict\":\"slower\""));
    let other = bench(&["report", &json]);
    assert!(
        other.status.code() == Some(64) && text(&other).contains("shard-bench/ab; this command reads"),
        "{}",
        text(&other)
    );
    let output = bench(&[&["ab", &b, &a], &short[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert!(text(&output).contains("B is faster"), "{}", text(&output));
}

#[test]
fn targets_are_started_and_ended() {
    let free = || std::net::TcpListener::bind("127.0.0.1:0").expect("bind").local_addr().expect("an address");
    let (a, b) = (free(), free());
    let start = |addr| format!("{} serve --listen {addr}", crate::support::PROGRAM);
    let (url_a, url_b) = (format!("http://{a}/"), format!("http://{b}/"));
    let short = ["-d", "300ms", "--warmup", "50ms", "--rounds", "2", "-c", "4"];
    let words = ["ab", &url_a, &url_b, "--start", &start(a), "--start", &start(b)].map(str::to_owned);
    let words: Vec<&str> = words.iter().map(String::as_str).chain(short).collect();
    let output = bench(&words);
    assert_eq!(output.status.code(), Some(0), "two rounds show nothing: {}", text(&output));
    assert!(text(&output).contains("few_rounds") && text(&output).contains("cpu"), "{}", text(&output));
    for addr in [a, b] {
        crate::support::wait_for("the target's end", || {
            std::net::TcpStream::connect(addr).is_err().then_some(())
        });
    }
}
