//! Metrics of the process as a whole, in Prometheus' text format. Names that begin with `process_` are the ones that
//! client libraries agree on; docs/operations.md lists all of them.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use core_runtime::shard::DriverKind;
use http_balance::generations::Dropped;
use http_balance::ring::RingVersion;

use crate::drains::Drained;

/// What the main thread knows; the rest is read from the system when somebody asks.
#[derive(Debug)]
pub(crate) struct Facts {
    started: Instant,
    started_unix: Duration,
    /// By shard.
    pub(crate) drivers: Vec<DriverKind>,
    pub(crate) shards_running: usize,
    pub(crate) version: String,
    pub(crate) reloads_applied: u64,
    pub(crate) reloads_refused: u64,
    pub(crate) ticket_rotations: u64,
    /// Whether key pages are locked in memory.
    pub(crate) secrets_locked: bool,
    /// How often a name found its family of series full, by the family's label.
    pub(crate) series_overflow: Vec<(&'static str, u64)>,
    pub(crate) log_rows_lost: u64,
    pub(crate) sessions: SessionRings,
    /// By an operator.
    pub(crate) drained: Drained,
}

/// The rings of sticky sessions.
#[derive(Clone, Debug, Default)]
pub(crate) struct SessionRings {
    pub(crate) points: usize,
    /// Of the present ones, by cluster.
    pub(crate) versions: BTreeMap<String, RingVersion>,
    /// Rings of the past that went before their time.
    pub(crate) dropped: Dropped,
}

impl Facts {
    pub(crate) fn new(drivers: Vec<DriverKind>) -> Self {
        Self {
            started: Instant::now(),
            started_unix: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            shards_running: drivers.len(),
            drivers,
            version: String::new(),
            reloads_applied: 0,
            reloads_refused: 0,
            ticket_rotations: 0,
            secrets_locked: false,
            series_overflow: Vec::new(),
            log_rows_lost: 0,
            sessions: SessionRings::default(),
            drained: Drained::default(),
        }
    }

    /// Appends all of them.
    pub(crate) fn render(&self, out: &mut Vec<u8>) {
        let mut page = Page { text: String::new() };
        page.one(
            "shard_build_info",
            "gauge",
            "Always 1.",
            format_args!("{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION")),
        );
        page.one(
            "shard_config_info",
            "gauge",
            "Always 1; the config version in force.",
            format_args!("{{version=\"{}\"}} 1", Escaped(&self.version)),
        );
        page.head("shard_reloads_total", "counter", "Configs loaded after the start, by result.");
        page.line(format_args!("shard_reloads_total{{result=\"applied\"}} {}", self.reloads_applied));
        page.line(format_args!("shard_reloads_total{{result=\"refused\"}} {}", self.reloads_refused));
        page.value("shard_shards", "gauge", "Shards that were started.", self.drivers.len());
        page.value("shard_shards_running", "gauge", "Shards that run.", self.shards_running);
        self.render_drivers(&mut page);
        page.head(
            "shard_series_overflow_total",
            "counter",
            "Names that found their table of series full and count under _overflow.",
        );
        for (family, count) in &self.series_overflow {
            page.line(format_args!("shard_series_overflow_total{{table=\"{family}\"}} {count}"));
        }
        self.render_clusters(&mut page);
        page.value(
            "shard_log_rows_lost_total",
            "counter",
            "Access log rows that their target did not take.",
            self.log_rows_lost,
        );
        page.value(
            "shard_ticket_rotations_total",
            "counter",
            "Replacements of the process's session ticket keys.",
            self.ticket_rotations,
        );
        page.value(
            "shard_secrets_locked",
            "gauge",
            "1 when pages of keys are locked in memory, 0 when the system refused.",
            u8::from(self.secrets_locked),
        );
        page.value(
            "shard_uptime_seconds",
            "gauge",
            "Time since the start.",
            self.started.elapsed().as_secs(),
        );
        page.value(
            "process_start_time_seconds",
            "gauge",
            "Start of the process, Unix time.",
            self.started_unix.as_secs(),
        );
        system(&mut page);
        out.extend_from_slice(page.text.as_bytes());
    }

    fn render_clusters(&self, page: &mut Page) {
        page.head(
            "shard_cluster_endpoints_drained",
            "gauge",
            "Endpoints of a cluster that an operator drains while the process runs; clusters without one are left out.",
        );
        for (cluster, addresses) in &self.drained {
            let count = addresses.len();
            page.line(format_args!(
                "shard_cluster_endpoints_drained{{cluster=\"{}\"}} {count}",
                Escaped(cluster)
            ));
        }
        page.value(
            "shard_session_ring_points",
            "gauge",
            "Points of the rings of sticky sessions, of about 12 bytes each, shared by all cores.",
            self.sessions.points,
        );
        page.head(
            "shard_session_ring_version",
            "gauge",
            "The present ring of a cluster's sticky sessions: proxies with the same number agree on every session.",
        );
        for (cluster, RingVersion(version)) in &self.sessions.versions {
            let cluster = cluster.replace('\\', "\\\\").replace('"', "\\\"");
            page.line(format_args!("shard_session_ring_version{{cluster=\"{cluster}\"}} {version}"));
        }
        page.head(
            "shard_session_rings_dropped_total",
            "counter",
            "Rings of the past that were dropped before the overlap of their sessions was over, by limit.",
        );
        let Dropped { beyond_generations, beyond_points } = self.sessions.dropped;
        for (limit, count) in [("generations", beyond_generations), ("points", beyond_points)] {
            page.line(format_args!("shard_session_rings_dropped_total{{limit=\"{limit}\"}} {count}"));
        }
    }

