//! One check of one endpoint on a blocking socket, within its time limit.

use std::io;

use http_balance::check::{Answer, CheckKind, CheckRules, FailCause};
use http_proxy::snapshot::UpstreamProtocol;
use http_wire::fields::{FieldError, FieldId};
use http_wire::head::RequestHead;

use super::stream::Stream;
use super::{Peer, Via, h2};

/// Of an answer; a status line is far shorter.
const ANSWER_BYTES_MAX: usize = 4096;
const USER_AGENT: &str = "shard-proxy health check";

/// Checks, and says what came of it.
pub(super) fn check(rules: &CheckRules, peer: &Peer, via: &Via) -> Answer {
    let mut stream = match Stream::open(peer, via, rules.timeout) {
        Ok(stream) => stream,
        Err(error) if is_timeout(&error) => return Answer::Fail(FailCause::TimedOut),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            return Answer::Fail(FailCause::TlsFailed);
        }
        Err(_refused) => return Answer::Fail(FailCause::ConnectFailed),
    };
    let asked = match (&rules.kind, via.protocol) {
        (CheckKind::Http { path, host, .. }, UpstreamProtocol::Http1) => {
            http1(&mut stream, path, &authority(peer, host.as_deref())).map(|answer| http(rules, &answer))
        }
        (CheckKind::Http { path, host, .. }, UpstreamProtocol::Http2) => {
            http2(rules, &mut stream, path, &authority(peer, host.as_deref()))
        }
        (CheckKind::Grpc { service }, _) => grpc(&mut stream, service, &authority(peer, None)),
        (CheckKind::Tcp { send, expect }, _) => tcp(&mut stream, send, expect),
    };
    match asked {
        Ok(answer) => answer,
        Err(error) if is_timeout(&error) => Answer::Fail(FailCause::TimedOut),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Answer::Fail(FailCause::TlsFailed),
        Err(_broken) => Answer::Fail(FailCause::WrongAnswer),
    }
}

/// The host that is asked for: the check's own, the endpoint's name, its address.
fn authority(peer: &Peer, host: Option<&str>) -> String {
    let address = || peer.address.to_string();
    host.map(str::to_owned).or_else(|| peer.hostname.clone()).unwrap_or_else(address)
}

fn http1(stream: &mut Stream, path: &str, host: &str) -> io::Result<Vec<u8>> {
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: {USER_AGENT}\r\nConnection: close\r\n\r\n"
    );
    exchange(stream, request.as_bytes(), has_line)
}

fn http2(rules: &CheckRules, stream: &mut Stream, path: &str, host: &str) -> io::Result<Answer> {
    let head = || -> Result<RequestHead, FieldError> {
        let mut head = RequestHead::default();
        head.set_method(b"GET")?;
        head.set_authority(host.as_bytes())?;
        head.set_path(path.as_bytes())?;
        head.fields.push(FieldId::UserAgent, USER_AGENT.as_bytes())?;
        Ok(head)
    };
    let reply = h2::ask(stream, &head().map_err(io::Error::other)?, b"", false)?;
    Ok(match reply.status {
        Some(status) => rules.kind.answer_of_status(status),
        None if reply.is_broken => Answer::Fail(FailCause::WrongAnswer),
        None => Answer::Interrupted,
    })
}

/// As gRPC has it: whatever the HTTP status, the answer is good with `grpc-status` 0 and the word SERVING.
fn grpc(stream: &mut Stream, service: &str, host: &str) -> io::Result<Answer> {
    let (head, body) = h2::grpc_request(host.as_bytes(), service).map_err(io::Error::other)?;
    let reply = h2::ask(stream, &head, &body, true)?;
    Ok(match (reply.status, reply.grpc_status) {
        (None, _) if reply.is_broken => Answer::Fail(FailCause::WrongAnswer),
        (None, _) => Answer::Interrupted,
        (Some(200), Some(0)) if h2::is_serving(&reply.body) => Answer::Pass,
        (Some(200), Some(_)) => Answer::Fail(FailCause::NotServing),
        (Some(200), None) => Answer::Fail(FailCause::WrongAnswer),
        (Some(status), _) => Answer::Fail(FailCause::Status(status)),
    })
}

fn tcp(stream: &mut Stream, send: &[u8], expect: &[u8]) -> io::Result<Answer> {
    let answer = exchange(stream, send, |answer| answer.len() >= expect.len())?;
    Ok(match (answer.starts_with(expect), answer.is_empty()) {
        (true, _) => Answer::Pass,
        (false, true) => Answer::Interrupted,
        (false, false) => Answer::Fail(FailCause::WrongAnswer),
    })
}

