//! How a request ended that was to be mirrored: the words of the metrics `shard_cluster_mirrors_…`.

use http_balance::mirror::Dropped;

/// Every request in the sample ends once, by one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MirrorEnd {
    /// The mirror answered, whatever.
    Sent,
    /// Not sent: no place, no room for the body, or a mirror that does not answer.
    Dropped(Dropped),
    /// Not sent: an upgrade or CONNECT has no message to copy.
    Tunnel,
    /// Not sent: the primary brought no response, or the body did not come to its end.
    Unfinished,
    /// Not sent: the mirror cluster's cap, breaker or shedding.
    Refused,
    /// Not sent: the mirror cluster has no endpoint that takes requests.
    NoEndpoint,
    /// The copy cannot be written in the mirror's protocol.
    NotWritable,
    NotConnected,
    TimedOut,
    /// The connection or stream broke before the end of the answer.
    Broken,
    /// Given up while its body came: the mirror did not take it as fast as the primary, or there was no room for it.
    Cut(Dropped),
    /// The client or the primary ended the request before its body was whole.
    Aborted,
}

impl MirrorEnd {
    /// Those that did not come to be sent first, behind `Sent`.
    pub const ALL: [Self; 18] = [
        Self::Sent,
        Self::Dropped(Dropped::InFlight),
        Self::Dropped(Dropped::Bandwidth),
        Self::Dropped(Dropped::Buffer),
        Self::Dropped(Dropped::Memory),
        Self::Dropped(Dropped::Unanswered),
        Self::Tunnel,
        Self::Unfinished,
        Self::Refused,
        Self::NoEndpoint,
        Self::NotWritable,
        Self::NotConnected,
        Self::TimedOut,
        Self::Broken,
        Self::Cut(Dropped::Buffer),
        Self::Cut(Dropped::Bandwidth),
        Self::Cut(Dropped::Memory),
        Self::Aborted,
    ];
    /// The first of them that failed after it began.
    const FAILED_FROM: usize = 11;

    pub(crate) fn index(self) -> usize {
        Self::ALL.iter().position(|end| *end == self).expect("ALL has every one")
    }

    /// Not sent, with the counts at hand.
    pub(crate) fn skipped(counts: &[u64; Self::ALL.len()]) -> impl Iterator<Item = (&'static str, u64)> {
        Self::labelled(counts, 1, Self::FAILED_FROM)
    }

    /// Begun and not answered to its end.
    pub(crate) fn failed(counts: &[u64; Self::ALL.len()]) -> impl Iterator<Item = (&'static str, u64)> {
        Self::labelled(counts, Self::FAILED_FROM, Self::ALL.len())
    }

    fn labelled(
        counts: &[u64; Self::ALL.len()],
        from: usize,
        to: usize,
    ) -> impl Iterator<Item = (&'static str, u64)> {
        Self::ALL.iter().zip(counts).take(to).skip(from).map(|(end, count)| (end.label(), *count))
    }

    const fn label(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Dropped(dropped) => dropped.code(),
            Self::Tunnel => "tunnel",
            Self::Unfinished => "unfinished",
            Self::Refused => "refused",
            Self::NoEndpoint => "no_endpoint",
            Self::NotWritable => "not_writable",
            Self::NotConnected => "not_connected",
            Self::TimedOut => "timed_out",
            Self::Broken => "broken",
            Self::Cut(Dropped::Buffer) => "behind",
            Self::Cut(dropped) => dropped.code(),
            Self::Aborted => "aborted",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_end_counts_once_under_its_own_word() {
        let counts = std::array::from_fn(|at| u64::try_from(at).expect("small"));
        let words: Vec<_> = MirrorEnd::skipped(&counts).chain(MirrorEnd::failed(&counts)).collect();
        assert_eq!(words.len(), MirrorEnd::ALL.len() - 1);
        for (at, end) in MirrorEnd::ALL.into_iter().enumerate() {
            assert_eq!(end.index(), at);
            let (skipped, failed) = words.split_at(MirrorEnd::FAILED_FROM - 1);
            let family = if at < MirrorEnd::FAILED_FROM { skipped } else { failed };
            let found = family.iter().filter(|(word, _)| *word == end.label()).count();
            assert_eq!(found, usize::from(at > 0), "{end:?}");
        }
        assert_eq!(MirrorEnd::ALL[MirrorEnd::FAILED_FROM], MirrorEnd::NotConnected);
    }
}
