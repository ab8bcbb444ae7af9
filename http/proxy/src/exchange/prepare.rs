//! Heads on their way: who is calling, which path is meant, and what backends and clients get to see.

use std::net::SocketAddr;

use http_gateway::client_addr::{Downstream, PeerTrust};
use http_gateway::fields::Variables;
use http_wire::fields::{FieldError, FieldId};
use http_wire::grpc;
use http_wire::head::{Method, Scheme, Version};
use http_wire::path::{self, PathOutcome, PathPolicy};
use http_wire::trace::TraceParent;

use super::{Asked, Exchange, RequestId, Stop};
use crate::reason::Reason;
use crate::reply::Reply;
use crate::snapshot::{
    ClientCertField, EscapedSlashes, Forward, HostRewrite, ListenerConfig, Redirect, Route,
};

impl HttpPath {
    fn policy(listener: &ListenerConfig) -> PathPolicy {
        PathPolicy {
            escaped_slashes: match listener.http.escaped_slashes {
                EscapedSlashes::Keep => path::EscapedSlashes::Keep,
                EscapedSlashes::Reject => path::EscapedSlashes::Reject,
                EscapedSlashes::Redirect => path::EscapedSlashes::Redirect,
            },
            merge_slashes: listener.http.merge_slashes,
        }
    }
}

/// The listener's rules about paths.
struct HttpPath;

