//! shard-l4 as it is run, in a network namespace of its own: what it says, keeps, replaces, refuses and leaves behind.
//!
//! Where the kernel refuses namespaces or BPF, the test says so on standard error and does nothing.
#![expect(clippy::tests_outside_test_module, reason = "this whole file is a test target")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

const DEADLINE: Duration = Duration::from_secs(60);
/// Tests of this binary that did nothing so far.
static SKIPPED: AtomicUsize = AtomicUsize::new(0);

fn skipped(why: &str) {
    let count = SKIPPED.fetch_add(1, Ordering::Relaxed) + 1;
    // Past the test harness, which swallows what a test that passes prints by macro. Nothing is left to say it with when
    // standard error is closed.
    let line = format!("SKIPPED: {why} ({count} skipped in this binary so far)\n");
    drop(std::io::stderr().write_all(line.as_bytes()));
}

const PAUSE: Duration = Duration::from_millis(20);

/// Two processes' worth of privacy: a network namespace with a veth pair, and a BPF file system that nobody else sees.
/// Both end with the process that holds them.
struct Namespace {
    holder: Child,
}

impl Namespace {
    /// `None` where the kernel does not allow it; the reason is on standard error.
    fn new() -> Option<Self> {
        const SETUP: &str = "mount -t bpf bpf /sys/fs/bpf && ip link set lo up && ip link add in0 type veth peer name \
                             out0 && ip link set in0 up && ip link set out0 up && echo up && exec cat";
        if let Err(error) = l4_load::probe() {
            skipped(&format!("the kernel refuses BPF: {error}"));
            return None;
        }
        let mut holder = Command::new("unshare")
            .args(["--net", "--mount", "sh", "-c", SETUP])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare is installed");
        let mut line = String::new();
        BufReader::new(holder.stdout.as_mut().expect("piped")).read_line(&mut line).expect("a line");
        if line.trim() != "up" {
            skipped("the kernel refuses namespaces, or a BPF file system in one");
            holder.wait().expect("it has ended");
            return None;
        }
        Some(Self { holder })
    }

    fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("nsenter");
        let pid = self.holder.id().to_string();
        command.args(["--target", &pid, "--net", "--mount", "--"]).arg(program.as_ref());
        command
    }

    /// Whether an XDP program is attached to the interface.
    fn has_program(&self) -> bool {
        let output = self.command("ip").args(["link", "show", "dev", "in0"]).output().expect("ip runs");
        String::from_utf8_lossy(&output.stdout).contains("xdp")
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        assert!(self.holder.wait().is_ok() || std::thread::panicking());
    }
}

/// Files of one test, removed at the end.
struct Site {
    directory: PathBuf,
}

const FILE: &str = "\
hash_key: key
proxies:
  a: { id: 1, address: 10.0.0.1 }
  b: { id: 2, address: 10.0.0.2 }
  c: { id: 3, address: 10.0.0.3 }
vips:
  web: { addresses: [192.0.2.1], ports: [80] }
drop_rules:
  - { source: 203.0.113.0/24 }
host: { interfaces: [in0], addresses: [10.0.0.9] }
announce: { file4: ANNOUNCED }
";

impl Site {
    fn new(name: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("shard-l4-{}-{name}", std::process::id()));
        fs::create_dir_all(&directory).expect("the temporary directory is writable");
        fs::write(directory.join("key"), [7; 16]).expect("writable");
        let site = Self { directory };
        site.write(FILE);
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn write(&self, text: &str) {
        let announced = self.path("announced").display().to_string();
        fs::write(self.path("l4.yaml"), text.replace("ANNOUNCED", &announced)).expect("writable");
    }

    fn announced(&self) -> String {
        fs::read_to_string(self.path("announced")).unwrap_or_default()
    }

    fn run(&self, namespace: &Namespace, options: &[&str]) -> Output {
        let mut command = namespace.command(env!("CARGO_BIN_EXE_shard-l4"));
        command.arg("--config").arg(self.path("l4.yaml")).args(options).output().expect("it runs")
    }

