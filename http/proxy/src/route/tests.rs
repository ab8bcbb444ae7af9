//! Routing semantics by family, and the agreement of the fast look-up with the plain reading of the list.

use http_gateway::fields::FieldOps;
use http_wire::head::RequestHead;

use super::{
    Case, HeaderRule, HeaderValueRule, Missing, Outcome, PathRule, QueryRule, RouteErrorKind, RouteRule,
    RouteTable, Sense, TextRule, VirtualHostConfig,
};
use crate::snapshot::{Action, DirectResponse, Route, StatId};

fn route(name: &str) -> Route {
    Route {
        name: name.to_owned(),
        stat: StatId(0),
        action: Action::Direct(Box::new(DirectResponse {
            status: 200,
            content_type: String::new(),
            body: Vec::new(),
        })),
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

fn rule(name: &str, path: PathRule) -> RouteRule {
    RouteRule { path, headers: Vec::new(), query: Vec::new(), route: route(name) }
}

fn exact(path: &str) -> PathRule {
    PathRule::Exact(path.to_owned(), Case::Sensitive)
}

fn prefix(path: &str) -> PathRule {
    PathRule::Prefix(path.to_owned(), Case::Sensitive)
}

fn segments(path: &str) -> PathRule {
    PathRule::Segments(path.to_owned(), Case::Sensitive)
}

fn regex(pattern: &str) -> PathRule {
    PathRule::Regex(pattern.to_owned())
}

fn is(text: &str) -> TextRule {
    TextRule::Exact(text.to_owned(), Case::Sensitive)
}

fn header(name: &str, value: HeaderValueRule) -> HeaderRule {
    HeaderRule { name: name.to_owned(), value, sense: Sense::Is, missing: Missing::Fails }
}

fn host(name: &str, domains: &[&str], rules: Vec<RouteRule>) -> VirtualHostConfig {
    VirtualHostConfig {
        name: name.to_owned(),
        domains: domains.iter().map(|d| (*d).to_owned()).collect(),
        rules,
    }
}

fn table_of(rules: Vec<RouteRule>) -> RouteTable {
    RouteTable::build(vec![host("all", &["*"], rules)]).expect("a valid table")
}

fn request(method: &str, query: Option<&str>, fields: &[(&str, &str)]) -> RequestHead {
    let mut head = RequestHead::default();
    head.set_method(method.as_bytes()).expect("a token");
    head.set_authority(b"a.example").expect("short");
    head.set_query(query.map(str::as_bytes)).expect("short");
    for (name, value) in fields {
        head.fields.push_name(name.as_bytes(), value.as_bytes()).expect("a field");
    }
    head
}

/// The winner's name, checked against `explain`.
fn winner<'t>(table: &'t RouteTable, head: &RequestHead, authority: &str, path: &str) -> Option<&'t str> {
    let found = table.find(head, authority.as_bytes(), path.as_bytes());
    let steps = table.explain(head, authority.as_bytes(), path.as_bytes());
    let explained = steps.last().filter(|s| s.outcome == Outcome::Matched).map(|s| s.subject.as_str());
    let name = found.as_ref().map(|m| m.route.name.as_str());
    assert_eq!(
        name,
        explained.and_then(|s| s.strip_prefix("route ")?.split(':').next()),
        "explain disagrees on {authority} {path}: {steps:#?}"
    );
    if let Some(found) = found {
        assert_eq!(
            table.route(found.index).map(|r| r.name.as_str()),
            name,
            "the index leads to the same route"
        );
    }
    name
}

