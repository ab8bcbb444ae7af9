//! The workspace's shape, checked with every build: who may import whom, what may be linked into the data plane,
//! what a source file may look like, where `unsafe` may stand. Each rule has a case that shows it can fail.
#![expect(clippy::tests_outside_test_module, reason = "this whole file is a test target")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Crate → the workspace crates that it may import. One row for each crate; imports point down only.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("core-runtime", &[]),
    ("http-wire", &[]),
    ("tls", &[]),
    ("control-api", &[]),
    ("control-operator", &[]),
    ("l4-abi", &[]),
    ("l4-load", &["l4-abi"]),
    ("l4-steer", &["l4-abi"]),
    ("l4-tests", &["l4-abi", "l4-load", "l4-steer"]),
    ("http-balance", &[]),
    ("http-gateway", &["http-wire", "tls"]),
    ("http-proxy", &["core-runtime", "http-wire", "http-balance", "http-gateway", "tls", "control-api"]),
    ("control-config", &["control-api", "l4-abi", "l4-steer"]),
    (
        "http-daemon",
        &[
            "core-runtime",
            "http-wire",
            "http-balance",
            "http-gateway",
            "http-proxy",
            "tls",
            "control-api",
            "control-config",
            "control-operator",
        ],
    ),
    ("l4-daemon", &["l4-abi", "l4-load", "l4-steer", "control-config", "control-operator"]),
    ("control-cli", &["control-api", "control-config", "http-proxy", "http-wire", "http-gateway"]),
    ("shard-bench", &["core-runtime", "http-wire", "tls"]),
    (
        "tests",
        &["core-runtime", "http-wire", "http-gateway", "http-proxy", "tls", "control-api", "control-config"],
    ),
];

/// Crates that run or drive sockets of their own; none may be linked into the data plane.
const RUNTIMES: &[&str] =
    &["mio", "hyper", "hyper-util", "tonic", "async-std", "smol", "glommio", "monoio", "async-io"];

/// What the data plane's crates may ask of tokio: traits and channels, no reactor.
const TOKIO_TRAITS: &[&str] = &["io-util", "bytes", "codec", "io", "sync"];

/// Crates whose own dependencies are not followed, because only their message types are used.
const TYPES_ONLY: &[&str] = &["envoy-types"];

/// Where `unsafe` may stand, by path prefix.
const UNSAFE_MODULES: &[&str] = &[
    "core-runtime/src/driver/",
    "core-runtime/src/net/",
    "core-runtime/src/buf.rs",
    "core-runtime/src/sys.rs",
    "core-runtime/src/task_waker.rs",
    "tls/src/locked.rs",
    "l4/load/src/map/pod.rs",
    // Reads the allocator's own counters.
    "tls/tests/idle_memory.rs",
];

const LINES_MAX: usize = 800;

/// Files that exceed the limit today; an entry may only shrink or go.
const LINES_RATCHET: &[(&str, usize)] = &[];

/// Package name → names of the packages it needs, with kind and features as declared.
type Graph = BTreeMap<String, Vec<Edge>>;

#[derive(Clone, Debug)]
struct Edge {
    to: String,
    /// Linked into the product (`normal` or `build`), not only into tests.
    linked: bool,
    features: Vec<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the root").into()
}

/// The resolved graph that cargo itself uses, and the names of the workspace's crates.
fn graph() -> (Graph, BTreeSet<String>) {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo writes JSON");
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let packages: BTreeMap<String, Value> =
        list(&metadata["packages"]).into_iter().map(|package| (text(&package["id"]), package)).collect();
    let name = |id: &str| packages.get(id).map(|package| text(&package["name"])).unwrap_or_default();
    let mut graph = Graph::new();
    for node in list(&metadata["resolve"]["nodes"]) {
        let id = text(&node["id"]);
        let declared = list(&packages[&id]["dependencies"]);
        let edges = graph.entry(name(&id)).or_default();
        for dependency in list(&node["deps"]) {
            let to = name(&text(&dependency["pkg"]));
            let linked =
                list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].as_str() != Some("dev"));
            let features = declared
                .iter()
                .filter(|entry| entry["name"].as_str() == Some(&to) && entry["kind"].as_str() != Some("dev"))
                .flat_map(|entry| list(&entry["features"]))
                .map(|feature| text(&feature))
                .collect();
            edges.push(Edge { to, linked, features });
        }
    }
    let members = list(&metadata["workspace_members"]).iter().map(|id| name(&text(id))).collect();
    (graph, members)
}

