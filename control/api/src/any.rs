//! Packing into and out of `google.protobuf.Any`.

use std::fmt;

use prost::{DecodeError, Message, Name};

use crate::envoy::google::Any;

/// Why an `Any` did not yield the wanted message.
#[derive(Debug)]
pub enum AnyError {
    /// It holds another type.
    WrongType { wanted: String, found: String },
    /// Its bytes are no such message.
    Malformed { type_url: String, source: DecodeError },
}

impl fmt::Display for AnyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WrongType { wanted, found } => {
                write!(f, "the type is {found:?}, wanted {wanted:?}")
            }
            Self::Malformed { type_url, .. } => write!(f, "malformed {type_url}"),
        }
    }
}

impl std::error::Error for AnyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::WrongType { .. } => None,
            Self::Malformed { source, .. } => Some(source),
        }
    }
}

/// Packs a message under its full type URL (`type.googleapis.com/…`).
pub fn to_any<M: Message + Name>(message: &M) -> Any {
    Any { type_url: M::type_url(), value: message.encode_to_vec() }
}

/// Unpacks a message. As the protobuf specification has it, only the part after the last `/` of the type URL counts.
///
/// # Errors
/// [`AnyError`] when the type differs or the bytes do not decode.
pub fn from_any<M: Message + Name + Default>(any: &Any) -> Result<M, AnyError> {
    let found = any.type_url.rsplit('/').next().unwrap_or("");
    if found != M::full_name() {
        return Err(AnyError::WrongType { wanted: M::type_url(), found: any.type_url.clone() });
    }
    M::decode(any.value.as_slice())
        .map_err(|source| AnyError::Malformed { type_url: any.type_url.clone(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envoy::{listener::Listener, router::Router};
    use crate::shard::v1::{ListenerOptions, RouteOptions};

    #[test]
    fn a_message_survives_the_round_trip_and_no_other_type_does() {
        let options = ListenerOptions { connections_max: Some(7), ..Default::default() };
        let any = to_any(&options);
        assert_eq!(any.type_url, "type.googleapis.com/shard.v1.ListenerOptions");
        assert_eq!(from_any::<ListenerOptions>(&any).expect("same type"), options);
        assert!(matches!(from_any::<RouteOptions>(&any), Err(AnyError::WrongType { .. })));
        assert!(matches!(from_any::<Router>(&any), Err(AnyError::WrongType { .. })));
    }

    #[test]
    fn the_host_part_of_a_type_url_does_not_count() {
        let mut any = to_any(&Listener { name: "edge".into(), ..Default::default() });
        any.type_url = "example.com/x/envoy.config.listener.v3.Listener".into();
        assert_eq!(from_any::<Listener>(&any).expect("same message").name, "edge");
    }

    #[test]
    fn malformed_bytes_name_the_type_and_keep_the_cause() {
        let any =
            Any { type_url: "type.googleapis.com/shard.v1.ListenerOptions".into(), value: vec![0xff; 3] };
        let error = from_any::<ListenerOptions>(&any).expect_err("a truncated tag");
        assert!(error.to_string().contains("shard.v1.ListenerOptions"), "{error}");
        assert!(std::error::Error::source(&error).is_some());
    }
}
