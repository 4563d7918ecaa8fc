//! [`Watchdog`]: detects methods that block their poller.
//!
//! A handler that does not await occupies its poller's thread, and no other call of that poller
//! makes progress meanwhile. Through its [`RunningHandler`], a poller shows which handler it is
//! polling: it stores the number and the method of each poll before and after the poll, which costs
//! a few instructions, none of them locked. One thread per server checks it about fifty times a
//! second. A poll that has used its thread for 40 ms is counted for its method; the first one of
//! each method is logged as a warning. Time in which other threads had the processor does not count,
//! so a loaded machine makes no handler look slow ([`ThreadTime`]).

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::ended::join;
use super::thread_time::{Sample, ThreadTime};
use crate::driver::running_handler::RunningHandler;
use crate::method::MethodSpec;
use crate::stats::{BlockedCounters, BlockedMethods};
use crate::transport::Fabric;

/// Interval between two checks: long enough to cost an idle server less than a thousandth of a
/// core, short enough to detect noticeable delays.
const TICK: Duration = Duration::from_millis(20);

/// A poll counts as blocking if it has used its thread this long (two ticks) since the first check
/// that found it.
const TOO_LONG: Duration = Duration::from_millis(40);

/// A poller to watch.
#[derive(Debug)]
pub(super) struct WatchedThread {
    pub(super) running_handler: Arc<RunningHandler>,
    pub(super) time: ThreadTime,
    /// The numbers of the methods whose handlers run on an executor.
    pub(super) on_executor: Vec<u16>,
}

/// The watchdog's view of one poller.
#[derive(Debug)]
struct WatchedPoller {
    thread: WatchedThread,
    /// The value of the latest check.
    latest: u64,
    /// The time of the latest check that found it running, and how long it has used the thread.
    sample: Option<Sample>,
    in_use: Duration,
    is_reported: bool,
}

impl WatchedPoller {
    fn new(thread: WatchedThread) -> Self {
        Self {
            thread,
            latest: 0,
            sample: None,
            in_use: Duration::ZERO,
            is_reported: false,
        }
    }

    /// If the current poll has lasted too long, returns its method and its minimum duration, once
    /// per poll.
    fn check(&mut self, sample: impl FnOnce(&ThreadTime) -> Sample) -> Option<(u16, Duration)> {
        let found = self.thread.running_handler.0.load(Ordering::Relaxed);
        if found != self.latest {
            (self.latest, self.sample, self.is_reported) = (found, None, false);
            self.in_use = Duration::ZERO;
        }
        if found & RunningHandler::RUNNING == 0 || self.is_reported {
            return None;
        }
        let sample = sample(&self.thread.time);
        if let Some(earlier) = self.sample.replace(sample) {
            self.in_use += sample.in_use_since(&earlier);
        }
        if self.in_use < TOO_LONG {
            return None;
        }
        self.is_reported = true;
        // The low bits are the method's number.
        Some((found as u16, self.in_use))
    }

    fn is_on_executor(&self, method: u16) -> bool {
        self.thread.on_executor.contains(&method)
    }

    fn culprit(&self, method: u16) -> &'static str {
        match self.is_on_executor(method) {
            true => "a method whose handlers run on an executor",
            false => "a handler",
        }
    }

    fn advice(&self, method: u16) -> &'static str {
        match self.is_on_executor(method) {
            true => "Check that `Executor::spawn` does not block, and how long its requests are",
            false => "Serve it with an executor, or move long work to another thread",
        }
    }
}

/// The state of the watchdog's thread, which checks all pollers at each tick.
struct WatchdogState {
    pollers: Vec<WatchedPoller>,
    counters: Arc<BlockedCounters>,
}

impl WatchdogState {
    fn check(&mut self, sample: impl Fn(&ThreadTime) -> Sample) {
        for poller in &mut self.pollers {
            let Some((method, lasts)) = poller.check(&sample) else {
                continue;
            };
            let Some((path, count)) = self.counters.0.get(usize::from(method)) else {
                continue;
            };
            if count.fetch_add(1, Ordering::Relaxed) == 0 {
                tracing::warn!(
                    method = path,
                    "{} has used its poller's thread for more than {} ms without a break; all other calls \
                     of that poller are waiting. {}. (Logged once per method; later occurrences are only \
                     counted)",
                    poller.culprit(method),
                    lasts.as_millis(),
                    poller.advice(method)
                );
            }
        }
    }
}

/// Owns the thread that watches a server's pollers. Dropping it ends the thread.
pub(crate) struct Watchdog {
    counters: Arc<BlockedCounters>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    is_forked: fn() -> bool,
}

