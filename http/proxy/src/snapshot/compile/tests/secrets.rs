//! TLS: certificates, client authentication, tickets and upstream verification, by reference and inline.

use control_api::envoy::cluster::Cluster;
use control_api::envoy::core::{DataSource, TransportSocket, data_source, transport_socket};
use control_api::envoy::matcher::{StringMatcher, string_matcher::MatchPattern};
use control_api::envoy::names;
use control_api::envoy::tls::common_tls_context::ValidationContextType;
use control_api::envoy::tls::downstream_tls_context::SessionTicketKeysType;
use control_api::envoy::tls::{
    CertificateValidationContext, CommonTlsContext, DownstreamTlsContext, SdsSecretConfig, Secret,
    SubjectAltNameMatcher, TlsCertificate, TlsParameters, TlsSessionTicketKeys, UpstreamTlsContext, secret,
};
use control_api::shard::v1;
use control_api::{Resources, to_any};

use super::{ads, compiled, edit_options, inline, refusal, refused, small, switch};
use crate::snapshot::model::{ServerName, TicketSource};
use crate::snapshot::{Host, StatRegistry, compile_for};

struct Pair {
    chain: String,
    key: String,
}

fn pair(name: &str) -> Pair {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).expect("a certificate");
    Pair { chain: made.cert.pem(), key: made.signing_key.serialize_pem() }
}

fn certificate(pair: &Pair) -> TlsCertificate {
    TlsCertificate {
        certificate_chain: inline(&pair.chain),
        private_key: inline(&pair.key),
        ..Default::default()
    }
}

fn named(name: &str) -> SdsSecretConfig {
    SdsSecretConfig { name: name.to_owned(), sds_config: ads() }
}

fn socket<M: prost::Message + prost::Name>(context: &M) -> Option<TransportSocket> {
    let config_type = Some(transport_socket::ConfigType::TypedConfig(to_any(context)));
    Some(TransportSocket { name: names::TLS.to_owned(), config_type })
}

fn downstream(context: &DownstreamTlsContext) -> Resources {
    let mut resources = small();
    resources.listeners[0].filter_chains[0].transport_socket = socket(context);
    resources.secrets.insert(Secret {
        name: "www".into(),
        r#type: Some(secret::Type::TlsCertificate(certificate(&pair("www.example")))),
    });
    resources
}

fn by_name() -> DownstreamTlsContext {
    let common =
        CommonTlsContext { tls_certificate_sds_secret_configs: vec![named("www")], ..Default::default() };
    DownstreamTlsContext { common_tls_context: Some(common), ..Default::default() }
}

fn common(context: &mut DownstreamTlsContext) -> &mut CommonTlsContext {
    context.common_tls_context.get_or_insert_default()
}

fn ticket_key(fill: u8, bytes: usize) -> DataSource {
    DataSource {
        specifier: Some(data_source::Specifier::InlineBytes(vec![fill; bytes])),
        ..Default::default()
    }
}

fn tickets(keys: Vec<DataSource>) -> Option<SessionTicketKeysType> {
    Some(SessionTicketKeysType::SessionTicketKeys(TlsSessionTicketKeys { keys }))
}

#[test]
fn certificates_come_by_reference_or_inline() {
    let snapshot = compiled(&downstream(&by_name()));
    let tls = snapshot.listeners[0].tls.as_ref().expect("TLS is on");
    assert_eq!((tls.name_count(), snapshot.listeners[0].tickets), (1, TicketSource::Process));
    assert!(tls.policy_of("www.example").is_some());
    let mut context = by_name();
    common(&mut context).tls_certificates = vec![certificate(&pair("api.example"))];
    let snapshot = compiled(&downstream(&context));
    assert_eq!(snapshot.listeners[0].tls.as_ref().expect("TLS is on").name_count(), 2);
}

#[test]
fn tickets_have_a_source() {
    let keys = ::tls::TicketKeys::generate().expect("randomness");
    for (keys_type, source) in [
        (None, TicketSource::Process),
        (Some(SessionTicketKeysType::DisableStatelessSessionResumption(true)), TicketSource::Off),
        (tickets(vec![ticket_key(1, 80), ticket_key(2, 80), ticket_key(3, 80)]), TicketSource::Resources),
    ] {
        let context = DownstreamTlsContext { session_ticket_keys_type: keys_type, ..by_name() };
        let host = Host { ticket_keys: Some(&keys), ..Host::default() };
        let snapshot =
            compile_for(&downstream(&context), &host, &mut StatRegistry::new()).expect("a good set");
        assert_eq!(snapshot.listeners[0].tickets, source);
    }
    for (keys, expected) in [
        (vec![], "session_ticket_keys.keys is required"),
        (vec![ticket_key(1, 48)], "session_ticket_keys.keys[0] has 48 bytes, it must have 80"),
        ((1..=4).map(|n| ticket_key(n, 80)).collect(), "has more than 3 entries"),
        (vec![ticket_key(1, 80), ticket_key(1, 80)], "session_ticket_keys.keys is refused"),
    ] {
        let context = DownstreamTlsContext { session_ticket_keys_type: tickets(keys), ..by_name() };
        let refusal = refusal(&downstream(&context));
        assert!(refusal.contains(expected), "{refusal}");
    }
}