    fn start(&self, namespace: &Namespace) -> Daemon<'_> {
        let log = fs::File::create(self.path("log")).expect("writable");
        let mut command = namespace.command(env!("CARGO_BIN_EXE_shard-l4"));
        command.arg("--config").arg(self.path("l4.yaml")).arg("--control").arg(self.path("control"));
        let child = command.stderr(log).spawn().expect("it starts");
        let mut daemon = Daemon { site: self, child };
        daemon
            .wait_for("ready", |daemon| daemon.ask("GET", "/ready").is_some_and(|(status, _)| status == 200));
        daemon
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        assert!(fs::remove_dir_all(&self.directory).is_ok() || std::thread::panicking());
    }
}

struct Daemon<'a> {
    site: &'a Site,
    child: Child,
}

impl Daemon<'_> {
    /// Status and body; `None` while nobody answers.
    fn ask(&self, method: &str, path: &str) -> Option<(u16, String)> {
        let mut stream = UnixStream::connect(self.site.path("control")).ok()?;
        stream.write_all(format!("{method} {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let status = answer.split(' ').nth(1)?.parse().ok()?;
        Some((status, answer.split_once("\r\n\r\n")?.1.to_owned()))
    }

    fn json(&self, method: &str, path: &str) -> Value {
        let (status, body) = self.ask(method, path).expect("an answer");
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).expect("JSON")
    }

    fn metric(&self, name: &str) -> Option<u64> {
        let (_, text) = self.ask("GET", "/metrics").expect("an answer");
        let line = text.lines().find(|line| line.split(' ').next() == Some(name))?;
        line.split(' ').nth(1)?.parse().ok()
    }

    fn proxy(&self, name: &str) -> Value {
        let shown = self.json("GET", "/show");
        let proxies = shown["proxies"].as_array().expect("a list");
        proxies.iter().find(|proxy| proxy["name"] == name).expect("the proxy is listed").clone()
    }

    fn wait_for(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let until = Instant::now() + DEADLINE;
        while !holds(self) {
            let ended = self.child.try_wait().expect("a child");
            assert!(ended.is_none(), "it ended while waiting for {what}: {}", self.site.log());
            assert!(Instant::now() < until, "no {what}: {}", self.site.log());
            std::thread::park_timeout(PAUSE);
        }
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status();
        assert!(status.expect("kill runs").success());
    }

    fn reload(&mut self, text: &str, counter: &str) {
        let before = self.metric(counter).expect("a counter");
        self.site.write(text);
        self.signal("HUP");
        self.wait_for(counter, |daemon| daemon.metric(counter) == Some(before + 1));
    }

    fn stop(mut self) -> String {
        self.signal("TERM");
        let status = self.child.wait().expect("it ends");
        assert!(status.success(), "{status}: {}", self.site.log());
        self.site.log()
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        // It has ended already, or a failed assertion leaves it behind.
        match self.child.kill().and_then(|()| self.child.wait()) {
            Ok(_) | Err(_) => {}
        }
    }
}

