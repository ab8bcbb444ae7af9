//! What one core counts: durations by phase and outcomes. Plain adds; handed over whole once a second.
//!
//! Latency runs from the intended start to the last byte. It covers what was answered, and at the time that they
//! had waited so far also requests that timed out, were unfinished or never started: leaving them out would hide
//! exactly what is slow. In a closed loop the intended start is the sending, so that `Raw` is the same and not kept.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::number::nanos;

/// Durations that are kept apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Intended start to last byte.
    Latency,
    /// Sending to last byte.
    Raw,
    /// Sending to the first byte of the answer.
    FirstByte,
    /// First to last byte of an answer that came in several reads.
    Body,
    Connect,
    TlsFull,
    TlsResumed,
    /// A handshake whose early data was accepted.
    TlsEarly,
    /// Intended start to the moment when the pacer handed the request in: the generator's own lateness.
    Pacing,
    /// Handed in to sent: no connection was free.
    Queue,
    /// Between messages of one stream or WebSocket.
    Message,
}

impl Phase {
    pub(crate) const ALL: [Self; 11] = [
        Self::Latency,
        Self::Raw,
        Self::FirstByte,
        Self::Body,
        Self::Connect,
        Self::TlsFull,
        Self::TlsResumed,
        Self::TlsEarly,
        Self::Pacing,
        Self::Queue,
        Self::Message,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Raw => "raw",
            Self::FirstByte => "first_byte",
            Self::Body => "body",
            Self::Connect => "connect",
            Self::TlsFull => "tls_full",
            Self::TlsResumed => "tls_resumed",
            Self::TlsEarly => "tls_early",
            Self::Pacing => "pacing",
            Self::Queue => "queue",
            Self::Message => "message",
        }
    }
}

/// Why a request or a connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Connect,
    ConnectTimeout,
    Tls,
    /// The peer ended the connection in the middle of an exchange.
    Closed,
    /// Reading or writing failed, as after a RST.
    Reset,
    Timeout,
    /// The answer breaks the protocol.
    Protocol,
    /// 4xx or 5xx.
    Status,
    /// RST_STREAM.
    StreamReset,
    /// GOAWAY with an error or without the stream.
    GoAway,
    /// A grpc-status other than 0, or none.
    Grpc,
    /// In flight when the run and its drain time were over.
    Unfinished,
    /// Due, but no connection ever took it.
    Missed,
}

impl Fault {
    pub(crate) const ALL: [Self; 13] = [
        Self::Connect,
        Self::ConnectTimeout,
        Self::Tls,
        Self::Closed,
        Self::Reset,
        Self::Timeout,
        Self::Protocol,
        Self::Status,
        Self::StreamReset,
        Self::GoAway,
        Self::Grpc,
        Self::Unfinished,
        Self::Missed,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::ConnectTimeout => "connect_timeout",
            Self::Tls => "tls",
            Self::Closed => "closed",
            Self::Reset => "reset",
            Self::Timeout => "timeout",
            Self::Protocol => "protocol",
            Self::Status => "status",
            Self::StreamReset => "stream_reset",
            Self::GoAway => "goaway",
            Self::Grpc => "grpc",
            Self::Unfinished => "unfinished",
            Self::Missed => "missed",
        }
    }
}

/// Plain counters of one core and one second.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Exchanges that ended with a good answer.
    pub(crate) ok: u64,
    /// Answers that ended inside the measured time, whenever they began: the rate.
    pub(crate) in_window: u64,
    /// Answers by hundreds of their status.
    pub(crate) by_status: [u64; 6],
    /// Failed exchanges by cause; of connections only what no exchange was lost to.
    pub(crate) faults: [u64; Fault::ALL.len()],
    pub(crate) started: u64,
    /// Starts later than [`LATE`] after their intended time.
    pub(crate) late: u64,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) connections: u64,
    pub(crate) tls_full: u64,
    /// With and without early data.
    pub(crate) tls_resumed: u64,
    pub(crate) early_accepted: u64,
    pub(crate) early_refused: u64,
    /// Frames, whether or not an exchange failed by them.
    pub(crate) goaways: u64,
    pub(crate) resets: u64,
    /// Messages of streams and WebSockets, received.
    pub(crate) messages: u64,
}

