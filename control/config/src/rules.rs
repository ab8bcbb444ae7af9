//! Rules for texts: names, hosts, paths, patterns, addresses, header fields. Each is a function from the text to
//! an objection with a way out, used by the key table and nowhere decided twice.

use std::net::{IpAddr, SocketAddr};

use control_api::defaults::ACCESS_LOG_FIELDS;
use control_api::defaults::balance::{STICKY_COOKIE_BYTES_MAX, STICKY_PATH_BYTES_MAX};
use control_api::defaults::route::{REGEX_BYTES_MAX, REGEX_COMPILED_BYTES_MAX};
use regex::{Regex, RegexBuilder};

use crate::finding::Problem;
use crate::suggest::nearest;

type Verdict = Result<(), Problem>;

fn ensure(holds: bool, message: impl Into<String>, fix: impl Into<String>) -> Verdict {
    if holds { Ok(()) } else { Err(Problem::new(message, fix)) }
}

/// Any text that may reach a header or page: no control bytes.
pub(crate) fn text(value: &str) -> Verdict {
    ensure(
        !value.chars().any(char::is_control),
        "control characters (such as CR, LF or NUL) are not allowed here",
        "delete them",
    )
}

/// Names of listeners, services, clusters, routes.
pub(crate) fn name(value: &str) -> Verdict {
    let is_edge = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let bytes = value.as_bytes();
    let is_inner = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'_' | b'-');
    ensure(
        bytes.len() <= 63 && is_edge(bytes.first()) && is_edge(bytes.last()) && bytes.iter().all(is_inner),
        "not a name",
        "use 1 to 63 lower-case letters, digits, `-`, `_` and `.`, with a letter or digit at both ends",
    )
}

/// Names of zones, as whoever runs the machines gives them.
pub(crate) fn zone(value: &str) -> Verdict {
    use control_api::defaults::NAME_BYTES_MAX;
    ensure(
        !value.is_empty() && value.len() <= NAME_BYTES_MAX && !value.chars().any(char::is_control),
        "not a name of a zone",
        format!("use 1 to {NAME_BYTES_MAX} bytes without control characters"),
    )
}

/// A cluster of the same service, or `service/cluster`.
pub(crate) fn cluster_ref(value: &str) -> Verdict {
    match value.split_once('/') {
        Some((service, cluster)) => name(service).and_then(|()| name(cluster)),
        None => name(value),
    }
}

/// A host to serve: exact, `*.suffix` or `*`.
pub(crate) fn host(value: &str) -> Verdict {
    if value == "*" || value.parse::<IpAddr>().is_ok() {
        return Ok(());
    }
    let lower = value.to_ascii_lowercase();
    ensure(lower == value, "hosts are written in lower case", format!("write `{lower}`"))?;
    if let Some((bare, port)) = value.rsplit_once(':')
        && port.bytes().all(|b| b.is_ascii_digit())
    {
        return Err(Problem::new(
            "a host has no port; the listener decides the port",
            format!("write `{bare}`"),
        ));
    }
    dns_name(value.strip_prefix("*.").unwrap_or(value)).map_err(|problem| {
        if value.contains('*') {
            Problem::new(
                "a wildcard stands for the whole first label only",
                "write `*.example.com`, or `*` for every host",
            )
        } else {
            problem
        }
    })
}

/// A DNS name in ASCII, without a dot at the end (RFC 1123 §2.1; `_` as in practice).
pub(crate) fn dns_name(value: &str) -> Verdict {
    let is_label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    ensure(value.is_ascii(), "not ASCII", "write the name in its `xn--` form (IDNA)")?;
    ensure(
        value.len() <= 253 && value.split('.').all(is_label),
        "not a DNS name",
        "write a name such as `api.example.com`, without a dot at the end",
    )
}

