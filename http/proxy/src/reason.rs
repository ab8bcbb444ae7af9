//! Why an exchange or a connection ended as it did: one reason per cause, a closed set.
//!
//! The code is the one word for a cause, in the problem document, the log line, the metric label and
//! `shardctl explain CODE`; codes are never renamed. Codes of the HTTP/1 codec are taken over as they are.
//! `status` is None where no reply can be made: before a request, or after the response head has left.
//! The table below is also docs/reason-codes.md; a test keeps the two equal.

use std::fmt::{self, Write as _};

use http_gateway::chain::Cause;
use http_gateway::jwt::TokenFault;
use http_wire::h1::{BodyError, RequestError, ResponseError, WriteError};
use http_wire::h2::HeadError;

/// Status codes of gRPC (grpc.io, statuscodes.md) that the proxy itself answers with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum GrpcStatus {
    Ok = 0,
    Cancelled = 1,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    Unauthenticated = 16,
}

impl GrpcStatus {
    /// The number of the `grpc-status` field.
    pub const fn number(self) -> u8 {
        self as u8
    }
}

macro_rules! reasons {
    (@status -) => { None };
    (@status $status:literal) => { Some($status) };
    ($($variant:ident $code:literal $status:tt $grpc:ident $title:literal $explanation:literal)+) => {
        /// A cause. The first, [`Reason::Ok`], means that nothing went wrong here; a response of an upstream is
        /// `Ok` whatever its status.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Reason {
            #[default]
            $(#[doc = $title] $variant,)+
        }

        impl Reason {
            /// Every reason, in order of `index`.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The stable word.
            pub const fn code(self) -> &'static str {
                match self { $(Self::$variant => $code,)+ }
            }

            /// The HTTP status of the reply; None where no reply is possible.
            pub const fn status(self) -> Option<u16> {
                match self { $(Self::$variant => reasons!(@status $status),)+ }
            }

            /// What a gRPC caller gets instead.
            pub const fn grpc_status(self) -> GrpcStatus {
                match self { $(Self::$variant => GrpcStatus::$grpc,)+ }
            }

            /// The `title` of the problem document.
            pub const fn title(self) -> &'static str {
                match self { $(Self::$variant => $title,)+ }
            }

            /// What it means and what to do about it.
            pub const fn explanation(self) -> &'static str {
                match self { $(Self::$variant => $explanation,)+ }
            }
        }
    };
}

