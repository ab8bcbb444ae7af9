//! TLS contexts, and the secrets that they name. Files are read, looked through and put into the set inline.

use control_api::defaults::listener::TICKET_KEY_BYTES;
use control_api::envoy::core::{TransportSocket, transport_socket};
use control_api::envoy::matcher::{StringMatcher, string_matcher};
use control_api::envoy::names;
use control_api::envoy::tls::{
    CertificateValidationContext, CommonTlsContext, DownstreamTlsContext, SdsSecretConfig, Secret,
    SubjectAltNameMatcher, TlsCertificate, TlsParameters, TlsSessionTicketKeys, UpstreamTlsContext,
    certificate_validation_context, common_tls_context, downstream_tls_context, secret,
    subject_alt_name_matcher, tls_parameters,
};

use super::{Emitter, ads, inline_bytes, on, packed};
use crate::finding::Problem;
use crate::yaml::Node;

impl Emitter<'_> {
    /// TLS of a listener.
    pub(super) fn downstream_tls(&mut self, tls: &Node) -> TransportSocket {
        let mut certificates = Vec::new();
        for entry in tls.list("certificates") {
            certificates.extend(self.certificate(entry));
        }
        let client_ca = tls.get("client_ca").and_then(|file| self.ca(file));
        let mode = tls.get("client_certificate");
        if let (Some(mode), None) = (mode, tls.get("client_ca")) {
            self.error(mode, "client certificates cannot be verified without a CA", "add `client_ca`");
        }
        let tickets = match tls.get("ticket_keys") {
            Some(keys) if tls.flag("tickets") == Some(false) => {
                self.error(keys, "ticket keys without tickets", "delete this key, or `tickets: false`");
                None
            }
            Some(_) => self.ticket_keys(tls.list("ticket_keys")),
            None => None,
        };
        let session_ticket_keys_type = match tickets {
            Some(name) => {
                Some(downstream_tls_context::SessionTicketKeysType::SessionTicketKeysSdsSecretConfig(
                    by_name(&name),
                ))
            }
            None if tls.flag("tickets") == Some(false) => {
                Some(downstream_tls_context::SessionTicketKeysType::DisableStatelessSessionResumption(true))
            }
            None => None,
        };
        let alpn = tls.strings("alpn");
        let context = DownstreamTlsContext {
            common_tls_context: Some(CommonTlsContext {
                tls_params: versions(tls),
                tls_certificate_sds_secret_configs: certificates.iter().map(|name| by_name(name)).collect(),
                alpn_protocols: if alpn.is_empty() {
                    vec!["h2".to_owned(), "http/1.1".to_owned()]
                } else {
                    alpn
                },
                validation_context_type: client_ca.map(|name| validation_by_name(&name)),
                ..Default::default()
            }),
            require_client_certificate: on(mode.and_then(Node::text) == Some("required")),
            session_ticket_keys_type,
            ..Default::default()
        };
        transport_socket(&packed(&context))
    }

    /// TLS towards the endpoints of a cluster.
    pub(super) fn upstream_tls(&mut self, cluster: &str, tls: &Node, is_named: bool) -> TransportSocket {
        let server_name = tls.word("server_name").map(str::to_ascii_lowercase);
        if server_name.is_none() && !is_named && tls.get("server_name").is_none() {
            self.error(
                tls,
                format!(
                    "an endpoint of the cluster `{cluster}` has only an address, so there is no name to check"
                ),
                "add `server_name`, or a `hostname` to each endpoint",
            );
        }
        let certificate = match (tls.get("cert"), tls.get("key")) {
            (Some(_), Some(_)) => self.certificate(tls),
            (Some(lone), None) | (None, Some(lone)) => {
                self.error(lone, "a client certificate needs both `cert` and `key`", "add the other key");
                None
            }
            (None, None) => None,
        };
        let names = tls.strings("names");
        let matchers = names.iter().map(|name| dns_san(&name.to_ascii_lowercase())).collect::<Vec<_>>();
        let context = UpstreamTlsContext {
            auto_host_sni: server_name.is_none(),
            sni: server_name.unwrap_or_default(),
            auto_sni_san_validation: matchers.is_empty(),
            common_tls_context: Some(CommonTlsContext {
                tls_params: versions(tls),
                tls_certificate_sds_secret_configs: certificate.iter().map(|name| by_name(name)).collect(),
                validation_context_type: Some(self.upstream_trust(tls, matchers)),
                ..Default::default()
            }),
            ..Default::default()
        };
        transport_socket(&packed(&context))
    }

    fn upstream_trust(
        &mut self,
        tls: &Node,
        matchers: Vec<SubjectAltNameMatcher>,
    ) -> common_tls_context::ValidationContextType {
        let ca = tls.get("ca").and_then(|file| self.pem(file, certificate_problem));
        common_tls_context::ValidationContextType::ValidationContext(CertificateValidationContext {
            system_root_certs: tls
                .get("ca")
                .is_none()
                .then_some(certificate_validation_context::SystemRootCerts {}),
            trusted_ca: ca.map(|pem| inline_bytes(&pem)),
            match_typed_subject_alt_names: matchers,
            ..Default::default()
        })
    }

    /// Puts the certificate of a node with `cert` and `key` into the set; returns the secret's name.
    fn certificate(&mut self, node: &Node) -> Option<String> {
        let (cert, key) = (node.get("cert")?, node.get("key")?);
        let chain = self.pem(cert, certificate_problem);
        let private = self.pem(key, private_key_problem);
        self.warn_of_readable_key(key);
        let name = format!("certificate:{}+{}", cert.text()?, key.text()?);
        let certificate = TlsCertificate {
            certificate_chain: Some(inline_bytes(&chain?)),
            private_key: Some(inline_bytes(&private?)),
            ..Default::default()
        };
        self.insert_secret(&name, secret::Type::TlsCertificate(certificate));
        Some(name)
    }

    fn ca(&mut self, file: &Node) -> Option<String> {
        let pem = self.pem(file, certificate_problem)?;
        let name = format!("ca:{}", file.text()?);
        let context =
            CertificateValidationContext { trusted_ca: Some(inline_bytes(&pem)), ..Default::default() };
        self.insert_secret(&name, secret::Type::ValidationContext(context));
        Some(name)
    }

    fn ticket_keys(&mut self, files: &[Node]) -> Option<String> {
        let mut keys = Vec::new();
        for file in files {
            let contents = self.read_file(file)?;
            self.warn_of_readable_key(file);
            if contents.len() != TICKET_KEY_BYTES {
                let message =
                    format!("a ticket key has {TICKET_KEY_BYTES} bytes, this file {}", contents.len());
                self.error(file, message, "make one by `openssl rand 80 > FILE`");
                return None;
            }
            keys.push(inline_bytes(&contents));
        }
        let paths: Vec<&str> = files.iter().filter_map(Node::text).collect();
        let name = format!("tickets:{}", paths.join("+"));
        self.insert_secret(&name, secret::Type::SessionTicketKeys(TlsSessionTicketKeys { keys }));
        Some(name)
    }

    pub(super) fn insert_secret(&mut self, name: &str, kind: secret::Type) {
        self.resources.secrets.insert(Secret { name: name.to_owned(), r#type: Some(kind) });
    }

    fn pem(&mut self, file: &Node, problem: fn(&str) -> Option<Problem>) -> Option<crate::files::Contents> {
        let contents = self.read_file(file)?;
        // Only the armour is looked at, which is ASCII whatever else a file may hold.
        let text = String::from_utf8_lossy(&contents);
        if let Some(problem) = problem(&text) {
            self.findings.error(file, problem);
            return None;
        }
        drop(text);
        Some(contents)
    }

    pub(super) fn warn_of_readable_key(&mut self, file: &Node) {
        if let Some(path) = file.text()
            && self.files.is_world_readable(path)
        {
            let problem = Problem::new("every user can read this private key", format!("chmod o-r {path}"));
            self.findings.warn(file, problem);
        }
    }
}

fn certificate_problem(pem: &str) -> Option<Problem> {
    if pem.contains("-----BEGIN CERTIFICATE-----") && pem.contains("-----END CERTIFICATE-----") {
        return None;
    }
    Some(if pem.contains("PRIVATE KEY-----") {
        Problem::new("this file holds a private key, not a certificate", "swap `cert` and `key`")
    } else {
        Problem::new(
            "no PEM certificate in this file",
            "convert it by `openssl x509 -in FILE -inform DER -out FILE.pem`",
        )
    })
}

fn private_key_problem(pem: &str) -> Option<Problem> {
    const KINDS: [&str; 3] = ["PRIVATE KEY", "EC PRIVATE KEY", "RSA PRIVATE KEY"];
    if pem.contains("ENCRYPTED") {
        return Some(Problem::new(
            "the private key is encrypted",
            "decrypt it by `openssl pkey -in FILE -out FILE.key`",
        ));
    }
    let is_key = |kind: &&str| {
        pem.contains(&format!("-----BEGIN {kind}-----")) && pem.contains(&format!("-----END {kind}-----"))
    };
    if KINDS.iter().any(is_key) {
        return None;
    }
    Some(if pem.contains("-----BEGIN CERTIFICATE-----") {
        Problem::new(
            "this file holds a certificate and no private key",
            "swap `cert` and `key`, or name the key's file",
        )
    } else {
        Problem::new(
            "no PEM private key in this file",
            "name a file with a `-----BEGIN PRIVATE KEY-----` block",
        )
    })
}

fn versions(tls: &Node) -> Option<TlsParameters> {
    let minimum = match tls.word("min_version")? {
        "TLSv1.3" => tls_parameters::TlsProtocol::TlSv13,
        _ => tls_parameters::TlsProtocol::TlSv12,
    };
    Some(TlsParameters { tls_minimum_protocol_version: minimum.into(), ..Default::default() })
}

fn by_name(name: &str) -> SdsSecretConfig {
    SdsSecretConfig { name: name.to_owned(), sds_config: Some(ads()) }
}

fn validation_by_name(name: &str) -> common_tls_context::ValidationContextType {
    common_tls_context::ValidationContextType::ValidationContextSdsSecretConfig(by_name(name))
}

fn dns_san(name: &str) -> SubjectAltNameMatcher {
    SubjectAltNameMatcher {
        san_type: subject_alt_name_matcher::SanType::Dns.into(),
        matcher: Some(StringMatcher {
            match_pattern: Some(string_matcher::MatchPattern::Exact(name.to_owned())),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn transport_socket(context: &control_api::envoy::google::Any) -> TransportSocket {
    TransportSocket {
        name: names::TLS.to_owned(),
        config_type: Some(transport_socket::ConfigType::TypedConfig(context.clone())),
    }
}