#[test]
fn a_request_stays_in_the_virtual_host_of_its_authority() {
    let table = RouteTable::build(vec![
        host("any", &["*"], vec![rule("any", prefix("/"))]),
        host("a", &["a.example"], vec![rule("a-api", prefix("/api"))]),
        host("sub", &["*.a.example"], vec![rule("sub", prefix("/"))]),
        host("empty", &["empty.example"], Vec::new()),
    ])
    .expect("a valid table");
    let head = request("GET", None, &[]);
    for (authority, path, expected) in [
        ("a.example", "/api/1", Some("a-api")),
        ("a.example:8080", "/api/1", Some("a-api")),
        // No fall-back to `*` for a host that is served.
        ("a.example", "/other", None),
        ("empty.example", "/", None),
        ("x.a.example", "/api", Some("sub")),
        ("x.y.a.example", "/api", Some("sub")),
        ("b.example", "/api", Some("any")),
    ] {
        assert_eq!(winner(&table, &head, authority, path), expected, "{authority}{path}");
    }
    assert_eq!(table.len(), 3);
    let names: Vec<_> = table.routes().map(|r| r.name.as_str()).collect();
    assert_eq!(names, ["any", "a-api", "sub"]);
}

#[test]
fn path_kinds_match_what_they_say() {
    for (path, matching, others) in [
        (exact("/a"), vec!["/a"], vec!["/", "/a/", "/ab", "/A", ""]),
        (PathRule::Exact("/aB".into(), Case::Insensitive), vec!["/ab", "/AB"], vec!["/ab/", "/a"]),
        (prefix("/a"), vec!["/a", "/ab", "/a/b"], vec!["/", "/A", "/b/a", ""]),
        (prefix("/a/"), vec!["/a/", "/a/b"], vec!["/a", "/ab"]),
        (prefix("/"), vec!["/", "/x"], vec!["", "*"]),
        (PathRule::Prefix("/API".into(), Case::Insensitive), vec!["/api/x", "/Apis"], vec!["/ap"]),
        (segments("/a/b"), vec!["/a/b", "/a/b/", "/a/b/c"], vec!["/a/bc", "/a", "/a/b%2fc"]),
        (PathRule::Segments("/A".into(), Case::Insensitive), vec!["/a", "/a/x"], vec!["/ab"]),
        (regex("/v[0-9]+/.*"), vec!["/v1/", "/v22/x"], vec!["/v/", "/v1", "/xv1/", "/V1/x"]),
        (regex("(?i)/v1"), vec!["/v1", "/V1"], vec!["/v1/"]),
        (exact("*"), vec!["*"], vec!["/", "/*"]),
    ] {
        let label = format!("{path:?}");
        let table = table_of(vec![rule("it", path)]);
        let head = request("GET", None, &[]);
        for path in matching {
            assert_eq!(winner(&table, &head, "a.example", path), Some("it"), "{label} on {path}");
        }
        for path in others {
            assert_eq!(winner(&table, &head, "a.example", path), None, "{label} on {path}");
        }
    }
}

#[test]
fn the_first_rule_in_list_order_wins_whatever_its_kind() {
    let table = table_of(vec![
        rule("early-prefix", prefix("/early")),
        rule("exact-late", exact("/early/x")),
        rule("exact", exact("/a/b")),
        rule("regex", regex("/a/[bc]")),
        rule("long", prefix("/a/")),
        rule("regex-late", regex("/a/d")),
        rule("any-case", PathRule::Prefix("/UP".into(), Case::Insensitive)),
        rule("up", exact("/up")),
        rule("root", prefix("/")),
        rule("behind-root", prefix("/a/e/f")),
    ]);
    let head = request("GET", None, &[]);
    for (path, expected) in [
        ("/early/x", "early-prefix"),
        ("/a/b", "exact"),
        ("/a/c", "regex"),
        ("/a/d", "long"),
        ("/a/e/f", "long"),
        ("/up", "any-case"),
        ("/other", "root"),
    ] {
        assert_eq!(winner(&table, &head, "a.example", path), Some(expected), "{path}");
    }
}

#[test]
fn the_matched_part_is_what_a_rewrite_replaces() {
    let table = table_of(vec![
        rule("exact", exact("/exact")),
        rule("regex", regex("/re/.*")),
        rule("segments", segments("/seg")),
        rule("prefix", prefix("/pre")),
    ]);
    let head = request("GET", None, &[]);
    for (path, bytes) in [("/exact", 6), ("/re/abc", 7), ("/seg/x", 4), ("/seg", 4), ("/prefix", 4)] {
        let found = table.find(&head, b"a.example", path.as_bytes()).expect("matches");
        assert_eq!(found.matched_bytes, bytes, "{path}");
        assert_eq!(found.virtual_host, "all");
    }
}