#[test]
fn it_starts_reloads_restarts_and_detaches_on_request_only() {
    let Some(namespace) = Namespace::new() else { return };
    let site = Site::new("life");
    let mut daemon = site.start(&namespace);
    assert!(namespace.has_program());
    assert_eq!(site.announced(), "route 192.0.2.1/32 blackhole;\n");
    let rows: u64 = ["a", "b", "c"].iter().filter_map(|name| daemon.proxy(name)["rows"].as_u64()).sum();
    assert_eq!(rows, 65_537);

    // A wrong file changes nothing and is explained.
    daemon.reload(&FILE.replace("id: 2", "id: 1"), "shard_l4_reloads_refused_total");
    assert!(
        site.log().contains("l4.yaml:4:12: proxies.b.id: `1`: this id is already taken"),
        "{}",
        site.log()
    );
    assert_eq!(daemon.proxy("b")["id"], 2);

    // A drain takes effect, and the next planned change waits visibly.
    let drained = FILE.replace("id: 2,", "id: 2, state: draining,");
    daemon.reload(&drained, "shard_l4_reloads_applied_total");
    let b = daemon.proxy("b");
    assert_eq!((b["rows"].as_u64(), b["state"].as_str()), (Some(0), Some("draining")));
    let asked_second = b["rows_previous"].as_u64().expect("a number");
    assert!(asked_second > 20_000, "{b}");
    daemon.reload(&drained.replace("id: 3,", "id: 3, state: draining,"), "shard_l4_reloads_applied_total");
    assert_eq!(daemon.proxy("c")["state"], "active");
    assert!(daemon.json("GET", "/show")["list_waiting"].is_string());
    assert_eq!(daemon.metric("shard_l4_change_waiting"), Some(1));
    daemon.reload(&drained, "shard_l4_reloads_applied_total");
    assert_eq!(daemon.metric("shard_l4_change_waiting"), Some(0), "taken back");

    // What the program itself is told needs a restart.
    let smaller = drained.replace("host: {", "host: { mtu: 1400,");
    daemon.reload(&smaller, "shard_l4_reloads_refused_total");
    assert!(site.log().contains("restart the daemon"), "{}", site.log());

    // It ends; the program and its tables stay, the announcement goes.
    let log = daemon.stop();
    assert!(log.contains("starting from empty maps") && log.contains("in0: attached"), "{log}");
    assert!(namespace.has_program());
    assert_eq!(site.announced(), "");

    // Its successor takes over what it finds.
    let daemon = site.start(&namespace);
    assert_eq!(daemon.proxy("b")["rows_previous"].as_u64(), Some(asked_second));
    let log = daemon.stop();
    assert!(log.contains("starting from the tables in the kernel"), "{log}");
    assert!(log.contains("in0: replaced the running program"), "{log}");

    let output = site.run(&namespace, &["--detach"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!namespace.has_program());
}

#[test]
fn it_answers_where_a_flow_goes_and_drains_the_box() {
    let Some(namespace) = Namespace::new() else { return };
    let site = Site::new("ask");
    let daemon = site.start(&namespace);
    let path = "/lookup?protocol=tcp&source=198.51.100.7:4711&destination=";
    let found = daemon.json("GET", &format!("{path}192.0.2.1:80"));
    assert_eq!((found["vip"].as_str(), found["because"].as_str()), (Some("web"), Some("of its row")));
    assert_eq!(found["goes_to"], found["current"]);
    assert!(daemon.json("GET", &format!("{path}192.0.2.1:81"))["vip"].is_null());
    let dropped = daemon.json("GET", "/lookup?protocol=tcp&source=203.0.113.9:1&destination=192.0.2.1:80");
    assert!(dropped["goes_to"].is_null() && dropped["rule"]["source"] == "203.0.113.0/24", "{dropped}");
    assert_eq!(dropped["because"], "a drop rule drops it");
    assert!(daemon.json("GET", "/flows")["flows"].is_array());
    assert!(daemon.json("GET", "/counters")["vips"].is_array());
    daemon.json("POST", "/trace?one_in=1");
    assert!(daemon.json("GET", "/trace")["events"].is_array());
    assert_eq!(daemon.ask("GET", "/lookup").expect("an answer").0, 400);

    assert_eq!(daemon.json("POST", "/drain")["phase"], "drained");
    assert_eq!((site.announced().as_str(), daemon.metric("shard_l4_announced")), ("", Some(0)));
    assert_eq!(daemon.ask("GET", "/ready").expect("an answer").0, 503);
    assert_eq!(daemon.json("POST", "/undrain")["announced"], true);
    assert_ne!(site.announced(), "");

    // Only the rights for BPF and interfaces are left: NET_ADMIN 12, PERFMON 38, BPF 39.
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.child.id())).expect("it runs");
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("a line");
    let rights = u64::from_str_radix(effective.trim(), 16).expect("hexadecimal");
    assert_eq!(rights & !(1 << 12 | 1 << 38 | 1 << 39), 0, "{effective}");
    daemon.stop();
}

