//! [`Stats`]: what pollers count of their calls and of their machinery, read from any thread.
//!
//! Each poller has a tally of its own, which its thread alone writes, by plain loads and
//! stores: a call costs its poller some twenty instructions for all of this, and a snapshot stops
//! nobody. [`Server::stats`](crate::Server::stats),
//! [`ServerHandle::stats`](crate::ServerHandle::stats), [`Channel::stats`](crate::Channel::stats) and
//! [`LocalPoller::stats`](crate::LocalPoller::stats) take one; an [`Observer`] takes them on another
//! thread.
//!
//! ```text
//! let before = handle.stats();
//! thread::sleep(Duration::from_secs(10));
//! println!("{}", handle.stats().since(&before));
//! ```
//!
//! # What is exact, and what is not
//!
//! - Counts of calls are exact, and live. Two counters of a snapshot may be some instructions apart.
//! - Times are taken of one call in [`SAMPLED`] for each method, so that most calls read no clock.
//!   Percentiles are off by at most 1/32 of their value ([`Latencies`]).
//! - Levels (calls that wait, credits, slots by place) are said by the poller before it sleeps and
//!   every [`TURNS_PER_PUBLICATION`] turns, which is every few milliseconds while it is busy.
//!
//! What each number tells, and what to look at when it grows, is in `docs/observability.md`.

mod blocked;
mod counter;
mod groups;
mod histogram;
mod snapshot;
mod table;
mod tally;
mod tickets;

use std::cell::Cell;
use std::sync::Arc;

pub(crate) use self::blocked::Counts;
pub use self::blocked::{BlockedMethod, BlockedMethods};
pub use self::counter::{Counter, Level};
pub use self::groups::{Connections, Credits, Handlers, Stalls, Turns};
pub use self::histogram::{LONGEST, Latencies};
pub use self::snapshot::{MethodStats, PollerStats, ServerStats, Stats};
pub(crate) use self::tally::{MethodTally, PollerTally, Served};
pub(crate) use self::tickets::TicketTally;
use crate::transport::SlotsByPlace;

/// One call in this many is timed, of each method and on each side; the first one is. Two looks at a
/// clock cost some 50 ns, and so less than 2 ns of a call.
pub const SAMPLED: u64 = 32;

/// Turns between two publications of levels, which look at every connection: at most some tens of
/// microseconds for a thousand of them, in the time of ten thousand empty turns.
pub const TURNS_PER_PUBLICATION: u64 = 16_384;

/// Takes snapshots of a server's, a channel's or a local poller's counters, on any thread. Cheap to
/// clone. It keeps none of them alive: what has ended says what it had counted.
#[derive(Clone)]
pub struct Observer {
    pollers: Vec<Arc<PollerTally>>,
    server: Option<ServerCounts>,
}

/// What a server counts outside its pollers.
#[derive(Clone)]
pub(crate) struct ServerCounts {
    /// Written by the listener's thread.
    pub(crate) refused: Arc<Counter>,
    pub(crate) blocked: Arc<Counts>,
}

impl Observer {
    pub(crate) fn of(pollers: Vec<Arc<PollerTally>>) -> Self {
        Self {
            pollers,
            server: None,
        }
    }

    pub(crate) fn of_server(pollers: Vec<Arc<PollerTally>>, server: ServerCounts) -> Self {
        Self {
            pollers,
            server: Some(server),
        }
    }

    /// What has been counted so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            pollers: self.pollers.iter().map(|poller| poller.read()).collect(),
            server: self.server.as_ref().map(|server| ServerStats {
                refused: server.refused.get(),
                blocked: server.blocked.snapshot(),
            }),
        }
    }
}

impl std::fmt::Debug for Observer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Observer({} pollers)", self.pollers.len())
    }
}

/// Where a transport's slots were when the poller last said so.
#[derive(Debug, Default)]
pub(crate) struct Published([Level; 7]);

impl Published {
    pub(crate) fn set(&self, slots: &SlotsByPlace) {
        for (level, (_, count)) in self.0.iter().zip(slots.named()) {
            level.set(count.into());
        }
    }

    fn slots(&self) -> SlotsByPlace {
        // Each was set from 32 bits.
        let [
            receives_free,
            receives_posted,
            receives_reserved,
            receives_held,
            sends_free,
            sends_in_hand,
            sends_in_flight,
        ] = self.0.each_ref().map(|level| level.get() as u32);
        SlotsByPlace {
            receives_free,
            receives_posted,
            receives_reserved,
            receives_held,
            sends_free,
            sends_in_hand,
            sends_in_flight,
        }
    }
}

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

/// Whether a call that this thread makes through a shared channel is one of those that are timed: the
/// threads share no count, so each has its own.
#[inline]
pub(crate) fn is_timed_here() -> bool {
    CALLS.with(|calls| {
        let before = calls.get();
        calls.set(before.wrapping_add(1));
        before.is_multiple_of(SAMPLED)
    })
}