#[test]
fn a_rule_whose_conditions_fail_leaves_the_request_to_the_next() {
    let post = RouteRule {
        headers: vec![header(":method", HeaderValueRule::Text(is("POST")))],
        ..rule("post", exact("/a"))
    };
    let read = RouteRule {
        headers: vec![header(":method", HeaderValueRule::Text(TextRule::Regex("GET|HEAD".into())))],
        ..rule("read", exact("/a"))
    };
    let canary = RouteRule {
        headers: vec![header("X-Canary", HeaderValueRule::Text(is("1")))],
        query: vec![QueryRule { name: "v".into(), value: Some(is("2")) }],
        ..rule("canary", prefix("/a"))
    };
    let table = table_of(vec![post, read, canary, rule("rest", prefix("/"))]);
    for (method, query, fields, expected) in [
        ("POST", None, vec![], "post"),
        ("GET", None, vec![], "read"),
        ("HEAD", None, vec![], "read"),
        ("post", None, vec![], "rest"),
        ("PURGE", None, vec![], "rest"),
        ("PUT", Some("v=2"), vec![("x-canary", "1")], "canary"),
        ("PUT", Some("v=1"), vec![("x-canary", "1")], "rest"),
        ("PUT", Some("v=2"), vec![("x-canary", "2")], "rest"),
        ("PUT", None, vec![("x-canary", "1")], "rest"),
    ] {
        let head = request(method, query, &fields);
        assert_eq!(winner(&table, &head, "a.example", "/a"), Some(expected), "{method} {query:?} {fields:?}");
    }
}

#[test]
fn header_conditions_by_kind_and_sense() {
    use HeaderValueRule::{Absent, Present, Range, Text};
    let insensitive = |text: &str| TextRule::Exact(text.to_owned(), Case::Insensitive);
    // (condition, field lines, holds, holds when turned round)
    let cases: Vec<(HeaderValueRule, Vec<&str>, bool, bool)> = vec![
        (Present, vec![""], true, false),
        (Present, vec![], false, true),
        (Absent, vec![], true, false),
        (Absent, vec!["x"], false, true),
        (Text(is("a")), vec!["a"], true, false),
        (Text(is("a")), vec!["A"], false, true),
        (Text(insensitive("a")), vec!["A"], true, false),
        // Nothing is neither equal nor unequal to something.
        (Text(is("a")), vec![], false, false),
        // Split lists read as one.
        (Text(is("a,b")), vec!["a", "b"], true, false),
        (Text(is("a")), vec!["a", "b"], false, true),
        (Text(TextRule::Prefix("ab".into(), Case::Sensitive)), vec!["abc"], true, false),
        (Text(TextRule::Prefix("ab".into(), Case::Sensitive)), vec!["a"], false, true),
        (Text(TextRule::Suffix("BC".into(), Case::Insensitive)), vec!["abc"], true, false),
        (Text(TextRule::Suffix("abcd".into(), Case::Sensitive)), vec!["bcd"], false, true),
        (Text(TextRule::Contains("b".into(), Case::Sensitive)), vec!["abc"], true, false),
        (Text(TextRule::Contains("".into(), Case::Sensitive)), vec!["abc"], true, false),
        (Text(TextRule::Contains("abcd".into(), Case::Sensitive)), vec!["abc"], false, true),
        (Text(TextRule::Regex("[0-9]{3}".into())), vec!["123"], true, false),
        (Text(TextRule::Regex("[0-9]{3}".into())), vec!["1234"], false, true),
        (Range { start: -10, end: 10 }, vec!["-10"], true, false),
        (Range { start: -10, end: 10 }, vec!["10"], false, true),
        (Range { start: -10, end: 10 }, vec!["1.5"], false, true),
        (Range { start: -10, end: 10 }, vec!["99999999999999999999"], false, true),
        (Range { start: -10, end: 10 }, vec![], false, false),
    ];
    for (value, lines, plain, inverted) in cases {
        for name in ["x-custom", "user-agent"] {
            for (sense, expected) in [(Sense::Is, plain), (Sense::IsNot, inverted)] {
                let label = format!("{sense:?} {value:?} on {name}: {lines:?}");
                let condition = HeaderRule { sense, ..header(name, value.clone()) };
                let table = table_of(vec![RouteRule { headers: vec![condition], ..rule("it", prefix("/")) }]);
                let fields: Vec<_> = lines.iter().map(|line| (name, *line)).collect();
                let head = request("GET", None, &fields);
                assert_eq!(winner(&table, &head, "a.example", "/").is_some(), expected, "{label}");
            }
        }
    }
}