    fn render_drivers(&self, page: &mut Page) {
        page.head(
            "shard_core_driver_info",
            "gauge",
            "Always 1; how a core waits for the kernel, and why not by a ring.",
        );
        for (core, driver) in self.drivers.iter().enumerate() {
            let (driver, reason) = match driver {
                DriverKind::Ring => ("ring", ""),
                DriverKind::Epoll { reason } => ("epoll", reason.as_str()),
            };
            page.line(format_args!(
                "shard_core_driver_info{{core=\"{core}\",driver=\"{driver}\",reason=\"{}\"}} 1",
                Escaped(reason)
            ));
        }
    }
}

/// What /proc says; a file that cannot be read leaves its metric out.
fn system(page: &mut Page) {
    if let Ok(descriptors) = std::fs::read_dir("/proc/self/fd") {
        // Not the one that lists.
        page.value("process_open_fds", "gauge", "Open descriptors.", descriptors.count().saturating_sub(1));
    }
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    if let Some(max) = limit_of(&limits, "Max open files") {
        page.value("process_max_fds", "gauge", "Limit of open descriptors.", max);
    }
    let bytes = rustix::param::page_size();
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let mut pages = statm.split_ascii_whitespace().map(|word| word.parse::<usize>().ok());
    if let (Some(Some(size)), Some(Some(resident))) = (pages.next(), pages.next()) {
        page.value("process_virtual_memory_bytes", "gauge", "Virtual memory.", size.saturating_mul(bytes));
        page.value(
            "process_resident_memory_bytes",
            "gauge",
            "Resident memory.",
            resident.saturating_mul(bytes),
        );
    }
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    if let Some(seconds) = cpu_seconds(&stat) {
        page.value("process_cpu_seconds_total", "counter", "User and system time.", Hundredths(seconds));
    }
    let count = std::fs::read_dir("/proc/self/task").map(Iterator::count);
    if let Ok(count) = count {
        page.value("process_threads", "gauge", "Threads.", count);
    }
}

/// The soft limit in a line of /proc/self/limits.
fn limit_of(limits: &str, name: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// User and system time in hundredths of a second, from /proc/self/stat (proc_pid_stat(5), fields 14 and 15).
fn cpu_seconds(stat: &str) -> Option<u64> {
    // The name in field 2 may hold blanks and brackets.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let ticks = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    Some(ticks.saturating_mul(100) / rustix::param::clock_ticks_per_second().max(1))
}

struct Hundredths(u64);

impl fmt::Display for Hundredths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}", self.0 / 100, self.0 % 100)
    }
}

/// A label's value: backslash, quote and line feed as the text format wants them.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|character| match character {
            '\\' => f.write_str("\\\\"),
            '"' => f.write_str("\\\""),
            '\n' => f.write_str("\\n"),
            other => f.write_char(other),
        })
    }
}

struct Page {
    text: String,
}

impl Page {
    fn line(&mut self, line: fmt::Arguments<'_>) {
        writeln!(self.text, "{line}").expect("a String takes every text");
    }

    fn head(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, sample: fmt::Arguments<'_>) {
        self.head(name, kind, help);
        self.line(format_args!("{name}{sample}"));
    }

    fn value(&mut self, name: &str, kind: &str, help: &str, value: impl fmt::Display) {
        self.one(name, kind, help, format_args!(" {value}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_read_as_documented() {
        let limits = "Limit   Soft Limit  Hard Limit  Units\nMax open files            1024                 524288               files     \n";
        assert_eq!(limit_of(limits, "Max open files"), Some(1024));
        assert_eq!(limit_of("Max open files unlimited unlimited files", "Max open files"), None);
        assert_eq!(limit_of("", "Max open files"), None);
        let stat = "42 (a) b) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0";
        let ticks = rustix::param::clock_ticks_per_second();
        assert_eq!(cpu_seconds(stat), Some(200 * 100 / ticks));
        assert_eq!(cpu_seconds("42 (x"), None);
    }

    #[test]
    fn the_page_has_one_head_for_each_metric_and_whole_lines() {
        let mut facts =
            Facts::new(vec![DriverKind::Ring, DriverKind::Epoll { reason: "a \"b\"\nc".to_owned() }]);
        facts.series_overflow = vec![("route", 3), ("cluster", 0)];
        let mut out = Vec::new();
        facts.render(&mut out);
        let text = String::from_utf8(out).expect("UTF-8");
        let mut families = Vec::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                families.push(rest.split(' ').next().expect("a name"));
            } else if !line.starts_with('#') {
                let (name, value) = line.rsplit_once(' ').expect("a sample");
                assert!(value.parse::<f64>().is_ok(), "{line}");
                assert_eq!(name.split('{').next(), families.last().copied(), "{line}");
            }
        }
        let count = families.len();
        families.sort_unstable();
        families.dedup();
        assert_eq!(families.len(), count);
        assert!(text.contains("core=\"1\",driver=\"epoll\",reason=\"a \\\"b\\\"\\nc\"} 1\n"));
        for expected in ["process_open_fds ", "process_resident_memory_bytes ", "process_cpu_seconds_total "]
        {
            assert!(text.contains(expected), "{expected}");
        }
    }
}