/// Sends, and reads until there is enough or the peer closes.
fn exchange(stream: &mut Stream, send: &[u8], is_enough: impl Fn(&[u8]) -> bool) -> io::Result<Vec<u8>> {
    stream.send(send)?;
    let mut answer = Vec::new();
    while !is_enough(&answer) && answer.len() < ANSWER_BYTES_MAX && stream.receive(&mut answer)? {}
    Ok(answer)
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}

fn has_line(answer: &[u8]) -> bool {
    answer.contains(&b'\n')
}

fn http(rules: &CheckRules, answer: &[u8]) -> Answer {
    if answer.is_empty() {
        return Answer::Interrupted;
    }
    match status(answer) {
        Some(status) => rules.kind.answer_of_status(status),
        None => Answer::Fail(FailCause::WrongAnswer),
    }
}

/// The status of `HTTP/1.x NNN …` (RFC 9112 §4).
fn status(answer: &[u8]) -> Option<u16> {
    let rest = answer.strip_prefix(b"HTTP/1.")?;
    let [b'0'..=b'9', b' ', digits @ ..] = rest else { return None };
    let (digits, rest) = digits.split_at_checked(3)?;
    if !matches!(rest.first(), Some(b' ' | b'\r' | b'\n')) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// A cause for the log.
pub(super) fn words(cause: FailCause) -> String {
    match cause {
        FailCause::ConnectFailed => "it cannot be connected to".to_owned(),
        FailCause::TlsFailed => "TLS with it fails".to_owned(),
        FailCause::TimedOut => "it does not answer in time".to_owned(),
        FailCause::Status(status) => format!("it answers with the status {status}"),
        FailCause::NotServing => "it says that it does not serve".to_owned(),
        FailCause::WrongAnswer => "it does not answer as it should".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, Write as _};
    use std::net::TcpListener;
    use std::time::Duration;

    use super::*;

    /// What a check says of a peer that reads one line and answers so.
    fn answer_to(kind: CheckKind, reply: &'static [u8]) -> Answer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let peer = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            io::BufReader::new(&stream).read_line(&mut String::new()).unwrap();
            stream.write_all(reply).unwrap();
        });
        let rules = CheckRules { timeout: Duration::from_secs(10), ..CheckRules::new(kind) };
        let answer = check(&rules, &Peer { address, hostname: None }, &Via::default());
        peer.join().unwrap();
        answer
    }

    #[test]
    fn an_http_check_goes_by_the_status() {
        let http = || CheckKind::Http { path: "/up".to_owned(), host: None, statuses: vec![200..=204] };
        for (reply, wanted) in [
            (&b"HTTP/1.1 200 OK\r\n\r\n"[..], Answer::Pass),
            (b"HTTP/1.0 204\r\n", Answer::Pass),
            (b"HTTP/1.1 503 No\r\n\r\n", Answer::Fail(FailCause::Status(503))),
            (b"HTTP/1.1 301 Moved\r\nLocation: /\r\n\r\n", Answer::Fail(FailCause::Status(301))),
            (b"HTTP/2 200\r\n", Answer::Fail(FailCause::WrongAnswer)),
            (b"HTTP/1.1 2000\r\n", Answer::Fail(FailCause::WrongAnswer)),
            (b"", Answer::Interrupted),
        ] {
            assert_eq!(answer_to(http(), reply), wanted, "{:?}", String::from_utf8_lossy(reply));
        }
    }

    #[test]
    fn a_tcp_check_goes_by_the_beginning_of_the_answer() {
        let ping = || CheckKind::Tcp { send: b"PING\n".to_vec(), expect: b"+PONG".to_vec() };
        assert_eq!(answer_to(ping(), b"+PONG\r\n"), Answer::Pass);
        assert_eq!(answer_to(ping(), b"-ERR loading\r\n"), Answer::Fail(FailCause::WrongAnswer));
        assert_eq!(answer_to(ping(), b""), Answer::Interrupted);
    }

    #[test]
    fn nobody_listens() {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let rules = CheckRules::new(CheckKind::Tcp { send: Vec::new(), expect: Vec::new() });
        let answer = check(&rules, &Peer { address, hostname: None }, &Via::default());
        assert_eq!(answer, Answer::Fail(FailCause::ConnectFailed));
    }
}
