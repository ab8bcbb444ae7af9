//! 0-RTT against nginx, whose log says for each request whether it came as early data.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::support::{Folder, Target, bench, number, run, text, wait_for};

/// nginx with two listeners of one ticket key: one accepts early data, the other issues and honours tickets without it.
struct Nginx {
    child: Child,
    folder: Folder,
    accepts: SocketAddr,
    refuses: SocketAddr,
}

impl Nginx {
    /// Each connection ends after `requests` requests.
    fn start(name: &str, requests: u32) -> Self {
        let folder = Folder::new(name);
        let [_, chain, key] = folder.certificates();
        folder.file("ticket.key", &[7; 80]);
        // Its ports are free until it binds them, unless another test was quicker: then once more with others.
        let begun = (0..10).find_map(|_| {
            let addrs = [free(), free()];
            Some((Self::spawn(&folder, addrs, [&chain, &key], requests)?, addrs))
        });
        let (child, [accepts, refuses]) = begun.expect("nginx starts: see error.log in its folder");
        Self { child, folder, accepts, refuses }
    }

    /// None when it ended before it listened.
    fn spawn(
        folder: &Folder,
        [accepts, refuses]: [SocketAddr; 2],
        [chain, key]: [&str; 2],
        requests: u32,
    ) -> Option<Child> {
        let here = folder.path("");
        let server = |addr: SocketAddr, early: &str| {
            format!(
                "server {{ listen {addr} ssl http2; ssl_early_data {early}; location / {{ return 200 ok; }} }}\n"
            )
        };
        let config = format!(
            "daemon off; master_process off; pid {here}nginx.pid; error_log {here}error.log;\n\
             events {{ worker_connections 256; }}\n\
             http {{\n\
             log_format early '$request_method $status $ssl_early_data.'; access_log {here}access.log early;\n\
             client_body_temp_path {here}b; proxy_temp_path {here}p; fastcgi_temp_path {here}f;\n\
             uwsgi_temp_path {here}u; scgi_temp_path {here}s; keepalive_requests {requests};\n\
             ssl_certificate {}; ssl_certificate_key {}; ssl_session_ticket_key {here}ticket.key;\n\
             ssl_protocols TLSv1.2 TLSv1.3;\n{}{}}}\n",
            chain,
            key,
            server(accepts, "on"),
            server(refuses, "off"),
        );
        let config = folder.file("nginx.conf", config.as_bytes());
        let mut command = Command::new("nginx");
        command.env("PATH", "/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin");
        let mut child = command
            .args(["-c", &config, "-p", &here])
            .stderr(Stdio::null())
            .spawn()
            .expect("nginx is there: apt-get install nginx-light");
        let listens = || [accepts, refuses].iter().all(|addr| std::net::TcpStream::connect(addr).is_ok());
        let has_begun = wait_for("nginx", || match child.try_wait() {
            Ok(Some(_ended)) => Some(false),
            _ => listens().then_some(true),
        });
        has_begun.then_some(child)
    }

    fn url(&self) -> String {
        format!("https://{}/", self.accepts)
    }

    fn ca(&self) -> String {
        self.folder.path("ca.pem")
    }

    /// Lines of the log, once there are as many as `wanted`: all, and those of requests that came early.
    fn logged(&self, wanted: usize) -> (usize, usize) {
        let log = self.folder.path("access.log");
        let lines = || std::fs::read_to_string(&log).unwrap_or_default();
        wait_for("nginx's log", || (lines().lines().count() >= wanted).then_some(()));
        let lines = lines();
        (lines.lines().count(), lines.lines().filter(|line| line.ends_with(" 1.")).count())
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _status = self.child.wait();
    }
}

/// An address that nobody listens on.
fn free() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").expect("bind").local_addr().expect("an address")
}

fn connections(document: &Value, key: &str) -> f64 {
    number(document, &["connections", key])
}

fn has_warning(document: &Value, code: &str) -> bool {
    document["warnings"].as_array().is_some_and(|all| all.iter().any(|warning| warning["code"] == code))
}

