//! `shardctl check` and `shardctl explain` on the gateway example: what they say is what docs/examples means.

use std::process::Command;

use tests::proxy::binary;

use crate::examples::prepared;
use crate::examples_dir;

/// Runs shardctl: exit code, standard output, standard error.
fn shardctl(arguments: &[&str]) -> (Option<i32>, String, String) {
    let run = Command::new(binary("shardctl")).args(arguments).output().expect("shardctl starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (run.status.code(), text(&run.stdout), text(&run.stderr))
}

#[test]
fn check_counts_what_the_gateway_example_holds() {
    let dir = prepared(&examples_dir().join("gateway"));
    let (code, out, err) = shardctl(&["check", &dir.path().display().to_string()]);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    for part in [" good, ", ": 3 listeners, ", " 5 clusters, 0 warnings\n"] {
        assert!(out.contains(part), "{part}: {out}");
    }
}

#[test]
fn check_names_the_place_of_a_fault_and_the_way_out() {
    let dir = prepared(&examples_dir().join("gateway"));
    let path = "services/orders/service.yaml";
    let text = std::fs::read_to_string(dir.path().join(path)).expect("a service of the example");
    let line = text.lines().position(|line| line.contains("client_limit")).expect("a limit") + 1;
    dir.write(path, text.replace("requests_per_second: 20", "requests_per_second: fast"));
    let (code, out, _) = shardctl(&["check", &dir.path().display().to_string()]);
    assert_eq!(code, Some(1), "{out}");
    let first = out.lines().next().unwrap_or_default();
    assert!(first.starts_with(&format!("{path}:{line}:")), "{out}");
    for part in ["requests_per_second", "fast", "10000000"] {
        assert!(first.contains(part), "{part}: {out}");
    }
}

#[test]
fn explain_follows_requests_through_the_gateway_example() {
    let dir = prepared(&examples_dir().join("gateway"));
    let config = dir.path().display().to_string();
    // Method and URL, fields, exit code, lines that must be there.
    let cases: &[(&str, &[&str], i32, &[&str])] = &[
        (
            "POST https://api.example.test:8443/v2/./orders?x=1",
            &[],
            0,
            &[
                "path        /v2/orders",
                "route       orders/create",
                "timeout     10s",
                "admits      at most 500 in flight; breaker over 50 % of at least 100 in 10s, open 10s; sheds from a strain of 750, 800, 860, 940",
                "balance     ring of 256 points an endpoint, at most 125 % of a fair share, slow start from 10 %, panic below 50 %",
                "retries     1 retry; 10 % of the requests, at least 10 a second and core",
                "hash by     the field x-tenant",
                "attempts    1 retry, 4s an attempt",
                "attempts    a POST with Idempotency-Key may be repeated",
            ],
        ),
        ("GET https://api.example.test:8443/v2/orders/7", &[], 0, &["route       orders/v2"]),
        // Two services share this host: the rest of its paths is the shop's.
        ("GET https://api.example.test:8443/products", &[], 0, &["route       shop/pages"]),
        (
            "GET https://shop.example.test:8443/images/1.png",
            &[],
            0,
            &["route       shop/images", "path sent   /v2/images/1.png"],
        ),
        ("GET https://shop.example.test:8443/", &["x-beta: 12"], 0, &["route       shop/beta"]),
        ("GET https://shop.example.test:8443/", &["x-beta: 0"], 0, &["route       shop/pages"]),
        (
            "GET https://shop.example.test:8443/catalogue/a",
            &[],
            0,
            &["answer      redirect 308, path /products/a"],
        ),
        ("GET http://any.example:8080/x", &[], 0, &["route       status/to-https"]),
        (
            "GET https://nobody.example:8443/",
            &[],
            1,
            &["answer      404 no_virtual_host: Host is not served"],
        ),
        (
            "GET https://shop.example.test:8443/a%2Fb",
            &[],
            1,
            &["answer      400 path_rejected: Path refused"],
        ),
    ];
    for (request, fields, wanted, lines) in cases {
        let (method, url) = request.split_once(' ').expect("a method and a URL");
        let mut arguments = vec!["explain", method, url, "--config", &config];
        fields.iter().for_each(|field| arguments.extend(["-H", field]));
        let (code, out, err) = shardctl(&arguments);
        assert_eq!(code, Some(*wanted), "{request}: {out}{err}");
        for line in *lines {
            assert!(out.lines().any(|found| found == *line), "{request} lacks {line:?}:\n{out}");
        }
    }
}
