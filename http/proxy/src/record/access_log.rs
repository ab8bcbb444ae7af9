//! One line per exchange: JSON with a fixed set of keys, or a template over the same fields.
//!
//! Rows are formatted into the caller's buffer, which leaves the core in a bounded queue; nothing here writes. A
//! line holds exactly one `\n`, at its end, is valid UTF-8 whatever the client sent, and is bounded: every field of
//! the client has a limit and a mark where it was cut (`escape`), and secrets in URLs are replaced (`redact`).
//! Fields without a value are left out of JSON and are `-` in a template.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use http_wire::head::Version;
use http_wire::number::{push_address, push_number, push_socket_address, push_time};

use super::escape::{Value, write_escaped};
use super::outcome::{Outcome, Stage};
use super::redact::{push_query, push_url};

/// What a line can tell beside the [`Outcome`].
#[derive(Clone, Copy, Debug)]
pub struct LogRow<'a> {
    /// Wall clock at the end of the exchange, milliseconds since 1970.
    pub time_unix_ms: u64,
    pub outcome: &'a Outcome,
    pub core: u16,
    pub request_id: &'a [u8],
    /// Of `traceparent`, in hex.
    pub trace_id: Option<&'a [u8]>,
    pub client: IpAddr,
    pub listener: &'a str,
    pub route: Option<&'a str>,
    pub cluster: Option<&'a str>,
    pub endpoint: Option<SocketAddr>,
    /// [`protocol_name`], or `TCP`.
    pub protocol: &'static str,
    pub method: &'a [u8],
    pub host: &'a [u8],
    pub path: &'a [u8],
    pub query: Option<&'a [u8]>,
    pub user_agent: Option<&'a [u8]>,
    pub referer: Option<&'a [u8]>,
    /// As `TLSv1.3`; None without TLS.
    pub tls_version: Option<&'a str>,
    pub tls_cipher: Option<&'a str>,
    pub server_name: Option<&'a [u8]>,
    /// What a reason code leaves open: the parser's or the system's own words.
    pub detail: Option<&'a [u8]>,
}

/// Bounds of the fields that clients fill, in bytes before escaping (docs/limits.md).
const METHOD_BYTES_MAX: usize = 32;
const NAME_BYTES_MAX: usize = 256;
const PATH_BYTES_MAX: usize = 2048;
const QUERY_BYTES_MAX: usize = 2048;
const AGENT_BYTES_MAX: usize = 512;

