//! Cost of one `RouteTable::find`, among 5,000 routes of 300 hosts, and how it grows with either number.
//!
//! The budget is 300 ns p50 without allocation, whatever the number of hosts. `cargo bench -p http-proxy --bench
//! route`; with `SHARD_BENCH_SMOKE=1` fewer rounds, to see that it runs. Exit code 1: over three times the budget
//! (machines differ, and so do their neighbours), an allocation, or a cost that grows with the hosts.
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]
#![expect(clippy::disallowed_methods, reason = "a bench reads the clock")]

use std::alloc::System;
use std::hint::black_box;
use std::process::ExitCode;
use std::time::Instant;

use http_gateway::fields::FieldOps;
use http_proxy::route::{
    Case, HeaderRule, HeaderValueRule, Missing, PathRule, RouteRule, RouteTable, Sense, TextRule,
    VirtualHostConfig,
};
use http_proxy::snapshot::{Action, DirectResponse, Route, StatId};
use http_wire::head::RequestHead;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const BUDGET_P50_NS: f64 = 300.0;
const SLACK: f64 = 3.0;
/// Look-ups between two readings of the clock, whose own cost would hide one look-up.
const BATCH: usize = 16;

/// Different requests; as many as several cores' worth of clients would mix, few enough to stay in the cache.
const REQUESTS_MAX: usize = 4_096;

/// Which rule of a host the requests ask for.
#[derive(Clone, Copy)]
enum Asked {
    Any,
    Miss,
}

struct Shape {
    name: &'static str,
    hosts: usize,
    routes_per_host: usize,
    /// How many of the hosts the requests are for.
    hosts_asked: usize,
    asked: Asked,
    judged: Judged,
}

/// Whether the budget holds for a shape.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Judged {
    Yes,
    /// It shows what a table costs that no cache holds.
    No,
}

const fn shape(name: &'static str, hosts: usize, routes_per_host: usize, hosts_asked: usize) -> Shape {
    Shape { name, hosts, routes_per_host, hosts_asked, asked: Asked::Any, judged: Judged::Yes }
}

const SHAPES: [Shape; 6] = [
    shape("30 hosts", 30, 17, 30),
    shape("300 hosts (the budget)", 300, 17, 300),
    shape("3,000 hosts, 300 asked", 3_000, 17, 300),
    Shape { judged: Judged::No, ..shape("3,000 hosts, all asked", 3_000, 17, 3_000) },
    shape("1 host", 1, 5_000, 1),
    Shape { asked: Asked::Miss, ..shape("300 hosts, no route", 300, 17, 300) },
];

