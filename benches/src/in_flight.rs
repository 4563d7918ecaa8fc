//! Keeps many calls in flight from one thread, and counts those that end in a period.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use proto::bench::BenchClient;
use rpc_core::{CallError, Caller, Intents};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use verbline_load::{ClosedLoop, add_time};

use crate::Outcome;
use crate::message::Load;

/// Time before recording begins, for buffers to warm up and windows to grow.
const WARM_UP: Duration = Duration::from_millis(500);

/// The period in which calls are recorded.
#[derive(Clone, Copy, Debug)]
pub struct Period {
    start: Instant,
    end: Instant,
}

impl Period {
    /// Returns a period that begins after a warm-up of half a second.
    #[must_use]
    pub fn from_now(length: Duration) -> Self {
        Self::after(WARM_UP, length)
    }

    /// Returns the period of a turn of 0.2 s. Before it, the server's process has just been resumed.
    #[must_use]
    pub fn turn() -> Self {
        Self::after(Duration::from_millis(50), Duration::from_millis(200))
    }

    /// Returns a period that begins after a given warm-up.
    fn after(warm_up: Duration, length: Duration) -> Self {
        let start = Instant::now() + warm_up;
        Self {
            start,
            end: start + length,
        }
    }

    /// Records the latency of a call that began at `began` and ends now, if it ends in this period.
    /// Returns true if the period is over.
    #[inline]
    pub fn add(&self, began: Instant, counted: &mut Histogram<u64>) -> bool {
        let now = Instant::now();
        let is_over = self.is_over(now);
        if self.has_begun(now) && !is_over {
            add_time(counted, now - began);
        }
        is_over
    }

    /// Returns true if the warm-up is over at this time.
    #[inline]
    #[must_use]
    pub fn has_begun(&self, now: Instant) -> bool {
        now >= self.start
    }

    /// Returns true if the period is over at this time.
    #[inline]
    #[must_use]
    pub fn is_over(&self, now: Instant) -> bool {
        now >= self.end
    }

    /// Returns the closed loop that, if it begins now, records calls in this period. It has no slices, whose
    /// records would take time.
    fn closed_loop(&self) -> ClosedLoop {
        ClosedLoop::new()
            .warm_up(self.start.saturating_duration_since(Instant::now()))
            .time(self.end - self.start)
            .slices(0)
    }

    /// Returns the number of calls per second, given those that ended in this period.
    #[must_use]
    pub fn rate(&self, counted: &Histogram<u64>) -> f64 {
        counted.len() as f64 / (self.end - self.start).as_secs_f64()
    }
}

/// Keeps calls in flight, and returns the latencies of the calls that ended in the period. The calls
/// go over all clients in turn.
///
/// # Errors
///
/// Returns the error of the first call that fails.
pub async fn keep_in_flight<C: Caller>(
    clients: &[BenchClient<C>],
    in_flight: usize,
    load: &Load,
    period: Period,
) -> Result<Histogram<u64>, CallError> {
    let step = in_flight % clients.len();
    let callers = (0..in_flight).map(|index| {
        let mut load = load.clone();
        let mut next = index % clients.len();
        async move || {
            load.exchange(&clients[next]).await?;
            next += step;
            if next >= clients.len() {
                next -= clients.len();
            }
            Ok(())
        }
    });
    let record = period.closed_loop().try_run(callers).await?;
    Ok(record.service)
}

/// Returns intents with room for so many connections, and for so many calls in flight over each of them.
/// Raises the limit of open files if that is needed.
///
/// # Errors
///
/// Fails if the limit cannot be raised.
pub fn with_room(intents: Intents, connections: usize, in_flight: usize) -> Outcome<Intents> {
    let (connections, in_flight) = (u32::try_from(connections)?, u32::try_from(in_flight)?);
    if connections > intents.connections {
        allow_more_files()?;
    }
    Ok(Intents {
        connections: connections.max(intents.connections),
        max_in_flight: in_flight.max(intents.max_in_flight),
        ..intents
    })
}

/// Raises the limit of open files to its maximum. A connection has a socket and shared memory in
/// each process, so the usual limit is too low for a thousand connections. The server process
/// inherits the new limit.
///
/// # Errors
///
/// Fails if the system call fails.
pub fn allow_more_files() -> Outcome<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    )
    .map_err(|error| format!("cannot raise the limit of open files: {error}").into())
}
