//! Header operations of a route: set, add and remove, in the order they are written.
//!
//! A value is literal text with variables of a closed set (`%CLIENT_IP%`, `%REQUEST_ID%`, `%PROTOCOL%`, `%HOST%`);
//! `%%` is a percent sign. Fields by which messages are framed or routed cannot be touched here, because a value
//! that disagrees with the message would let two hops read it differently. Called by `exchange` on request and
//! response heads.

use std::fmt;
use std::net::IpAddr;

use http_wire::fields::{FieldError, FieldId, Fields};
use http_wire::head::Version;
use http_wire::number::push_address;
use http_wire::token::{is_field_value, is_token};

/// What the variables of a value stand for in one exchange.
#[derive(Clone, Copy, Debug)]
pub struct Variables<'a> {
    pub client: IpAddr,
    pub request_id: &'a [u8],
    /// Of the request, as the client sent it.
    pub protocol: Version,
    /// The request's authority.
    pub host: &'a [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variable {
    ClientIp,
    RequestId,
    Protocol,
    Host,
}

impl Variable {
    /// Our names, and the commands of Envoy's format strings that mean the same.
    fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "CLIENT_IP" | "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT" => Self::ClientIp,
            "REQUEST_ID" | "STREAM_ID" | "REQ(X-REQUEST-ID)" => Self::RequestId,
            "PROTOCOL" => Self::Protocol,
            "HOST" | "REQ(:AUTHORITY)" => Self::Host,
            _ => return None,
        })
    }

    fn write(self, variables: &Variables<'_>, out: &mut Vec<u8>) {
        match self {
            Self::ClientIp => push_address(out, variables.client),
            Self::RequestId => out.extend_from_slice(variables.request_id),
            Self::Protocol => out.extend_from_slice(match variables.protocol {
                Version::Http10 => b"HTTP/1.0",
                Version::Http11 => b"HTTP/1.1",
                Version::Http2 => b"HTTP/2",
            }),
            Self::Host => out.extend_from_slice(variables.host),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Literal(Box<[u8]>),
    Variable(Variable),
}

/// A value with its variables found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueTemplate {
    pieces: Vec<Piece>,
}

impl ValueTemplate {
    /// # Errors
    /// `FieldOpError` for a byte that no field value may hold (RFC 9110 §5.5), an unknown variable or a single `%`.
    pub fn parse(text: &str) -> Result<Self, FieldOpError> {
        if !is_field_value(text.as_bytes()) {
            return Err(FieldOpError::Value(text.to_owned()));
        }
        let (mut pieces, mut literal, mut rest) = (Vec::new(), Vec::new(), text);
        while let Some((before, after)) = rest.split_once('%') {
            literal.extend_from_slice(before.as_bytes());
            let Some((name, after)) = after.split_once('%') else {
                return Err(FieldOpError::LonePercent(text.to_owned()));
            };
            if name.is_empty() {
                literal.push(b'%');
            } else {
                let variable =
                    Variable::from_name(name).ok_or_else(|| FieldOpError::Variable(name.to_owned()))?;
                if !literal.is_empty() {
                    pieces.push(Piece::Literal(std::mem::take(&mut literal).into_boxed_slice()));
                }
                pieces.push(Piece::Variable(variable));
            }
            rest = after;
        }
        literal.extend_from_slice(rest.as_bytes());
        if !literal.is_empty() {
            pieces.push(Piece::Literal(literal.into_boxed_slice()));
        }
        Ok(Self { pieces })
    }

    /// The value for one exchange: the literal itself, or `scratch` refilled.
    fn value<'a>(&'a self, variables: &Variables<'_>, scratch: &'a mut Vec<u8>) -> &'a [u8] {
        if let [Piece::Literal(bytes)] = &self.pieces[..] {
            return bytes;
        }
        scratch.clear();
        for piece in &self.pieces {
            match piece {
                Piece::Literal(bytes) => scratch.extend_from_slice(bytes),
                Piece::Variable(variable) => variable.write(variables, scratch),
            }
        }
        scratch
    }
}

/// What to do with a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldAction {
    /// Replaces all fields of this name.
    Set(ValueTemplate),
    /// Adds a line beside those that are there.
    Add(ValueTemplate),
    /// Adds a line where there is none.
    SetIfAbsent(ValueTemplate),
    Remove,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct FieldOp {
    id: FieldId,
    /// Lower case.
    name: Box<[u8]>,
    action: FieldAction,
}

