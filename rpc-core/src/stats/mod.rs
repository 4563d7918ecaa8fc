//! [`Stats`]: statistics of pollers and their calls, readable from any thread.
//!
//! Each poller has its own counters. Only its thread writes them, with plain loads and stores: a
//! call costs its poller about twenty instructions for all counters, and taking a snapshot stops no
//! thread. [`Server::stats`](crate::Server::stats),
//! [`ServerHandle::stats`](crate::ServerHandle::stats), [`Channel::stats`](crate::Channel::stats)
//! and [`LocalPoller::stats`](crate::LocalPoller::stats) take a snapshot; a [`StatsReader`] takes
//! snapshots on another thread.
//!
//! ```text
//! let before = handle.stats();
//! thread::sleep(Duration::from_secs(10));
//! println!("{}", handle.stats().since(&before));
//! ```
//!
//! # Accuracy
//!
//! - Counts of calls are exact and current. Two counters of a snapshot may be a few instructions
//!   apart.
//! - Latencies are those of one call in 32, so that most calls read no clock; of every call with
//!   [`latency_sampling(1)`](crate::Intents::latency_sampling). Percentiles are off by at most 1/32
//!   of their value ([`Latencies`]).
//! - The poller updates gauges (waiting calls, credits, slots by state) before it sleeps and every
//!   [`TURNS_PER_GAUGE_UPDATE`] turns, which is every few milliseconds while it is busy.
//!
//! `docs/observability.md` explains each number, and what to check when it grows.

mod blocked;
mod connection_memory;
mod counter;
mod groups;
mod histogram;
mod permit_counters;
mod poller_counters;
mod prometheus;
mod sampling;
mod snapshot;
mod table;

use std::sync::Arc;
use std::time::SystemTime;

pub(crate) use self::blocked::BlockedCounters;
pub use self::blocked::{BlockedMethod, BlockedMethods};
pub use self::connection_memory::ConnectionMemory;
pub use self::counter::{Counter, Gauge};
pub(crate) use self::groups::StallCounters;
pub use self::groups::{
    Cancels, Connections, Credits, Handlers, Memory, Stalls, Streams, Transfers, Turns,
};
pub use self::histogram::{LONGEST, Latencies};
pub(crate) use self::permit_counters::PermitCounters;
pub(crate) use self::poller_counters::{CalledStream, MethodCounters, PollerCounters, ServedCall};
pub use self::prometheus::PrometheusText;
pub(crate) use self::sampling::is_timed_here;
pub use self::snapshot::{MethodStats, PollerStats, ServerStats, Stats};
pub use crate::transport::{ConnectionId, Counters, SlotsByState};

/// Turns between two updates of the gauges. An update visits every connection. For a thousand
/// connections it takes some tens of microseconds at most, while this many empty turns take some
/// milliseconds.
pub const TURNS_PER_GAUGE_UPDATE: u64 = 16_384;

/// Takes snapshots of the counters of a server, channel or local poller, on any thread. Cheap to
/// clone. A reader does not keep any of them alive; their final counts remain readable after they
/// end.
#[derive(Clone)]
pub struct StatsReader {
    pollers: Vec<Arc<PollerCounters>>,
    server: Option<ServerCounters>,
}

/// Statistics that a server keeps outside its pollers.
#[derive(Clone)]
pub(crate) struct ServerCounters {
    /// Written by the listener's thread only.
    pub(crate) refused: Arc<Counter>,
    pub(crate) certificate_expires: Arc<CertificateExpires>,
    pub(crate) blocked: Arc<BlockedCounters>,
}

/// Tells when the certificate of a server expires that is in use at the moment.
pub(crate) type CertificateExpires = dyn Fn() -> Option<SystemTime> + Send + Sync;

impl StatsReader {
    pub(crate) fn new(pollers: Vec<Arc<PollerCounters>>) -> Self {
        Self {
            pollers,
            server: None,
        }
    }

    pub(crate) fn for_server(pollers: Vec<Arc<PollerCounters>>, server: ServerCounters) -> Self {
        Self {
            pollers,
            server: Some(server),
        }
    }

    /// Takes a snapshot.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            pollers: self.pollers.iter().map(|poller| poller.read()).collect(),
            server: self.server.as_ref().map(|server| ServerStats {
                refused: server.refused.get(),
                certificate_expires: (server.certificate_expires)(),
                blocked: server.blocked.snapshot(),
            }),
        }
    }
}

impl std::fmt::Debug for StatsReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StatsReader({} pollers)", self.pollers.len())
    }
}

/// The state of a transport's slots, as of the poller's last update.
#[derive(Debug, Default)]
pub(crate) struct SlotGauges([Gauge; 7]);

impl SlotGauges {
    pub(crate) fn set(&self, slots: &SlotsByState) {
        for (gauge, (_, count)) in self.0.iter().zip(slots.named()) {
            gauge.set(count.into());
        }
    }

    fn read(&self) -> SlotsByState {
        // Each value was set from 32 bits, so the cast is lossless.
        let [
            receives_free,
            receives_posted,
            receives_reserved,
            receives_held,
            sends_free,
            sends_reserved,
            sends_in_flight,
        ] = self.0.each_ref().map(|gauge| gauge.get() as u32);
        SlotsByState {
            receives_free,
            receives_posted,
            receives_reserved,
            receives_held,
            sends_free,
            sends_reserved,
            sends_in_flight,
        }
    }
}