reasons! {
Ok "ok" - Ok "No error"
    "The exchange went through; the status is the upstream's or the route's own. Nothing to do."
CorsPreflight "cors_preflight" 204 Ok "CORS preflight answered"
    "A browser asked whether a page may make a request, and the route's CORS policy answered. Not an error; the backend did not see it."

BadRequestLine "bad_request_line" 400 InvalidArgument "Malformed request line"
    "The request line is not `method SP target SP version`. Fix the client; often another protocol was spoken to an HTTP port."
BadMethod "bad_method" 400 InvalidArgument "Malformed method"
    "The method is no token or holds lower-case letters. Methods are case-sensitive; fix the client."
ConnectUnsupported "connect_unsupported" 501 Unimplemented "CONNECT is not served"
    "The client asked for a tunnel. A gateway opens none; somebody takes it for a forward proxy or scans for one."
BadTarget "bad_target" 400 InvalidArgument "Malformed request target"
    "The target is neither a path nor an absolute URI that suits the method. Fix the client; raw spaces and control bytes in URLs are the usual cause."
BadVersion "bad_version" 400 InvalidArgument "Malformed protocol version"
    "The request line does not end in HTTP/1.x. Often another protocol was spoken to an HTTP port, for example TLS to a plaintext listener."
VersionUnsupported "version_unsupported" 505 Unimplemented "HTTP version is not served"
    "The request names a major version that this listener does not serve in that form. HTTP/2 needs ALPN or prior knowledge."
RequestLineTooLong "request_line_too_long" 414 InvalidArgument "Request line too long"
    "The request line is over the listener's limit. Shorten the URL, or raise `request_line_bytes_max` when such URLs are meant."
HeadTooLarge "head_too_large" 431 InvalidArgument "Request head too large"
    "All header fields together are over the listener's limit. Grown cookies are the usual cause; delete them or raise `header_bytes_max`."
TooManyFields "too_many_fields" 431 InvalidArgument "Too many header fields"
    "The request has more header lines than the listener allows. Look at what adds them, or raise `header_count_max`."
BareLf "bare_lf" 400 InvalidArgument "Line without CR"
    "A head line ends in LF without CR. Proxies differ in how they read that, so it is refused; fix the client."
BareCr "bare_cr" 400 InvalidArgument "CR within a line"
    "A head line holds CR without LF. Proxies differ in how they read that, so it is refused; fix the client."
ObsFold "obs_fold" 400 InvalidArgument "Folded header line"
    "A header line begins with a blank. Folding is obsolete and was used to hide fields from proxies; fix the client."
BadFieldName "bad_field_name" 400 InvalidArgument "Malformed header name"
    "A header name is empty, holds a forbidden byte or has a blank before its colon. Fix the client; a scanner sends this on purpose."
BadFieldValue "bad_field_value" 400 InvalidArgument "Malformed header value"
    "A header value holds a control byte. Fix the client: encode the value."
BadContentLength "bad_content_length" 400 InvalidArgument "Malformed Content-Length"
    "Content-Length is not a plain decimal number that fits 64 bits. Fix the client."
ContentLengthRepeated "content_length_repeated" 400 InvalidArgument "Content-Length repeated"
    "The request has more than one Content-Length. Two readers could see two lengths, so it is refused; fix the client or the proxy before it."
LengthConflict "length_conflict" 400 InvalidArgument "Content-Length beside Transfer-Encoding"
    "The request says its length in two ways. That is how requests are smuggled, so it is refused; fix the client or the proxy before it."
BadTransferEncoding "bad_transfer_encoding" 400 InvalidArgument "Malformed Transfer-Encoding"
    "Transfer-Encoding is anything else than one `chunked` at the end. Fix the client; a scanner sends this on purpose."
TransferCodingUnsupported "transfer_coding_unsupported" 501 Unimplemented "Transfer coding is not served"
    "The request body has a transfer coding beside `chunked`. Send it with Content-Encoding instead."
TransferEncodingInHttp10 "transfer_encoding_in_http10" 400 InvalidArgument "Transfer-Encoding in HTTP/1.0"
    "HTTP/1.0 knows no transfer codings, so the end of the request is in doubt. Use HTTP/1.1 or Content-Length."
HostMissing "host_missing" 400 InvalidArgument "Host missing"
    "The request has no Host field. HTTP/1.1 clients must send one."
HostRepeated "host_repeated" 400 InvalidArgument "Host repeated"
    "The request has more than one Host field. Two readers could route it differently, so it is refused."
BadHost "bad_host" 400 InvalidArgument "Malformed Host"
    "Host or the URL's authority is no host name with an optional port. User names and paths are not allowed there."
HostConflict "host_conflict" 400 InvalidArgument "Host differs from the URL"
    "The request names one host in the URL and another one in Host. Two readers could route it differently, so it is refused."
TooManyConnectionOptions "too_many_connection_options" 400 InvalidArgument "Too many connection options"
    "The Connection field nominates more fields than any client needs. A scanner sends this to strip fields from requests."
ContentTypeRepeated "content_type_repeated" 400 InvalidArgument "Content-Type repeated"
    "The request has more than one Content-Type. Two readers could see two types, so it is refused; fix the client."

BadChunkSize "bad_chunk_size" 400 InvalidArgument "Malformed chunk size"
    "A chunk of the request body has no hexadecimal size, or one that does not fit. Fix the client."
BadChunkExtension "bad_chunk_extension" 400 InvalidArgument "Malformed chunk extension"
    "A chunk's size line goes on in a way that no extension does. Fix the client."
ChunkLineTooLong "chunk_line_too_long" 400 InvalidArgument "Chunk size line too long"
    "A chunk's size line is over its bound. Extensions are dropped anyhow; send none."
BadChunkEnd "bad_chunk_end" 400 InvalidArgument "Chunk without its end"
    "The data of a chunk is not followed by CRLF, so its size was wrong. Fix the client."
BadChunkBareLf "bad_chunk_bare_lf" 400 InvalidArgument "Chunk line without CR"
    "The chunk framing holds LF without CR. Proxies differ in how they read that, so it is refused; fix the client."
BadChunkBareCr "bad_chunk_bare_cr" 400 InvalidArgument "CR within a chunk line"
    "The chunk framing holds CR without LF. Proxies differ in how they read that, so it is refused; fix the client."
ChunkOverhead "chunk_overhead" 400 InvalidArgument "Chunks far too small"
    "The body has far more framing than data, which costs the receiver more than the sender. Send larger chunks."
BadTrailer "bad_trailer" 400 InvalidArgument "Malformed trailer"
    "A line of the trailer section is no header line. Fix the client."
TrailersTooLarge "trailers_too_large" 431 InvalidArgument "Trailer section too large"
    "The trailer section is over the limits for heads. Send less, or raise `header_bytes_max`."
BodyTooLarge "body_too_large" 413 ResourceExhausted "Request body too large"
    "The request body is over the route's limit, by its Content-Length or by counting. Send less, or raise `body_bytes_max` on that route."

H2MalformedRequest "h2_malformed_request" 400 InvalidArgument "Malformed HTTP/2 request"
    "Pseudo-header fields are missing, repeated or hold forbidden bytes, or a connection field was sent over HTTP/2. Fix the client."
H2ProtocolError "h2_protocol_error" - Internal "HTTP/2 protocol error"
    "The client broke HTTP/2's rules for the connection, and it was closed with GOAWAY. Look at the client; a scanner sends this on purpose."
H2FloodResets "h2_flood_resets" - ResourceExhausted "Too many stream resets"
    "The client opened and reset streams, or made the proxy reset them, faster than the budget allows (CVE-2023-44487, CVE-2025-8671). It was told to calm down and closed; raise `resets_max` only for clients you know."
H2FloodControl "h2_flood_control" - ResourceExhausted "Too many control frames"
    "The client sent more PING, SETTINGS or other control frames than the budget allows (CVE-2019-9512, CVE-2019-9515). It was told to calm down and closed."
H2FloodSmallData "h2_flood_small_data" - ResourceExhausted "Too many tiny data frames"
    "The client sent its bodies in tiny or empty frames beyond the budget (CVE-2019-9518). It was told to calm down and closed; send larger frames."
H2FloodContinuation "h2_flood_continuation" - ResourceExhausted "Endless header block"
    "The client went on with CONTINUATION frames beyond the bound (CVE-2024-27316). It was told to calm down and closed."
UpgradeRefused "upgrade_refused" 501 Unimplemented "Upgrade is not served"
    "The client asked for a protocol that the listener does not pass on, or sent a body along. Add the protocol to `upgrades` when it is meant."
ExpectationFailed "expectation_failed" 417 InvalidArgument "Expectation is not served"
    "The Expect field asks for something else than 100-continue. Fix the client."
PathRejected "path_rejected" 400 InvalidArgument "Path refused"
    "The path climbs above the root, holds a broken escape or NUL, or an escaped slash where the listener refuses them. Fix the client, or change `escaped_slashes` when such paths are meant."
BadGrpcTimeout "bad_grpc_timeout" 400 InvalidArgument "Malformed grpc-timeout"
    "grpc-timeout is not up to eight digits and a unit. Fix the client."

NoVirtualHost "no_virtual_host" 404 Unimplemented "Host is not served"
    "No virtual host of this listener has that host name. Check DNS and the `domains` of the config with `shardctl explain`."
NoRoute "no_route" 404 Unimplemented "No route"
    "The host is served, but none of its routes matches path, method and headers. `shardctl explain` shows how the request was read."
Misdirected "misdirected" 421 Unimplemented "Connection is for other hosts"
    "The request names a host that the certificate of its connection does not cover. The client should open a new connection; most do so by themselves."
AddressDenied "address_denied" 403 PermissionDenied "Address is not allowed"
    "The client's address is on a deny list or not on the allow list. If it is a proxy's address, set the trusted proxies so that the real client is seen."
CorsOriginDenied "cors_origin_denied" 403 PermissionDenied "Origin is not allowed"
    "A preflight came from an origin that the route's CORS policy does not list. Add the origin when its pages should have access."
TokenMissing "token_missing" 401 Unauthenticated "Bearer token missing"
    "The route asks for a bearer token and the request has none in `authorization`. Tokens in queries, forms and cookies are not looked at."
TokenMalformed "token_malformed" 401 Unauthenticated "Malformed token"
    "The bearer token is no signed JSON Web Token in compact form, or its header or claims break the rules: a member twice, `crit`, no `exp`, a wrong type, a wrong `typ`, a `sub` that fits no header field, two `authorization` fields. Decode it at the client; encrypted and opaque tokens are not taken."
TokenKeyUnknown "token_key_unknown" 401 Unauthenticated "Unknown token key"
    "No key of the provider has the token's `kid` and takes its `alg`. The issuer has rotated its keys before the key file did, or the token is another provider's; `none` and HMAC are never taken."
TokenSignatureBad "token_signature_bad" 401 Unauthenticated "Wrong token signature"
    "The token was not signed by the provider's key. It was altered or forged, or the key file holds the key of another environment."
TokenExpired "token_expired" 401 Unauthenticated "Token has expired"
    "The token's `exp` is past, the clock skew added. The client should get a new one; when many clients are refused, compare the clocks of issuer and proxy."
TokenNotYetValid "token_not_yet_valid" 401 Unauthenticated "Token is not valid yet"
    "The token's `nbf` lies in the future, the clock skew taken off. Compare the clocks of issuer and proxy."
TokenIssuerWrong "token_issuer_wrong" 401 Unauthenticated "Token of another issuer"
    "The token's `iss` is not the provider's issuer, compared byte by byte. A slash at the end is the usual cause."
TokenAudienceWrong "token_audience_wrong" 401 Unauthenticated "Token for another audience"
    "The token's `aud` holds none of the provider's audiences. The client asked for a token for another service, or an audience is missing in the provider."
ScopeMissing "scope_missing" 403 PermissionDenied "Token lacks a scope"
    "The token is valid and has not every scope that the route asks for. The client should ask for a token with them; www-authenticate names them."
RateLimited "rate_limited" 429 ResourceExhausted "Too many requests"
    "The client sends more requests a second than its limit. It should wait for the time in Retry-After; raise the limit when the traffic is wanted."
ClientConnectionsExceeded "client_connections_exceeded" - ResourceExhausted "Too many connections of a client"
    "One client address holds as many connections as it may. If many users share the address, trust their proxy or raise `connections_max` of the client limit."

NoEndpoint "no_endpoint" 503 Unavailable "Cluster has no endpoint"
    "The route's cluster has no endpoint at all: none is configured, or its names did not resolve yet. Check the service's registration and DNS."
NoHealthyEndpoint "no_healthy_endpoint" 503 Unavailable "No healthy endpoint"
    "The cluster has endpoints, and none of them takes requests now. Look at the backends first; `shardctl explain` names their states."
InFlightLimit "in_flight_limit" 503 ResourceExhausted "Cluster has its fill of requests"
    "As many requests are in flight to the cluster as its limit allows, so this one was refused at once instead of waiting. The backends are slow, or the limit is too low; an adaptive limit falls when latency rises."
CircuitOpen "circuit_open" 503 Unavailable "Circuit breaker is open"
    "Too many requests to the cluster failed or timed out, so requests are refused at once for a while and a few probes find out when it is over. Look at the backends; Retry-After says when probes begin."
Shed "shed" 503 ResourceExhausted "Shed by priority"
    "The core or the cluster has too much to do, and requests of this priority are refused first. Requests that clients mark as retries count as `sheddable`. Add capacity, or give the route a higher class when it matters more."
UpstreamPoolFull "upstream_pool_full" 503 Unavailable "Connections to the endpoint are used up"
    "All connections that one core may hold to the endpoint are busy. The backend is slow or `connections_max` of the pool is too small."
UpstreamConnectRefused "upstream_connect_refused" 503 Unavailable "Endpoint refused the connection"
    "Nothing listens at the endpoint's address, or its queue is full. Check that the process runs and the port is right."
UpstreamConnectFailed "upstream_connect_failed" 503 Unavailable "Endpoint is unreachable"
    "The network said that there is no way to the endpoint. Check routes, firewalls and that the host is up."
UpstreamConnectTimeout "upstream_connect_timeout" 504 Unavailable "Endpoint did not accept in time"
    "The endpoint did not answer the connection attempt within `connect_timeout`. Packets are dropped on the way, or the host is overloaded."
UpstreamTlsFailed "upstream_tls_failed" 502 Unavailable "TLS to the endpoint failed"
    "The endpoint's certificate did not verify, names another host, or it refused ours. Compare the cluster's TLS settings with the backend's certificate."
UpstreamResetBeforeResponse "upstream_reset_before_response" 502 Unavailable "Endpoint reset the connection before it answered"
    "The backend aborted the connection after it got the request. It crashed, or closes idle connections sooner than the pool does: set the pool's `idle_timeout` below the backend's."
UpstreamClosedBeforeResponse "upstream_closed_before_response" 502 Unavailable "Endpoint closed before it answered"
    "The backend closed the connection without an answer. It restarted, or closes idle connections sooner than the pool does: set the pool's `idle_timeout` below the backend's."
UpstreamTimeoutFirstByte "upstream_timeout_first_byte" 504 DeadlineExceeded "Endpoint did not answer in time"
    "The backend had the whole request and sent no response head within the route's timeout. Compare the stage `first_byte` with the backend's own figures."
UpstreamTimeoutIdle "upstream_timeout_idle" 504 DeadlineExceeded "Endpoint went silent"
    "The backend made no progress for the idle timeout within a body. If silence is normal on that route, raise its `idle_timeout`."
RequestTimeout "request_timeout" 504 DeadlineExceeded "Request took too long"
    "The route's total timeout ran out, all attempts included. Compare the stages in the log line to see where the time went."
DeadlineExceeded "deadline_exceeded" 504 DeadlineExceeded "Caller's deadline passed"
    "The time that the caller gave in grpc-timeout or x-deadline-ms ran out before the answer. The caller's budget is too small, or something on the way is slow."

UpstreamBadStatusLine "upstream_bad_status_line" 502 Internal "Malformed status line from the endpoint"
    "The endpoint's answer does not begin as HTTP/1.x. Check that the port speaks HTTP and that the cluster's protocol is right."
UpstreamHeadTooLarge "upstream_head_too_large" 502 Internal "Response head too large"
    "The endpoint's header fields are over the limit for responses. Look for grown Set-Cookie fields."
UpstreamTooManyFields "upstream_too_many_fields" 502 Internal "Too many response fields"
    "The endpoint sent more header lines than the limit for responses. Look at what adds them."
UpstreamBareLf "upstream_bare_lf" 502 Internal "Response line without CR"
    "A line of the response head ends in LF without CR. Fix the backend."
UpstreamBareCr "upstream_bare_cr" 502 Internal "CR within a response line"
    "A line of the response head holds CR without LF. Fix the backend: it may copy user input into a header."
UpstreamObsFold "upstream_obs_fold" 502 Internal "Folded response line"
    "A line of the response head begins with a blank. Folding is obsolete; fix the backend."
UpstreamBadFieldName "upstream_bad_field_name" 502 Internal "Malformed response header name"
    "A header name of the response is empty or holds a forbidden byte. Fix the backend."
UpstreamBadFieldValue "upstream_bad_field_value" 502 Internal "Malformed response header value"
    "A header value of the response holds a control byte. Fix the backend: it may copy user input into a header."
UpstreamBadContentLength "upstream_bad_content_length" 502 Internal "Malformed response Content-Length"
    "The response's Content-Length is no plain number, or there are two that differ. Fix the backend."
UpstreamBadTransferEncoding "upstream_bad_transfer_encoding" 502 Internal "Malformed response Transfer-Encoding"
    "The response has a transfer coding other than one `chunked`. Fix the backend; compress with Content-Encoding."
UpstreamTransferEncodingInHttp10 "upstream_transfer_encoding_in_http10" 502 Internal "Transfer-Encoding in an HTTP/1.0 response"
    "HTTP/1.0 knows no transfer codings, so the end of the response is in doubt. Let the backend speak HTTP/1.1."
UpstreamBadUpgrade "upstream_bad_upgrade" 502 Internal "Malformed upgrade from the endpoint"
    "The endpoint answered 101 without naming the one protocol, or nobody had asked. Fix the backend."
UpstreamTooManyConnectionOptions "upstream_too_many_connection_options" 502 Internal "Too many response connection options"
    "The response's Connection field nominates more fields than any server needs. Fix the backend."
UpstreamBadChunk "upstream_bad_chunk" 502 Internal "Malformed response chunk"
    "The chunk framing or the trailers of the response body are malformed. The client saw the response break off; fix the backend."
UpstreamBadInterim "upstream_bad_interim" 502 Internal "Malformed interim response"
    "The endpoint sent an interim (1xx) response that ends the stream, or more of them than anybody needs. Fix the backend."
UpstreamH2ProtocolError "upstream_h2_protocol_error" 502 Internal "HTTP/2 protocol error of the endpoint"
    "The endpoint broke HTTP/2's rules. Check that the port speaks HTTP/2 and that the cluster's protocol is right."
UpstreamStreamRefused "upstream_stream_refused" 503 Unavailable "Endpoint refused the stream"
    "The endpoint refused the stream unprocessed (REFUSED_STREAM), again after a retry. It has less room than it announced."
UpstreamGoaway "upstream_goaway" 502 Unavailable "Endpoint is going away"
    "The endpoint sent GOAWAY and did not process the request, again after a retry. It is restarting; drain backends before they stop."
UpstreamReset "upstream_reset" - Internal "Endpoint reset within the response"
    "The endpoint aborted after its response head had been passed on, so the client saw the response break off. Look at the backend's log for that time."
UpstreamTruncated "upstream_truncated" - Internal "Response broke off"
    "The endpoint closed before the announced end of the body, so the client saw the response break off. Look at the backend's log for that time."
HeadNotWritable "head_not_writable" 500 Internal "Head cannot be sent"
    "A rewrite or header operation made a head that would change its meaning on the wire, and the last guard refused it. Check the route's rewrites for variables that can be empty or hold odd bytes."

HeaderTimeout "header_timeout" 408 Cancelled "Request head did not come in time"
    "The client began a request and did not finish its head within `header_timeout`. Slow links do that rarely, slowloris attacks always."
BodyTimeout "body_timeout" 408 Cancelled "Request body stalled"
    "The client made no progress with its body for `body_idle_timeout`. Raise it for clients on bad links only if you must."
BodyTooSlow "body_too_slow" 408 Cancelled "Request body came too slowly"
    "The client sent fewer bytes in a window than `body_rate` of the route asks for. Dribbling attacks do this; give clients on very bad links a longer window, and streams that pause no `body_rate`."
IdleTimeout "idle_timeout" - Cancelled "Connection was idle"
    "Nothing was asked on the connection for `idle_timeout`, and it was closed. Normal; clients open a new one."
ConnectionAgeMax "connection_age_max" - Unavailable "Connection reached its age"
    "The connection was closed between two requests because of its age or number of requests, to spread clients anew. Normal."
ClientClosed "client_closed" - Cancelled "Client went away"
    "The client closed before the response was complete. Users leave pages; many of them together mean that answers take too long."
ClientReset "client_reset" - Cancelled "Client cancelled"
    "The client reset the stream or the connection. Browsers do this when a page is left; many together mean that answers take too long."
ClientBodyTruncated "client_body_truncated" - Cancelled "Request body broke off"
    "The client closed before the announced end of its body. The request was not completed towards the backend."
ClientSlow "client_slow" - Cancelled "Client did not read"
    "The client read nothing of its response for `body_idle_timeout`, while the response held memory here. Slow-read attacks do this; so do suspended devices."

ConnectionLimit "connection_limit" - Unavailable "Listener is full"
    "The listener holds `connections_max` connections on a core and refused one more. Add capacity, or raise the limit when memory allows."
TlsHandshakeFailed "tls_handshake_failed" - Unavailable "TLS handshake failed"
    "Client and listener found no common version or cipher, a certificate was missing or refused, or it was not TLS at all. The log line has the alert."
TlsHandshakeTimeout "tls_handshake_timeout" - Cancelled "TLS handshake took too long"
    "The client did not finish its handshake within `handshake_timeout`. Health checks that only open a connection do this; let them speak TLS."
ProxyProtocolBad "proxy_protocol_bad" - InvalidArgument "Malformed PROXY protocol header"
    "The listener expects a PROXY protocol header and got none or a malformed one. Turn it on at the load balancer, or off at the listener."
ProxyProtocolUntrusted "proxy_protocol_untrusted" - PermissionDenied "PROXY protocol from a stranger"
    "The peer is not among the listener's trusted sources for the PROXY protocol. Add its network when it is your load balancer."
ProxyProtocolTimeout "proxy_protocol_timeout" - Cancelled "PROXY protocol header did not come in time"
    "A trusted peer connected and sent no complete PROXY protocol header in time. Its health checks may only open a connection."
ServerNameUnknown "server_name_unknown" - Unavailable "No cluster for the server name"
    "The client's TLS asks for a name that the TCP listener does not list, or for none, and there is no `cluster` for the rest. Add the name to `server_names`, or let the client send it (SNI)."
ClientHelloBad "client_hello_bad" - InvalidArgument "Not a TLS ClientHello"
    "A TCP listener that goes by server name got something else than TLS, a broken ClientHello or one over 16 KiB, and has no `cluster` for the rest. Another protocol is spoken to the port."
ClientHelloTimeout "client_hello_timeout" - Cancelled "ClientHello did not come in time"
    "The client of a TCP listener that goes by server name did not finish its first TLS message within `hello_timeout`. Protocols in which the server speaks first need a listener without `server_names`."
Draining "draining" 503 Unavailable "Proxy is shutting down"
    "The request came while this process was draining and its time was up. Clients that retry reach another process; take it out of the load balancer first."
Internal "internal" 500 Internal "Internal error"
    "The proxy failed in a way that is a bug. Please report it with the log line."
}

