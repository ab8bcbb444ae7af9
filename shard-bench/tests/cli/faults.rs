//! What goes wrong is said clearly, with an exit code, and leaves no half of a file.

use std::net::TcpListener;

use crate::support::{Folder, Target, bench, certificates, text};

#[test]
fn wrong_words() {
    for (line, fault) in [
        ("frobnicate", "unknown command frobnicate"),
        ("run", "want one URL"),
        ("run http://127.0.0.1:1/ --frob", "unknown option --frob"),
        ("run ftp://127.0.0.1/", "unknown scheme"),
        ("run http://127.0.0.1:1/ --rate many", "--rate: many is no rate"),
        ("run http://127.0.0.1:1/ --rate 5 --stages 1s:5", "exclude each other"),
        ("run http://127.0.0.1:1/ --protocol h3", "--protocol h3: want h1"),
        ("run http://127.0.0.1:1/ --slo fast", "--slo"),
        ("run http://127.0.0.1:1/ -H nocolon", "no :"),
        ("run http://127.0.0.1:1/ --cert /nonexistent --key x", "--cert /nonexistent"),
        ("run http://127.0.0.1:1/ --requests-from /nonexistent", "--requests-from /nonexistent"),
        ("run http://127.0.0.1:1/ --fresh -m 2", "--fresh"),
        ("run http://192.0.2.1/", "--allow-remote"),
        ("run http://127.0.0.1:1/ --early-data", "want an https URL"),
        ("run https://127.0.0.1:1/ --early-data --tls 1.2", "TLS 1.2 has none"),
        ("run https://127.0.0.1:1/ --early-data --no-resume", "--no-resume"),
        ("run https://127.0.0.1:1/ --early-data --slow-send 1k", "--slow-send"),
        ("run https://127.0.0.1:1/ --early-data -X POST", "--early-data-unsafe"),
        ("run wss://127.0.0.1:1/ --early-data", "WebSocket"),
        ("ab http://127.0.0.1:1/", "want two URLs"),
        ("ab http://127.0.0.1:1/ http://127.0.0.1:2/ --judge speed", "--judge speed"),
        ("ab http://127.0.0.1:1/ http://127.0.0.1:2/ --start x", "one for A and one for B"),
        ("report", "want at least one FILE"),
        ("report /nonexistent", "/nonexistent"),
        ("serve --listen here", "--listen: here"),
    ] {
        let output = bench(&line.split(' ').collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(64), "{line}: {}", text(&output));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            said.starts_with("shard-bench: ") && said.contains(fault) && said.contains("--help"),
            "{line}: {said}"
        );
    }
}

#[test]
fn every_command_has_help() {
    for command in ["run", "ab", "serve", "report"] {
        let output = bench(&[command, "--help"]);
        assert_eq!(output.status.code(), Some(0));
        assert!(text(&output).contains(&format!("Usage: shard-bench {command}")), "{}", text(&output));
    }
}

#[test]
fn a_target_that_is_not_there() {
    // Bound and closed again: nobody listens on its port.
    let gone = TcpListener::bind("127.0.0.1:0").expect("bind").local_addr().expect("an address");
    let output = bench(&["run", &format!("http://{gone}/"), "-d", "1s"]);
    assert_eq!(output.status.code(), Some(69), "{}", text(&output));
    assert!(
        text(&output).contains(&gone.to_string()) && text(&output).contains("refused"),
        "{}",
        text(&output)
    );
}

#[test]
fn a_certificate_that_fails() {
    let folder = Folder::new("bad-certificate");
    let [_, chain, key] = folder.certificates();
    let (other_ca, ..) = certificates();
    let other_ca = folder.file("other-ca.pem", other_ca.as_bytes());
    let target = Target::start(&["--cert", &chain, "--key", &key]);
    let url = target.url("https", "/");
    let before = folder.names();
    let json = folder.path("run.json");
    let output = bench(&["run", &url, "--cacert", &other_ca, "-d", "1s", "--json", &json]);
    assert_eq!(output.status.code(), Some(69), "{}", text(&output));
    let said = text(&output);
    assert!(
        said.contains("TLS handshake") && said.contains("certificate") && said.contains("--insecure"),
        "{said}"
    );
    assert_eq!(folder.names(), before, "no file is left");
    let trusting = bench(&["run", &url, "--insecure", "-n", "10", "-c", "1", "-d", "10s"]);
    assert_eq!(trusting.status.code(), Some(0), "{}", text(&trusting));
}