/// Imports among the workspace's crates that the table does not allow, and rows that are missing or stale.
fn import_faults(graph: &Graph, members: &BTreeSet<String>, table: &[(&str, &[&str])]) -> Vec<String> {
    let allowed: BTreeMap<&str, &[&str]> = table.iter().copied().collect();
    let mut faults = Vec::new();
    for member in members {
        let Some(row) = allowed.get(member.as_str()) else {
            faults.push(format!("{member}: no row in the table"));
            continue;
        };
        for edge in graph.get(member).into_iter().flatten().filter(|edge| members.contains(&edge.to)) {
            if edge.linked && !row.contains(&edge.to.as_str()) {
                faults.push(format!("{member} must not import {}", edge.to));
            }
        }
    }
    faults.extend(
        allowed.keys().filter(|row| !members.contains(**row)).map(|row| format!("{row}: no such crate")),
    );
    faults
}

#[test]
fn imports_point_down() {
    let (graph, members) = graph();
    assert_eq!(import_faults(&graph, &members, MAY_IMPORT), Vec::<String>::new());
}

#[test]
fn an_upward_import_is_found() {
    let (mut graph, members) = graph();
    let upward = Edge { to: "http-proxy".to_owned(), linked: true, features: Vec::new() };
    graph.entry("http-wire".to_owned()).or_default().push(upward);
    assert_eq!(import_faults(&graph, &members, MAY_IMPORT), ["http-wire must not import http-proxy"]);
    let shorter = &MAY_IMPORT[1..];
    assert!(
        import_faults(&graph, &members, shorter).contains(&"core-runtime: no row in the table".to_owned())
    );
}

/// What makes a reactor of its own reachable from `top`, [`TYPES_ONLY`] crates not followed.
fn runtime_faults(graph: &Graph, top: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut seen = BTreeSet::new();
    let mut open = vec![top.to_owned()];
    while let Some(package) = open.pop() {
        if !seen.insert(package.clone()) || TYPES_ONLY.contains(&package.as_str()) {
            continue;
        }
        for edge in graph.get(&package).into_iter().flatten().filter(|edge| edge.linked) {
            if RUNTIMES.contains(&edge.to.as_str()) {
                faults.push(format!("{package} links {}", edge.to));
            }
            if edge.to.starts_with("tokio") {
                let extra = edge.features.iter().filter(|feature| !TOKIO_TRAITS.contains(&feature.as_str()));
                faults.extend(extra.map(|feature| format!("{package} asks {} for {feature}", edge.to)));
            }
            // tokio's optional parts are unified over the whole workspace; what counts is who asks for them.
            if edge.to != "tokio" {
                open.push(edge.to.clone());
            }
        }
    }
    faults
}

#[test]
fn no_other_reactor_is_linked_into_the_data_plane() {
    let (graph, _) = graph();
    assert!(graph.contains_key("http-daemon"), "the data plane's daemon has its name");
    assert_eq!(runtime_faults(&graph, "http-daemon"), Vec::<String>::new());
    assert_eq!(runtime_faults(&graph, "shard-bench"), Vec::<String>::new());
}

#[test]
fn another_reactor_is_found() {
    let (mut graph, _) = graph();
    let tokio = Edge { to: "tokio".to_owned(), linked: true, features: vec!["net".to_owned()] };
    let mio = Edge { to: "mio".to_owned(), linked: true, features: Vec::new() };
    graph.entry("http-wire".to_owned()).or_default().extend([tokio, mio]);
    assert_eq!(
        runtime_faults(&graph, "http-daemon"),
        ["http-wire asks tokio for net", "http-wire links mio"]
    );
}