/// Why an operation is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldOpError {
    /// Not a token (RFC 9110 §5.1).
    Name(String),
    /// The proxy itself answers for this field.
    Reserved(String),
    Value(String),
    Variable(String),
    LonePercent(String),
}

impl fmt::Display for FieldOpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(text) => write!(f, "`{text}` is no header name"),
            Self::Reserved(name) => {
                write!(f, "`{name}` frames or routes the message, the proxy alone writes it")
            }
            Self::Value(text) => write!(f, "`{}` holds a control character", text.escape_default()),
            Self::Variable(name) => {
                write!(
                    f,
                    "%{name}% is no variable; there are %CLIENT_IP%, %REQUEST_ID%, %PROTOCOL% and %HOST%"
                )
            }
            Self::LonePercent(text) => {
                write!(f, "`{text}` has a single %; write %% for a percent sign")
            }
        }
    }
}

impl std::error::Error for FieldOpError {}

/// The operations of a route on one direction. The default does nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldOps {
    ops: Vec<FieldOp>,
}

impl FieldOps {
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Appends an operation; `name` in any case.
    ///
    /// # Errors
    /// `FieldOpError` when `name` is no token or a field that the proxy answers for.
    pub fn push(&mut self, name: &str, action: FieldAction) -> Result<(), FieldOpError> {
        if !is_token(name.as_bytes()) {
            return Err(FieldOpError::Name(name.to_owned()));
        }
        let name = name.to_ascii_lowercase();
        let id = FieldId::from_lower(name.as_bytes());
        if is_reserved(id) {
            return Err(FieldOpError::Reserved(name));
        }
        self.ops.push(FieldOp { id, name: name.into_bytes().into_boxed_slice(), action });
        Ok(())
    }

    /// Applies the operations in order. `scratch` is reused for values with variables.
    ///
    /// # Errors
    /// `FieldError` when a variable held a byte that no field value may hold, or the block would pass 4 GiB; the
    /// head must not be sent then.
    pub fn apply(
        &self,
        variables: &Variables<'_>,
        fields: &mut Fields,
        scratch: &mut Vec<u8>,
    ) -> Result<(), FieldError> {
        for FieldOp { id, name, action } in &self.ops {
            match action {
                FieldAction::Set(template) => {
                    remove(fields, *id, name);
                    push(fields, *id, name, template.value(variables, scratch))?;
                }
                FieldAction::Add(template) => push(fields, *id, name, template.value(variables, scratch))?,
                FieldAction::SetIfAbsent(template) => {
                    if fields.get_name(name).is_none() {
                        push(fields, *id, name, template.value(variables, scratch))?;
                    }
                }
                FieldAction::Remove => remove(fields, *id, name),
            }
        }
        Ok(())
    }
}

fn remove(fields: &mut Fields, id: FieldId, name: &[u8]) {
    match id {
        FieldId::Other => fields.remove_name(name),
        known => fields.remove(known),
    }
}

fn push(fields: &mut Fields, id: FieldId, name: &[u8], value: &[u8]) -> Result<(), FieldError> {
    match id {
        FieldId::Other => fields.push_name(name, value),
        known => fields.push(known, value),
    }
}

