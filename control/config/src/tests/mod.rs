//! Tests of whole configs: every error class with its place and way out, the resources that come out, the examples
//! and the generated documents.

mod balance;
mod documents;
mod errors;
mod examples;
mod files;
mod l4;
mod mirror;
mod resources;
mod sticky;
mod tcp;
mod token;
mod zones;

use std::collections::BTreeMap;

use crate::{ConfigError, Loaded, load_files};

/// Files by path.
type Set = BTreeMap<String, Vec<u8>>;

const WEB: &str = "\
listeners:
  web:
    address: 127.0.0.1:8080
";

const SHOP: &str = "\
hosts: [shop.example]
clusters:
  main:
    endpoints: [\"127.0.0.1:9000\"]
routes:
  - match: { prefix: / }
    cluster: main
";

const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
const PRIVATE_KEY: &str = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";

/// A valid config: `platform/web.yaml`, `services/shop/service.yaml`, and some files to name.
fn base() -> Set {
    set(&[
        ("platform/web.yaml", WEB),
        ("services/shop/service.yaml", SHOP),
        ("tls/www.pem", CERTIFICATE),
        ("tls/www.key", PRIVATE_KEY),
        ("tls/locked.key", "-----BEGIN ENCRYPTED PRIVATE KEY-----\n-----END ENCRYPTED PRIVATE KEY-----\n"),
        ("tls/short.bin", "0123456789"),
        ("pages/busy.html", "<p>busy</p>"),
    ])
}

fn set(files: &[(&str, &str)]) -> Set {
    files.iter().map(|(path, text)| ((*path).to_owned(), text.as_bytes().to_vec())).collect()
}

/// The base config with some files replaced or added.
fn with(files: &[(&str, &str)]) -> Set {
    let mut all = base();
    all.extend(set(files));
    all
}

/// The base config with keys added to the listener `web`, whose first line is line 4.
fn with_listener(keys: &str) -> Set {
    with(&[("platform/web.yaml", &format!("{WEB}{}", indented(keys, 4)))])
}

/// The base config with a service `shop` of which only the routes differ; the first line of `routes` is line 6.
fn with_routes(routes: &str) -> Set {
    let head: String = SHOP.lines().take(5).map(|line| format!("{line}\n")).collect();
    with(&[("services/shop/service.yaml", &format!("{head}{}", indented(routes, 2)))])
}

/// The base config with keys added to the cluster `main`; the first line of `keys` is line 5.
fn with_cluster(keys: &str) -> Set {
    let head: String = SHOP.lines().take(4).map(|line| format!("{line}\n")).collect();
    with(&[("services/shop/service.yaml", &format!("{head}{}", indented(keys, 4)))])
}

fn indented(text: &str, columns: usize) -> String {
    let blanks = " ".repeat(columns);
    text.lines().map(|line| format!("{blanks}{line}\n")).collect()
}

fn loaded(files: Set) -> Loaded {
    match load_files(files) {
        Ok(loaded) => loaded,
        Err(errors) => panic!("{}", shown(&errors)),
    }
}

fn errors_of(files: Set) -> Vec<ConfigError> {
    load_files(files).err().unwrap_or_default()
}

fn shown(errors: &[ConfigError]) -> String {
    errors.iter().map(|error| format!("{error}\n")).collect()
}