#[test]
fn a_full_disk_and_a_missing_folder() {
    let target = Target::start(&[]);
    let url = target.url("http", "/");
    let run = ["run", &url, "-n", "10", "-c", "1", "-d", "10s"];
    for option in ["--json", "--csv", "--hdr", "--html"] {
        let full = bench(&[&run[..], &[option, "/dev/full"]].concat());
        assert_eq!(full.status.code(), Some(74), "{option}: {}", text(&full));
        assert!(
            text(&full).contains("/dev/full: not written") && text(&full).contains("requests"),
            "{}",
            text(&full)
        );
    }
    // A limit of file size is a full disk, not the end of the process: SIGXFSZ.
    let folder = Folder::new("file-size");
    let json = folder.path("run.json");
    let line =
        format!("ulimit -f 1; exec {} run {url} -n 10 -c 1 -d 10s --json {json}", crate::support::PROGRAM);
    let limited = std::process::Command::new("sh").args(["-c", &line]).output().expect("a shell");
    assert_eq!(limited.status.code(), Some(74), "{}", text(&limited));
    assert!(text(&limited).contains("not written: File too large"), "{}", text(&limited));
    assert!(folder.names().is_empty(), "no part is left: {:?}", folder.names());
    // Told before the run, not after it.
    let missing = bench(&["run", &url, "-d", "300s", "--json", "/nonexistent/run.json"]);
    assert_eq!(missing.status.code(), Some(74), "{}", text(&missing));
    assert!(text(&missing).contains("/nonexistent"), "{}", text(&missing));
}

#[test]
fn a_target_that_speaks_something_else() {
    let folder = Folder::new("something-else");
    let [_, chain, key] = folder.certificates();
    let (plain, tls) = (Target::start(&[]), Target::start(&["--cert", &chain, "--key", &key]));
    let https = bench(&["run", &plain.url("https", "/"), "--insecure", "-d", "1s"]);
    assert!(https.status.code() == Some(69) && text(&https).contains("an http URL?"), "{}", text(&https));
    let http = bench(&["run", &tls.url("http", "/"), "-n", "2", "-c", "1", "-d", "10s"]);
    assert_eq!(http.status.code(), Some(69), "{}", text(&http));
    // A server of HTTP/1.1 only, met with HTTP/2.
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let addr = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _gone = std::io::Write::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let words = ["run", &format!("http://{addr}/"), "--protocol", "h2", "-n", "2", "-c", "1", "-d", "10s"];
    let h2 = bench(&words);
    assert_eq!(h2.status.code(), Some(69), "{}", text(&h2));
    assert!(text(&h2).contains("the target answers in HTTP/1"), "{}", text(&h2));
}

#[test]
fn answers_that_are_errors_are_counted_by_class() {
    // A server that says 503 and closes, for ever.
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let addr = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut bytes = [0; 1024];
            if std::io::Read::read(&mut stream, &mut bytes).is_ok_and(|got| got > 0) {
                let answer = b"HTTP/1.1 503 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                let _gone = std::io::Write::write_all(&mut stream, answer);
            }
        }
    });
    let output = bench(&["run", &format!("http://{addr}/"), "-n", "20", "-c", "2", "-d", "10s"]);
    assert_eq!(output.status.code(), Some(69), "{}", text(&output));
    let said = text(&output);
    assert!(
        said.contains("20 status (100 %): status 503")
            && said.contains("5xx 20")
            && said.contains("FAILED no_success"),
        "{said}"
    );
}
