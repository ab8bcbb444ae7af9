//! Which failures of the soak are nobody's fault. A request may only fail when its backend was killed and it could
//! not be sent again safely: its answer had begun, or it must not be repeated and may have reached the backend.
//!
//! Called with everything that the run left: what clients saw, when backends were killed, what each backend process
//! had received, and the proxy's access log. It looks for the opposite faults, too: a request that must not be
//! repeated and reached two backends, an answer that the log tells otherwise.

use std::collections::BTreeMap;
use std::time::Duration;

/// How a kill may show after the client's end of the request was seen, and how long after a kill its victim's
/// sockets may still look alive.
const SHADOW: Duration = Duration::from_millis(1500);

/// What kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Get,
    /// Idempotent, with a body that is kept for a second attempt.
    PutSmall,
    /// Idempotent, with a body that is too large for that.
    PutLarge,
    PostSmall,
    PostLarge,
    Grpc,
    Download,
    Tunnel,
}

impl Kind {
    /// Whether the proxy may send it again when it may have reached a backend (RFC 9110 §9.2.2, docs/limits.md).
    #[must_use]
    pub(super) fn may_repeat(self) -> bool {
        matches!(self, Self::Get | Self::PutSmall | Self::Download | Self::Tunnel)
    }

    /// Whether it may reach two backends at all (RFC 9110 §9.2.2).
    fn is_idempotent(self) -> bool {
        self.method() != "POST"
    }

    #[must_use]
    pub(super) fn method(self) -> &'static str {
        match self {
            Self::Get | Self::Download | Self::Tunnel => "GET",
            Self::PutSmall | Self::PutLarge => "PUT",
            Self::PostSmall | Self::PostLarge | Self::Grpc => "POST",
        }
    }
}

/// How a request ended for its client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// With the right answer.
    Served,
    /// The proxy answered in the backend's place. gRPC callers are told no code: the access log has it.
    Refused { status: u16, code: String },
    /// The answer broke off; who had begun it, where the client has seen that much.
    Cut { backend: String },
    /// The connection ended without a byte of an answer to the first request on it, or a handshake failed.
    Silence(String),
    /// A connection that had served requests ended without a byte of an answer to one more: the client asks again,
    /// as every client does (RFC 9112 §9.3.1), under another id.
    Stale,
    /// The proxy said that it had not looked at it (GOAWAY, REFUSED_STREAM); asked again under another id.
    NotProcessed,
    /// A whole answer, and not the right one; or none within the patience.
    Wrong(String),
}

/// One request.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) id: u64,
    pub(super) kind: Kind,
    pub(super) from: Duration,
    pub(super) to: Duration,
    pub(super) ending: Ending,
}

/// A backend process was killed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kill {
    pub(super) backend: String,
    pub(super) at: Duration,
}

/// What the access log says of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Logged {
    pub(super) status: u16,
    pub(super) reason: String,
    pub(super) rows: u32,
}

/// All that a run left.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    pub(super) events: Vec<Event>,
    pub(super) kills: Vec<Kill>,
    /// Backend processes that read the request's head, in order, by id.
    pub(super) received: BTreeMap<u64, Vec<String>>,
    pub(super) logged: BTreeMap<u64, Logged>,
}

/// The judgement.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    pub(super) served: BTreeMap<Kind, u64>,
    /// Failures that a kill explains, by what the client saw.
    pub(super) excused: BTreeMap<String, u64>,
    /// Requests that clients repeated because their connection had ended.
    pub(super) repeated: u64,
    pub(super) faults: Vec<String>,
}

impl Evidence {
    /// Judges every request.
    #[must_use]
    pub(super) fn judge(&self) -> Verdict {
        let mut verdict = Verdict::default();
        for event in &self.events {
            match self.excuse(event) {
                Ok(None) => *verdict.served.entry(event.kind).or_default() += 1,
                Ok(Some(excuse)) if excuse == REPEATED => verdict.repeated += 1,
                Ok(Some(excuse)) => *verdict.excused.entry(excuse).or_default() += 1,
                Err(fault) => verdict.faults.push(self.describe(event, &fault)),
            }
            if let Err(fault) = self.check_log(event) {
                verdict.faults.push(self.describe(event, &fault));
            }
            let received = self.received.get(&event.id).map_or(0, Vec::len);
            if !event.kind.is_idempotent() && received > 1 {
                verdict.faults.push(self.describe(event, "reached backends more than once"));
            }
        }
        verdict
    }