#[test]
fn a_missing_header_may_count_as_empty() {
    for (value, sense, expected) in [
        (HeaderValueRule::Text(is("")), Sense::Is, true),
        (HeaderValueRule::Text(is("a")), Sense::IsNot, true),
        (HeaderValueRule::Text(is("a")), Sense::Is, false),
        (HeaderValueRule::Range { start: 0, end: 10 }, Sense::IsNot, true),
    ] {
        let condition = HeaderRule { sense, missing: Missing::IsEmpty, ..header("x", value) };
        let label = format!("{condition:?}");
        let table = table_of(vec![RouteRule { headers: vec![condition], ..rule("it", prefix("/")) }]);
        let head = request("GET", None, &[]);
        assert_eq!(winner(&table, &head, "a.example", "/").is_some(), expected, "{label}");
    }
}

#[test]
fn the_authority_can_be_a_condition_under_both_of_its_names() {
    for name in [":authority", "Host"] {
        let condition = header(name, HeaderValueRule::Text(is("a.example")));
        let table = table_of(vec![RouteRule { headers: vec![condition], ..rule("it", prefix("/")) }]);
        assert_eq!(winner(&table, &request("GET", None, &[]), "a.example", "/"), Some("it"), "{name}");
    }
}

#[test]
fn query_conditions_look_at_the_first_parameter_of_the_name() {
    let wanted = |value: Option<&str>| QueryRule { name: "v".into(), value: value.map(is) };
    for (condition, query, expected) in [
        (wanted(None), Some("v"), true),
        (wanted(None), Some("v=1"), true),
        (wanted(None), Some("a=1&v="), true),
        (wanted(None), Some("vv=1&xv=1"), false),
        (wanted(None), Some(""), false),
        (wanted(None), None, false),
        (wanted(Some("1")), Some("v=1"), true),
        (wanted(Some("1")), Some("a=b&v=1&v=2"), true),
        (wanted(Some("1")), Some("v=2&v=1"), false),
        (wanted(Some("1")), Some("V=1"), false),
        (wanted(Some("1=2")), Some("v=1=2"), true),
        (wanted(Some("")), Some("v"), true),
        (wanted(Some("1")), Some("v=%31"), false),
    ] {
        let label = format!("{condition:?} on {query:?}");
        let table = table_of(vec![RouteRule { query: vec![condition], ..rule("it", prefix("/")) }]);
        assert_eq!(
            winner(&table, &request("GET", query, &[]), "a.example", "/").is_some(),
            expected,
            "{label}"
        );
    }
}

