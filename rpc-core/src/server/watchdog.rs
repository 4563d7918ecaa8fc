//! [`Watchdog`]: detects methods that block their poller.
//!
//! A handler that does not await occupies its poller's thread, and no other call of that poller
//! makes progress meanwhile. Through its [`AtWork`], a poller shows which handler it is polling: it
//! stores the number and the method of each poll before and after the poll, which costs a few
//! instructions, none of them locked. One thread per server checks it about fifty times a second. A
//! poll that is still running after 40 ms is counted for its method; the first one of each method
//! is logged as a warning.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::driver::at_work::AtWork;
use crate::method::MethodSpec;
use crate::stats::{BlockedMethods, Counts};

/// Interval between two checks: long enough to cost an idle server less than a thousandth of a
/// core, short enough to detect noticeable delays.
const TICK: Duration = Duration::from_millis(20);

/// A poll counts as blocking once it has lasted this long since the first check that found it: two
/// ticks.
const TOO_LONG: Duration = Duration::from_millis(40);

/// The watchdog's view of one poller.
#[derive(Debug)]
struct Watched {
    at_work: Arc<AtWork>,
    /// The value of the latest check, and the time of the first check that found it.
    latest: u64,
    since: Instant,
    is_noticed: bool,
}

impl Watched {
    fn new(at_work: Arc<AtWork>, now: Instant) -> Self {
        Self {
            at_work,
            latest: 0,
            since: now,
            is_noticed: false,
        }
    }

    /// If the current poll has lasted too long, returns its method and its minimum duration, once
    /// per poll.
    fn look(&mut self, now: Instant) -> Option<(u16, Duration)> {
        let found = self.at_work.0.load(Ordering::Relaxed);
        if found != self.latest {
            (self.latest, self.since, self.is_noticed) = (found, now, false);
        }
        let lasts = now.duration_since(self.since);
        if found & AtWork::INSIDE == 0 || self.is_noticed || lasts < TOO_LONG {
            return None;
        }
        self.is_noticed = true;
        // The low bits are the method's number.
        Some((found as u16, lasts))
    }
}

/// The state of the watchdog's thread, which checks all pollers at each tick.
struct Rounds {
    pollers: Vec<Watched>,
    counts: Arc<Counts>,
}

impl Rounds {
    fn look(&mut self, now: Instant) {
        for poller in &mut self.pollers {
            let Some((method, lasts)) = poller.look(now) else {
                continue;
            };
            let Some((path, count)) = self.counts.0.get(usize::from(method)) else {
                continue;
            };
            if count.fetch_add(1, Ordering::Relaxed) == 0 {
                tracing::warn!(
                    method = path,
                    "a handler has kept its poller's thread for more than {} ms without awaiting, and every \
                     other call of that poller waits: serve it with `on_executor`, or let a thread of its \
                     own do what takes long. (Said once for each method; later ones are counted)",
                    lasts.as_millis()
                );
            }
        }
    }
}

/// Owns the thread that watches a server's pollers. Dropping it ends the thread.
pub(crate) struct Watchdog {
    counts: Arc<Counts>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts to watch pollers that serve `methods`, in the order of their numbers.
    pub(crate) fn start(
        pollers: Vec<Arc<AtWork>>,
        methods: &[(u16, &'static MethodSpec)],
    ) -> io::Result<Self> {
        let counts = methods
            .iter()
            .map(|(_, spec)| (spec.path, AtomicU64::new(0)))
            .collect();
        let counts = Arc::new(Counts(counts));
        let ends = Arc::new(AtomicBool::new(false));
        let mut rounds = Rounds {
            pollers: pollers
                .into_iter()
                .map(|at_work| Watched::new(at_work, Instant::now()))
                .collect(),
            counts: Arc::clone(&counts),
        };
        let told_to_end = Arc::clone(&ends);
        let thread = thread::Builder::new()
            .name("verbline-watch".to_owned())
            .spawn(move || {
                while !told_to_end.load(Ordering::Relaxed) {
                    thread::park_timeout(TICK);
                    rounds.look(Instant::now());
                }
            })?;
        Ok(Self {
            counts,
            ends,
            thread: Some(thread),
        })
    }

    /// Returns the counts, which remain readable after the watchdog is dropped.
    pub(crate) fn counts(&self) -> Arc<Counts> {
        Arc::clone(&self.counts)
    }

    pub(crate) fn blocked_methods(&self) -> BlockedMethods {
        self.counts.snapshot()
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // `unpark` synchronizes with `park`, so the thread sees the store.
            thread.thread().unpark();
            // The thread runs no application code that could panic.
            let _ = thread.join();
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
    use super::*;
    use crate::stats::BlockedMethod;

    fn ticks(start: Instant, count: u32) -> impl Iterator<Item = Instant> {
        (0..count).map(move |n| start + TICK * n)
    }

    #[test]
    fn a_poll_is_noticed_once_when_it_lasts_for_two_ticks() {
        let start = Instant::now();
        let at_work = Arc::new(AtWork::default());
        let mut watched = Watched::new(Arc::clone(&at_work), start);
        let inside = at_work.enter(7);
        let found: Vec<_> = ticks(start, 6).map(|now| watched.look(now)).collect();
        let noticed = |method| Some((method, TICK * 2));
        assert_eq!(found, [None, None, noticed(7), None, None, None]);
        at_work.leave(inside);
        let inside = at_work.enter(0);
        let later = start + TICK * 6;
        let found: Vec<_> = ticks(later, 4).map(|now| watched.look(now)).collect();
        assert_eq!(found, [None, None, noticed(0), None]);
        at_work.leave(inside);
        assert_eq!(watched.look(later + TICK * 4), None);
    }

    #[test]
    fn many_short_polls_of_one_method_are_not_a_long_one() {
        let start = Instant::now();
        let at_work = Arc::new(AtWork::default());
        let mut watched = Watched::new(Arc::clone(&at_work), start);
        for now in ticks(start, 100) {
            let inside = at_work.enter(u16::MAX);
            assert_eq!(watched.look(now), None);
            assert_eq!(watched.look(now + TICK / 2), None);
            at_work.leave(inside);
        }
    }

    #[test]
    fn an_idle_poller_is_not_noticed_however_long_it_is_idle() {
        let start = Instant::now();
        let at_work = Arc::new(AtWork::default());
        let mut watched = Watched::new(Arc::clone(&at_work), start);
        assert!(ticks(start, 10).all(|now| watched.look(now).is_none()));
        let inside = at_work.enter(3);
        at_work.leave(inside);
        assert!(ticks(start, 10).all(|now| watched.look(now).is_none()));
    }

    #[test]
    fn what_is_noticed_is_counted_for_its_method() {
        let start = Instant::now();
        let counts = Arc::new(Counts(
            ["a/A", "b/B"].map(|path| (path, AtomicU64::new(0))).into(),
        ));
        let pollers = [(); 2].map(|()| Arc::new(AtWork::default()));
        let mut rounds = Rounds {
            pollers: pollers
                .iter()
                .map(|at_work| Watched::new(Arc::clone(at_work), start))
                .collect(),
            counts: Arc::clone(&counts),
        };
        for begin in [start, start + TICK * 5] {
            let inside = pollers.each_ref().map(|poller| poller.enter(1));
            ticks(begin, 5).for_each(|now| rounds.look(now));
            for (poller, inside) in pollers.iter().zip(inside) {
                poller.leave(inside);
            }
        }
        let expected = BlockedMethods {
            total: 4,
            methods: vec![BlockedMethod {
                path: "b/B",
                count: 4,
            }],
        };
        assert_eq!(counts.snapshot(), expected);
    }
}
