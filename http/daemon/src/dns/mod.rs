//! DNS names of upstreams: looked up off the reactors, again before each TTL ends, for as long as the config names
//! them. Addresses reach the cores as [`Resolved`] through the owner of the callback.
//!
//! - `resolver`: the thread and its workers; `table`: what is known, and when to ask again (pure);
//!   `client`: one look-up; `message`: the wire format (pure); `conf`: resolv.conf(5) and hosts(5).
//! - A failed look-up (no reply, SERVFAIL, NXDOMAIN, no address) keeps the last good addresses and raises an
//!   [`Event`]; `stale_max` after the TTL's end the cluster loses them.
//! - A and AAAA are both asked for, and both are balanced, IPv4 listed first; there is no Happy Eyeballs.
//! - Names are whole names: no search list. Plain DNS: no DNSSEC, no DoT, the resolver of the host is trusted.
//!
//! Called by the composition root, which sets targets with each config, and by the admin listener's dump.

mod client;
mod conf;
mod message;
mod random;
mod resolver;
mod table;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use http_proxy::pool::Resolved;
use http_proxy::snapshot::DnsTarget;

use self::message::LookupError;
use self::resolver::{Order, Resolver};

/// How long [`Handle::state`] waits for a thread that is busy in a callback.
const STATE_WAIT_MAX: Duration = Duration::from_secs(1);

/// Whom to ask, and how often.
#[derive(Clone, Debug)]
pub(crate) struct DnsSettings {
    /// Name servers; none: those of `resolv_conf`.
    pub(crate) servers: Vec<SocketAddr>,
    /// For one try at one server; None: as `resolv_conf` says, else 2 s.
    pub(crate) timeout: Option<Duration>,
    /// Rounds over all servers; None: as `resolv_conf` says, else 2. One look-up ends after 15 s in any case.
    pub(crate) attempts: Option<u32>,
    pub(crate) resolv_conf: PathBuf,
    pub(crate) hosts: PathBuf,
    pub(crate) pace: Pace,
}

impl Default for DnsSettings {
    fn default() -> Self {
        Self {
            servers: Vec::new(),
            timeout: None,
            attempts: None,
            resolv_conf: PathBuf::from("/etc/resolv.conf"),
            hosts: PathBuf::from("/etc/hosts"),
            pace: Pace::default(),
        }
    }
}

/// Bounds of the time between two look-ups of a name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// TTLs below it, 0 among them, count as this.
    pub(crate) ttl_min: Duration,
    /// TTLs above it count as this.
    pub(crate) ttl_max: Duration,
    /// After the first failure, unless the target's `refresh_min` is longer (RFC 9520 §3.2: at least 1 s).
    pub(crate) retry_min: Duration,
    /// After many failures.
    pub(crate) retry_max: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            ttl_min: Duration::from_secs(1),
            ttl_max: Duration::from_secs(3600),
            retry_min: Duration::from_secs(1),
            retry_max: Duration::from_secs(15),
        }
    }
}

impl Pace {
    /// A little before the TTL ends, at 85 to 95 % of it, so that a change is seen in time and proxies do not ask
    /// in step; but never below the lower bounds, which are stretched by up to 5 % instead.
    fn refresh_after(&self, ttl: Duration, refresh_min: Duration, jitter: u64) -> Duration {
        let early = ttl * (850 + per_mille(jitter, 100)) / 1000;
        let floor = refresh_min.max(self.ttl_min);
        if early >= floor { early } else { floor * (1000 + per_mille(jitter, 50)) / 1000 }
    }

    /// Twice as long after each failure, plus up to 10 %.
    fn retry_after(&self, failures: u32, refresh_min: Duration, jitter: u64) -> Duration {
        let first = refresh_min.clamp(self.retry_min, self.retry_max);
        // Beyond 2^16 any first step has reached the upper bound.
        let doubled = first.saturating_mul(1 << failures.saturating_sub(1).min(16));
        doubled.min(self.retry_max) * (1000 + per_mille(jitter, 100)) / 1000
    }
}

fn per_mille(jitter: u64, below: u32) -> u32 {
    u32::try_from(jitter % u64::from(below)).unwrap_or_default()
}

/// Something for the operator's log. Failures are told when they begin and when they end, not with each try.
#[derive(Debug)]
pub(crate) enum Event {
    /// `kept` addresses stay in use for the time being.
    Failing {
        name: String,
        error: LookupError,
        kept: usize,
    },
    Recovered {
        name: String,
        found: usize,
    },
    /// Look-ups have failed for so long that the cluster lost the addresses.
    Dropped {
        cluster: String,
        name: String,
        stale_max: Duration,
    },
    /// The name is not looked up.
    TooManyNames {
        cluster: String,
        name: String,
    },
    /// Addresses beyond the bound are not used.
    TooManyAddresses {
        name: String,
        found: usize,
    },
}

/// How much an [`Event`] matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Severity {
    Info,
    Warning,
    Error,
}

