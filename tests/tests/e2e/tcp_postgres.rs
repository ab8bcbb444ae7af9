//! A real PostgreSQL behind a TCP listener: TLS that the client verifies end to end, bulk both ways, cancellation over a
//! connection of its own, and sessions that outlive a drain and a hot restart.

#![expect(clippy::panic, reason = "helpers fail the test that called them")]

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::process::Signal;
use serde_json::json;
use tests::dir::TempDir;
use tests::port::free_port;
use tests::tls::Authority;
use tests::tool::{Process, run};
use tests::{Cluster, PATIENCE, Proxy, wait_until};

use crate::tcp::{proxy, wait_reason};

const NAME: &str = "db.example";

/// Debian keeps the programs of each version in a folder of its own.
#[track_caller]
fn program(name: &str) -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let found = versions.filter_map(|entry| Some(entry.ok()?.path().join("bin").join(name)));
    found.filter(|path| path.is_file()).max().unwrap_or_else(|| {
        panic!(
            "PostgreSQL's {name} is not installed: run ./test once, or install the packages in .ci/packages"
        )
    })
}

/// A server with a certificate for [`NAME`], which trusts everybody who connects.
struct Postgres {
    process: Process,
    address: SocketAddr,
    dir: TempDir,
}

/// It refuses to run as root: then it runs as Debian's own user for it.
fn user() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let id = |kind| {
        let (ok, output, errors) = run("id", &[kind, "postgres"]);
        assert!(ok, "{errors}");
        output.trim().parse().expect("an id")
    };
    Some((id("-u"), id("-g")))
}

impl Postgres {
    fn start() -> Self {
        let (dir, authority, user) = (TempDir::new("postgres"), Authority::new("tests"), user());
        let own = |path: &Path| {
            if let Some((uid, gid)) = user {
                chown(path, Some(uid), Some(gid)).expect("root may give files away");
            }
        };
        let as_user = |name: &str| {
            let mut command = Command::new(program(name));
            if let Some((uid, gid)) = user {
                command.uid(uid).gid(gid);
            }
            command.current_dir(dir.path());
            command
        };
        let leaf = authority.leaf(&[NAME]);
        let certificate = dir.write("pg/server.pem", &leaf.certificate_pem);
        let key = dir.write("pg/server.key", &leaf.key_pem);
        dir.write("ca.pem", authority.pem());
        let home = dir.path().join("pg");
        [home.as_path(), &certificate, &key].into_iter().for_each(own);
        let data = home.join("data");
        let mut initdb = as_user("initdb");
        initdb.arg("-D").arg(&data).args([
            "-A",
            "trust",
            "-U",
            "postgres",
            "--no-sync",
            "-E",
            "UTF8",
            "--locale=C",
        ]);
        let made = initdb.output().expect("it can be started");
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        let port = free_port();
        let mut server = as_user("postgres");
        server.arg("-D").arg(&data).args(["-p", &port.to_string()]);
        for setting in [
            "listen_addresses=127.0.0.1".to_owned(),
            format!("unix_socket_directories={}", home.display()),
            "fsync=off".to_owned(),
            "ssl=on".to_owned(),
            format!("ssl_cert_file={}", certificate.display()),
            format!("ssl_key_file={}", key.display()),
        ] {
            server.args(["-c", &setting]);
        }
        let process = Process::start("postgres", &dir, &mut server);
        let postgres = Self { process, address: SocketAddr::from(([127, 0, 0, 1], port)), dir };
        wait_until("PostgreSQL answers", PATIENCE * 2, || {
            postgres.try_sql(postgres.address, "", "SELECT 1").is_ok()
        });
        postgres
    }

    /// A client that verifies the server as `name`, or with other `settings` of libpq.
    fn client(&self, address: SocketAddr, settings: &str) -> Command {
        let mut target = format!(
            "host={NAME} hostaddr=127.0.0.1 port={} user=postgres dbname=postgres connect_timeout=10 sslmode=verify-full \
             sslrootcert={}/ca.pem",
            address.port(),
            self.dir.path().display()
        );
        // The last word on a key counts.
        write!(target, " {settings}").expect("a String takes every text");
        let mut command = Command::new(program("psql"));
        command.args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-d", &target]);
        command
    }