macro_rules! log_fields {
    ($($(#[$doc:meta])* $variant:ident $name:literal,)+) => {
        /// A field of a line; the order is that of the JSON keys.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum LogField {
            $($(#[$doc])* $variant,)+
            /// One key for each stage, as `first_byte_us`.
            Stage(Stage),
        }

        /// Without the stages, which follow.
        const FIELDS: &[LogField] = &[$(LogField::$variant,)+];

        impl LogField {
            /// JSON key and template variable; for stages without the unit.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ Self::Stage(stage) => stage.label() }
            }
        }
    };
}

log_fields! {
    /// RFC 3339, UTC, milliseconds.
    Time "time",
    RequestId "request_id",
    TraceId "trace_id",
    Client "client",
    Listener "listener",
    Protocol "protocol",
    Method "method",
    Host "host",
    Path "path",
    Query "query",
    Status "status",
    GrpcStatus "grpc_status",
    Reason "reason",
    Detail "detail",
    Route "route",
    Cluster "cluster",
    Endpoint "endpoint",
    Attempts "attempts",
    /// `true` where the health of endpoints was ignored.
    Panic "panic",
    RequestBytes "request_bytes",
    ResponseBytes "response_bytes",
    UserAgent "user_agent",
    Referer "referer",
    TlsVersion "tls_version",
    TlsCipher "tls_cipher",
    ServerName "server_name",
    Core "core",
}

/// How JSON writes a field.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Text,
    /// A number or `true`: without quotes.
    Bare,
}

impl LogField {
    /// All fields, in the order of the JSON keys.
    pub fn all() -> impl Iterator<Item = Self> {
        FIELDS.iter().copied().chain(Stage::ALL.map(Self::Stage))
    }

    /// The field of a template variable.
    pub fn from_name(name: &str) -> Option<Self> {
        let stage = name.strip_suffix("_us");
        Self::all().find(|field| match field {
            Self::Stage(s) => stage == Some(s.label()),
            other => other.name() == name,
        })
    }

    const fn form(self) -> Form {
        match self {
            Self::Status
            | Self::GrpcStatus
            | Self::Attempts
            | Self::Panic
            | Self::RequestBytes
            | Self::ResponseBytes
            | Self::Core
            | Self::Stage(_) => Form::Bare,
            _ => Form::Text,
        }
    }

    fn is_present(self, row: &LogRow<'_>) -> bool {
        match self {
            Self::TraceId => row.trace_id.is_some(),
            Self::Query => row.query.is_some(),
            Self::GrpcStatus => row.outcome.grpc_status.is_some(),
            Self::Detail => row.detail.is_some(),
            Self::Route => row.route.is_some(),
            Self::Cluster => row.cluster.is_some(),
            Self::Endpoint => row.endpoint.is_some(),
            Self::Panic => row.outcome.is_in_panic,
            Self::UserAgent => row.user_agent.is_some(),
            Self::Referer => row.referer.is_some(),
            Self::TlsVersion => row.tls_version.is_some(),
            Self::TlsCipher => row.tls_cipher.is_some(),
            Self::ServerName => row.server_name.is_some(),
            Self::Stage(stage) => row.outcome.stages.get(stage).is_some(),
            _ => true,
        }
    }

    /// Writes the escaped value; nothing for a field that is not present.
    fn write(self, out: &mut Vec<u8>, row: &LogRow<'_>) {
        let text =
            |out: &mut Vec<u8>, bytes: Option<&[u8]>, max| write_escaped(out, bytes.unwrap_or_default(), max);
        let outcome = row.outcome;
        match self {
            Self::Time => push_time(out, row.time_unix_ms),
            Self::RequestId => text(out, Some(row.request_id), NAME_BYTES_MAX),
            Self::TraceId => text(out, row.trace_id, NAME_BYTES_MAX),
            Self::Client => push_address(out, row.client),
            Self::Listener => text(out, Some(row.listener.as_bytes()), NAME_BYTES_MAX),
            Self::Protocol => out.extend_from_slice(row.protocol.as_bytes()),
            Self::Method => text(out, Some(row.method), METHOD_BYTES_MAX),
            Self::Host => text(out, Some(row.host), NAME_BYTES_MAX),
            Self::Path => text(out, Some(row.path), PATH_BYTES_MAX),
            Self::Query => {
                write_with(out, QUERY_BYTES_MAX, |value| push_query(value, row.query.unwrap_or_default()))
            }
            Self::Status => push_number(out, u64::from(outcome.status)),
            Self::GrpcStatus => push_number(out, u64::from(outcome.grpc_status.unwrap_or_default())),
            Self::Reason => out.extend_from_slice(outcome.reason.code().as_bytes()),
            Self::Detail => text(out, row.detail, NAME_BYTES_MAX),
            Self::Route => text(out, row.route.map(str::as_bytes), NAME_BYTES_MAX),
            Self::Cluster => text(out, row.cluster.map(str::as_bytes), NAME_BYTES_MAX),
            Self::Endpoint => row.endpoint.iter().for_each(|address| push_socket_address(out, *address)),
            Self::Attempts => push_number(out, u64::from(outcome.attempts)),
            Self::Panic => out.extend_from_slice(b"true"),
            Self::RequestBytes => push_number(out, outcome.request_bytes),
            Self::ResponseBytes => push_number(out, outcome.response_bytes),
            Self::UserAgent => text(out, row.user_agent, AGENT_BYTES_MAX),
            Self::Referer => {
                write_with(out, QUERY_BYTES_MAX, |value| push_url(value, row.referer.unwrap_or_default()))
            }
            Self::TlsVersion => text(out, row.tls_version.map(str::as_bytes), NAME_BYTES_MAX),
            Self::TlsCipher => text(out, row.tls_cipher.map(str::as_bytes), NAME_BYTES_MAX),
            Self::ServerName => text(out, row.server_name, NAME_BYTES_MAX),
            Self::Core => push_number(out, u64::from(row.core)),
            Self::Stage(stage) => {
                outcome
                    .stages
                    .get(stage)
                    .iter()
                    .for_each(|time| push_number(out, u64::try_from(time.as_micros()).unwrap_or(u64::MAX)));
            }
        }
    }
}

fn write_with(out: &mut Vec<u8>, bytes_max: usize, push: impl FnOnce(&mut Value<'_>)) {
    let mut value = Value::new(out, bytes_max);
    push(&mut value);
    value.finish();
}

pub const fn protocol_name(version: Version) -> &'static str {
    match version {
        Version::Http10 => "HTTP/1.0",
        Version::Http11 => "HTTP/1.1",
        Version::Http2 => "HTTP/2",
    }
}

/// Appends a row as one JSON object and a line feed.
pub fn write_json(out: &mut Vec<u8>, row: &LogRow<'_>) {
    let mut before: &[u8] = b"{\"";
    for field in LogField::all().filter(|field| field.is_present(row)) {
        out.extend_from_slice(before);
        out.extend_from_slice(field.name().as_bytes());
        let is_text = field.form() == Form::Text;
        out.extend_from_slice(match (field, is_text) {
            (LogField::Stage(_), _) => b"_us\":",
            (_, true) => b"\":\"",
            (_, false) => b"\":",
        });
        field.write(out, row);
        before = if is_text { b"\",\"" } else { b",\"" };
    }
    // The last field is a number or a text that still wants its quote.
    if before.starts_with(b"\"") {
        out.push(b'"');
    }
    out.extend_from_slice(b"}\n");
}

/// Why a template is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplateError {
    Variable(String),
    LonePercent,
    /// A line may hold no line break or other control character.
    Control,
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Variable(name) => {
                write!(f, "%{name}% is no field of the access log; docs/config.md lists them")
            }
            Self::LonePercent => f.write_str("the log template has a single %; write %% for a percent sign"),
            Self::Control => f.write_str("the log template holds a control character"),
        }
    }
}

