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
    fn proxy_signal(&self, signal: rustix::process::Signal) {
        self.proxy.signal(signal);
    }

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

/// A proxy whose listener logs as `access_log` says; the key replaces the harness's own.
#[track_caller]
fn logging(
    access_log: &Value,
    name: &str,
) -> (Origin, tests::dir::TempDir, tests::tool::Process, std::net::SocketAddr) {
    let origin = origin::echo();
    let config = Config::to(origin.address());
    let dir = tests::dir::TempDir::new(name);
    for (path, content) in config.files() {
        let content = if path.contains("listeners") {
            let mut value: Value = serde_json::from_str(&content).expect("JSON");
            value["listeners"]["main"]["access_log"] = access_log.clone();
            value.to_string()
        } else {
            content
        };
        dir.write(&format!("config/{path}"), content);
    }
    let mut command = std::process::Command::new(tests::proxy::binary("shard-proxy"));
    command.arg("--config").arg(dir.path().join("config")).args(["--shards", "2"]);
    let process = tests::tool::Process::start(name, &dir, &mut command);
    wait_until("it is ready", PATIENCE, || process.log().contains(" ready: "));
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], config.listeners[0].port));
    (origin, dir, process, address)
}

#[test]
fn syslog_gets_a_message_a_request() {
    let dir = tests::dir::TempDir::new("syslog");
    let path = dir.path().join("log.sock");
    let unix = std::os::unix::net::UnixDatagram::bind(&path).expect("a socket");
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
    unix.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    udp.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let udp_address = format!("udp:{}", udp.local_addr().expect("bound"));
    for (kind, address) in [("unix", format!("unix:{}", path.display())), ("udp", udp_address)] {
        let access_log = serde_json::json!({ "to": "syslog", "address": address });
        let (_origin, _dir, process, address) = logging(&access_log, kind);
        for number in 0..3 {
            assert_eq!(client::get(address, "a.example", &format!("/{kind}-{number}")).status, 200);
        }
        let mut seen = Vec::new();
        while seen.len() < 3 {
            let mut packet = [0; 16 * 1024];
            let length = if kind == "unix" { unix.recv(&mut packet) } else { udp.recv(&mut packet) };
            let text = String::from_utf8_lossy(&packet[..length.expect("a message")]).into_owned();
            // RFC 5424 §6: priority and version, then six fields, then the message.
            let mut fields = text.splitn(8, ' ');
            assert_eq!(fields.next(), Some("<134>1"), "{text}");
            assert_eq!(fields.nth(3), Some(process.pid().to_string().as_str()), "{text}");
            let message = fields.last().unwrap_or_default();
            let line: Value = serde_json::from_str(message).unwrap_or_else(|error| not_json(message, &error));
            seen.push(line["path"].as_str().unwrap_or_default().to_owned());
        }
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2].map(|number| format!("/{kind}-{number}")));
    }
}

#[test]
fn the_last_lines_are_not_lost_at_a_clean_end() {
    let mut logged = logged(origin::echo());
    for number in 0..200 {
        assert_eq!(logged.proxy.get(&format!("/{number}")).status, 200);
    }
    // At once: lines wait in the core for up to half a second.
    logged.proxy.process().signal(rustix::process::Signal::TERM);
    assert!(logged.proxy.process().wait(PATIENCE).success());
    let text = std::fs::read_to_string(&logged.path).expect("a log");
    assert_eq!(text.lines().count(), 200);
    for (number, line) in text.lines().enumerate() {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|error| not_json(line, &error));
        assert_eq!(line["path"], format!("/{number}"), "in the order in which they were served");
    }
}