/// A path that can be the outcome of normalisation, so that it can match at all.
pub(crate) fn path(value: &str) -> Verdict {
    ensure(value.starts_with('/'), "a path starts with `/`", format!("write `/{value}`"))?;
    ensure(value.len() <= 1_024, "longer than 1,024 bytes", "shorten the path")?;
    if let Some(bad) = value.chars().find(|c| !c.is_ascii_graphic() || matches!(c, '?' | '#' | '\\')) {
        let fix = match bad {
            '?' => "match the query under `query`".to_owned(),
            '#' => "a fragment never reaches a server; delete it".to_owned(),
            _ => "write the byte percent-encoded, such as `%20`".to_owned(),
        };
        return Err(Problem::new(format!("`{}` cannot stand in a path", bad.escape_default()), fix));
    }
    ensure(
        !value.split('/').any(|segment| matches!(segment, "." | "..")),
        "`.` and `..` are resolved before matching, so this never matches",
        "write the resolved path",
    )?;
    percent_encoding(value)
}

fn percent_encoding(value: &str) -> Verdict {
    for (at, _) in value.match_indices('%') {
        let byte = value
            .get(at + 1..at + 3)
            .filter(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()))
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match byte {
            None => {
                return Err(Problem::new(
                    "`%` is not followed by two hex digits",
                    "write `%25` for a per cent sign",
                ));
            }
            Some(b) if b.is_ascii_alphanumeric() || b"-._~".contains(&b) => {
                return Err(Problem::new(
                    "unreserved bytes are decoded before matching, so this never matches (RFC 3986 §6.2.2.2)",
                    format!("write `{}` itself", char::from(b)),
                ));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// A pattern of the linear-time `regex` crate, bounded in text and compiled size.
pub(crate) fn regex(value: &str) -> Verdict {
    ensure(!value.is_empty(), "an empty pattern", "write a pattern, or delete the key")?;
    ensure(
        value.len() <= REGEX_BYTES_MAX,
        format!("longer than {REGEX_BYTES_MAX} bytes"),
        "shorten the pattern or split the route",
    )?;
    compile(value).map(drop)
}

/// The pattern as the data plane compiles it.
pub(crate) fn compile(value: &str) -> Result<Regex, Problem> {
    RegexBuilder::new(value).size_limit(REGEX_COMPILED_BYTES_MAX).build().map_err(|error| match error {
        regex::Error::CompiledTooBig(bytes) => Problem::new(
            format!("the pattern compiles to more than {bytes} bytes"),
            "use smaller repetitions",
        ),
        other => {
            let text = other.to_string();
            let last = text.lines().last().unwrap_or("").trim();
            Problem::new(
                format!("not a pattern: {}", last.trim_start_matches("error: ")),
                "use the syntax of the Rust regex crate: no look-around, no back-references",
            )
        }
    })
}

/// Whether every `\N` of a substitution names a group of the pattern.
pub(crate) fn substitution(pattern: &str, value: &str) -> Verdict {
    let groups = compile(pattern)?.captures_len();
    let mut bytes = value.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            continue;
        }
        match bytes.next() {
            Some(b'\\') => {}
            Some(digit) if digit.is_ascii_digit() && usize::from(digit - b'0') < groups => {}
            _ => {
                return Err(Problem::new(
                    format!("`\\` must be followed by a group number below {groups} or another `\\`"),
                    "write `\\1` for the first group of the pattern, `\\\\` for a backslash",
                ));
            }
        }
    }
    Ok(())
}

/// A CIDR or a bare address. Bits beyond the prefix are refused: they hide a mistake.
pub(crate) fn cidr(value: &str) -> Verdict {
    const FIX: &str = "write for example `10.0.0.0/8`, `2001:db8::/32` or `192.0.2.7`";
    let (address, length) = match value.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (value, None),
    };
    let Ok(address) = address.parse::<IpAddr>() else {
        return Err(Problem::new("not an address range", FIX));
    };
    let Some(length) = length else { return Ok(()) };
    let (bits, width) = match address {
        IpAddr::V4(v4) => (u128::from(v4.to_bits()) << 96, 32),
        IpAddr::V6(v6) => (v6.to_bits(), 128),
    };
    let is_plain = !length.is_empty() && length.len() <= 3 && length.bytes().all(|b| b.is_ascii_digit());
    let Some(length) = length.parse::<u32>().ok().filter(|l| is_plain && *l <= width) else {
        return Err(Problem::new(format!("the prefix length is 0 to {width}"), FIX));
    };
    let host_bits = bits.checked_shl(length).unwrap_or(0);
    let network = bits.checked_shr(128 - length).map_or(0, |b| b << (128 - length));
    let shown = match address {
        IpAddr::V4(_) => u32::try_from(network >> 96).map(|b| IpAddr::V4(b.into())).unwrap_or(address),
        IpAddr::V6(_) => IpAddr::V6(network.into()),
    };
    ensure(
        host_bits == 0,
        "the address has bits beyond its prefix",
        format!("write `{shown}/{length}`, or a longer prefix"),
    )
}