#[test]
fn what_is_missing_is_named() {
    let Some(namespace) = Namespace::new() else { return };
    let site = Site::new("missing");
    let fails = |text: &str, code: i32, part: &str| {
        site.write(text);
        let output = site.run(&namespace, &["--control", &site.path("control").display().to_string()]);
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{log}");
        assert!(log.contains(part), "{part}: {log}");
    };
    fails(&FILE.replace("vips:", "vipz:"), 78, "did you mean `vips`?");
    fails(&FILE.replace("in0", "none0"), 71, "none0: the program cannot be attached");
    let elsewhere = site.path("pins").display().to_string();
    fails(&FILE.replace("host: {", &format!("host: {{ pin_directory: {elsewhere},")), 71, "mount -t bpf");
    assert!(!namespace.has_program());
    // Root without some of the rights: those, and no others, are named.
    site.write(FILE);
    for (without, named) in [
        ("-bpf,-net_admin,-perfmon,-sys_admin", "CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON, CAP_SYS_ADMIN ("),
        ("-bpf,-sys_admin", "missing is CAP_BPF, CAP_SYS_ADMIN ("),
        ("-perfmon,-sys_admin", "missing is CAP_PERFMON, CAP_SYS_ADMIN ("),
        ("-sys_admin", "missing is CAP_SYS_ADMIN ("),
    ] {
        let output = namespace
            .command("setpriv")
            .args(["--inh-caps=-all", "--bounding-set", without])
            .args([env!("CARGO_BIN_EXE_shard-l4"), "--config", &site.path("l4.yaml").display().to_string()])
            .args(["--control", &site.path("control").display().to_string()])
            .output()
            .expect("setpriv runs");
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(71), "{without}: {log}");
        assert!(log.contains(named), "{without}: {log}");
    }
}

#[test]
fn a_driver_without_native_xdp_gets_the_generic_mode_and_the_log_says_so() {
    let Some(namespace) = Namespace::new() else { return };
    let site = Site::new("generic");
    // The loopback interface has no native XDP.
    let here = FILE.replace("[in0]", "[lo]");
    site.write(&here);
    let daemon = site.start(&namespace);
    assert_eq!(daemon.json("GET", "/show")["interfaces"][0]["mode"], "generic");
    let log = daemon.stop();
    assert!(log.contains("lo: attached, mode generic"), "{log}");
    assert!(log.contains("lo: its driver has no native XDP"), "{log}");
    assert!(site.run(&namespace, &["--detach"]).status.success());

    site.write(&here.replace("host: {", "host: { attach: native,"));
    let output = site.run(&namespace, &["--control", &site.path("control").display().to_string()]);
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(71), "{log}");
    assert!(log.contains("lo: the program cannot be attached"), "{log}");
}

#[test]
fn every_counter_is_documented() {
    let Some(namespace) = Namespace::new() else { return };
    let site = Site::new("counters");
    let daemon = site.start(&namespace);
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/l4.md")).expect("a page");
    let (_, text) = daemon.ask("GET", "/metrics").expect("an answer");
    let names = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let mut count = 0;
    for name in names {
        count += 1;
        assert!(page.contains(&format!("`{name}`")) || page.contains(&format!("`{name}{{")), "{name}");
    }
    assert!(count > 15, "{text}");
    for decision in l4_abi::Decision::ALL {
        assert!(page.contains(&format!("`{}`", decision.name())), "{decision:?}");
    }
    daemon.stop();
}

/// A BIRD with a config of its own; ends with this value.
struct Bird<'a> {
    namespace: &'a Namespace,
    control: PathBuf,
    child: Child,
}

impl<'a> Bird<'a> {
    fn start(namespace: &'a Namespace, site: &Site, name: &str, config: &str) -> Self {
        let (file, control) = (site.path(&format!("{name}.conf")), site.path(&format!("{name}.ctl")));
        fs::write(&file, config).expect("writable");
        let child = namespace
            .command("/usr/sbin/bird")
            .args(["-f", "-c"])
            .arg(&file)
            .arg("-s")
            .arg(&control)
            .spawn()
            .expect("bird starts");
        Self { namespace, control, child }
    }

