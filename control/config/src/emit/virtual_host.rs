//! Virtual hosts: which service answers for which host on which listener, and who may.

use std::collections::{BTreeMap, HashMap};

use control_api::envoy::route::{RouteConfiguration, VirtualHost};

use super::Emitter;
use super::route::{BuiltRoute, BuiltService};
use super::route_match::PathKey;
use crate::finding::Problem;
use crate::suggest::nearest;
use crate::yaml::Node;

/// A host's claim by a service, by index into the list of services.
type Claims = BTreeMap<String, Vec<usize>>;

impl Emitter<'_> {
    /// One route configuration a listener.
    pub(super) fn emit_virtual_hosts(&mut self, services: &[BuiltService<'_>]) {
        for built in services {
            self.check_listeners(&built.service.node);
            self.check_ownership(&built.service.name, &built.service.node);
        }
        self.check_owner_names(services);
        let config = self.config;
        // A TCP listener has no hosts.
        for listener in config.listeners.iter().filter(|listener| listener.value.get("tcp").is_none()) {
            let claims = claims_on(&listener.key, services);
            if claims.is_empty() {
                let problem = Problem::new(
                    format!("no service is on the listener `{}`", listener.key),
                    "name it in a service's `listeners`, or delete it",
                );
                self.findings.warn(&listener.value, problem);
            }
            for (host, claimants) in &claims {
                self.refuse_conflicts(host, claimants, services);
            }
            self.resources.routes.push(RouteConfiguration {
                name: listener.key.clone(),
                virtual_hosts: virtual_hosts(&claims, services),
                ignore_port_in_host_matching: true,
                ..Default::default()
            });
        }
    }

    fn check_listeners(&mut self, service: &Node) {
        let config = self.config;
        let http = || config.listeners.iter().filter(|l| l.value.get("tcp").is_none());
        let known = || http().map(|l| l.key.as_str());
        for name in service.list("listeners") {
            let Some(written) = name.text() else { continue };
            if known().any(|k| k == written) {
                continue;
            }
            let fix = match nearest(written, known()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("the listeners are {}", known().collect::<Vec<_>>().join(", ")),
            };
            self.error(name, format!("unknown listener `{written}`"), fix);
        }
    }

    /// With `hosts` in the platform's files, only its owners claim a host.
    fn check_ownership(&mut self, service: &str, node: &Node) {
        let config = self.config;
        if config.hosts.is_empty() {
            return;
        }
        let at = node.get("hosts").unwrap_or(node);
        for (host, place) in hosts_of(node).map(|(host, place)| (host, place.unwrap_or(at))) {
            let Some(owned) = config.hosts.iter().find(|h| h.key == host) else {
                let fix = format!("add `{host}: [{service}]` to `hosts` in a file under platform/");
                self.error(place, format!("the platform does not list the host `{host}`"), fix);
                continue;
            };
            if !owned.value.items().iter().any(|s| s.text() == Some(service)) {
                let message = format!(
                    "the host `{host}` does not belong to `{service}` ({})",
                    self.findings.place_of(&owned.value)
                );
                self.error(place, message, format!("add `{service}` there, or drop the host here"));
            }
        }
    }

    fn check_owner_names(&mut self, services: &[BuiltService<'_>]) {
        let config = self.config;
        let known = || services.iter().map(|s| s.service.name.as_str());
        for owner in config.hosts.iter().flat_map(|h| h.value.items()) {
            let Some(written) = owner.text() else {
                continue;
            };
            if !known().any(|k| k == written) {
                let fix = nearest(written, known()).map_or_else(
                    || format!("create services/{written}/service.yaml, or delete the name"),
                    |near| format!("did you mean `{near}`?"),
                );
                self.error(owner, format!("unknown service `{written}`"), fix);
            }
        }
    }

    /// Two services must not claim the same host and path.
    fn refuse_conflicts(&mut self, host: &str, claimants: &[usize], services: &[BuiltService<'_>]) {
        let mut claimed: HashMap<&PathKey, (&str, &BuiltRoute)> = HashMap::new();
        for built in claimants.iter().filter_map(|at| services.get(*at)) {
            let name = built.service.name.as_str();
            for route in &built.routes {
                let (owner, first) = *claimed.entry(&route.key).or_insert((name, route));
                if owner == name {
                    continue;
                }
                let (kind, path) = match &route.key {
                    PathKey::Exact(path) => ("path", path),
                    PathKey::Regex(path) => ("regex", path),
                    PathKey::Prefix(path) => ("prefix", path),
                };
                let message = format!(
                    "the host `{host}` with the {kind} `{path}` is also claimed by the service `{owner}` in {}",
                    self.findings.place_of(&first.node)
                );
                let at = route.node.get("match").unwrap_or(&route.node);
                self.error(at, message, "give one of the two services another host or path");
            }
        }
    }
}

/// The hosts of a service with their places; `*` without a place when it names none.
fn hosts_of(service: &Node) -> impl Iterator<Item = (&str, Option<&Node>)> {
    let any = service.get("hosts").is_none().then_some(("*", None));
    let named = service.list("hosts").iter().filter_map(|h| Some((h.text()?, Some(h))));
    any.into_iter().chain(named)
}

fn claims_on(listener: &str, services: &[BuiltService<'_>]) -> Claims {
    let mut claims = Claims::new();
    for (at, built) in services.iter().enumerate() {
        let node = &built.service.node;
        let is_here = node.get("listeners").is_none() || node.words("listeners").any(|l| l == listener);
        // Without routes it is there for TCP listeners and other services.
        if !is_here || built.routes.is_empty() {
            continue;
        }
        for (host, _) in hosts_of(node) {
            let claimants = claims.entry(host.to_owned()).or_default();
            if claimants.last() != Some(&at) {
                claimants.push(at);
            }
        }
    }
    claims
}

/// Hosts that the same services claim share one virtual host.
fn virtual_hosts(claims: &Claims, services: &[BuiltService<'_>]) -> Vec<VirtualHost> {
    let mut by_claimants: BTreeMap<&[usize], Vec<&str>> = BTreeMap::new();
    for (host, claimants) in claims {
        by_claimants.entry(claimants).or_default().push(host);
    }
    by_claimants
        .into_iter()
        .map(|(claimants, hosts)| {
            let mut routes: Vec<&BuiltRoute> =
                claimants.iter().filter_map(|at| services.get(*at)).flat_map(|built| &built.routes).collect();
            // Stable: routes of equal rank keep the order of the services and of their lists.
            routes.sort_by_key(|built| built.key.rank());
            VirtualHost {
                name: hosts.first().map_or("", |host| host).to_owned(),
                domains: hosts.iter().map(|host| (*host).to_owned()).collect(),
                routes: routes.into_iter().map(|built| built.route.clone()).collect(),
                ..Default::default()
            }
        })
        .collect()
}