    /// What the statements answer, or what psql says instead.
    fn try_sql(&self, address: SocketAddr, settings: &str, sql: &str) -> Result<String, String> {
        let output = self.client(address, settings).args(["-c", sql]).output().expect("psql can be started");
        if output.status.success() {
            Ok(String::from_utf8(output.stdout).expect("UTF-8"))
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    #[track_caller]
    fn sql(&self, address: SocketAddr, settings: &str, sql: &str) -> String {
        self.try_sql(address, settings, sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// A proxy with this server behind the listener `tcp`.
    fn behind_proxy(&self) -> Proxy {
        proxy(&json!({ "cluster": "app/sql" }), vec![Cluster::new("sql", &[self.address])], |_| {})
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // Ends its own children, which a kill would leave to find out.
        if self.process.status().is_none() {
            self.process.signal(Signal::QUIT);
            self.process.wait(PATIENCE);
        }
    }
}

/// A client with a connection that stays.
struct Session {
    psql: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Session {
    fn open(postgres: &Postgres, address: SocketAddr) -> Self {
        let mut command = postgres.client(address, "");
        let mut psql =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("psql can be started");
        let to = psql.stdin.take().expect("it is piped");
        let from = BufReader::new(psql.stdout.take().expect("it is piped"));
        Self { psql, to, from }
    }

    /// The one line that a statement answers.
    #[track_caller]
    fn ask(&mut self, sql: &str) -> String {
        writeln!(self.to, "{sql};").expect("psql reads");
        let mut line = String::new();
        self.from.read_line(&mut line).expect("psql writes lines");
        line.trim_end().to_owned()
    }

    #[track_caller]
    fn close(mut self) {
        drop(self.to);
        assert!(self.psql.wait().expect("our own child").success());
    }
}

#[test]
fn sql_over_tls_that_the_client_verifies_and_in_clear() {
    let postgres = Postgres::start();
    let proxy = postgres.behind_proxy();
    let through = proxy.listener("tcp");
    let tls = "SELECT ssl, version FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    assert_eq!(postgres.sql(through, "", tls), "t|TLSv1.3\n", "the server's own TLS, from end to end");
    assert_eq!(postgres.sql(through, "sslmode=disable", tls), "f|\n");
    let error = postgres.try_sql(through, "host=other.example", tls).expect_err("another name");
    assert!(error.contains("does not match host name"), "{error}");
    let stranger = TempDir::new("stranger");
    let other = stranger.write("ca.pem", Authority::new("others").pem());
    let error = postgres.try_sql(through, &format!("sslrootcert={}", other.display()), tls);
    let error = error.expect_err("another authority");
    assert!(error.contains("certificate verify failed"), "{error}");

    // About 20 MB down and up.
    let rows = "SELECT i, repeat(md5(i::text), 32) FROM generate_series(1, 20000) i";
    for settings in ["", "sslmode=disable"] {
        let copy = format!("COPY ({rows}) TO STDOUT");
        let there = postgres.sql(through, settings, &copy);
        assert!(there.len() > 20_000_000 && there == postgres.sql(postgres.address, settings, &copy));
        let file = postgres.dir.write("rows.tsv", &there);
        postgres.sql(through, settings, "DROP TABLE IF EXISTS rows; CREATE TABLE rows (id int, text text)");
        postgres.sql(through, settings, &format!("\\copy rows FROM '{}'", file.display()));
        let differing = format!("SELECT count(*) FROM (({rows}) EXCEPT (SELECT * FROM rows)) AS missing");
        assert_eq!(postgres.sql(through, settings, &differing), "0\n");
    }

    // The client asks for TLS in PostgreSQL's own words first, so no name is to be seen there.
    let keys = json!({ "server_names": { NAME: "app/sql" } });
    let by_name = crate::tcp::proxy(&keys, vec![Cluster::new("sql", &[postgres.address])], |_| {});
    let error = postgres.try_sql(by_name.listener("tcp"), "", tls);
    error.expect_err("it does not begin with a ClientHello");
    wait_reason(&by_name, "client_hello_bad");
}

#[test]
fn a_query_is_cancelled_over_a_connection_of_its_own() {
    let postgres = Postgres::start();
    let proxy = postgres.behind_proxy();
    let mut command = postgres.client(proxy.listener("tcp"), "");
    command.args(["-c", "SELECT pg_sleep(600)"]).stdout(Stdio::null()).stderr(Stdio::piped());
    let psql = command.spawn().expect("psql can be started");
    let sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    wait_until("it sleeps", PATIENCE, || postgres.sql(postgres.address, "", sleeping) == "1\n");
    let pid = rustix::process::Pid::from_child(&psql);
    rustix::process::kill_process(pid, Signal::INT).expect("our own child");
    let output = psql.wait_with_output().expect("our own child");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("canceling statement due to user request"), "{errors}");
    proxy.wait_metrics("two connections", |metrics| {
        metrics.sum("shard_listener_connections_by_protocol_total", &[("protocol", "tcp")]) == 2.0
    });
}

#[test]
fn sessions_outlive_a_hot_restart_and_a_drain() {
    let postgres = Postgres::start();
    let mut proxy = postgres.behind_proxy();
    let through = proxy.listener("tcp");
    let who = "SELECT pg_backend_pid()";
    let mut first = Session::open(&postgres, through);
    assert_eq!(first.ask("CREATE TEMP TABLE kept AS SELECT 42 AS it; SELECT it FROM kept"), "42");
    let backend = first.ask(who);
    let next = proxy.start_beside("next", &[]);
    let mut before = proxy.replace_process(next);
    proxy.wait_ready();
    // Either process may take it, as long as both listen.
    let mut meanwhile = Session::open(&postgres, through);
    assert_ne!(meanwhile.ask(who), backend);
    assert_eq!((first.ask(who), first.ask("SELECT it FROM kept")), (backend, "42".to_owned()));
    first.close();
    meanwhile.close();
    assert!(before.wait(PATIENCE).success(), "the old process ends with its last session");

    let mut last = Session::open(&postgres, through);
    let backend = last.ask(who);
    proxy.process().signal(Signal::TERM);
    wait_until("no new session", PATIENCE, || postgres.try_sql(through, "", who).is_err());
    assert_eq!(last.ask(who), backend, "the old one goes on");
    last.close();
    assert!(proxy.process().wait(PATIENCE).success());
}