impl Watchdog {
    /// Starts to watch pollers that serve `methods`, in the order of their numbers.
    pub(crate) fn start<F: Fabric>(
        fabric: &F,
        pollers: Vec<WatchedThread>,
        methods: &[(u16, &'static MethodSpec)],
    ) -> io::Result<Self> {
        let counters = methods
            .iter()
            .map(|(_, spec)| (spec.path, AtomicU64::new(0)))
            .collect();
        let counters = Arc::new(BlockedCounters(counters));
        let stop = Arc::new(AtomicBool::new(false));
        let mut state = WatchdogState {
            pollers: pollers.into_iter().map(WatchedPoller::new).collect(),
            counters: Arc::clone(&counters),
        };
        let should_stop = Arc::clone(&stop);
        let thread = fabric.start_thread("verbline-watch", move || {
            while !should_stop.load(Ordering::Relaxed) {
                thread::park_timeout(TICK);
                state.check(ThreadTime::sample);
            }
        })?;
        Ok(Self {
            counters,
            stop,
            thread: Some(thread),
            is_forked: F::is_forked,
        })
    }

    /// Returns the counters, which remain readable after the watchdog is dropped.
    pub(crate) fn counters(&self) -> Arc<BlockedCounters> {
        Arc::clone(&self.counters)
    }

    pub(crate) fn blocked_methods(&self) -> BlockedMethods {
        self.counters.snapshot()
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // `unpark` synchronizes with `park`, so the thread sees the store.
            thread.thread().unpark();
            // The thread runs no application code that could panic.
            let _ = join(thread, self.is_forked);
        }
    }
}

impl fmt::Debug for Watchdog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Watchdog")
            .field(&self.blocked_methods())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::super::thread_time::Times;
    use super::*;
    use crate::stats::BlockedMethod;

    fn watched(running_handler: &Arc<RunningHandler>) -> WatchedPoller {
        WatchedPoller::new(WatchedThread {
            running_handler: Arc::clone(running_handler),
            time: ThreadTime::of_this_thread(),
            on_executor: vec![9],
        })
    }

    /// Samples of a thread about which the system says nothing, at each tick.
    fn ticks(start: Instant, count: u32) -> impl Iterator<Item = Sample> {
        (0..count).map(move |n| Sample {
            now: start + TICK * n,
            times: None,
        })
    }

    #[test]
    fn a_poll_is_noticed_once_when_it_lasts_for_two_ticks() {
        let start = Instant::now();
        let running_handler = Arc::new(RunningHandler::default());
        let mut watched = watched(&running_handler);
        let mark = running_handler.enter(7);
        let found: Vec<_> = ticks(start, 6).map(|now| watched.check(|_| now)).collect();
        let noticed = |method| Some((method, TICK * 2));
        assert_eq!(found, [None, None, noticed(7), None, None, None]);
        running_handler.leave(mark);
        let mark = running_handler.enter(0);
        let later = start + TICK * 6;
        let found: Vec<_> = ticks(later, 4).map(|now| watched.check(|_| now)).collect();
        assert_eq!(found, [None, None, noticed(0), None]);
        running_handler.leave(mark);
        assert!(ticks(later + TICK * 4, 1).all(|now| watched.check(|_| now).is_none()));
    }

    #[test]
    fn a_method_on_an_executor_is_not_told_to_use_one() {
        let watched = watched(&Arc::default());
        assert!(watched.advice(7).starts_with("Serve it with an executor"));
        assert!(!watched.advice(9).contains("Serve it"));
    }

    #[test]
    fn a_poll_that_waits_for_the_processor_is_not_a_long_one() {
        let start = Instant::now();
        let running_handler = Arc::new(RunningHandler::default());
        let mut watched = watched(&running_handler);
        let _mark = running_handler.enter(7);
        // A tenth of a processor: 40 ms of it take 20 ticks.
        let samples = ticks(start, 22).zip(0..).map(|(sample, n)| Sample {
            times: Some(Times {
                ran: TICK / 10 * n,
                was_ready: TICK * 9 / 10 * n,
                is_running: true,
            }),
            ..sample
        });
        let found: Vec<_> = samples
            .map(|sample| watched.check(|_| sample).is_some())
            .collect();
        let first = found.iter().position(|&is_noticed| is_noticed);
        assert_eq!(first, Some(20));
    }

    #[test]
    fn many_short_polls_of_one_method_are_not_a_long_one() {
        let start = Instant::now();
        let running_handler = Arc::new(RunningHandler::default());
        let mut watched = watched(&running_handler);
        for now in ticks(start, 100) {
            let mark = running_handler.enter(u16::MAX);
            assert_eq!(watched.check(|_| now), None);
            assert_eq!(watched.check(|_| now), None);
            running_handler.leave(mark);
        }
    }

    #[test]
    fn an_idle_poller_is_not_noticed_however_long_it_is_idle() {
        let start = Instant::now();
        let running_handler = Arc::new(RunningHandler::default());
        let mut watched = watched(&running_handler);
        assert!(ticks(start, 10).all(|now| watched.check(|_| now).is_none()));
        let mark = running_handler.enter(3);
        running_handler.leave(mark);
        assert!(ticks(start, 10).all(|now| watched.check(|_| now).is_none()));
    }

    #[test]
    fn what_is_noticed_is_counted_for_its_method() {
        let start = Instant::now();
        let counters = Arc::new(BlockedCounters(
            ["a/A", "b/B"].map(|path| (path, AtomicU64::new(0))).into(),
        ));
        let pollers = [(); 2].map(|()| Arc::new(RunningHandler::default()));
        let mut state = WatchdogState {
            pollers: pollers.iter().map(watched).collect(),
            counters: Arc::clone(&counters),
        };
        for begin in [start, start + TICK * 5] {
            let mark = pollers.each_ref().map(|poller| poller.enter(1));
            ticks(begin, 5).for_each(|now| state.check(|_| now));
            for (poller, mark) in pollers.iter().zip(mark) {
                poller.leave(mark);
            }
        }
        let expected = BlockedMethods {
            total: 4,
            methods: vec![BlockedMethod {
                path: "b/B",
                count: 4,
            }],
        };
        assert_eq!(counters.snapshot(), expected);
    }
}