/// Framing (RFC 9112 §6), hop-by-hop fields (RFC 9110 §7.6.1), the host, which has its own rewrite, and the
/// request id, which is the same word in the log.
const fn is_reserved(id: FieldId) -> bool {
    matches!(
        id,
        FieldId::Connection
            | FieldId::ContentLength
            | FieldId::Expect
            | FieldId::Host
            | FieldId::Http2Settings
            | FieldId::KeepAlive
            | FieldId::ProxyConnection
            | FieldId::Te
            | FieldId::Trailer
            | FieldId::TransferEncoding
            | FieldId::Upgrade
            | FieldId::XRequestId
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(value: &str) -> FieldAction {
        FieldAction::Set(ValueTemplate::parse(value).unwrap())
    }

    fn add(value: &str) -> FieldAction {
        FieldAction::Add(ValueTemplate::parse(value).unwrap())
    }

    fn absent(value: &str) -> FieldAction {
        FieldAction::SetIfAbsent(ValueTemplate::parse(value).unwrap())
    }

    const VARIABLES: Variables<'static> = Variables {
        client: IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 7)),
        request_id: b"id-1",
        protocol: Version::Http2,
        host: b"shop.example",
    };

    fn apply(ops: &[(&str, FieldAction)], lines: &[(&str, &str)]) -> Vec<String> {
        let mut list = FieldOps::default();
        for (name, action) in ops {
            list.push(name, action.clone()).unwrap();
        }
        let mut fields = Fields::new();
        for (name, value) in lines {
            fields.push_name(name.as_bytes(), value.as_bytes()).unwrap();
        }
        let mut scratch = b"left over".to_vec();
        list.apply(&VARIABLES, &mut fields, &mut scratch).unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        fields.iter().map(|f| format!("{}: {}", text(f.name), text(f.value))).collect()
    }

    #[test]
    fn operations_work_on_known_and_other_names_in_order() {
        for name in ["x-a", "X-A", "server", "Server"] {
            let lower = name.to_lowercase();
            let line = |value: &str| format!("{lower}: {value}");
            let there = [(name, "1"), (name, "2"), ("accept", "*/*")];
            let rest = "accept: */*".to_owned();
            assert_eq!(apply(&[(name, set("9"))], &there), [rest.clone(), line("9")]);
            assert_eq!(apply(&[(name, add("9"))], &there), [line("1"), line("2"), rest.clone(), line("9")]);
            assert_eq!(apply(&[(name, absent("9"))], &there), [line("1"), line("2"), rest.clone()]);
            assert_eq!(apply(&[(name, FieldAction::Remove)], &there), std::slice::from_ref(&rest));
            assert_eq!(apply(&[(name, absent("9"))], &[]), [line("9")]);
            assert_eq!(
                apply(&[(name, FieldAction::Remove), (name, absent("9")), (name, add(""))], &there),
                [rest.clone(), line("9"), line("")]
            );
        }
    }

    #[test]
    fn variables_stand_for_the_exchange() {
        let table = [
            ("%CLIENT_IP%", "192.0.2.7"),
            ("a%REQUEST_ID%b", "aid-1b"),
            ("%PROTOCOL%/%HOST%", "HTTP/2/shop.example"),
            ("100%%", "100%"),
            ("%%CLIENT_IP%%", "%CLIENT_IP%"),
            ("%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%,%REQ(:AUTHORITY)%", "192.0.2.7,shop.example"),
            ("", ""),
        ];
        for (template, expected) in table {
            assert_eq!(apply(&[("x-v", set(template))], &[]), [format!("x-v: {expected}")], "{template}");
        }
    }

    #[test]
    fn values_that_cannot_be_meant_are_refused() {
        for bad in ["a\r\nb", "a\nb", "a\0", "\u{7f}"] {
            assert!(matches!(ValueTemplate::parse(bad), Err(FieldOpError::Value(_))), "{bad:?}");
        }
        for bad in ["%NOPE%", "%client_ip%", "% %", "%REQ(authorization)%"] {
            assert!(matches!(ValueTemplate::parse(bad), Err(FieldOpError::Variable(_))), "{bad}");
        }
        for bad in ["%", "100%", "a%%%", "%CLIENT_IP"] {
            assert!(matches!(ValueTemplate::parse(bad), Err(FieldOpError::LonePercent(_))), "{bad}");
        }
    }

    #[test]
    fn fields_that_frame_or_route_cannot_be_touched() {
        let mut ops = FieldOps::default();
        for name in [
            "Content-Length",
            "transfer-encoding",
            "HOST",
            "Connection",
            "TE",
            "trailer",
            "upgrade",
            "keep-alive",
            "x-request-id",
        ] {
            assert!(matches!(ops.push(name, FieldAction::Remove), Err(FieldOpError::Reserved(_))), "{name}");
        }
        for name in ["", ":path", "a b", "a:", "é", "a\r\n"] {
            assert!(matches!(ops.push(name, FieldAction::Remove), Err(FieldOpError::Name(_))), "{name:?}");
        }
        assert!(ops.is_empty());
    }

    #[test]
    fn a_variable_with_a_control_byte_fails_instead_of_splitting_the_message() {
        let mut ops = FieldOps::default();
        ops.push("x-host", set("%HOST%")).unwrap();
        let variables = Variables { host: b"a\r\nx-evil: 1", ..VARIABLES };
        let mut fields = Fields::new();
        assert_eq!(ops.apply(&variables, &mut fields, &mut Vec::new()), Err(FieldError));
        assert!(fields.is_empty());
    }
}
