//! Cost of recording one exchange: counters, and the access log line as JSON and by a template.
//!
//! `cargo bench -p http-proxy --bench record`; with `SHARD_BENCH_SMOKE=1` only a few rounds, to see that it runs.
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]
#![expect(clippy::disallowed_methods, reason = "a bench reads the clock")]

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use http_balance::Rng;
use http_proxy::record::{CoreStats, Frame, LogRow, Outcome, Stage, TableSizes, Template, write_json};
use http_proxy::snapshot::StatId;

fn outcome(rng: &mut Rng) -> Outcome {
    let mut outcome = Outcome {
        listener: StatId(0),
        route: Some(StatId(7)),
        cluster: Some(StatId(7)),
        endpoint: Some(StatId(70)),
        status: 200,
        request_bytes: 100,
        response_bytes: 1024,
        attempts: 1,
        ..Outcome::default()
    };
    for stage in
        [Stage::HeadParse, Stage::Gateway, Stage::PoolWait, Stage::FirstByte, Stage::Body, Stage::Total]
    {
        outcome.stages.set(stage, Duration::from_nanos(rng.below(2_000_000)));
    }
    outcome
}

fn row(outcome: &Outcome) -> LogRow<'_> {
    LogRow {
        time_unix_ms: 1_767_225_599_123,
        outcome,
        core: 1,
        request_id: b"0198c5c8-7a3e-7c12-9d0a-5a1f0c9e7b11",
        trace_id: None,
        client: IpAddr::V4(Ipv4Addr::new(203, 0, 113, 7)),
        listener: "public",
        route: Some("orders"),
        cluster: Some("orders-v1"),
        endpoint: Some(SocketAddr::from(([10, 0, 0, 1], 8080))),
        protocol: "HTTP/1.1",
        method: b"GET",
        host: b"api.shop.example",
        path: b"/v1/orders/4711/items",
        query: Some(b"page=2&limit=50"),
        user_agent: Some(
            b"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0",
        ),
        referer: None,
        tls_version: Some("TLSv1.3"),
        tls_cipher: Some("TLS13_AES_128_GCM_SHA256"),
        server_name: Some(b"api.shop.example"),
        detail: None,
    }
}

fn measure(name: &str, rounds: u32, mut work: impl FnMut()) {
    let start = Instant::now();
    for _ in 0..rounds {
        work();
    }
    let ns = start.elapsed().as_secs_f64() * 1e9 / f64::from(rounds);
    println!("{name:>24} {ns:>9.1} ns");
}

fn main() {
    let rounds: u32 = if std::env::var_os("SHARD_BENCH_SMOKE").is_some() { 1_000 } else { 2_000_000 };
    let mut rng = Rng::new(1);
    let outcomes: Vec<Outcome> = (0..1024).map(|_| outcome(&mut rng)).collect();
    let mut next = outcomes.iter().cycle();
    let mut stats = CoreStats::default();
    stats.grow(TableSizes { listeners: 4, routes: 1_000, clusters: 1_000, endpoints: 5_000 });
    measure("counters", rounds, || {
        if let Some(outcome) = next.next() {
            stats.record(black_box(outcome));
        }
    });
    let template = Template::parse(
        "%client% [%time%] \"%method% %path% %protocol%\" %status% %response_bytes% \"%user_agent%\"",
    );
    let mut line = Vec::new();
    let row = row(&outcomes[0]);
    measure("JSON line", rounds, || {
        line.clear();
        write_json(&mut line, black_box(&row));
    });
    if let Ok(template) = template {
        measure("template line", rounds, || {
            line.clear();
            template.write(&mut line, black_box(&row));
        });
    }
    let mut frame = Frame::default();
    measure("frame copy", rounds / 1_000, || frame.copy_from(black_box(&stats)));
}