impl Reason {
    /// Its place in [`Reason::ALL`], for tables of counters.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The reason of a code.
    pub fn from_code(code: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|r| r.code() == code)
    }

    /// Whether nothing went wrong.
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Ok | Self::CorsPreflight)
    }

    /// docs/reason-codes.md.
    pub fn table() -> String {
        let mut out = String::from(TABLE_HEAD);
        for reason in Self::ALL {
            let status = reason.status().map_or_else(|| "–".to_owned(), |s| s.to_string());
            let (code, grpc, title) = (reason.code(), reason.grpc_status().number(), reason.title());
            writeln!(out, "| `{code}` | {status} | {grpc} | {title}. {} |", reason.explanation())
                .expect("a String takes every text");
        }
        out
    }
}

const TABLE_HEAD: &str = "# Reason codes

One code per cause: the same word in the `code` of an error's problem document, in the log line, in the metric
label `reason` and in `shardctl explain CODE`. Codes are never renamed. *Status* is that of the proxy's own reply,
`–` where none can be made (before a request, or after the response head has left); *gRPC* is the `grpc-status`
that gRPC callers get. This page is generated from `http/proxy/src/reason.rs`; run its test with
`SHARD_REGENERATE_DOCS=1` after a change.

| Code | Status | gRPC | Meaning |
|---|---|---|---|
";

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

