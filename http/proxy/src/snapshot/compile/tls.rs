//! `DownstreamTlsContext` and `UpstreamTlsContext`, with the secrets that they name, into contexts of the tls crate.
//!
//! Key material is borrowed from the resources or moved into `tls::SecretBytes`; no copy of it is left behind here.

use std::borrow::Cow;

use control_api::Secrets;
use control_api::defaults::listener::TICKET_KEY_BYTES;
use control_api::envoy::core::{DataSource, TransportSocket, data_source, transport_socket};
use control_api::envoy::google::Any;
use control_api::envoy::names;
use control_api::envoy::tls::certificate_validation_context::SystemRootCerts;
use control_api::envoy::tls::common_tls_context::ValidationContextType;
use control_api::envoy::tls::downstream_tls_context::SessionTicketKeysType;
use control_api::envoy::tls::subject_alt_name_matcher::SanType;
use control_api::envoy::tls::tls_parameters::TlsProtocol;
use control_api::envoy::tls::{
    CertificateValidationContext, CommonTlsContext, DownstreamTlsContext, SdsSecretConfig,
    SubjectAltNameMatcher, TlsCertificate, TlsParameters, TlsSessionTicketKeys, UpstreamTlsContext, secret,
};
use control_api::shard::v1::UnknownSni;
use tls::{
    CertifiedName, ClientAuth, ClientAuthorities, ClientContext, ClientContextBuilder, Identity, SanKind,
    SanMatch, SanRule, SecretBytes, ServedNames, ServerContext, ServerContextBuilder, TicketKey, TicketKeys,
    UnknownName, Verification, Version, Versions,
};

use super::fault::{Checked, Fault, Within, nothing_else};
use super::matches::text_rule;
use super::value;
use crate::route::{Case, TextRule};
use crate::snapshot::model::{ServerName, TicketSource, UpstreamProtocol};

/// Where TLS contexts take from what they do not hold themselves.
#[derive(Clone, Copy, Debug)]
pub(super) struct TlsSources<'a> {
    pub(super) secrets: &'a Secrets,
    /// The keys of listeners whose config has none.
    pub(super) process_tickets: Option<&'a TicketKeys>,
    /// The CAs of the host, PEM.
    pub(super) system_roots_pem: Option<&'a [u8]>,
}

/// Bytes of a certificate chain, key or CA bundle.
const PEM_BYTES_MAX: usize = 1 << 20;

pub(super) fn server(
    socket: TransportSocket,
    unknown_sni: UnknownSni,
    sources: &TlsSources<'_>,
) -> Checked<(ServerContext, TicketSource)> {
    let context: DownstreamTlsContext = typed_config(socket)?;
    server_context(context, unknown_sni, sources).within("typed_config")
}

fn server_context(
    mut context: DownstreamTlsContext,
    unknown_sni: UnknownSni,
    sources: &TlsSources<'_>,
) -> Checked<(ServerContext, TicketSource)> {
    let required = context.require_client_certificate.take().is_some_and(|required| required.value);
    // Shard never resumes by session id, so either value asks for what happens anyway.
    context.disable_stateful_session_resumption = false;
    let tickets = tickets(context.session_ticket_keys_type.take(), sources)?;
    let common = context.common_tls_context.take().ok_or_else(|| Fault::missing("common_tls_context"))?;
    nothing_else(&context)?;
    let mut common = Common::read(common, sources.secrets).within("common_tls_context")?;
    let mut builder = ServerContextBuilder::new();
    builder.versions = common.versions;
    if !common.alpn.is_empty() {
        builder.alpn = alpn(&common.alpn).within("common_tls_context")?;
    }
    builder.unknown_name = match unknown_sni {
        UnknownSni::DefaultCertificate => UnknownName::DefaultCertificate,
        UnknownSni::Refuse => UnknownName::Refuse,
    };
    builder.client_auth = client_auth(common.validation.take(), required).within("common_tls_context")?;
    for (label, certificate) in &common.certificates {
        let (chain, key) = chain_and_key(certificate).within(label).within("common_tls_context")?;
        let identity = Identity { label, chain_pem: &chain, key_pem: &key };
        builder
            .certificate(&CertifiedName { identity, names: ServedNames::FromCertificate, client_auth: None })
            .map_err(|error| Fault::new("common_tls_context", format!("is refused: {error}")))?;
    }
    let (keys, source) = match &tickets {
        Tickets::Off => (None, TicketSource::Off),
        Tickets::Given(keys) => (Some(keys), TicketSource::Resources),
        Tickets::Process => (sources.process_tickets, TicketSource::Process),
    };
    let built = builder.build(keys).map_err(|error| Fault::new("", format!("is refused: {error}")))?;
    Ok((built, source))
}

