//! One check of one endpoint on a blocking socket, within its time limit.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use http_balance::check::{Answer, CheckKind, CheckRules, FailCause};

use super::Peer;

/// Of an answer; a status line is far shorter.
const ANSWER_BYTES_MAX: usize = 4096;

/// Checks, and says what came of it.
pub(super) fn check(rules: &CheckRules, peer: &Peer) -> Answer {
    let deadline = Instant::now() + rules.timeout;
    let mut stream = match TcpStream::connect_timeout(&peer.address, rules.timeout) {
        Ok(stream) => stream,
        Err(error) if is_timeout(&error) => return Answer::Fail(FailCause::TimedOut),
        Err(_refused) => return Answer::Fail(FailCause::ConnectFailed),
    };
    let asked = match &rules.kind {
        CheckKind::Http { path, host, .. } => {
            let address = || peer.address.to_string();
            let host = host.clone().or_else(|| peer.hostname.clone()).unwrap_or_else(address);
            let request = format!(
                "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: shard-proxy health check\r\nConnection: close\r\n\r\n"
            );
            exchange(&mut stream, request.as_bytes(), deadline, has_line).map(|answer| http(rules, &answer))
        }
        CheckKind::Tcp { send, expect } => {
            let is_whole = |answer: &[u8]| answer.len() >= expect.len();
            exchange(&mut stream, send, deadline, is_whole).map(|answer| {
                match (answer.starts_with(expect), answer.is_empty()) {
                    (true, _) => Answer::Pass,
                    (false, true) => Answer::Interrupted,
                    (false, false) => Answer::Fail(FailCause::WrongAnswer),
                }
            })
        }
        // The compile refuses these checks until they are served.
        CheckKind::Grpc { .. } => Ok(Answer::Fail(FailCause::NotServing)),
    };
    match asked {
        Ok(answer) => answer,
        Err(error) if is_timeout(&error) => Answer::Fail(FailCause::TimedOut),
        Err(_broken) => Answer::Fail(FailCause::WrongAnswer),
    }
}

/// Sends, and reads until there is enough or the peer closes.
fn exchange(
    stream: &mut TcpStream,
    send: &[u8],
    deadline: Instant,
    is_enough: impl Fn(&[u8]) -> bool,
) -> io::Result<Vec<u8>> {
    stream.set_write_timeout(Some(left(deadline)?))?;
    stream.write_all(send)?;
    let mut answer = Vec::new();
    let mut piece = [0; 512];
    while !is_enough(&answer) && answer.len() < ANSWER_BYTES_MAX {
        stream.set_read_timeout(Some(left(deadline)?))?;
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(piece.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(answer)
}

/// Sockets take no timeout of zero.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
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
        FailCause::TimedOut => "it does not answer in time".to_owned(),
        FailCause::Status(status) => format!("it answers with the status {status}"),
        FailCause::NotServing => "it says that it does not serve".to_owned(),
        FailCause::WrongAnswer => "it does not answer as it should".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufRead as _;
    use std::net::TcpListener;

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
        let answer = check(&rules, &Peer { address, hostname: None });
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
        let answer = check(&rules, &Peer { address, hostname: None });
        assert_eq!(answer, Answer::Fail(FailCause::ConnectFailed));
    }
}