impl From<Cause> for Reason {
    fn from(cause: Cause) -> Self {
        match cause {
            Cause::AddressDenied => Self::AddressDenied,
            Cause::RateLimited => Self::RateLimited,
            Cause::BodyTooLarge => Self::BodyTooLarge,
            Cause::CorsOriginDenied => Self::CorsOriginDenied,
            Cause::CorsPreflight => Self::CorsPreflight,
            Cause::Token(TokenFault::Missing) => Self::TokenMissing,
            Cause::Token(TokenFault::Malformed) => Self::TokenMalformed,
            Cause::Token(TokenFault::KeyUnknown) => Self::TokenKeyUnknown,
            Cause::Token(TokenFault::SignatureBad) => Self::TokenSignatureBad,
            Cause::Token(TokenFault::Expired) => Self::TokenExpired,
            Cause::Token(TokenFault::NotYetValid) => Self::TokenNotYetValid,
            Cause::Token(TokenFault::IssuerWrong) => Self::TokenIssuerWrong,
            Cause::Token(TokenFault::AudienceWrong) => Self::TokenAudienceWrong,
            Cause::Token(TokenFault::ScopeMissing) => Self::ScopeMissing,
        }
    }
}

macro_rules! same_names {
    ($from:ident { $($variant:ident => $reason:ident,)+ }) => {
        impl From<$from> for Reason {
            fn from(error: $from) -> Self {
                match error { $($from::$variant => Self::$reason,)+ }
            }
        }
    };
}

