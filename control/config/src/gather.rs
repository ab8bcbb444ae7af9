//! All documents of a config as one: listeners, ownership, token providers, defaults and services, with duplicates refused.

use crate::finding::{Findings, Place, Problem};
use crate::schema::merge::merge;
use crate::schema::table::{CLUSTER, LISTENER, ROUTE, ROUTE_DEFAULTS};
use crate::yaml::{Entry, Node, Value};

/// One service, whichever form it was written in.
pub(crate) struct Service {
    pub(crate) name: String,
    pub(crate) node: Node,
}

/// The whole config.
#[derive(Default)]
pub(crate) struct Gathered {
    pub(crate) listeners: Vec<Entry>,
    /// `listeners` is there but no mapping, which is reported already.
    pub(crate) is_listeners_refused: bool,
    pub(crate) hosts: Vec<Entry>,
    pub(crate) token_providers: Vec<Entry>,
    pub(crate) services: Vec<Service>,
    defaults: Vec<Entry>,
}

impl Gathered {
    /// Takes in a file of the platform.
    pub(crate) fn add_platform(&mut self, root: &Node, findings: &mut Findings) {
        for entry in root.entries() {
            self.is_listeners_refused |=
                entry.key == "listeners" && !matches!(entry.value.value, Value::Map(_));
            let into = match entry.key.as_str() {
                "listeners" => &mut self.listeners,
                "hosts" => &mut self.hosts,
                "token_providers" => &mut self.token_providers,
                "defaults" => &mut self.defaults,
                _ => continue,
            };
            for inner in entry.value.entries() {
                add_once(into, inner, findings);
            }
        }
    }

    /// Takes in a service's own file.
    pub(crate) fn add_service(&mut self, directory: &str, node: Node, findings: &mut Findings) {
        if let Err(problem) = crate::rules::name(directory) {
            findings.error_in(&format!("services/{directory}"), problem);
        }
        if let Some(name) = node.get("name")
            && name.text() != Some(directory)
        {
            let fix = format!("write `{directory}`, delete the key, or rename the directory");
            findings.error(name, Problem::new("the name differs from the directory's", fix));
        }
        self.services.push(Service { name: directory.to_owned(), node });
    }

    /// Takes in a config written in one file.
    pub(crate) fn add_single(&mut self, root: &Node, findings: &mut Findings) {
        self.add_platform(root, findings);
        for entry in root.get("services").map_or(&[][..], Node::entries) {
            self.add_service(&entry.key, entry.value.clone(), findings);
        }
    }

    fn defaults_of(&self, key: &str) -> Node {
        let found = self.defaults.iter().find(|e| e.key == key);
        found.map_or_else(|| Node::empty_map(Place::default(), ""), |e| e.value.clone())
    }

    /// A listener with the platform's defaults.
    pub(crate) fn listener(&self, own: &Node) -> Node {
        merge(&self.defaults_of("listener"), own, &LISTENER)
    }

    /// A cluster with the platform's defaults.
    pub(crate) fn cluster(&self, own: &Node) -> Node {
        merge(&self.defaults_of("cluster"), own, &CLUSTER)
    }

    /// A route with the policies of its service and the platform's defaults.
    pub(crate) fn route(&self, service: &Node, own: &Node) -> Node {
        let policies = Node {
            value: Value::Map(
                service
                    .entries()
                    .iter()
                    .filter(|e| ROUTE_DEFAULTS.field(&e.key).is_some())
                    .cloned()
                    .collect(),
            ),
            ..Node::empty_map(service.at, &service.path)
        };
        merge(&self.defaults_of("route"), &merge(&policies, own, &ROUTE), &ROUTE)
    }
}

fn add_once(into: &mut Vec<Entry>, entry: &Entry, findings: &mut Findings) {
    match into.iter().find(|e| e.key == entry.key) {
        Some(first) => {
            let message = format!("`{}` is already in {}", entry.key, findings.place_of(&first.value));
            findings.error_at(
                entry.key_at,
                &entry.value.path,
                &entry.key,
                Problem::new(message, "keep one of the two, or give it another name"),
            );
        }
        None => into.push(entry.clone()),
    }
}