    /// None for a request that was served, a name for a failure that is excused.
    fn excuse(&self, event: &Event) -> Result<Option<String>, String> {
        let received = self.received.get(&event.id).map_or(&[][..], Vec::as_slice);
        match &event.ending {
            Ending::Served if received.is_empty() => Err("served by nobody".to_owned()),
            Ending::Served => Ok(None),
            Ending::Refused { status, code } => self.excuse_refusal(event, received, *status, code),
            Ending::Cut { backend } => {
                let backend = if backend.is_empty() { self.cut_by(event, received) } else { backend };
                let is_victim = self.kills_around(event).any(|kill| kill.backend == *backend);
                if is_victim {
                    Ok(Some("answer cut".to_owned()))
                } else {
                    Err("cut, and nobody died".to_owned())
                }
            }
            Ending::Stale | Ending::NotProcessed if received.is_empty() => Ok(Some(REPEATED.to_owned())),
            Ending::Stale => Err("a kept connection ended and the request had been forwarded".to_owned()),
            Ending::NotProcessed => Err("called not processed, and was forwarded".to_owned()),
            Ending::Silence(what) | Ending::Wrong(what) => Err(what.clone()),
        }
    }

    /// Who had begun an answer of which the client saw nothing: the log has to say that it was passed on.
    fn cut_by<'a>(&self, event: &Event, received: &'a [String]) -> &'a str {
        let reason = self.logged.get(&event.id).map(|logged| logged.reason.as_str());
        let was_begun = matches!(reason, Some("upstream_reset" | "upstream_truncated"));
        received.last().filter(|_| was_begun).map_or("", String::as_str)
    }

    fn excuse_refusal(
        &self,
        event: &Event,
        received: &[String],
        status: u16,
        code: &str,
    ) -> Result<Option<String>, String> {
        let logged = self.logged.get(&event.id).map_or("", |logged| logged.reason.as_str());
        let code = if code.is_empty() { logged } else { code };
        let what = format!("{status} {code}");
        if !matches!(code, "upstream_reset_before_response" | "upstream_closed_before_response") {
            return Err(what);
        }
        let kills: Vec<&Kill> = self.kills_around(event).collect();
        // Two backends may die under one request; nobody asks for a third attempt then.
        let tries = if event.kind.may_repeat() { 2 } else { 1 };
        let is_victim = |backend: &String| kills.iter().any(|kill| kill.backend == *backend);
        if kills.len() < tries || !received.iter().all(is_victim) {
            return Err(format!("{what}, {} kills around it", kills.len()));
        }
        Ok(Some(what))
    }

    /// Kills that may have met the request.
    fn kills_around(&self, event: &Event) -> impl Iterator<Item = &Kill> {
        let (from, to) = (event.from.saturating_sub(SHADOW), event.to + SHADOW);
        self.kills.iter().filter(move |kill| (from..=to).contains(&kill.at))
    }

    fn check_log(&self, event: &Event) -> Result<(), String> {
        let logged = self.logged.get(&event.id).cloned().unwrap_or_default();
        let (rows, status) = match &event.ending {
            Ending::Served if event.kind == Kind::Tunnel => (1, 101),
            Ending::Served => (1, 200),
            Ending::Refused { status, .. } => (1, *status),
            Ending::Stale | Ending::NotProcessed => (0, 0),
            Ending::Cut { .. } | Ending::Silence(_) | Ending::Wrong(_) => return Ok(()),
        };
        if (logged.rows, logged.status) == (rows, status) {
            return Ok(());
        }
        Err(format!("{rows} log lines with {status} wanted"))
    }

    fn describe(&self, event: &Event, fault: &str) -> String {
        let Event { id, kind, from, to, ending } = event;
        let received = self.received.get(id).cloned().unwrap_or_default();
        let logged = self.logged.get(id).cloned().unwrap_or_default();
        let kills: Vec<&Kill> = self.kills_around(event).collect();
        format!(
            "{fault}: request {id} {kind:?} from {from:.3?} to {to:.3?} {ending:?}, received by {received:?}, \
             logged {logged:?}, kills {kills:?}"
        )
    }
}

