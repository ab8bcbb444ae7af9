//! Who is calling: the one client address that access rules, limits and logs use, and the forwarded fields that
//! backends get.
//!
//! The fields are lists to which each proxy adds on the right, so they are read from the right. A hop is trusted
//! when its address is in `trusted` or when it is no further away than `depth` (the peer is hop 1). The walk ends
//! at the first hop that is not trusted, which is the client, or before the first token that is no address, when
//! the hop to its right is the client. What stands left of the client is somebody's claim and is not passed on.
//! From a peer that is not trusted every forwarded field is replaced. Called by `exchange`.

use std::net::{IpAddr, SocketAddr};
use std::ops::{ControlFlow, Range};

use http_wire::fields::{FieldError, FieldId, Fields};
use http_wire::forwarded::{HOPS_MAX, Hop, forwarded, x_forwarded_for};
use http_wire::head::{RequestHead, Scheme};
use http_wire::number::{Decimal, push_address};

use crate::cidr::{CidrSet, canonical};
use crate::claims::{self, Believed};

/// The field that trusted proxies write. The other one is removed: a proxy that does not know a field passes on
/// what the client sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForwardedSource {
    #[default]
    XForwardedFor,
    /// RFC 7239.
    Forwarded,
}

/// Which hops a listener believes. The default believes nobody: the peer is the client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientAddrRules {
    pub trusted: CidrSet,
    /// Hops from here that are trusted whatever their address; 0: by address only.
    pub depth: u32,
    pub source: ForwardedSource,
}

/// The connection a request came by.
#[derive(Clone, Copy, Debug)]
pub struct Downstream {
    /// The socket's peer, or what the PROXY protocol said about it.
    pub peer: IpAddr,
    pub local: SocketAddr,
    /// How the client side of this proxy was reached.
    pub scheme: Scheme,
}

/// Whether the peer's forwarded fields were believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerTrust {
    Trusted,
    Untrusted,
}

/// What [`ClientAddrRules::derive`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientAddr {
    /// IPv4-mapped addresses are IPv4.
    pub address: IpAddr,
    pub peer_trust: PeerTrust,
    /// List elements from the right that are addresses up to and with the client's.
    hops: usize,
}

impl ClientAddrRules {
    fn trusts(&self, hop: IpAddr, distance: usize) -> bool {
        usize::try_from(self.depth).is_ok_and(|depth| distance <= depth) || self.trusted.contains(hop)
    }