fn alpn(protocols: &[String]) -> Checked<Vec<Vec<u8>>> {
    for (at, protocol) in protocols.iter().enumerate() {
        let known = matches!(protocol.as_str(), "h2" | "http/1.1");
        if !known || protocols.iter().take(at).any(|earlier| earlier == protocol) {
            return Err(Fault::new(
                &format!("alpn_protocols[{at}]"),
                format!("is {protocol:?}: `h2` and `http/1.1` are supported, once each"),
            ));
        }
    }
    Ok(protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect())
}

fn client_auth(validation: Option<CertificateValidationContext>, required: bool) -> Checked<ClientAuth> {
    let Some(mut validation) = validation else {
        return if required {
            Err(Fault::new("validation_context", "is required with require_client_certificate"))
        } else {
            Ok(ClientAuth::None)
        };
    };
    let roots_pem = value::inline("trusted_ca", validation.trusted_ca.take(), PEM_BYTES_MAX)
        .within("validation_context")?;
    if roots_pem.is_empty() {
        return Err(Fault::missing("validation_context.trusted_ca"));
    }
    nothing_else(&validation).within("validation_context")?;
    let authorities = ClientAuthorities { roots_pem, ..ClientAuthorities::default() };
    Ok(if required { ClientAuth::Required(authorities) } else { ClientAuth::Optional(authorities) })
}

enum Tickets {
    Off,
    Process,
    Given(TicketKeys),
}

fn tickets(keys: Option<SessionTicketKeysType>, sources: &TlsSources<'_>) -> Checked<Tickets> {
    match keys {
        None | Some(SessionTicketKeysType::DisableStatelessSessionResumption(false)) => Ok(Tickets::Process),
        Some(SessionTicketKeysType::DisableStatelessSessionResumption(true)) => Ok(Tickets::Off),
        Some(SessionTicketKeysType::SessionTicketKeys(keys)) => {
            let read = ticket_keys(&keys).within("session_ticket_keys");
            // The message is ours alone, so its key bytes are wiped with it.
            keys.keys.into_iter().for_each(wipe);
            read.map(Tickets::Given)
        }
        Some(SessionTicketKeysType::SessionTicketKeysSdsSecretConfig(config)) => {
            let field = "session_ticket_keys_sds_secret_config";
            match named_secret(config, sources.secrets).within(field)? {
                (_, secret::Type::SessionTicketKeys(keys)) => {
                    ticket_keys(keys).within(field).map(Tickets::Given)
                }
                (name, _) => {
                    Err(Fault::new(field, format!("names {name:?}, which holds no session_ticket_keys")))
                }
            }
        }
    }
}

/// Current, previous, next.
fn ticket_keys(keys: &TlsSessionTicketKeys) -> Checked<TicketKeys> {
    let mut read = keys.keys.iter().enumerate().map(|(at, source)| {
        let bytes = secret_bytes("", Some(source)).within_item("keys", at)?;
        if bytes.len() != TICKET_KEY_BYTES {
            return Err(Fault::new(
                &format!("keys[{at}]"),
                format!("has {} bytes, it must have {TICKET_KEY_BYTES}", bytes.len()),
            ));
        }
        TicketKey::from_bytes(bytes.as_slice())
            .map_err(|error| Fault::new(&format!("keys[{at}]"), format!("is refused: {error}")))
    });
    let current = read.next().ok_or_else(|| Fault::missing("keys"))??;
    let previous = read.next().transpose()?;
    let next = read.next().transpose()?;
    if read.next().is_some() {
        return Err(Fault::new("keys", "has more than 3 entries: current, previous, next"));
    }
    TicketKeys::new(next, current, previous)
        .map_err(|error| Fault::new("keys", format!("is refused: {error}")))
}

pub(super) fn client(
    socket: TransportSocket,
    cluster: &str,
    protocol: UpstreamProtocol,
    sources: &TlsSources<'_>,
) -> Checked<(ClientContext, ServerName)> {
    let context: UpstreamTlsContext = typed_config(socket)?;
    client_context(context, cluster, protocol, sources).within("typed_config")
}