impl std::error::Error for TemplateError {}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Literal(Box<str>),
    Field(LogField),
}

/// A line format: literal text and `%field%`. Values are escaped as in JSON; text that clients choose belongs
/// between double quotes, as `"%user_agent%"`, so that its blanks do not look like the next field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    pieces: Vec<Piece>,
}

impl Template {
    /// # Errors
    /// `TemplateError` for an unknown field, a single `%` or a control character.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        if text.chars().any(char::is_control) {
            return Err(TemplateError::Control);
        }
        let (mut pieces, mut literal, mut rest) = (Vec::new(), String::new(), text);
        while let Some((before, after)) = rest.split_once('%') {
            literal.push_str(before);
            let (name, after) = after.split_once('%').ok_or(TemplateError::LonePercent)?;
            if name.is_empty() {
                literal.push('%');
            } else {
                let field =
                    LogField::from_name(name).ok_or_else(|| TemplateError::Variable(name.to_owned()))?;
                if !literal.is_empty() {
                    pieces.push(Piece::Literal(std::mem::take(&mut literal).into_boxed_str()));
                }
                pieces.push(Piece::Field(field));
            }
            rest = after;
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            pieces.push(Piece::Literal(literal.into_boxed_str()));
        }
        Ok(Self { pieces })
    }

    /// Appends a row and a line feed.
    pub fn write(&self, out: &mut Vec<u8>, row: &LogRow<'_>) {
        for piece in &self.pieces {
            match piece {
                Piece::Literal(text) => out.extend_from_slice(text.as_bytes()),
                Piece::Field(field) if field.is_present(row) => field.write(out, row),
                Piece::Field(_) => out.push(b'-'),
            }
        }
        out.push(b'\n');
    }
}

/// Whether an exchange gets a line: every error, and of the successes the share `success_sample` (0 to 1).
/// `random` is 64 random bits.
pub fn should_log(outcome: &Outcome, success_sample: f32, random: u64) -> bool {
    !outcome.is_success() || is_sampled(success_sample, random)
}