/// What is wrong with one source file, by line.
fn file_faults(path: &str, text: &str) -> Vec<String> {
    // Spelled so that this file does not name them.
    const WORDS: [&str; 4] = ["FIXM\u{45}", "XX\u{58}", "dbg\u{21}(", "thread::slee\u{70}("];
    let mut faults = Vec::new();
    let lines = text.lines().count();
    let limit = LINES_RATCHET.iter().find(|(file, _)| *file == path).map_or(LINES_MAX, |(_, limit)| *limit);
    if lines > limit {
        faults.push(format!("{path}: {lines} lines, at most {limit}"));
    }
    if !text.starts_with("//!") {
        faults.push(format!("{path}: no //! header"));
    }
    let may_be_unsafe = UNSAFE_MODULES.iter().any(|module| path.starts_with(module));
    for (number, line) in text.lines().enumerate().map(|(index, line)| (index + 1, line.trim())) {
        faults.extend(
            WORDS.iter().filter(|word| names(line, word)).map(|word| format!("{path}:{number}: {word}")),
        );
        if line == "#[ignore]" {
            faults.push(format!("{path}:{number}: #[ignore] without a reason"));
        }
        let code = line.split("//").next().unwrap_or_default();
        let is_unsafe =
            ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"].iter().any(|form| code.contains(form));
        // A form inside quotes is data, as in the line above.
        if is_unsafe && !may_be_unsafe && !code.contains("\"unsafe") {
            faults.push(format!("{path}:{number}: unsafe outside the named modules"));
        }
    }
    faults
}

/// Whether `word` stands in `line` as a word of its own, not inside another one such as an escape's pattern.
fn names(line: &str, word: &str) -> bool {
    let inside = |character: char| character.is_alphanumeric() || character == '_';
    line.match_indices(word).any(|(at, _)| {
        let end = at + word.len();
        !(line[..at].ends_with(inside) || word.ends_with(inside) && line[end..].starts_with(inside))
    })
}

/// All Rust sources of the workspace, by path relative to its root.
fn sources() -> Vec<(String, String)> {
    let mut files = Vec::new();
    let mut open = vec![root()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(&folder).expect("a readable folder") {
            let path = entry.expect("a readable entry").path();
            let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
            if path.is_dir() && !hidden && !path.ends_with("target") {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).expect("UTF-8");
                let relative =
                    path.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned();
                files.push((relative, text));
            }
        }
    }
    files
}

#[test]
fn files_stay_readable() {
    let files = sources();
    assert!(files.len() > MAY_IMPORT.len(), "the walk finds the sources");
    let faults: Vec<String> = files.iter().flat_map(|(path, text)| file_faults(path, text)).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn an_unreadable_file_is_found() {
    let long = format!("//! A.\n{}", "\n".repeat(LINES_MAX));
    let cases: [(&str, &str, &str); 6] = [
        ("a.rs", "fn a() {}\n", "no //! header"),
        ("a.rs", &long, "lines, at most"),
        ("a.rs", "//! A.\n#[ignore]\n", "without a reason"),
        ("a.rs", "//! A.\n    thread::slee\u{70}(x);\n", ":2:"),
        ("http/wire/src/a.rs", "//! A.\nunsafe { a() }\n", "outside the named modules"),
        ("a.rs", "//! A.\n// FIXM\u{45}\n", ":2:"),
    ];
    for (path, text, expected) in cases {
        let faults = file_faults(path, text);
        assert!(faults.len() == 1 && faults[0].contains(expected), "{expected}: {faults:?}");
    }
    assert_eq!(file_faults("core-runtime/src/sys.rs", "//! A.\nunsafe { a() }\n"), Vec::<String>::new());
}

#[test]
fn every_crate_obeys_the_workspace_lints() {
    let mut faults = Vec::new();
    let workspace = std::fs::read_to_string(root().join("Cargo.toml")).expect("the workspace's manifest");
    let folders = workspace.lines().skip_while(|line| !line.starts_with("members")).skip(1);
    for folder in folders.take_while(|line| !line.starts_with(']')) {
        let folder = folder.trim().trim_matches(['"', ',']);
        let manifest =
            std::fs::read_to_string(root().join(folder).join("Cargo.toml")).expect("a member's manifest");
        if !manifest.replace(' ', "").contains("[lints]\nworkspace=true") {
            faults.push(folder.to_owned());
        }
    }
    assert!(faults.is_empty(), "no [lints] workspace = true in {faults:?}");
}

#[test]
fn the_backend_of_the_demo_compiles_by_itself() {
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("backend.rmeta");
    let source = root().join("tests/src/bin/backend.rs");
    let compiled = Command::new("rustc")
        .args(["--edition", "2024", "--emit", "metadata", "-o"])
        .args([&out, &source])
        .output()
        .expect("rustc is there");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
}