fn client_context(
    mut context: UpstreamTlsContext,
    cluster: &str,
    protocol: UpstreamProtocol,
    sources: &TlsSources<'_>,
) -> Checked<(ClientContext, ServerName)> {
    let sni = std::mem::take(&mut context.sni);
    let server_name = match (sni.is_empty(), std::mem::take(&mut context.auto_host_sni)) {
        (false, false) => ServerName::Fixed(sni),
        (true, true) => ServerName::Endpoint,
        (true, false) => return Err(Fault::new("sni", "is required, or auto_host_sni")),
        (false, true) => return Err(Fault::new("auto_host_sni", "is not supported together with sni")),
    };
    let by_name = std::mem::take(&mut context.auto_sni_san_validation);
    let common = context.common_tls_context.take().ok_or_else(|| Fault::missing("common_tls_context"))?;
    nothing_else(&context)?;
    let mut common = Common::read(common, sources.secrets).within("common_tls_context")?;
    let validation =
        common.validation.take().ok_or_else(|| Fault::missing("common_tls_context.validation_context"))?;
    let verification = verification(validation, by_name, sources)
        .within("validation_context")
        .within("common_tls_context")?;
    if !common.alpn.is_empty() {
        return Err(Fault::new(
            "common_tls_context.alpn_protocols",
            "is not supported here: it follows the cluster's protocol",
        ));
    }
    if common.certificates.len() > 1 {
        return Err(Fault::new(
            "common_tls_context.tls_certificates",
            "has more than one client certificate",
        ));
    }
    let mut builder = ClientContextBuilder::new(cluster, verification);
    builder.versions = common.versions;
    builder.alpn = match protocol {
        UpstreamProtocol::Http1 => vec![b"http/1.1".to_vec()],
        UpstreamProtocol::Http2 => vec![b"h2".to_vec()],
    };
    let built = match common.certificates.first() {
        None => builder.build(None),
        Some((label, certificate)) => {
            let (chain, key) = chain_and_key(certificate).within(label).within("common_tls_context")?;
            builder.build(Some(&Identity { label, chain_pem: &chain, key_pem: &key }))
        }
    };
    let built = built.map_err(|error| Fault::new("", format!("is refused: {error}")))?;
    Ok((built, server_name))
}

fn verification(
    mut validation: CertificateValidationContext,
    by_name: bool,
    sources: &TlsSources<'_>,
) -> Checked<Verification> {
    let own = value::inline("trusted_ca", validation.trusted_ca.take(), PEM_BYTES_MAX)?;
    let roots_pem = match (own.is_empty(), validation.system_root_certs.take()) {
        (false, None) => own,
        (true, Some(SystemRootCerts {})) => match sources.system_roots_pem {
            Some(roots) => roots.to_vec(),
            None => return Err(Fault::new("system_root_certs", "cannot be had: this host has no CA bundle")),
        },
        (true, None) => return Err(Fault::new("trusted_ca", "is required, or system_root_certs")),
        (false, Some(_)) => {
            return Err(Fault::new("system_root_certs", "is not supported together with trusted_ca"));
        }
    };
    let matchers = std::mem::take(&mut validation.match_typed_subject_alt_names).into_iter().enumerate();
    let rules =
        matchers.map(|(at, matcher)| san_rule(matcher).within_item("match_typed_subject_alt_names", at));
    let rules = rules.collect::<Checked<Vec<_>>>()?;
    nothing_else(&validation)?;
    match (by_name, rules.is_empty()) {
        (true, _) => Ok(Verification::Full { roots_pem, rules }),
        (false, false) => Ok(Verification::RulesOnly { roots_pem, rules }),
        (false, true) => Err(Fault::new(
            "match_typed_subject_alt_names",
            "is required, or auto_sni_san_validation: shard always checks the name in a certificate",
        )),
    }
}

fn san_rule(mut matcher: SubjectAltNameMatcher) -> Checked<SanRule> {
    let kind = match SanType::try_from(std::mem::take(&mut matcher.san_type)) {
        Ok(SanType::Dns) => SanKind::Dns,
        Ok(SanType::Uri) => SanKind::Uri,
        Ok(SanType::IpAddress) => {
            return Err(Fault::new(
                "san_type",
                "is not supported as IP_ADDRESS: set sni to the address, with auto_sni_san_validation",
            ));
        }
        _ => return Err(Fault::new("san_type", "is not supported: DNS and URI are")),
    };
    let text = matcher.matcher.take().ok_or_else(|| Fault::missing("matcher"))?;
    nothing_else(&matcher)?;
    match text_rule(text).within("matcher")? {
        TextRule::Exact(text, Case::Sensitive) => Ok(SanRule { kind, how: SanMatch::Exact, text }),
        _ => Err(Fault::new("matcher", "is not supported: only `exact` is, without ignore_case")),
    }
}