same_names! { RequestError {
    BadRequestLine => BadRequestLine,
    BadMethod => BadMethod,
    ConnectUnsupported => ConnectUnsupported,
    BadTarget => BadTarget,
    BadVersion => BadVersion,
    VersionUnsupported => VersionUnsupported,
    RequestLineTooLong => RequestLineTooLong,
    HeadTooLarge => HeadTooLarge,
    TooManyFields => TooManyFields,
    BareLf => BareLf,
    BareCr => BareCr,
    ObsFold => ObsFold,
    BadFieldName => BadFieldName,
    BadFieldValue => BadFieldValue,
    BadContentLength => BadContentLength,
    ContentLengthRepeated => ContentLengthRepeated,
    LengthConflict => LengthConflict,
    BadTransferEncoding => BadTransferEncoding,
    TransferCodingUnsupported => TransferCodingUnsupported,
    TransferEncodingInHttp10 => TransferEncodingInHttp10,
    HostMissing => HostMissing,
    HostRepeated => HostRepeated,
    BadHost => BadHost,
    HostConflict => HostConflict,
    TooManyConnectionOptions => TooManyConnectionOptions,
    ContentTypeRepeated => ContentTypeRepeated,
} }

// Of a request's head in HTTP/2. A malformed one has no answer.
same_names! { HeadError {
    Malformed => H2ProtocolError,
    TooLarge => HeadTooLarge,
    TooManyFields => TooManyFields,
    TargetTooLong => RequestLineTooLong,
    BadMethod => BadMethod,
    BadTarget => BadTarget,
    BadHost => BadHost,
    HostMissing => HostMissing,
    HostConflict => HostConflict,
    BadFieldName => BadFieldName,
    BadFieldValue => BadFieldValue,
    BadContentLength => BadContentLength,
    ContentTypeRepeated => ContentTypeRepeated,
    ConnectUnsupported => ConnectUnsupported,
} }

