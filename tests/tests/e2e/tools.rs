//! Real programs on either side: curl, nghttp and h2load as clients, nginx as origin, a WebSocket echo by RFC 6455.

use std::process::Command;

use tests::dir::TempDir;
use tests::port::free_port;
use tests::tls::Authority;
use tests::tool::{Process, require_tool, run};
use tests::{Config, Origin, PATIENCE, Proxy, message, origin, wait_until};

/// Runs curl and returns what it wrote to standard output.
#[track_caller]
fn curl(arguments: &[&str]) -> String {
    let (ok, output, errors) =
        run("curl", &[&["--silent", "--show-error", "--max-time", "20"], arguments].concat());
    assert!(ok, "curl {arguments:?}: {errors}");
    output
}

#[test]
fn curl_over_every_version() {
    let authority = Authority::default();
    let origin = origin::echo();
    let mut config = Config::to(origin.address());
    let mut secure = tests::Listener::new("secure");
    secure.tls = Some(tests::config::ListenerTls {
        leaves: vec![authority.leaf(&["a.example"])],
        ..Default::default()
    });
    config.listeners.push(secure);
    let proxy = Proxy::start(config);
    let dir = TempDir::new("curl");
    let ca = dir.write("ca.pem", authority.pem()).display().to_string();
    let plain = format!("http://{}/x?y", proxy.address());
    let port = proxy.listener("secure").port();
    let resolve = format!("a.example:{port}:127.0.0.1");
    let secure = format!("https://a.example:{port}/x?y");
    let body = dir.write("body", vec![b'b'; 300_000]).display().to_string();
    let upload = format!("@{body}");
    for (version, url) in [
        ("--http1.0", &plain),
        ("--http1.1", &plain),
        ("--http2-prior-knowledge", &plain),
        ("--http1.1", &secure),
        ("--http2", &secure),
    ] {
        let tls = ["--cacert", &ca, "--resolve", &resolve];
        let got =
            curl(&[&[version, url, "--write-out", "%{stderr}%{http_version}"], tls.as_slice()].concat());
        assert!(got.contains("\"target\":\"/x?y\""), "{version} {url}: {got}");
        let sent = curl(&[&[version, url, "--data-binary", &upload], tls.as_slice()].concat());
        assert!(sent.contains("\"body_bytes\":300000"), "{version} {url}: {sent}");
        assert!(sent.contains(&message::hash(&vec![b'b'; 300_000])), "{version} {url}");
    }
}

#[test]
fn curl_waits_for_a_100_and_gets_it() {
    let origin = Origin::scripted(|connection| {
        while let Some(request) = connection.head() {
            let length = request.field("content-length").and_then(|value| value.parse().ok()).unwrap_or(0);
            if request.field("expect").is_some() {
                connection.write("HTTP/1.1 100 Continue\r\n\r\n");
            }
            if connection.take(length).is_none()
                || !connection.write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            {
                return;
            }
        }
    });
    let proxy = Proxy::start(Config::to(origin.address()));
    let dir = TempDir::new("curl");
    let body = format!("@{}", dir.write("body", vec![b'b'; 2_000_000]).display());
    let url = format!("http://{}/", proxy.address());
    let start = std::time::Instant::now();
    assert_eq!(curl(&["--http1.1", "--header", "Expect: 100-continue", "--data-binary", &body, &url]), "ok");
    // Without a 100 curl waits for a second before it sends.
    assert!(start.elapsed() < std::time::Duration::from_millis(900), "{:?}", start.elapsed());
}

#[test]
fn nghttp_and_h2load() {
    let origin = origin::echo();
    let proxy = Proxy::start(Config::to(origin.address()));
    let url = format!("http://{}/x", proxy.address());
    let (ok, output, errors) = run("nghttp", &["--no-dep", "--null-out", "--stat", "--multiply=20", &url]);
    assert!(ok && output.contains("200"), "{output}{errors}");
    let (ok, output, errors) =
        run("h2load", &["--requests=3000", "--clients=4", "--max-concurrent-streams=16", &url]);
    assert!(ok, "{output}{errors}");
    assert!(output.contains("3000 succeeded, 0 failed, 0 errored, 0 timeout"), "{output}");
}

/// nginx as an origin, with what its defaults do: keep-alive, chunked, ranges, conditional requests.
fn nginx(dir: &TempDir) -> (Process, std::net::SocketAddr) {
    let port = free_port();
    let root = dir.path().join("www");
    dir.write("www/index.html", "<p>hello</p>\n");
    dir.write("www/big", vec![b'n'; 3_000_000]);
    let here = dir.path().display();
    let config = format!(
        "daemon off; master_process off; pid {here}/nginx.pid; error_log {here}/error.log;\n\
         events {{ worker_connections 512; }}\n\
         http {{ access_log off; client_body_temp_path {here}/t1; proxy_temp_path {here}/t2; fastcgi_temp_path {here}/t3;\n\
         uwsgi_temp_path {here}/t4; scgi_temp_path {here}/t5; keepalive_requests 50; keepalive_timeout 1s;\n\
         server {{ listen 127.0.0.1:{port}; root {root}; client_max_body_size 10m;\n\
         location = /empty {{ return 204; }} location = /moved {{ return 302 /index.html; }} }} }}\n",
        root = root.display()
    );
    let path = dir.write("nginx.conf", config);
    let mut command = Command::new(require_tool("nginx"));
    // One process, so that none outlives the one that is ended.
    command.arg("-c").arg(path).arg("-p").arg(dir.path());
    let process = Process::start("nginx", dir, &mut command);
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    wait_until("nginx listens", PATIENCE, || std::net::TcpStream::connect(address).is_ok());
    (process, address)
}

