//! What happened: counters, stage histograms and access log rows of one core, and their sums.
//!
//! `exchange` makes one [`Outcome`] per exchange; [`CoreStats::record`] counts it and [`write_json`] or a [`Template`] formats it
//! into the caller's buffer. Twice a second the core copies its counters into a [`Frame`]; the aggregator keeps the
//! last frame of each core and renders metrics from them. Nothing here does I/O, reads a clock or is shared.

mod access_log;
mod aggregate;
mod escape;
mod histogram;
mod metrics;
mod mirror;
mod names;
mod outcome;
mod redact;
mod rows;
mod stats;

pub(crate) use access_log::is_sampled;
pub use access_log::{LogField, LogRow, Template, TemplateError, protocol_name, should_log, write_json};
pub use aggregate::{Aggregate, Frame, NewsLevel, NewsLine};
pub use histogram::{CoarseHistogram, Histogram, ROW_BOUNDS_NS, STAGE_BOUNDS_NS};
pub use metrics::reference as metrics_reference;
pub use mirror::MirrorEnd;
pub use names::Names;
pub use outcome::{Outcome, Stage, StageTimes};
pub use rows::{ClusterEvents, ClusterRow, EndpointRow, ListenerRow, RouteRow};
pub(crate) use stats::HedgeEnd;
pub use stats::{CoreCounters, CoreGauges, CoreStats, Handshake, StatTable, TABLE_SIZES_MAX, TableSizes};