#[test]
fn a_log_directory_that_goes_away_costs_lines_and_no_requests() {
    let logged = logged(origin::echo());
    assert_eq!(logged.proxy.get("/1").status, 200);
    logged.lines(1);
    let lost = || logged.proxy.metrics().sum("shard_log_rows_lost_total", &[]);
    assert!(lost() < 1.0);
    std::fs::remove_file(&logged.path).expect("removable");
    let parent = logged.path.parent().expect("a directory").to_owned();
    std::fs::remove_dir_all(&parent).expect("removable");
    logged.proxy_signal(rustix::process::Signal::USR1);
    wait_until("the fault is in the log", PATIENCE, || logged.proxy.log().contains("lines are lost"));
    assert_eq!(logged.proxy.get("/2").status, 200);
    wait_until("the loss is counted", PATIENCE, || {
        // The main thread looks with each of its turns.
        logged.proxy_signal(rustix::process::Signal::USR1);
        lost() >= 1.0
    });
    std::fs::create_dir_all(&parent).expect("writable");
    assert_eq!(logged.proxy.get("/3").status, 200);
    assert!(logged.lines(1)[0].to_string().contains("/3"), "it works again without a restart");
}

#[test]
fn nobody_reads_standard_output() {
    let (origin, dir, mut process, address) = {
        let origin = origin::echo();
        let config = Config::to(origin.address());
        let dir = tests::dir::TempDir::new("stdout");
        for (path, content) in config.files() {
            let mut content = content;
            if path.contains("listeners") {
                let mut value: Value = serde_json::from_str(&content).expect("JSON");
                value["listeners"]["main"]["access_log"] = serde_json::json!({ "to": "stdout" });
                content = value.to_string();
            }
            dir.write(&format!("config/{path}"), content);
        }
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let mut command = std::process::Command::new(tests::proxy::binary("shard-proxy"));
        command.arg("--config").arg(dir.path().join("config")).args(["--shards", "1"]).stdout(writer);
        let errors = std::fs::File::create(dir.path().join("errors")).expect("writable");
        let child = command.stderr(errors).spawn().expect("it starts");
        // The reader goes: every write is EPIPE from here on.
        drop((reader, command));
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], config.listeners[0].port));
        (origin, dir, child, address)
    };
    let errors = || std::fs::read_to_string(dir.path().join("errors")).unwrap_or_default();
    wait_until("it is ready", PATIENCE, || errors().contains(" ready: "));
    for _ in 0..5 {
        assert_eq!(client::get(address, "a.example", "/").status, 200);
    }
    wait_until("the operator is told", PATIENCE, || errors().contains("lines are lost"));
    assert_eq!(client::get(address, "a.example", "/").status, 200);
    let pid =
        i32::try_from(process.id()).ok().and_then(rustix::process::Pid::from_raw).expect("a process id");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it lives");
    let status = tests::wait_for("the end", PATIENCE, || process.try_wait().expect("our child"));
    assert!(status.success(), "{status}: {}", errors());
    assert!(origin.connections_open() <= 1);
}

#[test]
fn what_the_end_of_the_process_cuts_has_a_line() {
    let dir = tests::dir::TempDir::new("log");
    let path = dir.path().join("access.log");
    let origin = Origin::scripted(|connection| {
        if connection.request().is_some() {
            connection.wait_close();
        }
    });
    let mut config = Config::to(origin.address())
        .route(|route| route.streaming = true)
        .listener(|listener| listener.access_log = Some(path.display().to_string()));
    config.drain = std::time::Duration::from_secs(1);
    let mut proxy = Proxy::start(config);
    let mut client = proxy.connect();
    client.send("GET /h1 HTTP/1.1\r\nHost: a.example\r\n\r\n");
    let mut h2 = tests::h2raw::H2Conn::client(proxy.connect().into_stream(), &[]);
    h2.send(&tests::h2raw::Frame::headers(1, true, &tests::h2raw::request_fields("GET", "a.example", "/h2")));
    let _seen = origin.wait_request(2);
    proxy.process().signal(rustix::process::Signal::TERM);
    proxy.process().wait(PATIENCE);
    let text = std::fs::read_to_string(&path).expect("the log is there");
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| not_json(line, &error)))
        .collect();
    let mut cut: Vec<_> = lines.iter().map(|line| (line["path"].as_str(), line["reason"].as_str())).collect();
    cut.sort_unstable();
    assert_eq!(cut, [(Some("/h1"), Some("draining")), (Some("/h2"), Some("draining"))], "{text}");
}
