//! The key that hashing policies place a request by: the first of the route's sources that the request has.

use std::net::IpAddr;

use http_balance::stable_hash;
use http_wire::cookie;
use http_wire::fields::FieldId;
use http_wire::head::RequestHead;

use crate::snapshot::{Forward, HashKey};

impl Forward {
    /// None when the route has no sources, or the request none of them. `client` is the one behind trusted proxies.
    pub fn hash_key(&self, head: &RequestHead, client: IpAddr) -> Option<u64> {
        self.hash_by.iter().find_map(|source| source.hash(head, client))
    }
}

impl HashKey {
    /// None when the request has no such part.
    pub(crate) fn hash(&self, head: &RequestHead, client: IpAddr) -> Option<u64> {
        let value = match self {
            Self::Field(name) => head.fields.get_name(name.as_bytes())?,
            Self::Cookie(name) => cookie::find(head.fields.all(FieldId::Cookie), name.as_bytes())?,
            Self::Query(name) => parameter(head.query()?, name.as_bytes())?,
            Self::ClientAddress => {
                return Some(hash_of(client));
            }
        };
        Some(stable_hash(value))
    }
}

/// The key of a client by its address.
pub(crate) fn hash_of(client: IpAddr) -> u64 {
    match client.to_canonical() {
        IpAddr::V4(ip) => stable_hash(&ip.octets()),
        IpAddr::V6(ip) => stable_hash(&ip.octets()),
    }
}

/// The value of the first parameter of that name, as it is on the wire.
fn parameter<'a>(query: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    query.split(|byte| *byte == b'&').find_map(|part| {
        let rest = part.strip_prefix(name)?;
        rest.strip_prefix(b"=").or_else(|| rest.is_empty().then_some(rest))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_parameter_of_the_name_counts() {
        let query = b"userx=1&user=2&user=3&flag";
        assert_eq!(parameter(query, b"user"), Some(&b"2"[..]));
        assert_eq!(parameter(query, b"flag"), Some(&b""[..]));
        assert_eq!(parameter(query, b"use"), None);
        assert_eq!(parameter(b"", b"user"), None);
    }

    #[test]
    fn an_address_has_one_key_in_both_families() {
        let hash = |ip: &str| HashKey::ClientAddress.hash(&RequestHead::default(), ip.parse().unwrap());
        assert_eq!(hash("192.0.2.1"), hash("::ffff:192.0.2.1"));
        assert_ne!(hash("192.0.2.1"), hash("192.0.2.2"));
    }
}
