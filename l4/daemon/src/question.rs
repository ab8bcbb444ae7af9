//! What may be asked over the control socket, as typed values from the request line's path and query.

use std::net::SocketAddr;

use l4_steer::config::Protocol;

/// Flows in one answer; a table of millions does not go through a terminal.
const FLOWS_MAX: usize = 10_000;
/// Least sparing sampling: every decision.
const TRACE_ONE_IN_MAX: u32 = 1_000_000_000;

/// A question or an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    Metrics,
    Ready,
    Show,
    Counters,
    Flows {
        max: usize,
    },
    Lookup {
        protocol: Protocol,
        source: SocketAddr,
        destination: SocketAddr,
    },
    /// The decisions that were sampled since the last question.
    Trace,
    /// Samples one decision in `one_in`; 0 = none.
    SetTrace {
        one_in: u32,
    },
    /// Withdraws the announcement; packets that still come are forwarded.
    Drain,
    Undrain,
}

/// Why a request is no question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    NotFound,
    Method,
    /// A part of the query; the text says which and what is wanted.
    Query(String),
}

impl Question {
    /// Reads a request line's method and target.
    pub(crate) fn parse(method: &str, target: &str) -> Result<Self, Wrong> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let value = |name: &str| {
            query
                .split('&')
                .find_map(|pair| pair.split_once('=').filter(|(key, _)| *key == name))
                .map(|(_, v)| v)
        };
        let wrong = |name: &str, wanted: &str| Wrong::Query(format!("{name}: {wanted} is wanted"));
        match (method, path) {
            ("GET", "/metrics") => Ok(Self::Metrics),
            ("GET", "/ready") => Ok(Self::Ready),
            ("GET", "/show") => Ok(Self::Show),
            ("GET", "/counters") => Ok(Self::Counters),
            ("GET", "/flows") => {
                let max =
                    value("max").unwrap_or("100").parse().ok().filter(|max| (1..=FLOWS_MAX).contains(max));
                let max = max.ok_or_else(|| wrong("max", "1 to 10000"))?;
                Ok(Self::Flows { max })
            }
            ("GET", "/lookup") => {
                let address = |name: &str| {
                    let parsed = value(name).and_then(|text| text.parse::<SocketAddr>().ok());
                    parsed.ok_or_else(|| wrong(name, "IP:PORT"))
                };
                let protocol = match value("protocol") {
                    Some("tcp") => Protocol::Tcp,
                    Some("udp") => Protocol::Udp,
                    _ => return Err(wrong("protocol", "tcp or udp")),
                };
                let (source, destination) = (address("source")?, address("destination")?);
                if source.is_ipv4() != destination.is_ipv4() {
                    return Err(wrong("destination", "an address of the source's family"));
                }
                Ok(Self::Lookup { protocol, source, destination })
            }
            ("GET", "/trace") => Ok(Self::Trace),
            ("POST", "/trace") => {
                let one_in =
                    value("one_in").and_then(|text| text.parse().ok()).filter(|n| *n <= TRACE_ONE_IN_MAX);
                Ok(Self::SetTrace { one_in: one_in.ok_or_else(|| wrong("one_in", "0 to 1000000000"))? })
            }
            ("POST", "/drain") => Ok(Self::Drain),
            ("POST", "/undrain") => Ok(Self::Undrain),
            (
                _,
                "/metrics" | "/ready" | "/show" | "/counters" | "/flows" | "/lookup" | "/trace" | "/drain"
                | "/undrain",
            ) => Err(Wrong::Method),
            _ => Err(Wrong::NotFound),
        }
    }

    /// Whether anybody on the machine may ask it.
    pub(crate) const fn is_public(self) -> bool {
        matches!(self, Self::Metrics | Self::Ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_become_questions() {
        let lookup = Question::Lookup {
            protocol: Protocol::Udp,
            source: "[2001:db8::7]:4711".parse().expect("an address"),
            destination: "[2001:db8::1]:443".parse().expect("an address"),
        };
        for (method, target, question) in [
            ("GET", "/ready", Question::Ready),
            ("GET", "/flows", Question::Flows { max: 100 }),
            ("GET", "/flows?max=7", Question::Flows { max: 7 }),
            ("GET", "/lookup?protocol=udp&source=[2001:db8::7]:4711&destination=[2001:db8::1]:443", lookup),
            ("GET", "/trace", Question::Trace),
            ("POST", "/trace?one_in=1000", Question::SetTrace { one_in: 1_000 }),
            ("POST", "/drain", Question::Drain),
        ] {
            assert_eq!(Question::parse(method, target), Ok(question), "{method} {target}");
        }
    }

    #[test]
    fn wrong_requests_say_what_is_wanted() {
        for (method, target, part) in [
            ("GET", "/flows?max=0", "max"),
            ("GET", "/flows?max=10001", "max"),
            ("GET", "/lookup", "protocol"),
            ("GET", "/lookup?protocol=tcp&source=x&destination=192.0.2.1:1", "source"),
            ("GET", "/lookup?protocol=tcp&source=192.0.2.1:1&destination=[::1]:1", "destination"),
            ("POST", "/trace?one_in=-1", "one_in"),
        ] {
            let wrong = Question::parse(method, target);
            assert!(
                matches!(&wrong, Err(Wrong::Query(text)) if text.starts_with(part)),
                "{target}: {wrong:?}"
            );
        }
        assert_eq!(Question::parse("GET", "/drain"), Err(Wrong::Method));
        assert_eq!(Question::parse("GET", "/"), Err(Wrong::NotFound));
        assert!(Question::Ready.is_public() && !Question::Drain.is_public());
    }
}