/// A start later than this after its intended time is counted as late.
pub(crate) const LATE: Duration = Duration::from_millis(1);

impl Counts {
    pub(crate) fn add(&mut self, other: &Self) {
        let pairs = [
            (&mut self.ok, other.ok),
            (&mut self.in_window, other.in_window),
            (&mut self.started, other.started),
            (&mut self.late, other.late),
            (&mut self.bytes_in, other.bytes_in),
            (&mut self.bytes_out, other.bytes_out),
            (&mut self.connections, other.connections),
            (&mut self.tls_full, other.tls_full),
            (&mut self.tls_resumed, other.tls_resumed),
            (&mut self.early_accepted, other.early_accepted),
            (&mut self.early_refused, other.early_refused),
            (&mut self.goaways, other.goaways),
            (&mut self.resets, other.resets),
            (&mut self.messages, other.messages),
        ];
        for (sum, more) in pairs {
            *sum += more;
        }
        let statuses = self.by_status.iter_mut().zip(other.by_status);
        for (sum, more) in statuses.chain(self.faults.iter_mut().zip(other.faults)) {
            *sum += more;
        }
    }

    pub(crate) fn failed(&self) -> u64 {
        self.faults.iter().sum()
    }

    /// Exchanges that came to an end, one way or the other.
    pub(crate) fn ended(&self) -> u64 {
        self.ok + self.failed()
    }
}

/// Longest duration that is told apart: one hour.
const NANOS_MAX: u64 = 3_600_000_000_000;

/// Latency to 0.1 %, the other phases to 1 %.
fn empty(phase: Phase) -> Histogram<u64> {
    let digits = if matches!(phase, Phase::Latency | Phase::Raw) { 3 } else { 2 };
    Histogram::new_with_bounds(1, NANOS_MAX, digits).expect("constant bounds that the crate allows")
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    pub(crate) counts: Counts,
    histograms: [Histogram<u64>; Phase::ALL.len()],
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self { counts: Counts::default(), histograms: Phase::ALL.map(empty) }
    }

    pub(crate) fn record(&mut self, phase: Phase, span: Duration) {
        if let Some(histogram) = self.histograms.get_mut(phase as usize) {
            histogram.saturating_record(nanos(span).max(1));
        }
    }

    pub(crate) fn fault(&mut self, fault: Fault) {
        if let Some(count) = self.counts.faults.get_mut(fault as usize) {
            *count += 1;
        }
    }

    pub(crate) fn histogram(&self, phase: Phase) -> &Histogram<u64> {
        &self.histograms[phase as usize]
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.counts.add(&other.counts);
        for (sum, more) in self.histograms.iter_mut().zip(&other.histograms) {
            if !more.is_empty() {
                sum.add(more).expect("histograms of one phase have the same bounds");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enums_index_their_arrays() {
        for (index, phase) in Phase::ALL.into_iter().enumerate() {
            assert_eq!(phase as usize, index, "{}", phase.name());
        }
        for (index, fault) in Fault::ALL.into_iter().enumerate() {
            assert_eq!(fault as usize, index, "{}", fault.name());
        }
    }

    #[test]
    fn tallies_add_up() {
        let mut one = Tally::new();
        one.record(Phase::Latency, Duration::from_millis(1));
        one.fault(Fault::Timeout);
        one.counts.ok = 2;
        one.counts.by_status[2] = 2;
        let mut sum = one.clone();
        sum.add(&one);
        assert_eq!(sum.counts.ended(), 6);
        assert_eq!(sum.counts.by_status[2], 4);
        assert_eq!(sum.histogram(Phase::Latency).len(), 2);
        let p50 = sum.histogram(Phase::Latency).value_at_quantile(0.5);
        assert!(p50.abs_diff(1_000_000) < 1_000, "{p50}");
        sum.record(Phase::Raw, Duration::from_secs(10_000));
        let max = sum.histogram(Phase::Raw).max();
        assert!((NANOS_MAX..NANOS_MAX + NANOS_MAX / 500).contains(&max), "held at the hour: {max}");
    }
}
