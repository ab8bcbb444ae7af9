//! From a checked config to resources (docs/resources.md). Cross references are checked on the way; what is wrong
//! becomes a finding and the emitter goes on, so that all mistakes are seen at once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use control_api::envoy::core::{
    AggregatedConfigSource, ApiVersion, ConfigSource, DataSource, Metadata, config_source, data_source,
};
use control_api::envoy::google::{self, Any, BoolValue, UInt32Value};
use control_api::{Resources, shard, to_any};
use prost::{Message, Name};

use crate::files::{Contents, Files};
use crate::finding::{Findings, Problem};
use crate::gather::Gathered;
use crate::yaml::Node;
use crate::{SourceMap, SourcePlace};

mod balance;
mod cluster;
mod health_check;
mod jwks;
mod listener;
mod mirror;
mod pages;
mod policy;
mod route;
mod route_match;
mod sticky;
mod tcp;
mod tls;
mod token;
mod virtual_host;
mod zones;

/// What every part of the emitter needs.
pub(crate) struct Emitter<'a> {
    pub(crate) config: &'a Gathered,
    pub(crate) files: &'a mut Files,
    pub(crate) findings: &'a mut Findings,
    pub(crate) resources: Resources,
    pub(crate) sources: SourceMap,
    clusters: cluster::Clusters,
    tokens: token::Tokens,
    /// Names of the clusters that TCP listeners lead to.
    tcp_clusters: BTreeSet<String>,
}

/// Compiles a whole config; the version is still empty.
pub(crate) fn emit(config: &Gathered, files: &mut Files, findings: &mut Findings) -> (Resources, SourceMap) {
    let mut emitter = Emitter {
        config,
        files,
        findings,
        resources: Resources::default(),
        sources: BTreeMap::new(),
        clusters: cluster::Clusters::default(),
        tokens: token::Tokens::default(),
        tcp_clusters: BTreeSet::new(),
    };
    emitter.emit_clusters();
    emitter.emit_token_providers();
    emitter.emit_listeners();
    let services = emitter.emit_services();
    emitter.emit_virtual_hosts(&services);
    emitter.warn_of_unused();
    (emitter.resources, emitter.sources)
}

impl Emitter<'_> {
    /// Remembers where a rule was written, for `explain`.
    fn remember(&mut self, kind: &str, name: &str, node: &Node) {
        let place = SourcePlace {
            file: self.findings.file(node.at.file).to_owned(),
            line: node.at.line,
            key: node.path.clone(),
        };
        self.sources.insert(format!("{kind}:{name}"), place);
    }

    fn error(&mut self, node: &Node, message: impl Into<String>, fix: impl Into<String>) {
        self.findings.error(node, Problem::new(message, fix));
    }

    /// The contents of the file that a node names.
    fn read_file(&mut self, node: &Node) -> Option<Contents> {
        let path = node.text().filter(|path| crate::rules::file(path).is_ok())?;
        match self.files.read(path) {
            Ok(contents) => Some(contents),
            Err(problem) => {
                self.findings.error(node, problem);
                None
            }
        }
    }
}

fn inline_bytes(bytes: &[u8]) -> DataSource {
    DataSource { specifier: Some(data_source::Specifier::InlineBytes(bytes.to_vec())), ..Default::default() }
}

fn inline_string(text: &str) -> DataSource {
    DataSource {
        specifier: Some(data_source::Specifier::InlineString(text.to_owned())),
        ..Default::default()
    }
}

/// Resources of the same set.
fn ads() -> ConfigSource {
    ConfigSource {
        config_source_specifier: Some(config_source::ConfigSourceSpecifier::Ads(
            AggregatedConfigSource::default(),
        )),
        resource_api_version: ApiVersion::V3.into(),
        ..Default::default()
    }
}

/// `metadata` that carries options, or none when they say nothing.
fn metadata<M: Message + Name + Default + PartialEq>(options: &M) -> Option<Metadata> {
    (*options != M::default()).then(|| Metadata {
        typed_filter_metadata: [(shard::v1::KEY.to_owned(), to_any(options))].into(),
        ..Default::default()
    })
}

fn on(value: bool) -> Option<BoolValue> {
    value.then_some(BoolValue { value })
}

fn count(value: Option<u32>) -> Option<UInt32Value> {
    value.map(|value| UInt32Value { value })
}

fn span(value: Option<Duration>) -> Option<google::Duration> {
    value.map(|d| google::Duration {
        seconds: i64::try_from(d.as_secs()).unwrap_or(i64::MAX),
        // Below 10^9, which an i32 holds.
        nanos: i32::try_from(d.subsec_nanos()).unwrap_or(0),
    })
}

/// A per cent sign starts an operator in Envoy's formats; ours are literal.
fn literal(text: &str) -> String {
    text.replace('%', "%%")
}

/// An extension config, for the many `typed_config` fields.
fn packed<M: Message + Name>(message: &M) -> Any {
    to_any(message)
}