#[test]
fn nginx_behind_the_proxy() {
    let dir = TempDir::new("nginx");
    let (_process, address) = nginx(&dir);
    let proxy = Proxy::start(Config::to(address));
    let mut client = proxy.connect();
    // More requests than nginx keeps a connection for, so that its closes are met.
    for number in 0..120 {
        client.send("GET /index.html HTTP/1.1\r\nHost: a.example\r\n\r\n");
        let response = client.response("GET");
        assert_eq!((response.status, response.text().as_str()), (200, "<p>hello</p>\n"), "request {number}");
    }
    let page = proxy.get("/index.html");
    let tag = page.field("etag").expect("nginx sends an ETag").to_owned();
    client.send(format!("GET /index.html HTTP/1.1\r\nHost: a.example\r\nIf-None-Match: {tag}\r\n\r\n"));
    assert_eq!(client.response("GET").status, 304);
    client.send("GET /big HTTP/1.1\r\nHost: a.example\r\nRange: bytes=10-19\r\n\r\n");
    let part = client.response("GET");
    assert_eq!((part.status, part.body.len()), (206, 10));
    client.send("HEAD /big HTTP/1.1\r\nHost: a.example\r\n\r\n");
    assert_eq!(client.response("HEAD").field("content-length"), Some("3000000"));
    client.send("GET /empty HTTP/1.1\r\nHost: a.example\r\n\r\n");
    assert_eq!(client.response("GET").status, 204);
    client.send("GET /moved HTTP/1.1\r\nHost: a.example\r\n\r\n");
    assert_eq!(client.response("GET").status, 302);
    client.send("GET /big HTTP/1.1\r\nHost: a.example\r\n\r\n");
    assert_eq!(client.response("GET").body.len(), 3_000_000);
    client.send("GET /none HTTP/1.1\r\nHost: a.example\r\n\r\n");
    assert_eq!(client.response("GET").status, 404);
}

/// Reads one masked client frame (RFC 6455 §5.2) and returns opcode and payload.
fn read_frame(connection: &mut tests::OriginConn) -> Option<(u8, Vec<u8>)> {
    let head = connection.take(2)?;
    let length = match head[1] & 0x7f {
        126 => usize::from(u16::from_be_bytes(connection.take(2)?.try_into().ok()?)),
        127 => usize::try_from(u64::from_be_bytes(connection.take(8)?.try_into().ok()?)).ok()?,
        short => usize::from(short),
    };
    let mask = connection.take(4)?;
    let payload = connection.take(length)?;
    Some((head[0] & 0x0f, payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect()))
}

fn server_frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x80 | opcode];
    match u16::try_from(payload.len()) {
        Ok(length) if length < 126 => frame.push(u8::try_from(length).expect("below 126")),
        Ok(length) => {
            frame.push(126);
            frame.extend(length.to_be_bytes());
        }
        Err(_) => {
            frame.push(127);
            frame.extend(u64::try_from(payload.len()).expect("64 bits").to_be_bytes());
        }
    }
    frame.extend_from_slice(payload);
    frame
}

fn client_frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mask = [1, 2, 3, 4];
    let mut frame = server_frame(opcode, payload);
    frame[1] |= 0x80;
    let body = frame.split_off(frame.len() - payload.len());
    frame.extend(mask);
    frame.extend(body.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    frame
}

#[test]
fn a_websocket_echo() {
    let origin = Origin::scripted(|connection| {
        let Some(request) = connection.head() else {
            return;
        };
        if request.field("sec-websocket-key").is_none() {
            return;
        }
        connection.write("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n");
        while let Some((opcode, payload)) = read_frame(connection) {
            let reply = if opcode == 9 { 10 } else { opcode };
            if !connection.write(server_frame(reply, &payload)) || opcode == 8 {
                return;
            }
        }
    });
    let proxy = Proxy::start(
        Config::to(origin.address()).listener(|listener| listener.upgrades = vec!["websocket".to_owned()]),
    );
    let mut client = proxy.connect();
    client.send(
        "GET /chat HTTP/1.1\r\nHost: a.example\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
    );
    let response = client.response("GET");
    assert_eq!(response.status, 101);
    assert_eq!(response.field("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    for size in [0, 5, 125, 126, 65_535, 65_536, 300_000] {
        let payload = vec![b'w'; size];
        client.send(client_frame(2, &payload));
        let wanted = server_frame(2, &payload);
        assert_eq!(client.take(wanted.len()).as_deref(), Some(wanted.as_slice()), "{size} bytes");
    }
    client.send(client_frame(9, b"ping"));
    assert_eq!(client.take(6).as_deref(), Some(server_frame(10, b"ping").as_slice()));
    client.send(client_frame(8, &[3, 232]));
    assert_eq!(client.take(4).as_deref(), Some(server_frame(8, &[3, 232]).as_slice()));
    client.expect_close();
}
