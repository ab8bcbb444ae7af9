//! One config version as typed resources: what the loader or a feed hands to the snapshot compiler.
//!
//! Invariants: `Secrets` never prints key material and overwrites it when dropped.

use std::fmt;

use zeroize::Zeroize;

use crate::envoy::cluster::Cluster;
use crate::envoy::core::{DataSource, data_source::Specifier};
use crate::envoy::endpoint::ClusterLoadAssignment;
use crate::envoy::listener::Listener;
use crate::envoy::route::RouteConfiguration;
use crate::envoy::tls::{Secret, secret};

/// Type URLs of the xDS resource types, in the order in which they are delivered: whatever a resource refers to
/// comes before it.
pub mod type_url {
    pub const SECRET: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret";
    pub const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
    pub const ENDPOINTS: &str = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";
    pub const LISTENER: &str = "type.googleapis.com/envoy.config.listener.v3.Listener";
    pub const ROUTES: &str = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration";
    pub const IN_ORDER: [&str; 5] = [SECRET, CLUSTER, ENDPOINTS, LISTENER, ROUTES];
}

/// All resources of one config version.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resources {
    /// Names this set of resources in logs, metrics and ACKs.
    pub version: String,
    pub listeners: Vec<Listener>,
    /// The route configurations that listeners name through `rds`.
    pub routes: Vec<RouteConfiguration>,
    pub clusters: Vec<Cluster>,
    /// The endpoints of clusters of type EDS.
    pub endpoints: Vec<ClusterLoadAssignment>,
    pub secrets: Secrets,
}

/// Secret resources, by unique name.
#[derive(Clone, Default, PartialEq)]
pub struct Secrets(Vec<Secret>);

impl Secrets {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a secret; one of the same name is overwritten.
    pub fn insert(&mut self, secret: Secret) {
        match self.0.iter_mut().find(|s| s.name == secret.name) {
            Some(old) => {
                wipe(old);
                *old = secret;
            }
            None => self.0.push(secret),
        }
    }

    pub fn get(&self, name: &str) -> Option<&Secret> {
        self.0.iter().find(|s| s.name == name)
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Secret> {
        self.0.iter()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<Secret> for Secrets {
    fn from_iter<I: IntoIterator<Item = Secret>>(secrets: I) -> Self {
        let mut all = Self::new();
        secrets.into_iter().for_each(|secret| all.insert(secret));
        all
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|s| &s.name)).finish()
    }
}

impl Drop for Secrets {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(wipe);
    }
}

/// Overwrites the private part of a secret; certificates and CAs are public.
fn wipe(secret: &mut Secret) {
    match &mut secret.r#type {
        Some(secret::Type::TlsCertificate(certificate)) => {
            certificate.private_key.iter_mut().for_each(wipe_source);
            certificate.password.iter_mut().for_each(wipe_source);
            certificate.pkcs12.iter_mut().for_each(wipe_source);
        }
        Some(secret::Type::SessionTicketKeys(keys)) => keys.keys.iter_mut().for_each(wipe_source),
        Some(secret::Type::GenericSecret(generic)) => generic.secret.iter_mut().for_each(wipe_source),
        Some(secret::Type::ValidationContext(_)) | None => {}
    }
}

fn wipe_source(source: &mut DataSource) {
    match &mut source.specifier {
        Some(Specifier::InlineBytes(bytes)) => bytes.zeroize(),
        Some(Specifier::InlineString(text)) => text.zeroize(),
        Some(Specifier::Filename(_) | Specifier::EnvironmentVariable(_)) | None => {}
    }
}

#[cfg(test)]
mod tests {
    use prost::Name;

    use super::*;
    use crate::envoy::tls::{TlsCertificate, TlsSessionTicketKeys};

    fn inline(text: &str) -> DataSource {
        DataSource { specifier: Some(Specifier::InlineBytes(text.as_bytes().to_vec())), ..Default::default() }
    }

    fn certificate(name: &str, key: &str) -> Secret {
        let certificate = TlsCertificate {
            certificate_chain: Some(inline("chain")),
            private_key: Some(inline(key)),
            ..Default::default()
        };
        Secret { name: name.into(), r#type: Some(secret::Type::TlsCertificate(certificate)) }
    }

    #[test]
    fn type_urls_are_those_of_the_messages() {
        assert_eq!(
            type_url::IN_ORDER.map(str::to_owned),
            [
                Secret::type_url(),
                Cluster::type_url(),
                ClusterLoadAssignment::type_url(),
                Listener::type_url(),
                RouteConfiguration::type_url(),
            ]
        );
    }

    #[test]
    fn printing_shows_names_and_no_key() {
        let keys = TlsSessionTicketKeys { keys: vec![inline("TICKET-KEY")] };
        let tickets = Secret { name: "tickets".into(), r#type: Some(secret::Type::SessionTicketKeys(keys)) };
        let secrets: Secrets = [certificate("www", "PRIVATE-KEY"), tickets].into_iter().collect();
        let printed = format!("{:?}", Resources { secrets, ..Default::default() });
        assert!(printed.contains("www") && printed.contains("tickets"), "{printed}");
        let bytes_of = |text: &str| format!("{:?}", text.as_bytes()).trim_matches(['[', ']']).to_owned();
        for key in ["PRIVATE-KEY", "TICKET-KEY"] {
            assert!(!printed.contains(key) && !printed.contains(&bytes_of(key)), "{printed}");
        }
    }

    #[test]
    fn wiping_leaves_the_certificate_and_nothing_of_the_key() {
        let mut secret = certificate("www", "PRIVATE-KEY");
        wipe(&mut secret);
        assert_eq!(secret, certificate("www", ""));
    }

    #[test]
    fn a_name_is_held_once() {
        let secrets: Secrets = [certificate("www", "old"), certificate("www", "new")].into_iter().collect();
        assert_eq!(secrets.len(), 1);
        assert_eq!(secrets.get("www"), Some(&certificate("www", "new")));
        assert_eq!(secrets.get("other"), None);
    }
}