/// One address that packets can have.
pub(crate) fn ip_address(value: &str) -> Verdict {
    const FIX: &str = "write for example `192.0.2.7` or `2001:db8::7`";
    let Ok(address) = value.parse::<IpAddr>() else {
        return Err(Problem::new("not an IP address", FIX));
    };
    let is_mapped = matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
    ensure(
        !address.is_unspecified() && !address.is_multicast() && !is_mapped,
        "no host has such an address",
        FIX,
    )
}

/// The name of a network interface (the kernel's rules: 15 bytes, no `/`, no blank).
pub(crate) fn interface(value: &str) -> Verdict {
    let is_name = (1..=15).contains(&value.len())
        && !matches!(value, "." | "..")
        && value.bytes().all(|b| b.is_ascii_graphic() && b != b'/' && b != b':');
    ensure(is_name, "not a network interface", "write its name as in `ip link`, such as `eth0`")
}

/// A line for a BGP speaker's file.
pub(crate) fn announce_line(value: &str) -> Verdict {
    text(value)?;
    ensure(
        value.contains("{prefix}"),
        "the line does not say which prefix it announces",
        "put `{prefix}` where the VIP belongs, such as `route {prefix} blackhole;`",
    )
}

/// Where a listener binds.
pub(crate) fn listen_address(value: &str) -> Verdict {
    match value.parse::<SocketAddr>() {
        Ok(_) => Ok(()),
        Err(_) if value.starts_with(':') || value.bytes().all(|b| b.is_ascii_digit()) => {
            let port = value.trim_start_matches(':');
            Err(Problem::new("an address without an IP", format!("write `0.0.0.0:{port}` or `[::]:{port}`")))
        }
        Err(_) => Err(Problem::new(
            "not an IP address and port",
            "write for example `0.0.0.0:8080` or `[::]:8443`; names are not resolved here",
        )),
    }
}

/// Where an endpoint is: `address:port` or `dns-name:port`.
pub(crate) fn endpoint_address(value: &str) -> Verdict {
    const FIX: &str = "write for example `10.0.0.7:8080`, `[2001:db8::7]:8080` or `orders.internal:8080`";
    if let Ok(address) = value.parse::<SocketAddr>() {
        return ensure(
            address.port() != 0 && !address.ip().is_unspecified(),
            "an endpoint needs a port above 0 and an address of its own",
            FIX,
        );
    }
    let Some((host, port)) = value.rsplit_once(':') else {
        return Err(Problem::new("an endpoint without a port", FIX));
    };
    ensure(
        port.parse::<u16>().is_ok_and(|p| p != 0) && port.bytes().all(|b| b.is_ascii_digit()),
        "the port is 1 to 65535",
        FIX,
    )?;
    ensure(!host.contains("//"), "an endpoint has no scheme", FIX)?;
    let looks_numeric = host.split('.').all(|l| l.bytes().all(|b| b.is_ascii_digit()));
    ensure(!looks_numeric, "not an IP address", FIX)?;
    dns_name(host).map_err(|problem| Problem::new(problem.message, FIX))
}

