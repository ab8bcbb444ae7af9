//! Connections and requests a second per client address, as one core sees them.
//!
//! A client is an IPv4 address or an IPv6 /64, the smallest block a subscriber gets. The table is bounded and
//! takes all its memory when it is made: when it is full the client that was seen longest ago makes room, except
//! that a client with open connections is never forgotten. What does not fit is let through and counted, so an
//! attacker who owns many addresses can blunt the limiter but not turn it against others.
//! Owned by one core; called by `conn` (connections) and by the chain (requests).

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use crate::cidr::canonical;
use crate::client_table::{ClientTable, Key, Slot};

/// The limits of one listener or route, each counted on one core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientLimit {
    /// Open connections of one client; None: no limit. Routes leave it out.
    pub connections_max: Option<u32>,
    /// Requests of one client; None: no limit.
    pub requests: Option<RequestRate>,
}

/// A token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestRate {
    /// Sustained requests a second.
    pub per_second: NonZeroU32,
    /// Requests that may come at once.
    pub burst: NonZeroU32,
}

impl RequestRate {
    fn interval_ns(self) -> u64 {
        1_000_000_000 / u64::from(self.per_second.get())
    }
}

/// What a count belongs to, so that the counts of a listener and of its routes stay apart in one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LimitScope(pub(crate) u64);

impl LimitScope {
    /// `id` must be stable over config changes for counts to survive them.
    pub const fn listener(id: u32) -> Self {
        Self((id as u64) << 1)
    }

    /// As [`LimitScope::listener`].
    pub const fn route(id: u32) -> Self {
        Self(((id as u64) << 1) | 1)
    }
}

/// The answer for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestAdmission {
    Admitted,
    /// Over the rate; a request after this time would be admitted.
    RateLimited {
        retry_after: Duration,
    },
}

/// The answer for one connection.
#[derive(Debug, PartialEq, Eq)]
pub enum ConnectionAdmission {
    /// Hand the ticket back to [`ClientLimiter::connection_closed`] when the connection ends.
    Admitted(ConnectionTicket),
    /// The client has as many connections as it may.
    Exceeded,
}

/// Stands for one counted connection.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a ticket that is not handed back keeps the connection counted"]
pub struct ConnectionTicket(Option<Key>);

/// What happened at the table since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientLimiterCounts {
    /// A client whose bucket had filled up again was forgotten to make room.
    pub evicted_idle: u64,
    /// A client whose bucket was not full was forgotten to make room: its limit started anew.
    pub evicted_early: u64,
    /// A connection or request was let through uncounted because every place was held by open connections.
    pub untracked: u64,
    pub connections_refused: u64,
    pub requests_refused: u64,
}

/// IPv4 in the place of `ffff:ffff::/64`, a multicast prefix that is never a source address.
const IPV4_PREFIX: u64 = 0xffff_ffff_0000_0000;

fn key_of(scope: LimitScope, client: IpAddr) -> Key {
    let client = match canonical(client) {
        IpAddr::V4(v4) => IPV4_PREFIX | u64::from(v4.to_bits()),
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            [a, b, c, d].iter().fold(0, |bits, segment| bits << 16 | u64::from(*segment))
        }
    };
    Key { scope: scope.0, client }
}

/// What one core remembers of its clients.
#[derive(Debug)]
pub struct ClientLimiter {
    table: ClientTable,
    counts: ClientLimiterCounts,
}

impl ClientLimiter {
    /// A limiter that remembers up to `clients_max` clients (48 bytes each). `seed` keys the hash and must be
    /// random and secret.
    pub fn new(clients_max: NonZeroU32, seed: [u64; 6]) -> Self {
        Self { table: ClientTable::new(clients_max, seed), counts: ClientLimiterCounts::default() }
    }

    pub const fn counts(&self) -> ClientLimiterCounts {
        self.counts
    }

    /// Clients remembered now.
    pub fn clients(&self) -> usize {
        self.table.len()
    }

    /// Asks for one more connection of `client`; `now` is the shard's clock.
    pub fn connection_opened(
        &mut self,
        scope: LimitScope,
        limit: &ClientLimit,
        client: IpAddr,
        now: Duration,
    ) -> ConnectionAdmission {
        let Some(connections_max) = limit.connections_max else {
            return ConnectionAdmission::Admitted(ConnectionTicket(None));
        };
        let key = key_of(scope, client);
        let Some(slot) = self.slot(key, now) else {
            return ConnectionAdmission::Admitted(ConnectionTicket(None));
        };
        if self.table.connections(slot) >= connections_max {
            self.counts.connections_refused += 1;
            return ConnectionAdmission::Exceeded;
        }
        self.table.add_connection(slot);
        ConnectionAdmission::Admitted(ConnectionTicket(Some(key)))
    }

    /// Gives a connection back.
    pub fn connection_closed(&mut self, ticket: ConnectionTicket) {
        // A counted client is pinned, so a ticket with a key always finds it.
        if let Some(slot) = ticket.0.and_then(|key| self.table.find(key)) {
            self.table.remove_connection(slot);
        }
    }

