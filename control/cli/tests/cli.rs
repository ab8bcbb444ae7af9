//! shardctl as its users run it: the binary, its streams and its exit codes.

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;
    use std::path::{Path, PathBuf};
    use std::process::{Command, Output, Stdio};
    use std::thread;

    fn shardctl(args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shardctl"));
        command.args(args).stdin(Stdio::null()).output().expect("shardctl starts")
    }

    fn text(bytes: &[u8]) -> String {
        String::from_utf8(bytes.to_vec()).expect("UTF-8")
    }

    /// A directory that is gone when the test is.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("shardctl-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).expect("a scratch directory");
            Self(path)
        }

        fn path(&self) -> &Path {
            &self.0
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            // What is left in the temporary folder must not hide the test's own failure.
            drop(std::fs::remove_dir_all(&self.0));
        }
    }

    #[test]
    fn doctor_on_the_running_machine_agrees_with_its_own_exit_code() {
        let run = shardctl(&["doctor", "--json"]);
        let report: serde_json::Value = serde_json::from_slice(&run.stdout).expect("JSON");
        assert_eq!(report["version"], 1);
        let findings = report["findings"].as_array().expect("a list");
        assert!(findings.len() > 60, "{} findings", findings.len());
        let any = |severity: &str| findings.iter().any(|f| f["severity"] == severity);
        let expected = if any("fail") { 2 } else { i32::from(any("warn")) };
        assert_eq!(run.status.code(), Some(expected));
        let ring = findings.iter().find(|f| f["id"] == "kernel.io_uring_setup").expect("the ring was tried");
        assert!(!ring["found"].as_str().unwrap_or_default().starts_with("unknown: "), "{ring}");
        for finding in findings {
            let keys: Vec<_> = finding.as_object().expect("an object").keys().map(String::as_str).collect();
            assert_eq!(keys, ["advised", "fix_command", "found", "id", "severity", "subject", "why"]);
        }
    }

    #[test]
    fn doctor_prints_no_colour_and_no_wide_line_into_a_pipe() {
        let run = shardctl(&["doctor"]);
        let out = text(&run.stdout);
        assert!(!out.contains('\u{1b}'));
        for line in out.lines() {
            assert!(line.chars().count() <= 100, "{} columns: {line}", line.chars().count());
        }
    }

    #[test]
    fn doctor_below_a_root_reads_nothing_of_the_running_machine() {
        let root = Scratch::new("root");
        let run = shardctl(&["doctor", "--json", "--root", root.path().to_str().expect("UTF-8")]);
        let report: serde_json::Value = serde_json::from_slice(&run.stdout).expect("JSON");
        for finding in report["findings"].as_array().expect("a list") {
            assert_ne!(finding["severity"], "ok", "{finding}");
        }
    }

    #[test]
    fn a_reader_that_goes_away_ends_the_program_quietly_with_the_commands_code() {
        let mut child = Command::new(env!("CARGO_BIN_EXE_shardctl"))
            .arg("--help")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("shardctl starts");
        drop(child.stdout.take());
        let run = child.wait_with_output().expect("it ends");
        assert_eq!((run.status.code(), text(&run.stderr).as_str()), (Some(0), ""));
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let full = std::fs::File::options().write(true).open("/dev/full").expect("/dev/full");
        let run = Command::new(env!("CARGO_BIN_EXE_shardctl")).arg("--help").stdout(full).status();
        assert_eq!(run.expect("shardctl starts").code(), Some(74));
    }

    #[test]
    fn wrong_lines_exit_with_64_and_write_nothing_to_standard_output() {
        for args in [&[][..], &["nonsense"], &["doctor", "--reactors"], &["admin"], &["check"]] {
            let run = shardctl(args);
            assert_eq!((run.status.code(), run.stdout.len()), (Some(64), 0), "{args:?}");
            assert!(!run.stderr.is_empty(), "{args:?}");
        }
    }

    #[test]
    fn admin_passes_the_daemons_answer_and_verdict_on() {
        let scratch = Scratch::new("admin");
        for (status, code) in [("200 OK", 0), ("503 Service Unavailable", 1)] {
            let socket = scratch.path().join(format!("{code}.sock"));
            let listener = UnixListener::bind(&socket).expect("a socket");
            let server = thread::spawn(move || {
                let (mut stream, _) = listener.accept().expect("shardctl connects");
                let mut request = [0; 512];
                let read = stream.read(&mut request).expect("a request");
                write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 6\r\n\r\nanswer").expect("an answer");
                text(&request[..read])
            });
            let run = shardctl(&["admin", "--socket", socket.to_str().expect("UTF-8"), "ready"]);
            assert_eq!((run.status.code(), text(&run.stdout).as_str()), (Some(code), "answer"), "{status}");
            assert!(server.join().expect("the server").starts_with("GET /ready HTTP/1.1\r\n"));
        }
        let nobody = scratch.path().join("none.sock");
        let run = shardctl(&["admin", "--socket", nobody.to_str().expect("UTF-8"), "metrics"]);
        assert_eq!((run.status.code(), run.stdout.len()), (Some(69), 0));
        assert!(text(&run.stderr).contains("cannot connect"), "{}", text(&run.stderr));
    }

    const CONFIG: &str = r#"
listeners:
  web: { address: "127.0.0.1:8080" }
