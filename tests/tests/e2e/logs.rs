//! C45: one line a request, valid JSON whatever the client or the upstream sends, no secrets.

use serde_json::Value;
use tests::{Config, Origin, PATIENCE, Proxy, client, origin, wait_until};

struct Logged {
    // Keeps the upstream alive.
    _origin: Origin,
    proxy: Proxy,
    path: std::path::PathBuf,
    _dir: tests::dir::TempDir,
}

fn logged(origin: Origin) -> Logged {
    let dir = tests::dir::TempDir::new("log");
    let path = dir.path().join("access.log");
    let shown = path.display().to_string();
    let proxy =
        Proxy::start(Config::to(origin.address()).listener(|listener| listener.access_log = Some(shown)));
    Logged { _origin: origin, proxy, path, _dir: dir }
}

impl Logged {
    /// Waits until `count` lines are there, and reads each as JSON.
    #[track_caller]
    fn lines(&self, count: usize) -> Vec<Value> {
        let read = || std::fs::read(&self.path).unwrap_or_default();
        wait_until(&format!("{count} log lines"), PATIENCE, || {
            read().iter().filter(|byte| **byte == b'\n').count() >= count
        });
        let text = String::from_utf8(read()).expect("the log is UTF-8");
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|error| not_json(line, &error)))
            .collect()
    }
}

#[track_caller]
fn not_json(line: &str, error: &serde_json::Error) -> Value {
    assert_eq!(line, error.to_string(), "a log line is not JSON");
    Value::Null
}

#[test]
fn c45_hostile_input_makes_one_valid_line_each() {
    let logged = logged(origin::echo());
    let requests: Vec<Vec<u8>> = vec![
        b"GET /%0d%0aFAKE HTTP/1.1\r\nHost: a.example\r\n\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nHost: a.example\r\nUser-Agent: a\" b\r\n\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nHost: a.example\r\nUser-Agent: \\ \\\" \\u0000\r\n\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nHost: a.example\r\nUser-Agent: \x7f\x1b[2J\r\n\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nHost: a.example\r\nUser-Agent: \xff\xfe\xed\xa0\x80\r\n\r\n".to_vec(),
        [b"GET / HTTP/1.1\r\nHost: a.example\r\nUser-Agent: ".as_slice(), &vec![b'u'; 20_000], b"\r\n\r\n"]
            .concat(),
        [b"GET /".as_slice(), &vec![b'p'; 7_000], b" HTTP/1.1\r\nHost: a.example\r\nReferer: \t\"'\r\n\r\n"]
            .concat(),
        b"GET /\"quote HTTP/1.1\r\nHost: a.example\r\n\r\n".to_vec(),
        b"BAD\x00METHOD / HTTP/1.1\r\nHost: a.example\r\n\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nHost: a.example\r\nX-Request-Id: forged\"\r\n\r\n".to_vec(),
    ];
    let count = requests.len();
    for request in &requests {
        let mut client = logged.proxy.connect();
        client.send(request);
        client.response("GET");
    }
    // One more, to see that nothing stands between the lines.
    assert_eq!(logged.proxy.get("/last").status, 200);
    let lines = logged.lines(count + 1);
    assert_eq!(lines.len(), count + 1, "one line a request");
    let text = std::fs::read_to_string(&logged.path).expect("a log");
    assert!(text.lines().all(|line| line.len() < 16_384), "lines are bounded");
    assert!(lines.iter().all(|line| line.is_object()));
}

#[test]
fn c45_hostile_upstream_fields() {
    let logged = logged(Origin::replying(
        &b"HTTP/1.1 200 OK\r\nServer: a\"b\\\r\nX: \xff\xfe\r\nContent-Type: text/\"x\r\nContent-Length: 2\r\n\r\nok"[..],
    ));
    assert_eq!(logged.proxy.get("/").status, 200);
    assert_eq!(logged.lines(1).len(), 1);
}

#[test]
fn c45_secrets_are_not_written() {
    let logged = logged(origin::echo());
    let request = "GET /x?access_token=topsecret1&a=b HTTP/1.1\r\nHost: a.example\r\nAuthorization: Bearer topsecret2\r\n\
                   Cookie: session=topsecret3\r\nProxy-Authorization: topsecret4\r\n\r\n";
    assert_eq!(client::once(logged.proxy.address(), request).status, 200);
    logged.lines(1);
    let text = std::fs::read_to_string(&logged.path).expect("a log");
    assert!(!text.contains("topsecret"), "{text}");
    assert!(!logged.proxy.log().contains("topsecret"));
}

#[test]
fn a_line_says_what_happened() {
    let logged = logged(origin::echo());
    let response = logged.proxy.get("/some/path");
    let line = logged.lines(1).remove(0);
    let text = line.to_string();
    assert!(text.contains("/some/path"), "{text}");
    assert!(text.contains(response.field("x-request-id").expect("a request id")), "{text}");
    assert!(text.contains("\"GET\"") && text.contains("200") && text.contains("\"127.0.0.1\""), "{text}");
}

#[test]
fn an_error_names_its_reason() {
    let origin = origin::echo();
    let address = origin.address();
    let logged = logged(Origin::scripted(|_| {}));
    drop((origin, address));
    let response = logged.proxy.get("/");
    let code = response.code().expect("a reason code");
    let line = logged.lines(1).remove(0);
    assert!(line.to_string().contains(&format!("\"{code}\"")), "{code} in {line}");
}

#[test]
fn the_file_is_reopened_on_signal() {
    let mut logged = logged(origin::echo());
    assert_eq!(logged.proxy.get("/1").status, 200);
    logged.lines(1);
    let moved = logged.path.with_extension("old");
    std::fs::rename(&logged.path, &moved).expect("the log can be moved");
    logged.proxy.process().signal(rustix::process::Signal::USR1);
    wait_until("the log is made anew", PATIENCE, || {
        assert_eq!(logged.proxy.get("/2").status, 200);
        logged.path.exists()
    });
    let lines = logged.lines(1);
    assert!(lines[0].to_string().contains("/2"));
}
