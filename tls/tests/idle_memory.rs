//! What an idle session holds: counted by the C allocator, which rustls, aws-lc and this crate all end up in.
//!
//! Alone in its file, because the count is the process's. Run with `--nocapture` to see the figures.

#[cfg(test)]
#[path = "it/common.rs"]
#[expect(dead_code, reason = "shared with the other tests, which use all of it")]
mod common;

#[cfg(test)]
mod tests {
    use tls::{
        ClientAuth, ClientAuthorities, ClientContext, ServerContext, Session, TicketKeys, Version, Versions,
    };

    use crate::common::{builder, ca, client_builder, connect, transfer};

    const SESSIONS: usize = 400;
    /// Of the 6 KB that an idle TLS connection may cost in all, the rest is the proxy's. Measured: 3.9 KB (server,
    /// TLS 1.3) of which 1,184 are the two AEAD keys, 1,088 rustls's connection, 640 its handshake deframer's
    /// spans, 136 this crate. rustls's buffered API adds 4,096 and more.
    const PLAIN_BYTES_MAX: usize = 4 * 1024;
    /// With the peer's chain, which rustls keeps.
    const WITH_CHAIN_BYTES_MAX: usize = 5 * 1024;

    #[expect(unsafe_code, reason = "the C allocator is the only one that sees aws-lc's memory")]
    fn bytes_in_use() -> usize {
        // SAFETY: mallinfo2 reads the allocator's own counters.
        unsafe { libc::mallinfo2() }.uordblks
    }

    /// Bytes a session of one side holds when the handshake and a first exchange are over.
    fn idle_bytes(client: &ClientContext, server: &ServerContext, keep_server: bool) -> usize {
        let mut kept: Vec<Session> = Vec::with_capacity(SESSIONS);
        let before = bytes_in_use();
        for _ in 0..SESSIONS {
            let (mut c, mut s) = connect(client, server, "a.com");
            transfer(&mut c, &mut s, &[7; 20_000]);
            transfer(&mut s, &mut c, &[7; 20_000]);
            let mut session = if keep_server { s } else { c };
            session.release_buffers();
            kept.push(session);
        }
        let heap = (bytes_in_use() - before) / kept.len();
        heap + size_of::<Session>()
    }

    #[test]
    fn idle_sessions_are_small() {
        let ca = ca("root");
        let leaf = ca.leaf(&["a.com"]);
        let context = |client_auth| {
            let mut builder = builder();
            builder.client_auth = client_auth;
            builder.certificate(&leaf.certified()).expect("good");
            builder.build(Some(&TicketKeys::generate().expect("keys"))).expect("context")
        };
        let plain = context(ClientAuth::None);
        let authorities = ClientAuthorities { roots_pem: ca.pem.clone(), ..ClientAuthorities::default() };
        let mutual = context(ClientAuth::Required(authorities));
        let client = |version, identity| {
            let mut builder = client_builder(&ca);
            builder.versions = Versions { min: version, max: version };
            builder.session_names_max = 0;
            builder.build(identity).expect("client")
        };
        let identity = leaf.identity();
        let (tls13, tls12) = (client(Version::Tls13, None), client(Version::Tls12, None));
        let with_certificate = client(Version::Tls13, Some(&identity));
        for (what, client, server, keep_server, bytes_max) in [
            ("server, TLS 1.3", &tls13, &plain, true, PLAIN_BYTES_MAX),
            ("server, TLS 1.2", &tls12, &plain, true, PLAIN_BYTES_MAX),
            ("server, TLS 1.3, client certificate", &with_certificate, &mutual, true, WITH_CHAIN_BYTES_MAX),
            ("client, TLS 1.3", &tls13, &plain, false, WITH_CHAIN_BYTES_MAX),
            ("client, TLS 1.2", &tls12, &plain, false, WITH_CHAIN_BYTES_MAX),
        ] {
            // Once for whatever is set up on first use.
            drop(connect(client, server, "a.com"));
            let bytes = idle_bytes(client, server, keep_server);
            println!("{what}: {bytes} bytes, {} of them inline", size_of::<Session>());
            assert!(bytes <= bytes_max, "{what}: {bytes} bytes");
        }
        // With the socket and what waits for it 1,280 bytes, a size of the proxy's allocator.
        assert!(size_of::<Session>() <= 1224, "{}", size_of::<Session>());
    }
}