impl Event {
    pub(crate) fn severity(&self) -> Severity {
        match self {
            Self::Recovered { .. } => Severity::Info,
            Self::Failing { kept: 1.., .. } | Self::TooManyAddresses { .. } => Severity::Warning,
            Self::Failing { kept: 0, .. } | Self::Dropped { .. } | Self::TooManyNames { .. } => {
                Severity::Error
            }
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failing { name, error, kept: 0 } => {
                write!(f, "dns {name}: {error}; there is no earlier answer, look-ups go on")
            }
            Self::Failing { name, error, kept } => {
                write!(f, "dns {name}: {error}; the last {kept} addresses stay in use, look-ups go on")
            }
            Self::Recovered { name, found } => write!(f, "dns {name}: resolves again, {found} addresses"),
            Self::Dropped { cluster, name, stale_max } => write!(
                f,
                "cluster {cluster}: lost the addresses of {name}: no good answer until {stale_max:?} \
                 (dns.stale_max) after the last one had expired"
            ),
            Self::TooManyNames { cluster, name } => write!(
                f,
                "cluster {cluster}: {name} is not looked up: the config has more than {} names",
                table::NAMES_MAX
            ),
            Self::TooManyAddresses { name, found } => {
                write!(f, "dns {name}: only {} of {found} addresses are used", table::ADDRESSES_MAX)
            }
        }
    }
}

/// What a cluster has of one of its names, for the admin dump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NameState {
    pub(crate) cluster: String,
    pub(crate) name: String,
    /// In use now; IPv4 first.
    pub(crate) addresses: Vec<IpAddr>,
    /// Until the TTL ends, zero if it has ended; None: no good answer yet.
    pub(crate) expires_in: Option<Duration>,
    /// Of the last look-up; an error of one family stands here too when the other has addresses.
    pub(crate) last_error: Option<String>,
    /// Some addresses are older than their TTL because look-ups fail.
    pub(crate) stale: bool,
}

/// The resolver's thread has ended, or a callback keeps it busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unavailable;

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the DNS resolver does not answer; names keep the addresses they have")
    }
}

impl std::error::Error for Unavailable {}

/// The running resolver; dropping it is [`Handle::stop`].
#[derive(Debug)]
pub(crate) struct Handle {
    orders: Sender<Order>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Starts the resolver: one thread and eight workers, which wait until there are targets.
///
/// `on_change` gets a cluster's whole list whenever it differs from the last one, and for each cluster with a known
/// name after [`Handle::set_targets`]; the list is empty when nothing (any more) is known. Both callbacks run on the
/// resolver's thread, must not block, and must not stop the handle.
///
/// # Errors
/// When a thread cannot be started.
pub(crate) fn start(
    settings: DnsSettings,
    on_change: impl FnMut(Resolved) + Send + 'static,
    on_event: impl FnMut(&Event) + Send + 'static,
) -> io::Result<Handle> {
    let (orders, inbox) = channel();
    let stop = Arc::new(AtomicBool::new(false));
    let resolver = Resolver::new(settings, inbox, &orders, &stop)?;
    let builder = thread::Builder::new().name("dns".to_owned());
    let thread = builder.spawn(move || resolver.run(on_change, on_event))?;
    Ok(Handle { orders, stop, thread: Some(thread) })
}

impl Handle {
    /// Replaces the names of all clusters; names that stay keep their last answer and their next date.
    ///
    /// # Errors
    /// When the thread has ended.
    pub(crate) fn set_targets(&self, targets: Vec<(String, Vec<DnsTarget>)>) -> Result<(), Unavailable> {
        self.orders.send(Order::Targets(targets)).or(Err(Unavailable))
    }

    /// Gets a message when every name that it was given before has been looked up once and its cluster's list has
    /// gone to `on_change`.
    ///
    /// # Errors
    /// When the thread has ended.
    pub(crate) fn known(&self) -> Result<Receiver<()>, Unavailable> {
        let (sender, receiver) = channel();
        self.orders.send(Order::Known(sender)).or(Err(Unavailable))?;
        Ok(receiver)
    }

    /// All names as they are now.
    ///
    /// # Errors
    /// When the thread has ended or does not answer within a second.
    pub(crate) fn state(&self) -> Result<Vec<NameState>, Unavailable> {
        let (sender, receiver) = channel();
        self.orders.send(Order::State(sender)).or(Err(Unavailable))?;
        receiver.recv_timeout(STATE_WAIT_MAX).or(Err(Unavailable))
    }

    /// Ends all look-ups: after it no callback runs and no query is sent. A worker that waits for a reply ends with
    /// that wait, on its own.
    pub(crate) fn stop(self) {
        drop(self);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // Errors mean that the thread has ended already; a panic in a callback was printed by its hook.
        match self.orders.send(Order::Stop) {
            Ok(()) | Err(_) => {}
        }
        if let Some(thread) = self.thread.take() {
            match thread.join() {
                Ok(()) | Err(_) => {}
            }
        }
    }
}