/// Whether a success gets a line.
pub(crate) fn is_sampled(success_sample: f32, random: u64) -> bool {
    let draw = u32::try_from(random >> 32).unwrap_or(u32::MAX);
    f64::from(draw) < f64::from(success_sample) * 4_294_967_296.0
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::reason::Reason;
    use http_balance::Rng;

    fn outcome() -> Outcome {
        let mut outcome =
            Outcome { status: 200, attempts: 1, request_bytes: 5, response_bytes: 7, ..Outcome::default() };
        outcome.stages.set(Stage::FirstByte, Duration::from_micros(1234));
        outcome.stages.set(Stage::Total, Duration::from_nanos(1_999_999));
        outcome
    }

    fn row<'a>(outcome: &'a Outcome, bytes: &'a [u8]) -> LogRow<'a> {
        LogRow {
            time_unix_ms: 1_767_225_599_123,
            outcome,
            core: 3,
            request_id: bytes,
            trace_id: Some(bytes),
            client: "2001:db8::1".parse().unwrap(),
            listener: "web",
            route: Some("orders"),
            cluster: Some("orders-v1"),
            endpoint: Some("10.0.0.1:8080".parse().unwrap()),
            protocol: protocol_name(outcome.protocol),
            method: bytes,
            host: bytes,
            path: bytes,
            query: Some(bytes),
            user_agent: Some(bytes),
            referer: Some(bytes),
            tls_version: Some("TLSv1.3"),
            tls_cipher: None,
            server_name: Some(bytes),
            detail: Some(bytes),
        }
    }

    fn json(row: &LogRow<'_>) -> serde_json::Value {
        let mut out = b"before\n".to_vec();
        write_json(&mut out, row);
        let line = out.strip_prefix(b"before\n").expect("earlier lines are kept");
        assert_eq!(line.iter().filter(|b| **b == b'\n').count(), 1);
        assert_eq!(line.last(), Some(&b'\n'));
        serde_json::from_slice(line).expect("valid JSON")
    }

    #[test]
    fn a_row_has_every_field_that_is_present_and_no_other() {
        let outcome = outcome();
        let full = json(&row(&outcome, b"x"));
        assert_eq!(full["time"], "2025-12-31T23:59:59.123Z");
        assert_eq!((&full["status"], &full["core"], &full["attempts"]), (&200.into(), &3.into(), &1.into()));
        assert_eq!((&full["first_byte_us"], &full["total_us"]), (&1234.into(), &1999.into()));
        assert_eq!(
            (&full["client"], &full["endpoint"], &full["reason"]),
            (&"2001:db8::1".into(), &"10.0.0.1:8080".into(), &"ok".into())
        );
        let object = full.as_object().unwrap();
        for absent in ["tls_cipher", "grpc_status", "panic", "connect_us"] {
            assert!(!object.contains_key(absent), "{absent}");
        }
        assert_eq!(object.len(), FIELDS.len() - 3 + 2);
        let bare = LogRow {
            trace_id: None,
            route: None,
            cluster: None,
            endpoint: None,
            query: None,
            user_agent: None,
            referer: None,
            tls_version: None,
            server_name: None,
            detail: None,
            ..row(&outcome, b"")
        };
        assert_eq!(json(&bare).as_object().unwrap().len(), FIELDS.len() - 13 + 2);
        let in_panic = Outcome { is_in_panic: true, ..outcome };
        assert_eq!(json(&row(&in_panic, b"x"))["panic"], true);
    }

    #[test]
    fn any_bytes_make_one_line_of_valid_json_within_bounds() {
        let mut rng = Rng::new(23);
        let mut outcome = outcome();
        let hostile: [&[u8]; 9] = [
            b"\r\nFAKE",
            b"a\" b",
            b"\\",
            b"\x7f",
            b"\xff\xfe",
            b"\xed\xa0\x80",
            b"\x1b[2J",
            b"\",\"status\":200,\"x\":\"",
            "\u{2028}\u{202e}".as_bytes(),
        ];
        let template = Template::parse(
            "{\"a\":\"%user_agent%\",\"b\":\"%path%?%query%\",\"c\":\"%referer%\",\"d\":%status%}",
        )
        .unwrap();
        let random: Vec<Vec<u8>> = (0..500)
            .map(|_| (0..rng.below(80)).map(|_| u8::try_from(rng.below(256)).unwrap()).collect())
            .collect();
        let long = [
            vec![b'a'; 64_000],
            vec![0xff; 64_000],
            "😀".repeat(16_000).into_bytes(),
            b"token=\"&".repeat(8_000),
        ];
        for bytes in hostile
            .iter()
            .copied()
            .chain(random.iter().map(Vec::as_slice))
            .chain(long.iter().map(Vec::as_slice))
        {
            outcome.grpc_status = Some(u8::try_from(rng.below(17)).unwrap());
            let row = row(&outcome, bytes);
            let value = json(&row);
            assert_eq!(
                (&value["status"], &value["listener"]),
                (&200.into(), &"web".into()),
                "nothing was forged"
            );
            let mut out = Vec::new();
            write_json(&mut out, &row);
            assert!(out.len() < 64 * 1024, "{} bytes", out.len());
            out.clear();
            template.write(&mut out, &row);
            let line = std::str::from_utf8(&out).expect("valid UTF-8");
            assert_eq!(line.matches('\n').count(), 1);
            let value: serde_json::Value = serde_json::from_str(line).expect("a template of JSON stays JSON");
            assert_eq!((&value["d"], value.as_object().unwrap().len()), (&200.into(), 4));
        }
    }

    #[test]
    fn secrets_are_replaced_and_long_fields_marked() {
        let outcome = outcome();
        let query = b"a=1&access_token=s3cr3t&Api-Key=s3cr3t";
        let long = b"s".repeat(5_000);
        let row = LogRow {
            query: Some(query),
            referer: Some(b"https://u:s3cr3t@a/?token=s3cr3t"),
            path: &long,
            ..row(&outcome, b"x")
        };
        let value = json(&row);
        assert_eq!(value["query"], "a=1&access_token=[redacted]&Api-Key=[redacted]");
        assert_eq!(value["referer"], "https://[redacted]@a/?token=[redacted]");
        let path = value["path"].as_str().unwrap();
        assert!(path.len() < 2100 && path.ends_with("s…+2952"), "{}", path.len());
        assert!(!value.to_string().contains("s3cr3t"));
    }

    #[test]
    fn templates_fill_every_field_and_refuse_what_they_do_not_know() {
        let outcome = outcome();
        let row = row(&outcome, b"a b");
        for field in LogField::all() {
            let unit = if matches!(field, LogField::Stage(_)) { "_us" } else { "" };
            let name = format!("{}{unit}", field.name());
            assert_eq!(LogField::from_name(&name), Some(field), "{name}");
            let mut out = Vec::new();
            Template::parse(&format!("%{name}%")).unwrap().write(&mut out, &row);
            let expected_absent = !field.is_present(&row);
            assert_eq!(out == b"-\n", expected_absent, "{name}: {out:?}");
            assert!(out.len() > 1, "{name}");
        }
        let mut out = Vec::new();
        Template::parse("%client% \"%method% %path%\" %status% 100%% %tls_cipher%")
            .unwrap()
            .write(&mut out, &row);
        assert_eq!(String::from_utf8(out).unwrap(), "2001:db8::1 \"a b a b\" 200 100% -\n");
        for (bad, error) in [
            ("%nope%", TemplateError::Variable("nope".into())),
            ("%total%", TemplateError::Variable("total".into())),
            ("%path", TemplateError::LonePercent),
            ("50% of", TemplateError::LonePercent),
            ("a\nb", TemplateError::Control),
        ] {
            assert_eq!(Template::parse(bad), Err(error), "{bad}");
        }
    }

    #[test]
    fn every_error_is_logged_and_the_asked_share_of_successes() {
        let mut rng = Rng::new(31);
        let ok = outcome();
        let errors = [
            Outcome { status: 404, ..ok },
            Outcome { status: 0, ..ok },
            Outcome { reason: Reason::ClientReset, ..ok },
            Outcome { grpc_status: Some(4), ..ok },
        ];
        for sample in [0.0f32, 0.01, 0.5, 1.0] {
            let logged = (0..20_000).filter(|_| should_log(&ok, sample, rng.draw())).count();
            let share = f64::from(u32::try_from(logged).unwrap()) / 20_000.0;
            assert!((share - f64::from(sample)).abs() < 0.015, "{sample}: {share}");
            assert!(errors.iter().all(|o| should_log(o, sample, rng.draw())));
        }
        assert!(!should_log(&ok, 0.0, 0) && should_log(&ok, 1.0, u64::MAX));
    }
}