    fn routes(&self) -> String {
        let mut command = self.namespace.command("/usr/sbin/birdc");
        let output =
            command.arg("-s").arg(&self.control).args(["show", "route"]).output().expect("birdc runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Whether both VIPs are known, or neither.
    fn wait_until_known(&self, is_known: bool, when: &str) {
        let until = Instant::now() + DEADLINE;
        loop {
            let routes = self.routes();
            let known = ["192.0.2.1/32", "2001:db8::1/128"].map(|prefix| routes.contains(prefix));
            if known == [is_known; 2] {
                return;
            }
            assert!(Instant::now() < until, "{when}: {routes}");
            std::thread::park_timeout(PAUSE);
        }
    }
}

impl Drop for Bird<'_> {
    fn drop(&mut self) {
        match self.child.kill().and_then(|()| self.child.wait()) {
            Ok(_) | Err(_) => {}
        }
    }
}

#[test]
fn a_router_learns_the_vips_from_bird_only_while_the_box_is_ready() {
    let Some(namespace) = Namespace::new() else { return };
    if !Path::new("/usr/sbin/bird").exists() {
        skipped("bird2 is not installed");
        return;
    }
    let site = Site::new("bird");
    let (four, six) = (site.path("announced"), site.path("announced6"));
    for file in [&four, &six] {
        fs::write(file, "").expect("writable");
    }
    let bgp = |name: &str, from: (&str, u16, u32), to: (&str, u16, u32), channel: &str| {
        format!(
            "protocol device {{}}\nprotocol bgp {name} {{ local {} port {} as {}; neighbor {} port {} as {}; multihop; \
             connect delay time 1; ipv4 {{ {channel} next hop address 127.0.0.1; }}; \
             ipv6 {{ {channel} next hop address 2001:db8:9::1; }}; }}\n",
            from.0, from.1, from.2, to.0, to.1, to.2
        )
    };
    let (here, there) = (("127.0.0.1", 1790, 65_001), ("127.0.0.2", 1791, 65_002));
    let statics = format!(
        "router id 10.9.0.1;\nprotocol static vips4 {{\nipv4;\ninclude \"{}\";\n}}\nprotocol static vips6 {{\nipv6;\n\
         include \"{}\";\n}}\n",
        four.display(),
        six.display()
    );
    let router_config =
        format!("router id 10.9.0.2;\n{}", bgp("box1", there, here, "import all; export none;"));
    let router = Bird::start(&namespace, &site, "router", &router_config);
    let speaker_config = format!("{statics}{}", bgp("router1", here, there, "import none; export all;"));
    let _speaker = Bird::start(&namespace, &site, "speaker", &speaker_config);
    router.wait_until_known(false, "before the start");

    let control = site.path("speaker.ctl").display().to_string();
    site.write(&FILE.replace("[192.0.2.1]", "[192.0.2.1, \"2001:db8::1\"]").replace(
        "{ file4: ANNOUNCED }",
        &format!(
            "{{ file4: ANNOUNCED, file6: {}, command: [birdc, -s, {control}, configure] }}",
            six.display()
        ),
    ));
    let daemon = site.start(&namespace);
    router.wait_until_known(true, "ready");
    daemon.json("POST", "/drain");
    router.wait_until_known(false, "drained");
    daemon.json("POST", "/undrain");
    router.wait_until_known(true, "no longer drained");
    // A daemon that dies leaves the program, which goes on forwarding, and so the announcement; its successor takes both over.
    let mut daemon = daemon;
    daemon.signal("KILL");
    assert!(!daemon.child.wait().expect("it ends").success());
    let configured = namespace
        .command("/usr/sbin/birdc")
        .args(["-s", &control, "configure"])
        .output()
        .expect("birdc runs");
    assert!(configured.status.success(), "{}", String::from_utf8_lossy(&configured.stdout));
    router.wait_until_known(true, "killed");
    assert!(namespace.has_program());
    drop(daemon);
    let daemon = site.start(&namespace);
    router.wait_until_known(true, "started again");
    daemon.stop();
    router.wait_until_known(false, "ended");
}