#[test]
fn faults_name_the_virtual_host_and_the_route() {
    let with_header = |condition| RouteRule { headers: vec![condition], ..rule("it", prefix("/")) };
    let with_query = |name: &str| RouteRule {
        query: vec![QueryRule { name: name.into(), value: None }],
        ..rule("it", prefix("/"))
    };
    let empty_range = HeaderValueRule::Range { start: 1, end: 1 };
    for (faulty, text) in [
        (rule("it", exact("a")), "does not start with `/`"),
        (rule("it", prefix("")), "does not start with `/`"),
        (rule("it", prefix("/a?b")), "holds `?`"),
        (rule("it", segments("/a/")), "ends with `/`"),
        (rule("it", segments("/")), "ends with `/`"),
        (rule("it", regex("(")), "is not valid"),
        (with_header(header("x y", HeaderValueRule::Present)), "is no header"),
        (with_header(header(":path", HeaderValueRule::Present)), "is no header"),
        (with_header(header("", HeaderValueRule::Present)), "is no header"),
        (with_header(header("x", empty_range)), "the range is empty"),
        (with_header(header("x", HeaderValueRule::Text(TextRule::Regex("[".into())))), "is not valid"),
        (with_query(""), "is no query parameter"),
        (with_query("a=b"), "is no query parameter"),
    ] {
        let error = RouteTable::build(vec![host("v", &["*"], vec![faulty])]).expect_err("must be refused");
        let shown = error.to_string();
        assert!(shown.starts_with("virtual host `v`, route `it`: ") && shown.contains(text), "{shown}");
    }
    let twice = RouteTable::build(vec![host("v", &["a"], vec![]), host("w", &["b", "A"], vec![])]);
    let error = twice.expect_err("must be refused");
    assert!(
        matches!(&error.kind, RouteErrorKind::DuplicateDomain { domain, other } if domain == "A" && other == "v")
    );
    let names = RouteTable::build(vec![host("v", &["a"], vec![]), host("v", &["b"], vec![])]);
    assert!(matches!(names.expect_err("must be refused").kind, RouteErrorKind::DuplicateVirtualHost));
}

#[test]
fn explain_names_what_failed() {
    let condition = header("x-a", HeaderValueRule::Text(is("1")));
    let table = table_of(vec![
        rule("other", prefix("/other")),
        RouteRule { headers: vec![condition], ..rule("canary", prefix("/a")) },
    ]);
    let lines = |authority: &[u8]| -> Vec<String> {
        let steps = table.explain(&request("GET", None, &[]), authority, b"/a");
        steps.iter().map(ToString::to_string).collect()
    };
    assert_eq!(
        lines(b"a.example"),
        [
            "host a.example: served by virtual host all (domains *)",
            "route other: path prefix `/other`: the path differs",
            "route canary: path prefix `/a`, header `x-a` = `1`: does not hold: header `x-a` = `1`",
            "virtual host all: no route matches",
        ]
    );
}

/// A small generator, so that a failing seed can be replayed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % end
    }

    fn path(&mut self) -> String {
        let mut path = String::from("/");
        for _ in 0..self.below(7) {
            path.push(['a', 'b', 'A', '/', 'a', '/'][self.below(6)]);
        }
        path
    }

    fn rule(&mut self, name: &str) -> RouteRule {
        let case = [Case::Sensitive, Case::Sensitive, Case::Insensitive][self.below(3)];
        let text = self.path();
        let path = match self.below(5) {
            0 => PathRule::Exact(text, case),
            1 | 2 => PathRule::Prefix(text, case),
            3 => PathRule::Segments(format!("{}a", text), case),
            _ => PathRule::Regex(format!("{}[ab/]*", text)),
        };
        let mut made = rule(name, path);
        if self.below(3) == 0 {
            made.headers.push(header(":method", HeaderValueRule::Text(is(["GET", "PUT"][self.below(2)]))));
        }
        made
    }
}

#[test]
fn the_index_agrees_with_the_list_on_random_tables() {
    for seed in 0..400 {
        let mut random = Random(seed);
        let rules = (0..=random.below(25)).map(|n| random.rule(&format!("r{n}"))).collect();
        let table = table_of(rules);
        for _ in 0..60 {
            let head = request(["GET", "PUT"][random.below(2)], None, &[]);
            // `winner` compares; the seed is printed by the assertion's path on failure.
            let path = random.path();
            let found =
                std::panic::catch_unwind(|| winner(&table, &head, "a.example", &path).map(str::to_owned));
            assert!(found.is_ok(), "seed {seed}, path {path}");
        }
    }
}