type DownstreamEdit<'a> = &'a dyn Fn(&mut DownstreamTlsContext);

fn check_downstream(table: &[(DownstreamEdit<'_>, &str)]) {
    for (edit, expected) in table {
        let mut context = by_name();
        edit(&mut context);
        let refusal = refusal(&downstream(&context));
        assert!(
            refusal.starts_with("Listener \"edge\": filter_chains[0].transport_socket")
                && refusal.contains(expected),
            "{refusal}"
        );
    }
}

#[test]
fn common_parts_of_a_context_are_refused_by_name() {
    check_downstream(&[
        (&|c| c.common_tls_context = None, "common_tls_context is required"),
        (&|c| common(c).tls_certificate_sds_secret_configs.clear(), "is refused"),
        (
            &|c| common(c).tls_certificate_sds_secret_configs = vec![named("nobody")],
            "names the unknown secret \"nobody\"",
        ),
        (&|c| common(c).alpn_protocols = vec!["h3".into()], "common_tls_context.alpn_protocols[0] is \"h3\""),
        (&|c| common(c).alpn_protocols = vec!["h2".into(), "h2".into()], "alpn_protocols[1] is \"h2\""),
        (
            &|c| {
                common(c).tls_params =
                    Some(TlsParameters { tls_minimum_protocol_version: 2, ..Default::default() })
            },
            "tls_params.tls_minimum_protocol_version is not supported",
        ),
        (
            &|c| {
                common(c).tls_params = Some(TlsParameters {
                    tls_minimum_protocol_version: 4,
                    tls_maximum_protocol_version: 3,
                    ..Default::default()
                })
            },
            "is above tls_maximum_protocol_version",
        ),
        (
            &|c| {
                common(c).tls_params =
                    Some(TlsParameters { cipher_suites: vec!["x".into()], ..Default::default() })
            },
            "tls_params.cipher_suites is not supported",
        ),
    ]);
}

#[test]
fn downstream_parts_of_a_context_are_refused_by_name() {
    let other = pair("other.example");
    let ca = |pem: &str| {
        Some(ValidationContextType::ValidationContext(CertificateValidationContext {
            trusted_ca: inline(pem),
            ..Default::default()
        }))
    };
    check_downstream(&[
        (&|c| c.require_sni = switch(true), "typed_config.require_sni is not supported"),
        (
            &|c| c.require_client_certificate = switch(true),
            "validation_context is required with require_client_certificate",
        ),
        (&|c| common(c).validation_context_type = ca("no pem"), "is refused"),
        (
            &|c| {
                common(c).tls_certificates = vec![TlsCertificate {
                    private_key: inline(&other.key),
                    ..certificate(&pair("x.example"))
                }]
            },
            "common_tls_context is refused",
        ),
        (
            &|c| {
                common(c).tls_certificates =
                    vec![TlsCertificate { password: inline("x"), ..certificate(&other) }]
            },
            "common_tls_context.tls_certificates[0].password is not supported",
        ),
    ]);
}

#[test]
fn client_certificates_need_a_ca_and_plaintext_needs_no_names() {
    let ca = pair("ca.example");
    let mut context = by_name();
    context.require_client_certificate = switch(true);
    common(&mut context).validation_context_type =
        Some(ValidationContextType::ValidationContext(CertificateValidationContext {
            trusted_ca: inline(&ca.chain),
            ..Default::default()
        }));
    compiled(&downstream(&context));
    let mut resources = small();
    edit_options(&mut resources.listeners[0], |o| o.unknown_sni = v1::UnknownSni::Refuse as i32);
    assert!(refusal(&resources).contains("unknown_sni means nothing on a plaintext listener"));
    let send = v1::SendProxyProtocol::SendV2 as i32;
    edit_options(&mut resources.listeners[0], |o| (o.unknown_sni, o.send_proxy_protocol) = (0, send));
    assert!(refusal(&resources).contains("send_proxy_protocol means nothing on an HTTP listener"));
}

#[test]
fn secrets_are_checked_by_themselves() {
    let mut resources = small();
    resources.secrets.insert(Secret { name: "empty".into(), r#type: None });
    resources.secrets.insert(Secret {
        name: "generic".into(),
        r#type: Some(secret::Type::GenericSecret(Default::default())),
    });
    let file =
        DataSource { specifier: Some(data_source::Specifier::Filename("/key".into())), ..Default::default() };
    let from_file = TlsCertificate { private_key: Some(file), ..certificate(&pair("a.example")) };
    resources
        .secrets
        .insert(Secret { name: "file".into(), r#type: Some(secret::Type::TlsCertificate(from_file)) });
    assert_eq!(
        refused(&resources),
        [
            "Secret \"empty\": holds nothing",
            "Secret \"generic\": generic_secret.secret is required",
            "Secret \"file\": tls_certificate.private_key.filename is not supported",
        ]
    );
}

fn upstream(edit: impl FnOnce(&mut UpstreamTlsContext, &mut CertificateValidationContext)) -> Resources {
    let ca = pair("ca.example");
    let mut context = UpstreamTlsContext {
        sni: "inner.example".into(),
        auto_sni_san_validation: true,
        ..Default::default()
    };
    let mut validation = CertificateValidationContext { trusted_ca: inline(&ca.chain), ..Default::default() };
    edit(&mut context, &mut validation);
    context.common_tls_context.get_or_insert_default().validation_context_type =
        Some(ValidationContextType::ValidationContext(validation));
    let mut resources = small();
    let cluster: &mut Cluster = &mut resources.clusters[0];
    cluster.transport_socket = socket(&context);
    resources
}

fn san(kind: i32, pattern: MatchPattern) -> SubjectAltNameMatcher {
    let matcher = StringMatcher { match_pattern: Some(pattern), ..Default::default() };
    SubjectAltNameMatcher { san_type: kind, matcher: Some(matcher), ..Default::default() }
}

#[test]
fn upstream_names_are_always_checked() {
    let name = |resources: &Resources| compiled(resources).clusters[0].server_name.clone();
    assert_eq!(name(&upstream(|_, _| {})), ServerName::Fixed("inner.example".into()));
    let automatic = upstream(|c, _| {
        c.sni.clear();
        c.auto_host_sni = true;
    });
    assert_eq!(name(&automatic), ServerName::Endpoint);
    let uri = || san(3, MatchPattern::Exact("spiffe://a/b".into()));
    compiled(&upstream(|c, v| {
        (c.auto_sni_san_validation, v.match_typed_subject_alt_names) = (false, vec![uri()])
    }));
    type Edit<'a> = &'a dyn Fn(&mut UpstreamTlsContext, &mut CertificateValidationContext);
    let table: [(Edit<'_>, &str); 9] = [
        (&|c, _| c.sni.clear(), "sni is required, or auto_host_sni"),
        (&|c, _| c.auto_host_sni = true, "auto_host_sni is not supported together with sni"),
        (
            &|c, _| c.auto_sni_san_validation = false,
            "match_typed_subject_alt_names is required, or auto_sni_san_validation",
        ),
        (&|_, v| v.trusted_ca = None, "trusted_ca is required, or system_root_certs"),
        (
            &|_, v| v.match_typed_subject_alt_names = vec![san(1, MatchPattern::Exact("a@b".into()))],
            "match_typed_subject_alt_names[0].san_type is not supported",
        ),
        (
            &|_, v| v.match_typed_subject_alt_names = vec![san(2, MatchPattern::Suffix("a".into()))],
            "only `exact` is",
        ),
        (
            &|_, v| v.verify_certificate_hash = vec!["x".into()],
            "validation_context.verify_certificate_hash is not supported",
        ),
        (&|c, _| c.allow_renegotiation = true, "typed_config.allow_renegotiation is not supported"),
        (
            &|c, _| c.common_tls_context.get_or_insert_default().alpn_protocols = vec!["h2".into()],
            "follows the cluster's protocol",
        ),
    ];
    for (edit, expected) in table {
        let refusal = refusal(&upstream(edit));
        assert!(
            refusal.starts_with("Cluster \"backend\": transport_socket.typed_config")
                && refusal.contains(expected),
            "{refusal}"
        );
    }
}

#[test]
fn the_hosts_cas_serve_clusters_that_ask_for_them() {
    let resources = upstream(|_, v| (v.trusted_ca, v.system_root_certs) = (None, Some(Default::default())));
    assert!(refusal(&resources).contains("system_root_certs cannot be had"));
    let roots = pair("root.example").chain;
    let host = Host { system_roots_pem: Some(roots.as_bytes()), ..Host::default() };
    compile_for(&resources, &host, &mut StatRegistry::new()).expect("a good set");
}

#[test]
fn no_refusal_shows_a_key() {
    let mut broken = pair("a.example");
    broken.key = broken.key.replace("BEGIN PRIVATE KEY", "BEGIN OTHER THING");
    let mut context = by_name();
    common(&mut context).tls_certificates = vec![certificate(&broken)];
    let refusal = refusal(&downstream(&context));
    let secret_line = broken.key.lines().nth(1).expect("a PEM body");
    assert!(!refusal.contains(secret_line), "the refusal holds key material");
}
