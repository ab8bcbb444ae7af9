//! Starts the built program: as the light target, and as the generator.
#![expect(clippy::panic, reason = "helpers of tests fail their test")]

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::Value;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_shard-bench");
/// For everything that has to happen at some time.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// A light target; ends on drop.
pub(crate) struct Target {
    child: Child,
    pub(crate) addr: SocketAddr,
}

impl Target {
    pub(crate) fn start(options: &[&str]) -> Self {
        let mut child = Command::new(PROGRAM)
            .arg("serve")
            .args(options)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("it says where it listens");
        let addr = line.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("{line:?}"));
        Self { addr: addr.parse().expect("an address"), child }
    }

    pub(crate) fn url(&self, scheme: &str, path: &str) -> String {
        format!("{scheme}://{}{path}", self.addr)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = i32::try_from(self.pid()).ok().and_then(rustix::process::Pid::from_raw).expect("a pid");
        rustix::process::kill_process(pid, signal).expect("alive");
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // A stopped process still dies of SIGKILL.
        let _gone = self.child.kill();
        let _status = self.child.wait();
    }
}

/// A folder of one test; removed on drop.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("shard-bench-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    pub(crate) fn file(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).expect("room");
        path.display().to_string()
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// Files of [`certificates`]: CA, chain, key.
    pub(crate) fn certificates(&self) -> [String; 3] {
        let (ca, chain, key) = certificates();
        [("ca.pem", ca), ("c.pem", chain), ("k.pem", key)].map(|(name, pem)| self.file(name, pem.as_bytes()))
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).expect("there");
        let mut names: Vec<String> = entries
            .map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _left_behind = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs the generator to its end.
pub(crate) fn bench(words: &[&str]) -> Output {
    Command::new(PROGRAM).args(words).output().expect("the program runs")
}

/// Runs `run` with --json and reads the document. Exit code 2 (the machine was too busy) is as good as 0.
pub(crate) fn run(words: &[&str]) -> Value {
    let folder = Folder::new(&format!("run-{:?}", std::thread::current().id()));
    let json = folder.path("run.json");
    let mut all = vec!["run", "--json", &json];
    all.extend_from_slice(words);
    let output = bench(&all);
    let code = output.status.code();
    assert!(matches!(code, Some(0 | 2)), "{code:?}: {}", text(&output));
    read_json(Path::new(&json))
}

pub(crate) fn read_json(path: &Path) -> Value {
    let bytes = std::fs::read(path).expect("written");
    serde_json::from_slice(&bytes).expect("JSON")
}

pub(crate) fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A number of a document, by the keys on the way to it.
pub(crate) fn number(document: &Value, keys: &[&str]) -> f64 {
    let found = keys.iter().fold(document, |value, key| &value[*key]);
    found.as_f64().unwrap_or_else(|| panic!("no number at {keys:?} in {document}"))
}

/// A small count as a number of a document.
pub(crate) fn float(count: usize) -> f64 {
    f64::from(u32::try_from(count).expect("a small count"))
}

/// A percentile of a phase, in microseconds.
pub(crate) fn percentile(document: &Value, phase: &str, percentile: f64) -> f64 {
    let all = document["phases"][phase]["percentiles"].as_array().unwrap_or_else(|| panic!("no {phase}"));
    let pair =
        all.iter().find(|pair| pair[0].as_f64() == Some(percentile)).expect("a percentile that is kept");
    pair[1].as_f64().expect("a number")
}

/// Looks again and again until `look` finds something.
pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < until, "{what} did not happen");
        pass(Duration::from_millis(5));
    }
}

/// Waits until a run has made `connections` connections.
pub(crate) fn wait_for_connections(run: &Child, connections: usize) {
    let fds = format!("/proc/{}/fd", run.id());
    wait_for("the run's connections", || {
        let entries = std::fs::read_dir(&fds).ok()?.flatten();
        let links = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        let sockets = links.filter(|link| link.to_string_lossy().starts_with("socket:")).count();
        (sockets >= connections).then_some(())
    });
}

/// Lets time pass, where a length of time is what is tested: nobody sends on the channel.
pub(crate) fn pass(span: Duration) {
    let (_sender, receiver) = mpsc::channel::<()>();
    assert!(receiver.recv_timeout(span).is_err());
}

/// A CA and a certificate of it for `localhost` and 127.0.0.1, as PEM: (CA, chain, key).
pub(crate) fn certificates() -> (String, String, String) {
    let ca_key = rcgen::KeyPair::generate().expect("a key");
    let mut ca = rcgen::CertificateParams::new(Vec::<String>::new()).expect("parameters");
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca_certificate = ca.self_signed(&ca_key).expect("signed");
    let issuer = rcgen::Issuer::new(ca, ca_key);
    let key = rcgen::KeyPair::generate().expect("a key");
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let leaf =
        rcgen::CertificateParams::new(names).expect("parameters").signed_by(&key, &issuer).expect("signed");
    (ca_certificate.pem(), leaf.pem(), key.serialize_pem())
}
