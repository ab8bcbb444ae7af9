//! Frames of all cores, their sums, and the page that Prometheus reads. Lives on the aggregator thread.
//!
//! A core fills a frame and sends it; [`Aggregate::accept`] keeps it and hands back the core's frame before, which
//! travels home to be filled again. So there are two frames a core, nothing is allocated after warm-up, and adding
//! up happens only when somebody asks.

use super::metrics::{self, write_list};
use super::names::{Names, overflow_labels};
use super::rows::{Row, Table};
use super::stats::{CoreStats, StatTable};

/// The counters of one core at one moment.
#[derive(Clone, Debug, Default)]
pub struct Frame {
    stats: CoreStats,
    news: Vec<NewsLine>,
}

/// Something for the operations log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewsLine {
    pub level: NewsLevel,
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewsLevel {
    Info,
    Warn,
    Error,
}

impl NewsLine {
    pub(crate) const fn info(text: String) -> Self {
        Self { level: NewsLevel::Info, text }
    }

    pub(crate) const fn warn(text: String) -> Self {
        Self { level: NewsLevel::Warn, text }
    }

    pub(crate) const fn error(text: String) -> Self {
        Self { level: NewsLevel::Error, text }
    }
}

impl Frame {
    /// Takes the core's counters; allocates only when tables have grown.
    pub fn copy_from(&mut self, stats: &CoreStats) {
        self.stats.copy_from(stats);
    }

    pub const fn stats(&self) -> &CoreStats {
        &self.stats
    }

    /// What has happened since the frame before; whoever receives the frame takes it out.
    pub const fn news_mut(&mut self) -> &mut Vec<NewsLine> {
        &mut self.news
    }
}

/// The last frame of each core.
#[derive(Debug, Default)]
pub struct Aggregate {
    frames: Vec<Option<Box<Frame>>>,
    sum: CoreStats,
}

impl Aggregate {
    pub fn new(cores: usize) -> Self {
        Self { frames: (0..cores).map(|_| None).collect(), sum: CoreStats::default() }
    }

    /// Keeps `frame` as the last one of `core` and returns the one before, to be sent back to that core. A frame
    /// of an unknown core comes straight back.
    pub fn accept(&mut self, core: usize, frame: Box<Frame>) -> Option<Box<Frame>> {
        match self.frames.get_mut(core) {
            Some(slot) => slot.replace(frame),
            None => Some(frame),
        }
    }

    /// The last counters of each core, None for one that has not reported yet.
    pub fn cores(&self) -> impl ExactSizeIterator<Item = Option<&CoreStats>> {
        self.frames.iter().map(|frame| frame.as_ref().map(|frame| frame.stats()))
    }

    /// The sums over all cores that have reported.
    pub fn totals(&mut self) -> &CoreStats {
        self.sum.clear();
        for frame in self.frames.iter().flatten() {
            self.sum.add(&frame.stats);
        }
        &self.sum
    }

    /// Appends all metrics in Prometheus' text format 0.0.4.
    pub fn render(&mut self, names: &Names, out: &mut Vec<u8>) {
        self.totals();
        let sum = &self.sum;
        write_list(out, metrics::PROCESS, || std::iter::once(("", sum)));
        let cores: Vec<(String, &CoreStats)> = self
            .frames
            .iter()
            .enumerate()
            .filter_map(|(core, frame)| Some((format!("core=\"{core}\""), &frame.as_ref()?.stats)))
            .collect();
        write_list(out, metrics::CORE, || cores.iter().map(|(labels, stats)| (labels.as_str(), *stats)));
        write_list(out, metrics::LISTENER, || rows(&sum.listeners, names, StatTable::Listener));
        write_list(out, metrics::ROUTE, || rows(&sum.routes, names, StatTable::Route));
        write_list(out, metrics::CLUSTER, || rows(&sum.clusters, names, StatTable::Cluster));
        write_list(out, metrics::ENDPOINT, || rows(&sum.endpoints, names, StatTable::Endpoint));
    }
}