fn main() -> ExitCode {
    // Times of a few rounds, on a machine that may be busy with other things, judge nothing.
    let is_smoke = std::env::var_os("SHARD_BENCH_SMOKE").is_some();
    let rounds = if is_smoke { 2_000 } else { 200_000 };
    println!("{:<24} {:>7} {:>9} {:>9} {:>12}", "shape", "routes", "p50 ns", "p99 ns", "allocations");
    let mut figures = Vec::new();
    for shape in &SHAPES {
        let table = table(shape);
        let figure = measure(&table, &requests(shape), rounds);
        let routes = table.len();
        println!(
            "{:<24} {routes:>7} {:>9.0} {:>9.0} {:>12}",
            shape.name, figure.p50_ns, figure.p99_ns, figure.allocations
        );
        figures.push(figure);
    }
    let mut judged = SHAPES.iter().zip(&figures);
    let over = judged
        .any(|(shape, figure)| shape.judged == Judged::Yes && figure.p50_ns > BUDGET_P50_NS * SLACK)
        && !is_smoke;
    let allocates = figures.iter().any(|f| f.allocations > 0);
    // Ten times the hosts, the same requests: a search among hosts would cost ten times as much.
    let grows =
        !is_smoke && matches!(&figures[..], [_, budget, many, ..] if many.p50_ns > budget.p50_ns * SLACK);
    for (bad, what) in
        [(over, "over budget"), (allocates, "a look-up allocates"), (grows, "cost grows with the hosts")]
    {
        if bad {
            println!("FAILED: {what}");
        }
    }
    if over || allocates || grows { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

struct Figure {
    p50_ns: f64,
    p99_ns: f64,
    allocations: usize,
}

/// What differs between requests. They share one head: in the proxy a head was parsed just before, so that it is
/// in the cache, and thousands of them here would measure their own misses.
struct Request {
    authority: Vec<u8>,
    path: Vec<u8>,
}

fn measure(table: &RouteTable, requests: &[Request], rounds: usize) -> Figure {
    let head = head();
    // Patterns build their automata on first use.
    for request in requests {
        black_box(table.find(&head, &request.authority, &request.path));
    }
    let mut samples_ns: Vec<f64> = Vec::with_capacity(rounds);
    let mut picks = 0_usize;
    let region = Region::new(ALLOCATOR);
    for _ in 0..rounds {
        let start = Instant::now();
        for _ in 0..BATCH {
            // Steps of a prime visit hosts in no order that a cache could like.
            picks = (picks + 7_919) % requests.len();
            if let Some(request) = requests.get(picks) {
                black_box(table.find(black_box(&head), &request.authority, &request.path));
            }
        }
        samples_ns.push(start.elapsed().as_secs_f64() * 1e9 / 16.0);
    }
    let allocations = region.change().allocations;
    samples_ns.sort_by(f64::total_cmp);
    let at = |share: usize| samples_ns.get(samples_ns.len() * share / 100).copied().unwrap_or(f64::NAN);
    Figure { p50_ns: at(50), p99_ns: at(99), allocations }
}

fn host_name(host: usize) -> String {
    format!("service-{host}.team-{}.example.com", host % 40)
}

fn table(shape: &Shape) -> RouteTable {
    let mut hosts: Vec<VirtualHostConfig> = (0..shape.hosts)
        .map(|host| {
            let exact = host_name(host);
            let wildcard = format!("*.zone-{host}.example.net");
            let rules = (0..shape.routes_per_host).map(|at| rule(host, at)).collect();
            VirtualHostConfig { name: exact.clone(), domains: vec![exact, wildcard], rules }
        })
        .collect();
    hosts.push(VirtualHostConfig {
        name: "rest".to_owned(),
        domains: vec!["*".to_owned()],
        rules: Vec::new(),
    });
    RouteTable::build(hosts).expect("the bench's table is valid")
}

fn path(at: usize) -> String {
    format!("/api/v{}/resource-{at}", at % 3)
}

/// Of 17 rules: 8 segment prefixes, 4 exact paths, 2 with a method, 2 with a header, 1 pattern.
fn rule(host: usize, at: usize) -> RouteRule {
    let text = |value: &str| HeaderValueRule::Text(TextRule::Exact(value.to_owned(), Case::Sensitive));
    let header = |name: &str, value: &str| HeaderRule {
        name: name.to_owned(),
        value: text(value),
        sense: Sense::Is,
        missing: Missing::Fails,
    };
    let segments = PathRule::Segments(path(at), Case::Sensitive);
    let (path, headers) = match at % 17 {
        0..=7 => (segments, Vec::new()),
        8..=11 => (PathRule::Exact(path(at), Case::Sensitive), Vec::new()),
        12 | 13 => (segments, vec![header(":method", "GET")]),
        14 | 15 => (segments, vec![header("x-canary", "1")]),
        _ => (PathRule::Regex(format!("{}/[0-9]+/.*", path(at))), Vec::new()),
    };
    RouteRule { path, headers, query: Vec::new(), route: route(format!("route-{host}-{at}")) }
}

fn route(name: String) -> Route {
    let answer = DirectResponse { status: 204, content_type: String::new(), body: Vec::new() };
    Route {
        name,
        stat: StatId(0),
        action: Action::Direct(Box::new(answer)),
        timeout: None,
        idle_timeout: None,
        body_bytes_max: None,
        body_rate: None,
        request_fields: FieldOps::default(),
        response_fields: FieldOps::default(),
        cors: None,
        access: None,
        client_limit: None,
        deprecation: None,
        token: None,
        sunset: None,
        error_pages: Vec::new(),
    }
}

fn head() -> RequestHead {
    let mut head = RequestHead::default();
    let fields =
        [("user-agent", "bench/1"), ("accept", "*/*"), ("x-request-id", "0123456789"), ("x-canary", "1")];
    for (name, value) in fields {
        head.fields.push_name(name.as_bytes(), value.as_bytes()).expect("a valid field");
    }
    head
}

fn requests(shape: &Shape) -> Vec<Request> {
    let all = shape.hosts_asked * shape.routes_per_host;
    // A sample of all hosts and rules, spread by a step that shares no factor with either.
    (0..REQUESTS_MAX.min(all))
        .map(|n| {
            let n = n * 10_007 % all;
            let (host, at) = (n % shape.hosts_asked, n / shape.hosts_asked);
            // Every fourth by wildcard, every fourth with a port.
            let authority = match n % 4 {
                0 => format!("a.zone-{host}.example.net"),
                1 => format!("{}:8443", host_name(host)),
                _ => host_name(host),
            };
            let path = match (shape.asked, at % 17) {
                (Asked::Miss, _) => format!("/api/v{}/nothing-{at}", at % 3),
                (Asked::Any, 8..=11) => path(at),
                (Asked::Any, _) => format!("{}/12345/details", path(at)),
            };
            Request { authority: authority.into_bytes(), path: path.into_bytes() }
        })
        .collect()
}