    /// Finds the client of a request.
    pub fn derive(&self, peer: IpAddr, fields: &Fields) -> ClientAddr {
        let peer = canonical(peer);
        if !self.trusts(peer, 1) {
            return ClientAddr { address: peer, peer_trust: PeerTrust::Untrusted, hops: 0 };
        }
        let mut client = ClientAddr { address: peer, peer_trust: PeerTrust::Trusted, hops: 0 };
        self.each_hop(fields, |hop| {
            client.address = hop;
            client.hops += 1;
            if self.trusts(hop, client.hops + 1) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        client
    }

    /// Shows the addresses of the list from the right, until the first that is none or `visit` breaks off.
    fn each_hop(&self, fields: &Fields, mut visit: impl FnMut(IpAddr) -> ControlFlow<()>) {
        let mut goes_on = |hop| match hop {
            Hop::Addr(address) => visit(address).is_continue(),
            Hop::Bad => false,
        };
        match self.source {
            ForwardedSource::XForwardedFor => {
                x_forwarded_for(fields.all(FieldId::XForwardedFor)).all(&mut goes_on)
            }
            ForwardedSource::Forwarded => forwarded(fields.all(FieldId::Forwarded)).all(&mut goes_on),
        };
    }

    /// Writes the forwarded fields for the backend: `x-forwarded-for`, `-proto`, `-host`, `-port`, a believed
    /// `-prefix`, and `forwarded` where that is the source. Every other field that only the proxy may write is removed.
    /// Returns the scheme by which the client came. `scratch` is emptied and reused.
    ///
    /// # Errors
    /// `FieldError` when the head would pass 4 GiB.
    pub fn rewrite(
        &self,
        client: &ClientAddr,
        downstream: &Downstream,
        head: &mut RequestHead,
        scratch: &mut Vec<u8>,
    ) -> Result<Scheme, FieldError> {
        let believed = match client.peer_trust {
            PeerTrust::Trusted => Believed::by(&head.fields, self.source, client.hops),
            PeerTrust::Untrusted => Believed::default(),
        };
        let scheme = believed.scheme.unwrap_or(downstream.scheme);
        scratch.clear();
        let chain = self.write_chain(client, downstream, &head.fields, scratch);
        let host = append(scratch, believed.host.unwrap_or(head.authority()));
        let port = match believed.port {
            Some(port) => append(scratch, port),
            None => append(scratch, Decimal::new(u64::from(downstream.local.port())).as_bytes()),
        };
        let prefix = believed.prefix.map(|prefix| append(scratch, prefix));
        let forwarded = match self.source {
            ForwardedSource::XForwardedFor => None,
            ForwardedSource::Forwarded => Some(self.write_forwarded(client, downstream, head, scratch)),
        };

        head.fields.remove_all(claims::CLAIMS, |name| claims::is_claim(name, client.peer_trust));
        head.fields.push(FieldId::XForwardedFor, &scratch[chain])?;
        head.fields.push(FieldId::XForwardedProto, scheme.as_str().as_bytes())?;
        head.fields.push(FieldId::XForwardedHost, &scratch[host])?;
        head.fields.push(FieldId::XForwardedPort, &scratch[port])?;
        if let Some(prefix) = prefix {
            head.fields.push(FieldId::XForwardedPrefix, &scratch[prefix])?;
        }
        if let Some(forwarded) = forwarded {
            head.fields.push(FieldId::Forwarded, &scratch[forwarded])?;
        }
        Ok(scheme)
    }

    /// The believed addresses of the list, the client first.
    fn believed_hops(&self, client: &ClientAddr, fields: &Fields, mut each: impl FnMut(IpAddr)) {
        if client.hops == 0 {
            return;
        }
        let mut hops = [client.address; HOPS_MAX];
        let mut found = 0;
        self.each_hop(fields, |hop| {
            if let Some(slot) = hops.get_mut(found).filter(|_| found < client.hops) {
                *slot = hop;
                found += 1;
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        hops[..found].iter().rev().for_each(|hop| each(*hop));
    }

    /// `client, hop, …, peer`, without ports.
    fn write_chain(
        &self,
        client: &ClientAddr,
        downstream: &Downstream,
        fields: &Fields,
        out: &mut Vec<u8>,
    ) -> Range<usize> {
        let at = out.len();
        self.believed_hops(client, fields, |hop| {
            push_address(out, hop);
            append(out, b", ");
        });
        push_address(out, canonical(downstream.peer));
        at..out.len()
    }

    /// The believed hops by address alone, then our own element (RFC 7239 §4).
    fn write_forwarded(
        &self,
        client: &ClientAddr,
        downstream: &Downstream,
        head: &RequestHead,
        out: &mut Vec<u8>,
    ) -> Range<usize> {
        let at = out.len();
        self.believed_hops(client, &head.fields, |hop| {
            append_node(out, hop);
            append(out, b", ");
        });
        append_node(out, canonical(downstream.peer));
        let is_plain =
            !head.authority().is_empty() && !head.authority().iter().any(|b| matches!(b, b'"' | b'\\'));
        if is_plain {
            append(out, b";host=\"");
            append(out, head.authority());
            append(out, b"\"");
        }
        append(out, b";proto=");
        append(out, downstream.scheme.as_str().as_bytes());
        at..out.len()
    }
}

/// RFC 7239 §6: an IPv6 address is in brackets and, for its colons, in quotes.
fn append_node(out: &mut Vec<u8>, address: IpAddr) {
    let (before, behind): (&[u8], &[u8]) = match address {
        IpAddr::V4(_) => (b"for=", b""),
        IpAddr::V6(_) => (b"for=\"[", b"]\""),
    };
    append(out, before);
    push_address(out, address);
    append(out, behind);
}

fn append(out: &mut Vec<u8>, bytes: &[u8]) -> Range<usize> {
    let at = out.len();
    out.extend_from_slice(bytes);
    at..out.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cidr::Cidr;

    fn rules(trusted: &[&str], depth: u32, source: ForwardedSource) -> ClientAddrRules {
        ClientAddrRules {
            trusted: trusted.iter().map(|t| t.parse::<Cidr>().unwrap()).collect(),
            depth,
            source,
        }
    }

    fn fields(lines: &[(&str, &str)]) -> Fields {
        let mut fields = Fields::new();
        for (name, value) in lines {
            fields.push_name(name.as_bytes(), value.as_bytes()).unwrap();
        }
        fields
    }

    fn derive(rules: &ClientAddrRules, peer: &str, lines: &[(&str, &str)]) -> String {
        rules.derive(peer.parse().unwrap(), &fields(lines)).address.to_string()
    }

    fn rewrite(
        rules: &ClientAddrRules,
        peer: &str,
        lines: &[(&str, &str)],
    ) -> (Scheme, Vec<(String, String)>) {
        let mut head = RequestHead::default();
        head.fields = fields(lines);
        head.set_authority(b"shop.example").unwrap();
        let downstream = Downstream {
            peer: peer.parse().unwrap(),
            local: "192.0.2.9:8443".parse().unwrap(),
            scheme: Scheme::Http,
        };
        let client = rules.derive(downstream.peer, &head.fields);
        let mut scratch = b"left over".to_vec();
        let scheme = rules.rewrite(&client, &downstream, &mut head, &mut scratch).unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        (scheme, head.fields.iter().map(|f| (text(f.name), text(f.value))).collect())
    }

    fn value<'a>(fields: &'a [(String, String)], name: &str) -> Option<&'a str> {
        assert!(fields.iter().filter(|f| f.0 == name).count() <= 1, "{name} stands once: {fields:?}");
        fields.iter().find(|f| f.0 == name).map(|f| f.1.as_str())
    }

    const XFF: ForwardedSource = ForwardedSource::XForwardedFor;

    #[test]
    fn the_client_is_the_first_untrusted_hop_from_the_right() {
        let by_address = rules(&["127.0.0.0/8", "10.0.0.0/8", "2001:db8::/32"], 0, XFF);
        let long = (1..=200).map(|n| format!("10.0.0.{n}")).collect::<Vec<_>>().join(",");
        let table: [(&[&str], &str); 17] = [
            (&[], "127.0.0.1"),
            (&["7.7.7.7"], "7.7.7.7"),
            (&["6.6.6.6", "7.7.7.7, 127.0.0.9"], "7.7.7.7"),
            (&["6.6.6.6, 7.7.7.7", "127.0.0.9"], "7.7.7.7"),
            (&["6.6.6.6,7.7.7.7,127.0.0.9"], "7.7.7.7"),
            (&["6.6.6.6, unknown"], "127.0.0.1"),
            (&["6.6.6.6, unknown, 10.0.0.3"], "10.0.0.3"),
            (&["6.6.6.6, , 10.0.0.3"], "10.0.0.3"),
            (&["6.6.6.6", " "], "6.6.6.6"),
            (&["6.6.6.6,"], "127.0.0.1"),
            (&["1.2.3.4:55"], "1.2.3.4"),
            (&["[2001:db9::1]:80"], "2001:db9::1"),
            (&["9.9.9.9, 2001:db8::1"], "9.9.9.9"),
            (&["::ffff:9.9.9.9"], "9.9.9.9"),
            (&["6.6.6.6, 7.7.7.7\t,\t127.0.0.9"], "7.7.7.7"),
            (&["10.0.0.1, 10.0.0.2"], "10.0.0.1"),
            // The walk is bounded: the 64th hop from the right.
            (&["6.6.6.6", &long], "10.0.0.137"),
        ];
        for (lines, expected) in table {
            let lines: Vec<_> = lines.iter().map(|v| ("X-Forwarded-For", *v)).collect();
            assert_eq!(derive(&by_address, "127.0.0.1", &lines), expected, "{lines:?}");
            assert_eq!(
                derive(&by_address, "203.0.113.5", &lines),
                "203.0.113.5",
                "untrusted peer, {lines:?}"
            );
            assert_eq!(derive(&by_address, "::ffff:127.0.0.1", &lines), expected, "mapped peer, {lines:?}");
        }
    }

    #[test]
    fn tokens_that_are_no_address_stop_the_walk() {
        let by_address = rules(&["127.0.0.0/8"], 0, XFF);
        let bad = [
            "unknown",
            "_hidden",
            "1.2.3",
            "1.2.3.4.5",
            "256.1.1.1",
            "01.2.3.4",
            "1.2.3.4:",
            "1.2.3.4:x",
            "1.2.3.4:123456",
            "[::1",
            "::1]",
            "[1.2.3.4]",
            "[::1]80",
            "[::1]:",
            "fe80::1%eth0",
            "\"1.2.3.4\"",
            "1.2.3.4 5.6.7.8",
            "localhost",
            "-",
            "0x7f.1",
            "\u{fffd}",
        ];
        for token in bad {
            let line = format!("6.6.6.6, {token}");
            assert_eq!(
                derive(&by_address, "127.0.0.1", &[("x-forwarded-for", &line)]),
                "127.0.0.1",
                "{token}"
            );
        }
    }

    #[test]
    fn depth_counts_hops_from_here() {
        let chain = [("x-forwarded-for", "1.1.1.1, 2.2.2.2, 3.3.3.3")];
        for (depth, expected) in
            [(0, "9.9.9.9"), (1, "3.3.3.3"), (2, "2.2.2.2"), (3, "1.1.1.1"), (50, "1.1.1.1")]
        {
            assert_eq!(derive(&rules(&[], depth, XFF), "9.9.9.9", &chain), expected, "depth {depth}");
        }
        // Either reason is enough for a hop: the peer by depth, 3.3.3.3 by address.
        assert_eq!(derive(&rules(&["3.3.3.0/24"], 1, XFF), "9.9.9.9", &chain), "2.2.2.2");
    }

    #[test]
    fn an_untrusted_peer_has_every_forwarded_field_replaced() {
        let claims = [
            ("X-Forwarded-For", "6.6.6.6"),
            ("X-Forwarded-For", "7.7.7.7, 127.0.0.9"),
            ("X-Forwarded-Proto", "https"),
            ("X-Forwarded-Host", "evil.example"),
            ("X-Forwarded-Port", "1"),
            ("X-Forwarded-Prefix", "/evil"),
            ("Forwarded", "for=6.6.6.6;host=evil.example"),
            ("X-Real-IP", "6.6.6.6"),
            ("X-Forwarded-Server", "evil"),
            ("X_Forwarded_For", "6.6.6.6"),
            ("x-forwarded_proto", "https"),
            ("X_Real_IP", "6.6.6.6"),
            ("Accept", "*/*"),
        ];
        for source in [XFF, ForwardedSource::Forwarded] {
            let (scheme, found) = rewrite(&rules(&["127.0.0.0/8"], 0, source), "203.0.113.5", &claims);
            assert_eq!(scheme, Scheme::Http);
            assert!(!found.iter().any(|f| f.1.contains("6.6.6.6") || f.1.contains("evil")), "{found:?}");
            assert_eq!(value(&found, "x-forwarded-for"), Some("203.0.113.5"));
            assert_eq!(value(&found, "x-forwarded-proto"), Some("http"));
            assert_eq!(value(&found, "x-forwarded-host"), Some("shop.example"));
            assert_eq!(value(&found, "x-forwarded-port"), Some("8443"));
            assert_eq!(value(&found, "x-forwarded-prefix"), None);
            assert_eq!(value(&found, "accept"), Some("*/*"));
            let ours = matches!(source, ForwardedSource::Forwarded)
                .then_some("for=203.0.113.5;host=\"shop.example\";proto=http");
            assert_eq!(value(&found, "forwarded"), ours);
        }
    }

    #[test]
    fn a_trusted_peer_has_the_verified_part_kept_and_extended() {
        let claims = [
            ("x-forwarded-for", "6.6.6.6"),
            ("x-forwarded-for", "7.7.7.7:99, 127.0.0.9"),
            ("x-forwarded-proto", "https\t"),
            ("x-forwarded-host", "Front.Example:444"),
            ("x-forwarded-port", "444"),
            ("x-forwarded-prefix", "/shop"),
            ("forwarded", "for=6.6.6.6"),
            ("x_forwarded_for", "6.6.6.6"),
            ("x-forwarded-server", "front"),
        ];
        let (scheme, found) = rewrite(&rules(&["127.0.0.0/8"], 0, XFF), "127.0.0.1", &claims);
        assert_eq!(scheme, Scheme::Https);
        assert_eq!(value(&found, "x-forwarded-for"), Some("7.7.7.7, 127.0.0.9, 127.0.0.1"));
        assert_eq!(value(&found, "x-forwarded-proto"), Some("https"));
        assert_eq!(value(&found, "x-forwarded-host"), Some("Front.Example:444"));
        assert_eq!(value(&found, "x-forwarded-port"), Some("444"));
        assert_eq!(value(&found, "x-forwarded-prefix"), Some("/shop"));
        assert_eq!(value(&found, "x-forwarded-server"), Some("front"));
        assert_eq!((value(&found, "forwarded"), value(&found, "x_forwarded_for")), (None, None));
    }

    #[test]
    fn values_that_mean_nothing_are_replaced_even_from_a_trusted_peer() {
        let trusted = rules(&["127.0.0.0/8"], 0, XFF);
        let table: [(&str, &[&str], Option<&str>); 4] = [
            ("x-forwarded-proto", &["javascript", "", "https http", "wss", "http:"], Some("http")),
            ("x-forwarded-host", &["", "a b", "a/b", "user@a", "a\"b", "a?x"], Some("shop.example")),
            ("x-forwarded-port", &["", "0", "65536", "080", "+80", "-1", "8o", "123456"], Some("8443")),
            (
                "x-forwarded-prefix",
                &["", "shop", "//evil.example", "/a/../b", "/..", "/a b", "/a?x", "/a\\b", "/%2e%2e"],
                None,
            ),
        ];
        for (name, bad_values, expected) in table {
            for bad in bad_values {
                let (_, found) =
                    rewrite(&trusted, "127.0.0.1", &[("x-forwarded-for", "7.7.7.7"), (name, bad)]);
                assert_eq!(value(&found, name), expected, "{name}: {bad}");
            }
        }
    }

    #[test]
    fn lists_of_other_fields_are_read_at_the_clients_place() {
        let trusted = rules(&["127.0.0.0/8"], 0, XFF);
        let chain = ("x-forwarded-for", "6.6.6.6, 7.7.7.7, 127.0.0.9");
        for (protos, expected) in [
            ("https", Scheme::Https),
            ("https, http", Scheme::Https),
            ("http, https, http", Scheme::Https),
            ("https, http, http", Scheme::Http),
        ] {
            let (scheme, _) = rewrite(&trusted, "127.0.0.1", &[chain, ("x-forwarded-proto", protos)]);
            assert_eq!(scheme, expected, "{protos}");
        }
    }

    #[test]
    fn the_forwarded_field_follows_the_same_rule() {
        let trusted = rules(&["127.0.0.0/8", "2001:db8::/32"], 0, ForwardedSource::Forwarded);
        let table = [
            ("for=7.7.7.7", "7.7.7.7"),
            ("for=6.6.6.6, For=\"7.7.7.7:80\";proto=https, for=127.0.0.9;by=_x", "7.7.7.7"),
            ("for=6.6.6.6, for=\"[2001:db8::5]:80\"", "6.6.6.6"),
            ("for=6.6.6.6, proto=http", "127.0.0.1"),
            ("for=6.6.6.6, for=unknown", "127.0.0.1"),
            ("for=6.6.6.6, for=_secret, for=127.0.0.9", "127.0.0.9"),
            // A host that tries to look like an element, as a proxy would quote it, and an open quote.
            ("for=7.7.7.7;host=\"a,for=6.6.6.6\"", "7.7.7.7"),
            ("for=7.7.7.7;host=\"a,for=\\\"6.6.6.6\"", "7.7.7.7"),
            ("for=\"6.6.6.6, for=7.7.7.7", "127.0.0.1"),
            ("for=6.6.6.6;for=7.7.7.7", "127.0.0.1"),
        ];
        for (line, expected) in table {
            let lines = [("forwarded", line), ("x-forwarded-for", "5.5.5.5")];
            assert_eq!(derive(&trusted, "127.0.0.1", &lines), expected, "{line}");
        }
        let (scheme, found) = rewrite(
            &trusted,
            "2001:db8::1",
            &[
                ("forwarded", "for=6.6.6.6, for=7.7.7.7;proto=https;host=\"front.example\""),
                ("x-forwarded-proto", "http"),
            ],
        );
        assert_eq!(scheme, Scheme::Https);
        assert_eq!(value(&found, "x-forwarded-for"), Some("7.7.7.7, 2001:db8::1"));
        assert_eq!(value(&found, "x-forwarded-host"), Some("front.example"));
        let expected = "for=7.7.7.7, for=\"[2001:db8::1]\";host=\"shop.example\";proto=http";
        assert_eq!(value(&found, "forwarded"), Some(expected));
    }
}
