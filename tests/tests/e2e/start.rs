//! Starts that fail: a clear message, a documented exit code, and nothing left behind.

use std::net::TcpListener;
use std::process::Command;

use tests::dir::TempDir;
use tests::proxy::binary;
use tests::tool::Process;
use tests::{Config, PATIENCE, Proxy, origin};

/// Runs the proxy with a config directory and arguments until it ends: exit code and log.
#[track_caller]
fn run(config: &Config, arguments: &[&str]) -> (Option<i32>, String) {
    let dir = TempDir::new("start");
    for (path, content) in config.files() {
        dir.write(&format!("config/{path}"), content);
    }
    let mut command = Command::new(binary("shard-proxy"));
    command.arg("--config").arg(dir.path().join("config")).args(arguments);
    let mut process = Process::start("start", &dir, &mut command);
    let status = process.wait(PATIENCE);
    (status.code(), process.log())
}

fn echo_config() -> (tests::Origin, Config) {
    let origin = origin::echo();
    let config = Config::to(origin.address());
    (origin, config)
}

#[test]
fn an_address_in_use_names_listener_address_and_place() {
    let (_origin, config) = echo_config();
    let address = ("127.0.0.1", config.listeners[0].port);
    let _holder = TcpListener::bind(address).expect("a free port");
    let (code, log) = run(&config, &["--shards", "1"]);
    assert_eq!(code, Some(69), "{log}");
    for part in
        ["\"main\"", &format!("127.0.0.1:{}", address.1), "another process listens there", "listeners.yaml:"]
    {
        assert!(log.contains(part), "{part} is missing in {log}");
    }
}

#[test]
fn a_second_proxy_does_not_share_the_port_of_the_first_in_silence() {
    let (_origin, config) = echo_config();
    let proxy = Proxy::start(config.clone());
    let (code, log) = run(&config, &["--shards", "1"]);
    assert_eq!(code, Some(69), "{log}");
    assert_eq!(proxy.get("/").status, 200);
}

#[test]
fn config_errors_are_told_apart_from_wrong_usage() {
    let (_origin, config) = echo_config();
    let broken = config
        .clone()
        .route(|route| route.action = tests::config::Action::Forward(vec![("nowhere".to_owned(), 1)]));
    for arguments in [&["--check"][..], &["--shards", "1"]] {
        let (code, log) = run(&broken, arguments);
        assert_eq!(code, Some(78), "{log}");
        assert!(log.contains("nowhere"), "{log}");
    }
    let (code, log) = run(&config, &["--check"]);
    assert_eq!(code, Some(0), "{log}");
    let (code, log) = run(&config, &["--shards", "none"]);
    assert_eq!(code, Some(64), "{log}");
}

#[test]
fn the_admin_address_must_be_private_and_free() {
    let (_origin, config) = echo_config();
    let holder = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let taken = holder.local_addr().expect("bound").to_string();
    let file = TempDir::new("admin");
    let precious = file.write("precious", "data");
    let no_socket = format!("unix:{}", precious.display());
    for (admin, part) in [
        ("0.0.0.0:9901", "loopback"),
        ("somewhere", "admin listener somewhere"),
        (taken.as_str(), "in use"),
        (no_socket.as_str(), "no socket"),
    ] {
        let (code, log) = run(&config, &["--shards", "1", "--admin", admin]);
        assert_eq!(code, Some(69), "{admin}: {log}");
        assert!(log.contains(part), "{admin}: {log}");
    }
    assert_eq!(std::fs::read(precious).expect("still there"), b"data");
}

#[test]
fn a_driver_that_is_not_there_ends_the_start() {
    // A limit of no locked memory and no descriptors to spare is not portable to test; the operator's choice is.
    let (_origin, config) = echo_config();
    let proxy = Proxy::start_with(config, &["--driver", "epoll"]);
    assert!(proxy.log().contains("runs on epoll: chosen by the operator"), "{}", proxy.log());
    let metrics = proxy.metrics();
    assert!((metrics.sum("shard_core_driver_info", &[("driver", "epoll")]) - 1.0).abs() < f64::EPSILON);
}