services:
  shop:
    hosts: [shop.example]
    clusters:
      stable: { endpoints: ["127.0.0.1:9001"] }
      canary: { endpoints: ["127.0.0.1:9002", "127.0.0.1:9003"] }
    routes:
      - name: orders
        match: { prefix: /v1/orders, methods: [GET] }
        split: [{ cluster: stable, weight: 90 }, { cluster: canary, weight: 10 }]
        rewrite: { prefix: /orders }
        timeout: 5s
      - name: tenant
        match: { path: /tenant, headers: { x-tenant: blue } }
        cluster: stable
      - name: old
        match: { prefix: /old }
        redirect: { path: /new, status: "308" }
"#;

    fn config(name: &str, text: &str) -> Scratch {
        let directory = Scratch::new(name);
        std::fs::write(directory.path().join("shard.yaml"), text).expect("a config file");
        directory
    }

    #[test]
    fn check_tells_a_good_directory_from_a_bad_one_with_places_and_fixes() {
        let good = config("check-good", CONFIG);
        let run = shardctl(&["check", good.path().to_str().expect("UTF-8")]);
        let out = text(&run.stdout);
        assert_eq!((run.status.code(), run.stderr.len()), (Some(0), 0), "{out}");
        assert!(out.ends_with(": 1 listener, 3 routes, 2 clusters, 0 warnings\n"), "{out}");

        let bad = config(
            "check-bad",
            &CONFIG.replace("timeout: 5s", "timeuot: 5s").replace("weight: 10", "weight: -1"),
        );
        let run = shardctl(&["check", bad.path().to_str().expect("UTF-8")]);
        let out = text(&run.stdout);
        assert_eq!(run.status.code(), Some(1), "{out}");
        let lines: Vec<_> = out.lines().collect();
        assert_eq!(lines.len(), 3, "two errors and the summary: {out}");
        assert!(lines[0].starts_with("shard.yaml:13:") && lines[0].contains("(-1) — "), "{out}");
        assert!(lines[1].starts_with("shard.yaml:15:") && lines[1].contains("`timeout`"), "the fix: {out}");
        assert!(lines[2].ends_with(": 2 errors"), "{out}");

        let run = shardctl(&["check", "/nonexistent"]);
        assert_eq!(run.status.code(), Some(1));
    }

    #[test]
    fn explain_follows_a_request_to_its_end() {
        let directory = config("explain", CONFIG);
        let path = directory.path().to_str().expect("UTF-8");
        for (request, code, lines) in [
            (
                &["GET", "http://shop.example:8080/v1/x/../orders/7?z=1"][..],
                0,
                &[
                    "raw path    /v1/x/../orders/7",
                    "path        /v1/orders/7",
                    "listener    web (127.0.0.1:8080)",
                    "route       shop/orders",
                    "written in  shard.yaml:11 (services.shop.routes[0])",
                    "cluster     shop/stable: HTTP/1.1, 1 endpoint, weight 90 of 100",
                    "cluster     shop/canary: HTTP/1.1, 2 endpoints, weight 10 of 100",
                    "path sent   /orders/7",
                    "timeout     5s",
                ][..],
            ),
            (
                &["GET", "http://SHOP.example:8080/tenant", "-H", "X-Tenant:blue"],
                0,
                &["route       shop/tenant"],
            ),
            (&["GET", "http://shop.example/old/a"], 0, &["answer      redirect 308, path /new"]),
            (&["GET", "http://shop.example:8080/tenant"], 1, &["answer      404 no_route: No route"]),
            (&["POST", "http://shop.example:8080/v1/orders"], 1, &["answer      404 no_route: No route"]),
            (
                &["GET", "http://other.example:8080/"],
                1,
                &["answer      404 no_virtual_host: Host is not served"],
            ),
            (&["GET", "http://shop.example:8080/../x"], 1, &["answer      400 path_rejected: Path refused"]),
            (
                &["GET", "http://shop.example:8080/", "-H", "host: a", "-H", "host: b"],
                1,
                &["answer      400 host_repeated: Host repeated"],
            ),
            (&["GET", "https://shop.example/"], 1, &["listener    none with TLS"]),
        ] {
            let args: Vec<_> =
                ["explain"].iter().chain(request).chain(&["--config", path]).copied().collect();
            let run = shardctl(&args);
            let out = text(&run.stdout);
            assert_eq!(run.status.code(), Some(code), "{request:?}: {out}{}", text(&run.stderr));
            for line in lines {
                assert!(out.lines().any(|l| l == *line), "{request:?} lacks {line:?}:\n{out}");
            }
        }
    }

    #[test]
    fn explain_of_a_bad_directory_prints_its_errors_and_no_way() {
        let directory = config("explain-bad", "listeners: 5\n");
        let path = directory.path().to_str().expect("UTF-8");
        let run = shardctl(&["explain", "GET", "http://a/", "--config", path]);
        assert_eq!((run.status.code(), run.stdout.len()), (Some(1), 0));
        assert!(text(&run.stderr).starts_with("shard.yaml:1:"), "{}", text(&run.stderr));
    }

    #[test]
    fn schemas_are_json_and_name_their_keys() {
        for (args, key) in [
            (&["schema"][..], "services"),
            (&["schema", "platform"], "listeners"),
            (&["schema", "service"], "routes"),
        ] {
            let run = shardctl(args);
            let schema: serde_json::Value = serde_json::from_slice(&run.stdout).expect("JSON");
            assert_eq!(run.status.code(), Some(0));
            assert!(schema.to_string().contains(&format!("\"{key}\"")), "{args:?}");
        }
    }
}