    /// Asks for one more request of `client`. The bucket is kept as the time at which it would be full again
    /// (GCRA, ITU-T I.371 §A): one word, and no drift between refills.
    pub fn request(
        &mut self,
        scope: LimitScope,
        limit: &ClientLimit,
        client: IpAddr,
        now: Duration,
    ) -> RequestAdmission {
        let Some(rate) = limit.requests else {
            return RequestAdmission::Admitted;
        };
        let Some(slot) = self.slot(key_of(scope, client), now) else {
            return RequestAdmission::Admitted;
        };
        let now_ns = nanos(now);
        let interval_ns = rate.interval_ns();
        let window_ns = interval_ns.saturating_mul(u64::from(rate.burst.get()));
        // The upper clamp matters after a config change made the bucket smaller: the old debt is let go.
        let full_at_ns = self.table.full_at_ns(slot).clamp(now_ns, now_ns.saturating_add(window_ns));
        let next_full_at_ns = full_at_ns.saturating_add(interval_ns);
        match next_full_at_ns.checked_sub(now_ns.saturating_add(window_ns)) {
            Some(early_ns) if early_ns > 0 => {
                self.table.set_full_at_ns(slot, full_at_ns);
                self.counts.requests_refused += 1;
                RequestAdmission::RateLimited { retry_after: Duration::from_nanos(early_ns) }
            }
            Some(_) | None => {
                self.table.set_full_at_ns(slot, next_full_at_ns);
                RequestAdmission::Admitted
            }
        }
    }