#[test]
fn first_requests_of_resumed_connections_leave_early() {
    for protocol in ["h1", "h2"] {
        let nginx = Nginx::start(&format!("early-{protocol}"), 5);
        let (url, ca) = (nginx.url(), nginx.ca());
        let words = [
            &url,
            "--cacert",
            &ca,
            "--early-data",
            "--protocol",
            protocol,
            "-c",
            "2",
            "-n",
            "200",
            "-d",
            "30s",
        ];
        let document = run(&words);
        assert!(number(&document, &["requests", "ok"]) == 200.0, "{document:#}");
        let accepted = connections(&document, "early_data_accepted");
        assert!(accepted >= 30.0 && connections(&document, "early_data_refused") == 0.0, "{document:#}");
        assert!(connections(&document, "tls_full") >= 2.0, "a first connection has no ticket");
        assert!(accepted <= connections(&document, "tls_resumed"));
        assert!(number(&document, &["phases", "tls_early", "count"]) == accepted);
        assert!(!has_warning(&document, "early_data_unused"));
        // With a connection for each request the next ticket is waited for.
        let fresh = run(&[&words[..], &["--fresh"]].concat());
        let accepted_fresh = connections(&fresh, "early_data_accepted");
        assert!(number(&fresh, &["requests", "ok"]) == 200.0 && accepted_fresh >= 100.0, "{fresh:#}");
        // nginx says so of a request that is answered before the handshake's end; none is counted twice.
        let (all, early) = nginx.logged(400);
        assert!(all == 400 && early > 0, "{all} {early}");
        assert!(crate::support::float(early) <= accepted + accepted_fresh, "{early}");
    }
}

#[test]
fn a_refused_request_is_sent_again_and_counted_once() {
    let nginx = Nginx::start("early-refused", 1000);
    let (url, ca) = (nginx.url(), nginx.ca());
    let [accepts, refuses] = [nginx.accepts.to_string(), nginx.refuses.to_string()];
    // In turns: a ticket of the first address is used on the second one.
    for protocol in ["h1", "h2"] {
        let to = ["--connect-to", &accepts, "--connect-to", &refuses];
        let rest = ["--fresh", "--early-data", "--protocol", protocol, "-c", "1", "-n", "60", "-d", "30s"];
        let document = run(&[&[url.as_str(), "--cacert", &ca], &to[..], &rest].concat());
        assert!(number(&document, &["requests", "ok"]) == 60.0, "{document:#}");
        let refused = connections(&document, "early_data_refused");
        assert!(refused >= 20.0 && connections(&document, "early_data_accepted") == 0.0, "{document:#}");
        assert!(has_warning(&document, "early_data_unused"), "{document:#}");
    }
    assert_eq!(nginx.logged(120), (120, 0), "each request once");
}

#[test]
fn what_is_not_safe_to_repeat_waits_unless_told() {
    let nginx = Nginx::start("early-unsafe", 1);
    let (url, ca) = (nginx.url(), nginx.ca());
    let list = nginx.folder.file("list", b"GET /\nPOST / x=1\n");
    let base = [&url, "--cacert", &ca, "-c", "1", "-n", "40", "-d", "30s", "--requests-from", &list];
    // A connection for each, in turns: twenty may leave early, and not a POST.
    let safe = run(&[&base[..], &["--early-data"]].concat());
    assert!(number(&safe, &["requests", "ok"]) == 40.0, "{safe:#}");
    let accepted = connections(&safe, "early_data_accepted");
    assert!(accepted > 0.0 && accepted <= 20.0, "{safe:#}");
    nginx.logged(40);
    let log = std::fs::read_to_string(nginx.folder.path("access.log")).expect("a log");
    assert!(log.contains("POST 200 -.") && !log.contains("POST 200 1."), "{log}");
    let all = run(&[&base[..], &["--early-data", "--early-data-unsafe"]].concat());
    assert!(number(&all, &["requests", "ok"]) == 40.0, "{all:#}");
    assert!(connections(&all, "early_data_accepted") > 20.0, "{all:#}");
}

#[test]
fn a_target_without_early_data_is_told() {
    let folder = Folder::new("early-none");
    let [ca, chain, key] = folder.certificates();
    let target = Target::start(&["--cert", &chain, "--key", &key]);
    let url = target.url("https", "/");
    let output =
        bench(&["run", &url, "--cacert", &ca, "--early-data", "--fresh", "-c", "1", "-n", "20", "-d", "30s"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    assert!(text(&output).contains("FAILED early_data_unused"), "{}", text(&output));
}