same_names! { ResponseError {
    BadStatusLine => UpstreamBadStatusLine,
    HeadTooLarge => UpstreamHeadTooLarge,
    TooManyFields => UpstreamTooManyFields,
    BareLf => UpstreamBareLf,
    BareCr => UpstreamBareCr,
    ObsFold => UpstreamObsFold,
    BadFieldName => UpstreamBadFieldName,
    BadFieldValue => UpstreamBadFieldValue,
    BadContentLength => UpstreamBadContentLength,
    BadTransferEncoding => UpstreamBadTransferEncoding,
    TransferEncodingInHttp10 => UpstreamTransferEncodingInHttp10,
    BadUpgrade => UpstreamBadUpgrade,
    TooManyConnectionOptions => UpstreamTooManyConnectionOptions,
} }

// Of a request body. In a response body each of them is `UpstreamBadChunk`.
same_names! { BodyError {
    BadChunkSize => BadChunkSize,
    BadChunkExtension => BadChunkExtension,
    ChunkLineTooLong => ChunkLineTooLong,
    BadChunkEnd => BadChunkEnd,
    BareLf => BadChunkBareLf,
    BareCr => BadChunkBareCr,
    ChunkOverhead => ChunkOverhead,
    BadTrailer => BadTrailer,
    TrailersTooLarge => TrailersTooLarge,
} }