impl Exchange<'_> {
    /// Finds the client behind trusted hops, and the request's id (C46).
    pub(super) fn identify(&mut self, listener: &ListenerConfig) -> Result<(), Stop> {
        let client = listener.http.client_addr.derive(self.conn.peer.ip(), &self.request.head.fields);
        if client.peer_trust == PeerTrust::Trusted
            && let Some(given) = self.request.head.fields.get(FieldId::XRequestId).and_then(RequestId::given)
        {
            self.request_id = given;
        }
        self.client = Some(client);
        Ok(())
    }

    /// HTTP/1.0 needs no Host: what the client connected to stands for it (RFC 9112 §3.3). Sent on, an empty Host
    /// would be refused by strict backends, and HTTP/2 has no such form.
    pub(super) fn settle_host(&mut self) -> Result<(), Stop> {
        if !self.request.head.authority().is_empty() {
            return Ok(());
        }
        let server_name = self.conn.tls.as_ref().and_then(|tls| tls.server_name.as_deref());
        let address = || SocketAddr::new(self.conn.local.ip(), self.conn.local.port()).to_string();
        let host = server_name.map_or_else(address, str::to_owned);
        Ok(self.request.head.set_authority(host.as_bytes())?)
    }

    /// A connection vouches only for hosts under the client-certificate rules that its handshake went by: anything
    /// else would pass mTLS by with the session of another name (C39, C40; RFC 9110 §15.5.20).
    pub(super) fn check_session(&self, listener: &ListenerConfig) -> Result<(), Stop> {
        let (Some(context), Some(session)) = (&listener.tls, &self.conn.tls) else { return Ok(()) };
        let host = http_wire::authority::host_without_port(self.request.head.authority());
        if session.server_name.as_ref().is_some_and(|name| name.as_bytes() == host) {
            return Ok(());
        }
        let policy = std::str::from_utf8(host).ok().and_then(|host| context.policy_of(host));
        if policy.is_some() && policy == session.policy {
            return Ok(());
        }
        Err(Stop::reply(Reason::Misdirected))
    }

    /// One normalised path for routing, policies, logs and the backend (C16).
    pub(super) fn normalise_path(&mut self, listener: &ListenerConfig) -> Result<(), Stop> {
        let head = &mut self.request.head;
        if head.method == Method::Options && head.path() == b"*" {
            return Ok(());
        }
        let mut scratch = self.core.scratch.borrow_mut();
        let outcome = path::normalise(head.path(), &HttpPath::policy(listener), &mut scratch)
            .map_err(|_refused| Stop::reply(Reason::PathRejected))?;
        match outcome {
            PathOutcome::Unchanged => Ok(()),
            PathOutcome::Changed => Ok(head.set_path(&scratch)?),
            PathOutcome::Redirect => {
                let mut location = scratch.clone();
                if let Some(query) = head.query() {
                    location.push(b'?');
                    location.extend_from_slice(query);
                }
                let mut reply = Reply { status: 307, ..Reply::default() };
                reply.fields.push_name(b"location", &location)?;
                Err(Stop::Reply(Box::new(reply)))
            }
        }
    }

    /// A redirect's answer: what the route names is changed, the rest of the URL is kept.
    pub(super) fn redirect(
        &self,
        redirect: &Redirect,
        matched_bytes: usize,
        listener: &ListenerConfig,
    ) -> Result<Stop, Stop> {
        let head = &self.request.head;
        let scheme = if redirect.https { Scheme::Https } else { head.scheme };
        let mut location = Vec::with_capacity(128);
        location.extend_from_slice(scheme.as_str().as_bytes());
        location.extend_from_slice(b"://");
        let own_host = http_wire::authority::host_without_port(head.authority());
        match (&redirect.host, redirect.port) {
            (Some(host), _) => location.extend_from_slice(host.as_bytes()),
            // Another scheme or port: the client's port no longer fits.
            (None, Some(_)) => location.extend_from_slice(own_host),
            (None, None) if redirect.https => location.extend_from_slice(own_host),
            (None, None) => location.extend_from_slice(head.authority()),
        }
        if let Some(port) = redirect.port {
            location.push(b':');
            location.extend_from_slice(port.to_string().as_bytes());
        }
        match &redirect.path {
            Some(rewrite) => {
                let mut path = Vec::new();
                rewrite.apply(head.path(), matched_bytes, &mut path);
                path::recheck(&mut path, &HttpPath::policy(listener), &mut Vec::new())
                    .map_err(|_refused| Stop::reply(Reason::PathRejected))?;
                location.extend_from_slice(&path);
            }
            None => location.extend_from_slice(head.path()),
        }
        if let Some(query) = head.query().filter(|_| !redirect.strip_query) {
            location.push(b'?');
            location.extend_from_slice(query);
        }
        let mut reply = Reply { status: redirect.status, ..Reply::default() };
        reply.fields.push_name(b"location", &location)?;
        Ok(Stop::Reply(Box::new(reply)))
    }

    /// Makes the request head that backends get, once for all attempts.
    pub(super) fn prepare_request(
        &mut self,
        listener: &ListenerConfig,
        route: &Route,
        forward: &Forward,
        matched_bytes: usize,
    ) -> Result<(), Stop> {
        self.check_upgrade(listener)?;
        self.write_identity(listener)?;
        self.write_token_identity(listener, route)?;
        let host = std::mem::take(&mut *self.core.scratch.borrow_mut());
        let result = self.apply_request_fields(route, host);
        *self.core.scratch.borrow_mut() = result?;
        let head = &mut self.request.head;
        if forward.path_rewrite.is_some() || forward.host_rewrite.is_some() {
            self.asked =
                Some(Box::new(Asked { host: head.authority().to_vec(), path: head.path().to_vec() }));
        }
        if let Some(rewrite) = &forward.path_rewrite {
            let mut path = Vec::with_capacity(head.path().len());
            rewrite.apply(head.path(), matched_bytes, &mut path);
            path::recheck(&mut path, &HttpPath::policy(listener), &mut Vec::new())
                .map_err(|_refused| Stop::reply(Reason::PathRejected))?;
            head.set_path(&path)?;
        }
        if let Some(HostRewrite::Literal(host)) = &forward.host_rewrite {
            head.set_authority(host.as_bytes())?;
        }
        Ok(())
    }

    /// An upgrade that the listener does not pass on is ignored in HTTP/1.1, where the request means something
    /// without it, and refused as an extended CONNECT, where it does not (RFC 9110 §7.8, RFC 8441 §4).
    fn check_upgrade(&mut self, listener: &ListenerConfig) -> Result<(), Stop> {
        let head = &mut self.request.head;
        let Some(protocol) = head.protocol() else { return Ok(()) };
        let is_passed_on = listener.http.upgrades.iter().any(|known| known.as_bytes() == protocol);
        match (is_passed_on, head.version) {
            (false, Version::Http2) => Err(Stop::reply(Reason::UpgradeRefused)),
            (false, _) => {
                head.clear_protocol();
                Ok(())
            }
            // C07: whose bytes a body would be is not clear to every server.
            (true, Version::Http11) if self.request.body != http_wire::head::BodyLength::Empty => {
                Err(Stop::reply(Reason::UpgradeRefused))
            }
            (true, _) => Ok(()),
        }
    }

    /// The fields that only the proxy may set: client-sent ones are replaced or removed.
    fn write_identity(&mut self, listener: &ListenerConfig) -> Result<(), FieldError> {
        let conn = self.conn;
        let Some(client) = self.client else { return Err(FieldError) };
        let downstream = Downstream { peer: conn.peer.ip(), local: conn.local, scheme: conn.scheme };
        let head = &mut self.request.head;
        let mut scratch = self.core.scratch.borrow_mut();
        listener.http.client_addr.rewrite(&client, &downstream, head, &mut scratch)?;
        head.fields.set(FieldId::XRequestId, self.request_id.as_bytes())?;
        head.fields.remove(FieldId::XForwardedClientCert);
        if listener.http.client_cert_field == ClientCertField::Replace
            && let Some(details) = &conn.client_cert
        {
            head.fields.push(FieldId::XForwardedClientCert, details.as_bytes())?;
        }
        // W3C Trace Context §3.2: one valid traceparent passes on; anything else begins a new trace.
        if TraceParent::from_lines(head.fields.all(FieldId::Traceparent)).is_none() {
            let trace_id = (u128::from(self.core.random()) << 64) | u128::from(self.core.random());
            let begun = TraceParent::begin(trace_id, self.core.random());
            head.fields.remove(FieldId::Tracestate);
            head.fields.set(FieldId::Traceparent, &begun.to_bytes())?;
        }
        Ok(())
    }

    /// What the verified token says, in place of the token. What the client itself sent under these names is gone.
    fn write_token_identity(&mut self, listener: &ListenerConfig, route: &Route) -> Result<(), FieldError> {
        match (&self.identity, listener.http.token_policy(route)) {
            (Some(identity), Some(policy)) => identity.write(policy.provider, &mut self.request.head.fields),
            _ => Ok(()),
        }
    }

    fn apply_request_fields(&mut self, route: &Route, mut scratch: Vec<u8>) -> Result<Vec<u8>, FieldError> {
        if route.request_fields.is_empty() {
            return Ok(scratch);
        }
        let host = self.request.head.authority().to_vec();
        let variables = Variables {
            client: self.client_ip(),
            request_id: self.request_id.as_bytes(),
            protocol: self.request.head.version,
            host: &host,
        };
        route.request_fields.apply(&variables, &mut self.request.head.fields, &mut scratch)?;
        Ok(scratch)
    }

    /// What every response to a client carries, forwarded or made here.
    pub(super) fn finish_response_fields(&mut self, route: &Route) -> Result<(), FieldError> {
        let fields = &mut self.request.response.fields;
        // The answer to a preflight is the policy's own already, and more than any other response carries.
        if let Some(cors) = &route.cors
            && self.outcome.reason != Reason::CorsPreflight
        {
            cors.mark_response(&self.request.head.fields, fields)?;
        }
        if let Some(deprecation) = &route.deprecation {
            fields.set(FieldId::Deprecation, deprecation.as_bytes())?;
        }
        if let Some(sunset) = &route.sunset {
            fields.set_name(b"sunset", sunset.as_bytes())?;
        }
        if !route.response_fields.is_empty() {
            let variables = Variables {
                client: self.client.as_ref().map_or(self.conn.peer.ip(), |client| client.address),
                request_id: self.request_id.as_bytes(),
                protocol: self.request.head.version,
                host: self.request.head.authority(),
            };
            let mut scratch = self.core.scratch.borrow_mut();
            route.response_fields.apply(&variables, fields, &mut scratch)?;
        }
        fields.set(FieldId::XRequestId, self.request_id.as_bytes())
    }

    /// The caller's own limit: `grpc-timeout` (C41).
    ///
    /// # Errors
    /// `BadGrpcTimeout` for a value that is none.
    pub(super) fn caller_timeout(&self) -> Result<Option<std::time::Duration>, Stop> {
        match self.request.head.fields.get(FieldId::GrpcTimeout) {
            Some(value) if self.is_grpc() => {
                grpc::parse_timeout(value).map(Some).ok_or_else(|| Stop::reply(Reason::BadGrpcTimeout))
            }
            _ => Ok(None),
        }
    }
}