/// A token of RFC 9110 §5.6.2.
fn is_token(value: &str) -> bool {
    !value.is_empty() && value.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

/// A header field's name (RFC 9110 §5.1), in lower case.
pub(crate) fn header_name(value: &str) -> Verdict {
    ensure(
        is_token(value) && value.len() <= 128,
        "not a header name (RFC 9110 §5.1)",
        "use letters, digits and `-`, such as `x-tenant`",
    )?;
    let lower = value.to_ascii_lowercase();
    ensure(lower == value, "header names are written in lower case", format!("write `{lower}`"))
}

/// A header that a route may set or remove: not one that frames the message or belongs to the connection.
pub(crate) fn settable_header_name(value: &str) -> Verdict {
    const FORBIDDEN: [&str; 9] = [
        "connection",
        "content-length",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "host",
    ];
    header_name(value)?;
    ensure(value != "host", "the host is not set as a header", "use `rewrite: { host: … }`")?;
    ensure(
        !FORBIDDEN.contains(&value),
        "this header frames the message or belongs to the connection (RFC 9110 §7.6.1); the proxy writes it",
        "delete the key",
    )
}

/// A header field's value (RFC 9110 §5.5).
pub(crate) fn header_value(value: &str) -> Verdict {
    ensure(value.len() <= 4_096, "longer than 4,096 bytes", "shorten the value")?;
    ensure(
        value.bytes().all(|b| b == b'\t' || (b >= 0x20 && b != 0x7f)),
        "control bytes (such as CR, LF or NUL) are not allowed in a header (RFC 9110 §5.5)",
        "delete them",
    )?;
    ensure(
        value.trim_matches([' ', '\t']) == value,
        "blanks at the ends are not part of a header's value (RFC 9110 §5.5)",
        "delete them",
    )
}

/// A request method (RFC 9110 §9.1); CONNECT is never routed.
pub(crate) fn method(value: &str) -> Verdict {
    let upper = value.to_ascii_uppercase();
    ensure(is_token(value) && value.len() <= 32, "not a method", "write for example `GET`")?;
    ensure(
        upper == value,
        "methods are case-sensitive, and the registered ones upper case (RFC 9110 §9.1)",
        format!("write `{upper}`"),
    )?;
    ensure(value != "CONNECT", "CONNECT is always refused", "delete it")
}

/// The name of a query parameter or cookie.
pub(crate) fn parameter_name(value: &str) -> Verdict {
    ensure(
        !value.is_empty()
            && value.len() <= 128
            && value.bytes().all(|b| b.is_ascii_graphic() && !b"&=#;".contains(&b)),
        "not a parameter name",
        "use printable ASCII without `&`, `=`, `;` and `#`",
    )
}

/// A token (RFC 6265 §4.1.1).
pub(crate) fn cookie_name(value: &str) -> Verdict {
    let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    ensure(
        (1..=STICKY_COOKIE_BYTES_MAX).contains(&value.len()) && value.bytes().all(is_token),
        "not a cookie name",
        format!("use at most {STICKY_COOKIE_BYTES_MAX} letters, digits, `-` and `_`"),
    )
}

/// What `Path` of a cookie may say (RFC 6265 §4.1.1).
pub(crate) fn cookie_path(value: &str) -> Verdict {
    let is_plain = |b: u8| b.is_ascii_graphic() && b != b';';
    ensure(
        value.starts_with('/') && value.len() <= STICKY_PATH_BYTES_MAX && value.bytes().all(is_plain),
        "not a path of a cookie",
        "begin with `/`, and use printable ASCII without `;`",
    )
}

/// A file of the config directory, relative to it.
pub(crate) fn file(value: &str) -> Verdict {
    let path = std::path::Path::new(value);
    let is_inside = path
        .components()
        .all(|c| matches!(c, std::path::Component::Normal(_) | std::path::Component::CurDir));
    ensure(
        !value.is_empty() && value.len() <= 1_024 && is_inside && !value.contains('\0'),
        "not a path inside the config directory",
        "give the path relative to the config directory, without `..`, such as `tls/www.pem`",
    )
}

/// Texts that tokens hold; the proxy compares them byte by byte.
pub(crate) fn token_text(value: &str) -> Verdict {
    ensure(
        !value.is_empty()
            && value.len() <= control_api::defaults::token::ISSUER_BYTES_MAX
            && value.trim() == value
            && !value.chars().any(char::is_control),
        "not a text of a token",
        "write it as it stands in the token, at most 512 bytes, such as `https://issuer.example`",
    )
}

/// A media type, whose `application/` may be left out (RFC 7515 §4.1.9).
pub(crate) fn token_type(value: &str) -> Verdict {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"+-./_".contains(&b);
    ensure(
        !value.is_empty() && value.len() <= 127 && value.bytes().all(is_plain),
        "not a token type",
        "write for example `at+jwt`",
    )
}

/// RFC 6749 §3.3.
pub(crate) fn scope(value: &str) -> Verdict {
    let is_plain = |b: u8| b.is_ascii_graphic() && b != b'"' && b != b'\\';
    ensure(
        !value.is_empty()
            && value.len() <= control_api::defaults::token::SCOPE_BYTES_MAX
            && value.bytes().all(is_plain),
        "not a scope",
        "write one scope without blanks, at most 128 characters, such as `orders.read`",
    )
}

/// A file anywhere on the proxy's host, such as a log.
pub(crate) fn absolute_file(value: &str) -> Verdict {
    ensure(
        value.starts_with('/')
            && value.len() <= 1_024
            && !value.ends_with('/')
            && !value.chars().any(char::is_control),
        "not an absolute path",
        "write for example `/var/log/shard/access.log`",
    )
}

/// A media type for pages that the proxy sends.
pub(crate) fn content_type(value: &str) -> Verdict {
    header_value(value)?;
    let media = value.split(';').next().unwrap_or("").trim_end();
    let is_media_type = media.split_once('/').is_some_and(|(kind, sub)| is_token(kind) && is_token(sub));
    ensure(is_media_type, "not a media type", "write for example `text/html; charset=utf-8`")
}

/// A date in UTC.
pub(crate) fn date(value: &str) -> Verdict {
    crate::units::parse_date(value).map(drop)
}

/// A web origin (RFC 6454 §6.2): exact, with a `*.` host, or `*`.
pub(crate) fn origin(value: &str) -> Verdict {
    const FIX: &str = "write `https://app.example.com`, `https://*.example.com`, or `*`";
    if value == "*" || value == "null" {
        return Ok(());
    }
    let Some((scheme, rest)) = value.split_once("://") else {
        return Err(Problem::new("an origin has a scheme and a host", FIX));
    };
    ensure(matches!(scheme, "http" | "https"), "the scheme of an origin is http or https", FIX)?;
    let (host_part, port) = match rest.rsplit_once(':') {
        Some((host_part, port)) if !rest.ends_with(']') => (host_part, Some(port)),
        _ => (rest, None),
    };
    ensure(
        port.is_none_or(|p| p.parse::<u16>().is_ok()),
        "an origin is scheme, host and port, without a path",
        FIX,
    )?;
    ensure(host_part != "*", "`*` stands for a label, not for a host", FIX)?;
    host(host_part).map_err(|problem| Problem::new(problem.message, FIX))
}

/// An access log line: text with `%field%`; `%%` is a per cent sign.
pub(crate) fn log_template(value: &str) -> Verdict {
    const FIX: &str = "write fields as `%status%`, and `%%` for a per cent sign";
    text(value)?;
    ensure(!value.is_empty(), "an empty template", "delete the key for JSON lines")?;
    ensure(value.len() <= 4_096, "longer than 4,096 bytes", "shorten the template")?;
    let mut parts = value.split('%');
    parts.next();
    while let Some(field) = parts.next() {
        ensure(parts.next().is_some(), "a `%` without its partner", FIX)?;
        if !field.is_empty() && !ACCESS_LOG_FIELDS.contains(&field) {
            let fix = match nearest(field, ACCESS_LOG_FIELDS) {
                Some(near) => format!("did you mean `%{near}%`?"),
                None => format!("the fields are {}", ACCESS_LOG_FIELDS.join(", ")),
            };
            return Err(Problem::new(format!("`%{field}%` is no field of the access log"), fix));
        }
    }
    Ok(())
}

/// APP-NAME of syslog (RFC 5424 §6.2.5).
pub(crate) fn syslog_tag(value: &str) -> Verdict {
    ensure(
        (1..=48).contains(&value.len()) && value.bytes().all(|b| b.is_ascii_graphic()),
        "not a syslog tag (RFC 5424 §6.2.5)",
        "use 1 to 48 printable characters without blanks",
    )
}

/// Where syslog listens.
pub(crate) fn syslog_address(value: &str) -> Verdict {
    let is_valid = match value.split_once(':') {
        Some(("unix", path)) => absolute_file(path).is_ok(),
        Some(("udp", address)) => address.parse::<SocketAddr>().is_ok(),
        _ => false,
    };
    ensure(is_valid, "not a syslog address", "write `unix:/dev/log` or `udp:192.0.2.1:514`")
}

/// An upgrade protocol (RFC 9110 §7.8), lower case.
pub(crate) fn upgrade(value: &str) -> Verdict {
    ensure(header_name(value).is_ok(), "not an upgrade protocol", "write for example `websocket`")?;
    ensure(
        !matches!(value, "connect" | "h2c"),
        "this protocol is never passed on (RFC 9113 §3.1)",
        "delete it",
    )
}

/// The body of an error page or direct response.
pub(crate) fn inline_body(value: &str) -> Verdict {
    ensure(
        value.len() <= control_api::defaults::route::BODY_INLINE_BYTES_MAX,
        "longer than 64 KiB",
        "serve it from an upstream",
    )
}

/// A final status, or the first and last of a range of them, joined by `-`.
pub(crate) fn statuses(value: &str) -> Verdict {
    ensure(
        status_range(value).is_some(),
        "no status and no range of statuses",
        "write for example `200` or `200-299`, from 200 to 599",
    )
}

/// The ends of such a range.
pub(crate) fn status_range(value: &str) -> Option<(u16, u16)> {
    let (first, last) = value.split_once('-').unwrap_or((value, value));
    let status = |text: &str| {
        let digits = text.len() == 3 && text.bytes().all(|b| b.is_ascii_digit());
        text.parse::<u16>().ok().filter(|status| digits && (200..=599).contains(status))
    };
    let (first, last) = (status(first)?, status(last)?);
    (first <= last).then_some((first, last))
}

/// A gRPC service by its full name; empty is the whole server.
pub(crate) fn grpc_service(value: &str) -> Verdict {
    let is_part =
        |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    ensure(
        value.len() <= 255 && (value.is_empty() || value.split('.').all(is_part)),
        "not a gRPC service",
        "write its full name, such as `shop.v1.Orders`, or `\"\"` for the whole server",
    )
}

/// What a TCP check sends or expects.
pub(crate) fn payload(value: &str) -> Verdict {
    ensure(!value.is_empty(), "empty", "write some text, or delete the key")?;
    let bytes_max = control_api::defaults::balance::CHECK_PAYLOAD_BYTES_MAX;
    ensure(value.len() <= bytes_max, format!("longer than {bytes_max} bytes"), "shorten it")
}