    /// The place of `key`, now the freshest; makes room for it when it is new. None: no room, counted.
    fn slot(&mut self, key: Key, now: Duration) -> Option<Slot> {
        if let Some(slot) = self.table.find(key) {
            self.table.touch(slot);
            return Some(slot);
        }
        if self.table.is_full() {
            match self.table.evict_stalest() {
                None => {
                    self.counts.untracked += 1;
                    return None;
                }
                Some(full_at_ns) if full_at_ns > nanos(now) => self.counts.evicted_early += 1,
                Some(_) => self.counts.evicted_idle += 1,
            }
        }
        Some(self.table.insert(key))
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: [u64; 6] = [0x9e37_79b9_7f4a_7c15, 2, 3, 0x5851_f42d_4c95_7f2d, 5, 6];
    const SCOPE: LimitScope = LimitScope::listener(1);

    fn limiter(clients_max: u32) -> ClientLimiter {
        ClientLimiter::new(NonZeroU32::new(clients_max).unwrap(), SEED)
    }

    fn rate(per_second: u32, burst: u32) -> ClientLimit {
        let requests = RequestRate {
            per_second: NonZeroU32::new(per_second).unwrap(),
            burst: NonZeroU32::new(burst).unwrap(),
        };
        ClientLimit { connections_max: None, requests: Some(requests) }
    }

    fn v4(n: u32) -> IpAddr {
        IpAddr::V4((0x0a00_0000 + n).into())
    }

    fn admitted(limiter: &mut ClientLimiter, limit: &ClientLimit, client: IpAddr, now: Duration) -> bool {
        limiter.request(SCOPE, limit, client, now) == RequestAdmission::Admitted
    }

    fn open(limiter: &mut ClientLimiter, max: u32, client: IpAddr) -> Option<ConnectionTicket> {
        let limit = ClientLimit { connections_max: Some(max), requests: None };
        match limiter.connection_opened(SCOPE, &limit, client, Duration::ZERO) {
            ConnectionAdmission::Admitted(ticket) => Some(ticket),
            ConnectionAdmission::Exceeded => None,
        }
    }

    #[test]
    fn a_burst_passes_at_once_and_the_rate_holds_over_time() {
        for (per_second, burst) in [(1, 1), (1, 5), (10, 1), (100, 20), (1000, 3), (7, 7)] {
            let limit = rate(per_second, burst);
            let mut limiter = limiter(16);
            let client = v4(1);
            let at_once = (0..burst * 3)
                .filter(|_| admitted(&mut limiter, &limit, client, Duration::from_secs(9)))
                .count();
            assert_eq!(at_once, usize::try_from(burst).unwrap(), "{per_second}/s burst {burst}");
            // Ten asks for each token, over ten seconds.
            let mut passed = 0u64;
            let asks = u64::from(per_second) * 10 * 10;
            for ask in 1..=asks {
                let now = Duration::from_secs(9) + Duration::from_nanos(10_000_000_000 / asks * ask);
                passed += u64::from(admitted(&mut limiter, &limit, client, now));
            }
            let expected = u64::from(per_second) * 10;
            assert!(passed.abs_diff(expected) <= 1, "{per_second}/s burst {burst}: {passed} for {expected}");
        }
    }

    #[test]
    fn a_refused_client_is_told_when_to_come_back_and_is_then_admitted() {
        for (per_second, burst) in [(1, 1), (5, 3), (1000, 10)] {
            let limit = rate(per_second, burst);
            let mut limiter = limiter(16);
            let now = Duration::from_secs(1);
            while admitted(&mut limiter, &limit, v4(1), now) {}
            let RequestAdmission::RateLimited { retry_after } = limiter.request(SCOPE, &limit, v4(1), now)
            else {
                panic!("the bucket is empty");
            };
            assert!(!admitted(&mut limiter, &limit, v4(1), now + retry_after - Duration::from_nanos(1)));
            assert!(admitted(&mut limiter, &limit, v4(1), now + retry_after));
        }
    }

    #[test]
    fn clients_and_scopes_do_not_share_a_bucket_but_a_slash_64_does() {
        let limit = rate(1, 1);
        let mut limiter = limiter(16);
        let now = Duration::ZERO;
        let first = |l: &mut ClientLimiter, scope, text: &str| {
            l.request(scope, &limit, text.parse().unwrap(), now) == RequestAdmission::Admitted
        };
        assert!(first(&mut limiter, SCOPE, "10.0.0.1"));
        assert!(!first(&mut limiter, SCOPE, "::ffff:10.0.0.1"), "mapped form of a spent address");
        assert!(first(&mut limiter, SCOPE, "10.0.0.2"));
        assert!(first(&mut limiter, LimitScope::route(1), "10.0.0.1"));
        assert!(first(&mut limiter, SCOPE, "2001:db8:0:1::1"));
        assert!(!first(&mut limiter, SCOPE, "2001:db8:0:1:ffff::2"), "same /64");
        assert!(first(&mut limiter, SCOPE, "2001:db8:0:2::1"));
        assert!(
            first(&mut limiter, SCOPE, "0:0:a00:1::1"),
            "an IPv6 prefix with the bits of a spent IPv4 address"
        );
    }

    #[test]
    fn connections_are_counted_up_and_down() {
        for max in [0u32, 1, 3] {
            let mut limiter = limiter(16);
            let mut tickets: Vec<_> = (0..max).map(|_| open(&mut limiter, max, v4(1)).unwrap()).collect();
            assert_eq!(open(&mut limiter, max, v4(1)), None);
            assert_eq!(open(&mut limiter, max, v4(2)).is_some(), max > 0, "another client is not affected");
            if let Some(ticket) = tickets.pop() {
                limiter.connection_closed(ticket);
                assert!(open(&mut limiter, max, v4(1)).is_some());
            }
            assert!(limiter.counts().connections_refused >= 1);
        }
    }

    #[test]
    fn a_full_table_forgets_the_stalest_and_counts_what_that_cost() {
        let limit = rate(1, 1);
        let mut limiter = limiter(4);
        for n in 0..4 {
            assert!(admitted(&mut limiter, &limit, v4(n), Duration::ZERO));
        }
        assert!(!admitted(&mut limiter, &limit, v4(0), Duration::ZERO), "client 0 is fresh again");
        assert!(admitted(&mut limiter, &limit, v4(9), Duration::from_millis(1)), "a new client is served");
        assert_eq!((limiter.clients(), limiter.counts().evicted_early), (4, 1));
        assert!(!admitted(&mut limiter, &limit, v4(0), Duration::from_millis(1)), "the fresh one was kept");
        assert!(admitted(&mut limiter, &limit, v4(1), Duration::from_millis(1)), "the stalest was forgotten");
        assert!(admitted(&mut limiter, &limit, v4(10), Duration::from_secs(60)));
        assert_eq!(limiter.counts().evicted_idle, 1, "a full bucket loses nothing");
    }

    #[test]
    fn clients_with_connections_are_never_forgotten() {
        let mut limiter = limiter(3);
        let tickets: Vec<_> = (0..3).map(|n| open(&mut limiter, 1, v4(n)).unwrap()).collect();
        let untracked = open(&mut limiter, 1, v4(7)).unwrap();
        assert!(open(&mut limiter, 1, v4(7)).is_some(), "what is not tracked is let through");
        assert_eq!(limiter.counts().untracked, 2);
        limiter.connection_closed(untracked);
        for n in 0..3 {
            assert_eq!(open(&mut limiter, 1, v4(n)), None, "client {n} is still counted");
        }
        for ticket in tickets {
            limiter.connection_closed(ticket);
        }
        assert!((0..3).all(|n| open(&mut limiter, 1, v4(n)).is_some()));
    }

    #[test]
    fn a_smaller_bucket_takes_effect_at_once() {
        let mut limiter = limiter(4);
        let now = Duration::from_secs(1);
        let big = rate(1, 100);
        for _ in 0..100 {
            assert!(admitted(&mut limiter, &big, v4(1), now));
        }
        let small = rate(10, 5);
        assert!(!admitted(&mut limiter, &small, v4(1), now));
        assert!(
            admitted(&mut limiter, &small, v4(1), now + Duration::from_millis(101)),
            "not held to the old debt"
        );
    }
}