/// What both sides have in common.
struct Common<'s> {
    /// With what errors call them.
    certificates: Vec<(String, Cow<'s, TlsCertificate>)>,
    validation: Option<CertificateValidationContext>,
    versions: Versions,
    alpn: Vec<String>,
}

impl<'s> Common<'s> {
    fn read(mut common: CommonTlsContext, secrets: &'s Secrets) -> Checked<Self> {
        let mut certificates = Vec::new();
        for (at, certificate) in std::mem::take(&mut common.tls_certificates).into_iter().enumerate() {
            certificates.push((format!("tls_certificates[{at}]"), Cow::Owned(certificate)));
        }
        for (at, config) in
            std::mem::take(&mut common.tls_certificate_sds_secret_configs).into_iter().enumerate()
        {
            let field = "tls_certificate_sds_secret_configs";
            match named_secret(config, secrets).within_item(field, at)? {
                (name, secret::Type::TlsCertificate(certificate)) => {
                    certificates.push((name, Cow::Borrowed(certificate)))
                }
                (name, _) => {
                    let fault: Checked<Self> =
                        Err(Fault::new("name", format!("is {name:?}, which holds no tls_certificate")));
                    return fault.within_item(field, at);
                }
            }
        }
        let validation = match common.validation_context_type.take() {
            None => None,
            Some(ValidationContextType::ValidationContext(context)) => Some(context),
            Some(ValidationContextType::ValidationContextSdsSecretConfig(config)) => {
                let field = "validation_context_sds_secret_config";
                match named_secret(config, secrets).within(field)? {
                    (_, secret::Type::ValidationContext(context)) => Some(context.clone()),
                    (name, _) => {
                        return Err(Fault::new(
                            field,
                            format!("names {name:?}, which holds no validation_context"),
                        ));
                    }
                }
            }
            Some(ValidationContextType::CombinedValidationContext(_)) => {
                return Err(Fault::unsupported("combined_validation_context"));
            }
            Some(_) => {
                return Err(Fault::new("", "uses a deprecated certificate provider, which is not supported"));
            }
        };
        let versions = versions(common.tls_params.take().unwrap_or_default()).within("tls_params")?;
        let alpn = std::mem::take(&mut common.alpn_protocols);
        nothing_else(&common)?;
        Ok(Self { certificates, validation, versions, alpn })
    }
}

impl Drop for Common<'_> {
    /// Inline certificates were decoded here, so their keys are wiped here.
    fn drop(&mut self) {
        for (_, certificate) in self.certificates.drain(..) {
            if let Cow::Owned(certificate) = certificate {
                certificate.private_key.into_iter().for_each(wipe);
            }
        }
    }
}

fn versions(mut params: TlsParameters) -> Checked<Versions> {
    let version = |field, number: i32, automatic| match TlsProtocol::try_from(number) {
        Ok(TlsProtocol::TlsAuto) => Ok(automatic),
        Ok(TlsProtocol::TlSv12) => Ok(Version::Tls12),
        Ok(TlsProtocol::TlSv13) => Ok(Version::Tls13),
        // RFC 8996 ends the older ones.
        _ => Err(Fault::new(field, "is not supported: TLSv1_2 and TLSv1_3 are")),
    };
    let min = version(
        "tls_minimum_protocol_version",
        std::mem::take(&mut params.tls_minimum_protocol_version),
        Version::Tls12,
    )?;
    let max = version(
        "tls_maximum_protocol_version",
        std::mem::take(&mut params.tls_maximum_protocol_version),
        Version::Tls13,
    )?;
    nothing_else(&params)?;
    if min > max {
        return Err(Fault::new("tls_minimum_protocol_version", "is above tls_maximum_protocol_version"));
    }
    Ok(Versions { min, max })
}