/// The named rows of a table and, last, the overflow row.
fn rows<'a, R: Row>(
    table: &'a Table<R>,
    names: &'a Names,
    kind: StatTable,
) -> impl Iterator<Item = (&'a str, &'a R)> {
    let named = names.iter(kind).filter_map(|(id, labels)| Some((labels, table.row(id)?)));
    named.chain(std::iter::once((overflow_labels(kind), table.overflow())))
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};
    use std::time::Duration;

    use super::*;
    use crate::reason::Reason;
    use crate::record::{Outcome, Stage, TableSizes};
    use crate::snapshot::StatId;

    fn stats(requests: u32, route: u32) -> CoreStats {
        let mut stats = CoreStats::default();
        stats.grow(TableSizes { listeners: 1, routes: 4, clusters: 1, endpoints: 1 });
        for n in 0..requests {
            let mut outcome = Outcome { route: Some(StatId(route)), status: 200, ..Outcome::default() };
            outcome.stages.set(Stage::Total, Duration::from_micros(u64::from(n) * 100));
            stats.record(&outcome);
        }
        stats.gauges.connections = u64::from(requests) + 1;
        stats
    }

    fn frame(stats: &CoreStats) -> Box<Frame> {
        let mut frame = Box::new(Frame::default());
        frame.copy_from(stats);
        frame
    }

    fn page(aggregate: &mut Aggregate, names: &Names) -> String {
        let mut out = Vec::new();
        aggregate.render(names, &mut out);
        String::from_utf8(out).unwrap()
    }

    fn value(page: &str, series: &str) -> Option<u64> {
        page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
    }

    #[test]
    fn the_last_frame_of_each_core_counts_and_the_one_before_goes_home() {
        let mut aggregate = Aggregate::new(2);
        let mut names = Names::default();
        names.set_route(StatId(1), "one");
        assert!(aggregate.accept(0, frame(&stats(3, 1))).is_none());
        assert!(aggregate.accept(1, frame(&stats(4, 1))).is_none());
        let home = aggregate.accept(0, frame(&stats(10, 1))).unwrap();
        assert_eq!(home.stats().route(StatId(1)).unwrap().requests[2], 3);
        assert!(aggregate.accept(7, home).is_some(), "a core that does not exist");
        let page = page(&mut aggregate, &names);
        assert_eq!(value(&page, "shard_requests_total{method=\"GET\"}"), Some(14));
        assert_eq!(value(&page, "shard_route_requests_total{route=\"one\",class=\"2xx\"}"), Some(14));
        assert_eq!(value(&page, "shard_core_connections{core=\"0\"}"), Some(11));
        assert_eq!(value(&page, "shard_core_connections{core=\"1\"}"), Some(5));
        assert_eq!(value(&page, "shard_reasons_total{reason=\"ok\"}"), Some(14));
        assert_eq!(value(&page, "shard_stage_seconds_count{stage=\"total\"}"), Some(14));
        assert_eq!(aggregate.totals().reason_count(Reason::Ok), 14);
    }

    #[test]
    fn series_without_a_name_are_not_shown_and_ids_without_a_row_overflow() {
        let mut aggregate = Aggregate::new(1);
        let mut names = Names::default();
        names.set_route(StatId(2), "stays");
        names.set_route(StatId(9_000), "not in any table yet");
        aggregate.accept(0, frame(&stats(5, 1)));
        let text = page(&mut aggregate, &names);
        assert!(text.contains("shard_route_failures_total{route=\"stays\"} 0"));
        assert!(!text.contains("route=\"one\"") && !text.contains("not in any"));
        names.remove(StatTable::Route, StatId(2));
        assert!(!page(&mut aggregate, &names).contains("stays"));
        aggregate.accept(0, frame(&stats(6, 4)));
        let overflow = "shard_route_requests_total{route=\"_overflow\",class=\"2xx\"}";
        assert_eq!(value(&page(&mut aggregate, &names), overflow), Some(6));
    }

    #[test]
    fn the_page_is_well_formed() {
        let mut aggregate = Aggregate::new(2);
        let mut names = Names::default();
        names.set_listener(StatId(0), "a\"b\\c\nd{}");
        names.set_route(StatId(0), "r");
        names.set_cluster(StatId(0), "c");
        names.set_endpoint(StatId(0), "c", "10.0.0.1:80");
        aggregate.accept(0, frame(&stats(50, 0)));
        aggregate.accept(1, frame(&stats(7, 0)));
        let page = page(&mut aggregate, &names);
        let (mut kinds, mut series) = (HashMap::new(), HashSet::new());
        let mut family = "";
        for line in page.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert_eq!(kinds.insert(name, kind), None, "{name} has one TYPE line");
                family = name;
            } else if !line.starts_with("# HELP ") {
                let (head, value) = line.rsplit_once(' ').unwrap();
                assert!(value.parse::<f64>().is_ok(), "{line}");
                assert!(series.insert(head.to_owned()), "{head} stands twice");
                let name = head.split('{').next().unwrap();
                let base =
                    ["_bucket", "_sum", "_count"].iter().find_map(|s| name.strip_suffix(s)).unwrap_or(name);
                assert!(base == family || name == family, "{line} stands under {family}");
                assert!(!head.contains('{') || head.ends_with('}'), "{line}");
                assert!(!head.contains("{,") && !head.contains(",,") && !head.contains(",}"), "{line}");
            }
        }
        // Buckets rise to the count.
        for stage in Stage::ALL {
            let label = format!("shard_stage_seconds_bucket{{stage=\"{}\",", stage.label());
            let counts: Vec<u64> = page
                .lines()
                .filter(|l| l.starts_with(&label))
                .map(|l| l.rsplit(' ').next().unwrap().parse().unwrap())
                .collect();
            assert_eq!(counts.len(), 27, "{stage:?}");
            assert!(counts.is_sorted(), "{counts:?}");
            let count = value(&page, &format!("shard_stage_seconds_count{{stage=\"{}\"}}", stage.label()));
            assert_eq!(counts.last().copied(), count);
        }
        assert!(page.contains("listener=\"a\\\"b\\\\c\\nd{}\""));
    }
}