const REPEATED: &str = "repeated";

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// One request from second 10 to 11, a kill of `a` at `kill_ms`.
    fn judged(kind: Kind, ending: Ending, received: &[&str], kill_ms: u64) -> Verdict {
        let (status, rows) = match &ending {
            Ending::Served => (200, 1),
            Ending::Refused { status, .. } => (*status, 1),
            _ => (0, 0),
        };
        let event = Event { id: 1, kind, from: at(10_000), to: at(11_000), ending };
        let received = received.iter().map(|name| (*name).to_owned()).collect();
        Evidence {
            events: vec![event],
            kills: vec![Kill { backend: "a".to_owned(), at: at(kill_ms) }],
            received: [(1, received)].into(),
            logged: [(1, Logged { status, rows, reason: String::new() })].into(),
        }
        .judge()
    }

    fn refused(code: &str) -> Ending {
        Ending::Refused { status: 502, code: code.to_owned() }
    }

    fn is_excused(verdict: &Verdict) -> bool {
        verdict.faults.is_empty() && verdict.excused.values().sum::<u64>() == 1
    }

    #[test]
    fn a_kill_excuses_what_must_not_be_repeated() {
        let lost = || refused("upstream_reset_before_response");
        assert!(is_excused(&judged(Kind::PostSmall, lost(), &["a"], 10_500)));
        // Its bytes may have been in the dead socket.
        assert!(is_excused(&judged(Kind::PostSmall, lost(), &[], 10_500)));
        assert!(is_excused(&judged(Kind::PutLarge, lost(), &["a"], 10_500)));
    }

    #[test]
    fn and_nothing_else() {
        let lost = || refused("upstream_reset_before_response");
        for verdict in [
            judged(Kind::Get, lost(), &["a"], 10_500),
            judged(Kind::PutSmall, lost(), &["a"], 10_500),
            judged(Kind::PostSmall, lost(), &["b"], 10_500),
            judged(Kind::PostSmall, lost(), &["a"], 60_000),
            judged(Kind::PostSmall, refused("upstream_connect_refused"), &[], 10_500),
            judged(Kind::Get, Ending::Silence("closed".to_owned()), &[], 10_500),
            judged(Kind::Get, Ending::Stale, &["a"], 10_500),
            judged(Kind::Get, Ending::Served, &[], 10_500),
        ] {
            assert_eq!(verdict.faults.len(), 1, "{verdict:?}");
        }
    }

    #[test]
    fn an_answer_that_has_begun_dies_with_its_backend_only() {
        let cut = |name: &str| Ending::Cut { backend: name.to_owned() };
        assert!(is_excused(&judged(Kind::Download, cut("a"), &["a"], 10_500)));
        assert_eq!(judged(Kind::Download, cut("b"), &["b"], 10_500).faults.len(), 1);
    }

    #[test]
    fn a_post_that_reached_two_backends_is_a_fault_however_it_ended() {
        assert_eq!(judged(Kind::PostSmall, Ending::Served, &["a", "b"], 10_500).faults.len(), 1);
        for kind in [Kind::Get, Kind::PutLarge] {
            assert!(judged(kind, Ending::Served, &["a", "b"], 10_500).faults.is_empty(), "{kind:?}");
        }
    }

    #[test]
    fn the_log_must_agree() {
        let event = Event { id: 1, kind: Kind::Get, from: at(1), to: at(2), ending: Ending::Served };
        let mut evidence = Evidence { events: vec![event], ..Evidence::default() };
        evidence.received.insert(1, vec!["a".to_owned()]);
        assert_eq!(evidence.judge().faults.len(), 1, "no line");
        evidence.logged.insert(1, Logged { status: 200, rows: 1, reason: String::new() });
        assert!(evidence.judge().faults.is_empty());
        evidence.logged.insert(1, Logged { status: 200, rows: 2, reason: String::new() });
        assert_eq!(evidence.judge().faults.len(), 1, "two lines");
    }
}
