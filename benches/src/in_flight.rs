//! Keeps many calls in flight from one thread, and counts those that end in a period.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use proto::bench::BenchClient;
use rpc_core::{CallError, Caller};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::message::Load;
use crate::task_set::run_all;
use crate::{Outcome, slices};

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
        if now >= self.start && now < self.end {
            let nanos = (now - began).as_nanos() as u64;
            counted.saturating_record(nanos.max(1));
        }
        now >= self.end
    }

    /// Returns true if the warm-up is over at this time.
    #[must_use]
    pub fn has_begun(&self, now: Instant) -> bool {
        now >= self.start
    }

    /// Returns true if the period is over at this time.
    #[must_use]
    pub fn is_over(&self, now: Instant) -> bool {
        now >= self.end
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
    let histogram = RefCell::new(slices::histogram());
    let workers = (0..in_flight).map(|index| Worker {
        clients,
        next: index % clients.len(),
        step: in_flight % clients.len(),
        load: load.clone(),
        histogram: &histogram,
        period,
    });
    run_all(workers.map(Worker::run)).await?;
    Ok(histogram.into_inner())
}

/// Makes calls one after the other; each worker is one call in flight.
struct Worker<'a, C> {
    clients: &'a [BenchClient<C>],
    /// Index of the client that makes the next call.
    next: usize,
    step: usize,
    load: Load,
    histogram: &'a RefCell<Histogram<u64>>,
    period: Period,
}

impl<C: Caller> Worker<'_, C> {
    async fn run(mut self) -> Result<(), CallError> {
        let mut began = Instant::now();
        loop {
            self.load.exchange(&self.clients[self.next]).await?;
            self.next += self.step;
            if self.next >= self.clients.len() {
                self.next -= self.clients.len();
            }
            // The end of one call is the start of the next, so one clock reading per call is
            // enough.
            let now = Instant::now();
            if now >= self.period.end {
                return Ok(());
            }
            if now >= self.period.start {
                let nanos = (now - began).as_nanos() as u64;
                self.histogram.borrow_mut().saturating_record(nanos.max(1));
            }
            began = now;
        }
    }
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