impl From<WriteError> for Reason {
    fn from(_: WriteError) -> Self {
        Self::HeadNotWritable
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn codes_and_titles_are_unique_and_well_formed() {
        let mut codes = HashSet::new();
        let mut titles = HashSet::new();
        for (index, reason) in Reason::ALL.iter().enumerate() {
            let (code, title, explanation) = (reason.code(), reason.title(), reason.explanation());
            assert_eq!(reason.index(), index);
            assert_eq!(Reason::from_code(code), Some(*reason));
            assert!(codes.insert(code) && titles.insert(title), "{code} or `{title}` stands twice");
            let is_word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
            assert!(!code.is_empty() && code.bytes().all(is_word), "{code}");
            assert!(!title.ends_with('.') && explanation.ends_with('.'), "{code}");
            assert!(explanation.len() >= 40 && !explanation.contains(['|', '\n']), "{code}");
        }
        assert_eq!(Reason::from_code("nonsense"), None);
        assert_eq!(Reason::default(), Reason::Ok);
    }

    #[test]
    fn statuses_are_errors_and_agree_with_grpc() {
        for reason in Reason::ALL {
            let (status, grpc) = (reason.status(), reason.grpc_status());
            match status {
                None => {}
                Some(204) => assert!(reason.is_success()),
                Some(status) => assert!((400..600).contains(&status) && grpc != GrpcStatus::Ok, "{reason}"),
            }
            if status == Some(504) && *reason != Reason::UpstreamConnectTimeout {
                assert_eq!(grpc, GrpcStatus::DeadlineExceeded, "{reason}");
            }
            // Room that is used up is another thing than a service that is away: gRPC clients may wait longer.
            let is_full = matches!(reason, Reason::InFlightLimit | Reason::Shed);
            if status == Some(503) {
                let wanted = if is_full { GrpcStatus::ResourceExhausted } else { GrpcStatus::Unavailable };
                assert_eq!(grpc, wanted, "{reason}");
            }
            assert_eq!(reason.is_success(), grpc == GrpcStatus::Ok, "{reason}");
        }
    }

    #[test]
    fn the_codecs_words_are_taken_over() {
        for error in RequestError::ALL {
            assert_eq!(Reason::from(*error).code(), error.code());
            assert_eq!(Reason::from(*error).status(), Some(error.status()));
        }
        for error in ResponseError::ALL {
            assert_eq!(Reason::from(*error).code(), error.code());
            assert_eq!(Reason::from(*error).status(), Some(502));
        }
        for error in BodyError::ALL {
            assert_eq!(Reason::from(*error).code(), error.code());
            assert_eq!(Reason::from(*error).status(), Some(error.status()));
        }
    }

    #[test]
    fn the_page_in_docs_is_this_table() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reason-codes.md");
        if std::env::var_os("SHARD_REGENERATE_DOCS").is_some() {
            std::fs::write(&page, Reason::table()).expect("docs/ is writable");
        }
        let found = std::fs::read_to_string(&page).unwrap_or_default();
        assert!(
            found == Reason::table(),
            "docs/reason-codes.md is stale: run this test with SHARD_REGENERATE_DOCS=1"
        );
    }
}