fn chain_and_key(certificate: &TlsCertificate) -> Checked<(Vec<u8>, SecretBytes)> {
    // All but the two fields that are read, without a copy of the key.
    let rest = TlsCertificate {
        certificate_chain: None,
        private_key: None,
        pkcs12: certificate.pkcs12.as_ref().map(|_| DataSource::default()),
        watched_directory: certificate.watched_directory.clone(),
        private_key_provider: certificate.private_key_provider.clone(),
        password: certificate.password.as_ref().map(|_| DataSource::default()),
        ocsp_staple: certificate.ocsp_staple.clone(),
        signed_certificate_timestamp: certificate.signed_certificate_timestamp.clone(),
        tls_params: certificate.tls_params.clone(),
    };
    nothing_else(&rest)?;
    let chain = value::inline("certificate_chain", certificate.certificate_chain.clone(), PEM_BYTES_MAX)?;
    if chain.is_empty() {
        return Err(Fault::missing("certificate_chain"));
    }
    Ok((chain, secret_bytes("private_key", certificate.private_key.as_ref())?))
}

/// Key material, copied once, into locked memory.
pub(super) fn secret_bytes(field: &str, source: Option<&DataSource>) -> Checked<SecretBytes> {
    let source = source.ok_or_else(|| Fault::missing(field))?;
    let bytes = match &source.specifier {
        Some(data_source::Specifier::InlineBytes(bytes)) => bytes.as_slice(),
        Some(data_source::Specifier::InlineString(text)) => text.as_bytes(),
        Some(data_source::Specifier::Filename(_)) => return Err(Fault::unsupported("filename").within(field)),
        Some(data_source::Specifier::EnvironmentVariable(_)) => {
            return Err(Fault::unsupported("environment_variable").within(field));
        }
        None => return Err(Fault::new(field, "is empty: give inline_bytes or inline_string")),
    };
    if source.watched_directory.is_some() {
        return Err(Fault::unsupported("watched_directory").within(field));
    }
    if bytes.is_empty() || bytes.len() > PEM_BYTES_MAX {
        return Err(Fault::new(field, format!("must have 1 to {PEM_BYTES_MAX} bytes")));
    }
    Ok(SecretBytes::from_slice(bytes))
}

/// Moves key bytes to where dropping overwrites them.
fn wipe(source: DataSource) {
    match source.specifier {
        Some(data_source::Specifier::InlineBytes(bytes)) => drop(SecretBytes::from_vec(bytes)),
        Some(data_source::Specifier::InlineString(text)) => drop(SecretBytes::from_vec(text.into_bytes())),
        Some(data_source::Specifier::Filename(_) | data_source::Specifier::EnvironmentVariable(_)) | None => {
        }
    }
}

fn named_secret(mut config: SdsSecretConfig, secrets: &Secrets) -> Checked<(String, &secret::Type)> {
    let name = std::mem::take(&mut config.name);
    value::from_ads("sds_config", config.sds_config.take())?;
    nothing_else(&config)?;
    let secret =
        secrets.get(&name).ok_or_else(|| Fault::new("name", format!("names the unknown secret {name:?}")))?;
    let held = secret
        .r#type
        .as_ref()
        .ok_or_else(|| Fault::new("name", format!("names {name:?}, which is empty")))?;
    Ok((name, held))
}

fn typed_config<M>(mut socket: TransportSocket) -> Checked<M>
where
    M: prost::Message + prost::Name + Default,
{
    let Some(transport_socket::ConfigType::TypedConfig(any)) = socket.config_type.take() else {
        return Err(Fault::missing("typed_config"));
    };
    if std::mem::take(&mut socket.name) != names::TLS {
        return Err(Fault::new("name", format!("is not supported: {} is", names::TLS)));
    }
    nothing_else(&socket)?;
    let read = control_api::from_any(&any);
    let Any { type_url, value } = any;
    // It may hold a key inline.
    drop(SecretBytes::from_vec(value));
    read.map_err(|error| Fault::new("typed_config", format!("of type {type_url:?} is refused: {error}")))
}

/// Checks a secret by itself: a name, and one of the kinds that something can use.
pub(super) fn check_secret(kind: Option<&secret::Type>) -> Checked<()> {
    match kind {
        Some(secret::Type::TlsCertificate(certificate)) => {
            chain_and_key(certificate).map(|_| ()).within("tls_certificate")
        }
        Some(secret::Type::SessionTicketKeys(keys)) => {
            ticket_keys(keys).map(|_| ()).within("session_ticket_keys")
        }
        Some(secret::Type::ValidationContext(context)) => {
            let rest = CertificateValidationContext { trusted_ca: None, ..context.clone() };
            nothing_else(&rest).within("validation_context")
        }
        Some(secret::Type::GenericSecret(generic)) => {
            super::sticky::generic_key(generic).map(|_| ()).within("generic_secret")
        }
        None => Err(Fault::new("", "holds nothing")),
    }
}
