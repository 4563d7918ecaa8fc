//! [`Idle`]: how a poller waits while it has no work.
//!
//! It spins, and eventually sleeps, as its [`Waiting`] mode specifies. In a process with one
//! core it yields after each empty turn: the thread that it waits for may need that core, and an empty
//! turn over TCP takes a system call. It may share its core with
//! the thread that it waits for, and would then spin away that thread's time, so it also yields. It
//! yields often if it is adaptive or if there are more pollers than cores, and else rarely. A
//! warning is logged if a process has more busy pollers than cores, as limited by its affinity mask
//! and its control group's quota.

use std::hint;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::limits::Waiting;
use crate::transport::Fabric;

/// Empty turns after which a poller counts as spinning: about five microseconds. Responses worth
/// spinning for arrive sooner, so a quick call touches no shared counter.
const SPINNING: u32 = 256;

/// Empty turns between two yields of a busy poller that has a core: about 200 microseconds. This is
/// longer than any response takes that another core is working on, even over an emulated processor
/// and the kernel's software RDMA, so that a call costs no system call other than its doorbells. It
/// is also far shorter than the time slice that a poller of another process on the same core would
/// otherwise wait for.
const BUSY_YIELD_INTERVAL: u32 = 4096;

/// Empty turns between two yields of an adaptive poller, or of one that may not have its own core.
const YIELD_INTERVAL: u32 = 32;

/// Time that an adaptive poller spins before it sleeps: many times the latency of a response on one
/// host or in one rack, and longer than a sleeping peer takes to wake up. The first call after an
/// idle period thus pays for one wakeup rather than two.
const SPIN_TIME: Duration = Duration::from_micros(200);

/// Number of pollers of this process that currently spin.
static SPINNERS: AtomicUsize = AtomicUsize::new(0);

/// Number of cores that this process may use: the smaller of its affinity mask and its control
/// group's quota. Computed once, because it takes system calls.
static CORES: OnceLock<usize> = OnceLock::new();

/// Number of pollers of this process that never sleep.
static BUSY: AtomicUsize = AtomicUsize::new(0);

/// A registration of a poller that never sleeps. Dropping it removes the registration.
#[derive(Debug)]
pub(crate) struct BusyPoller(());

impl BusyPoller {
    /// Registers the poller if its mode is busy, and logs a warning if there are more busy pollers
    /// than cores.
    pub(crate) fn register(waiting: Waiting) -> Option<Self> {
        if waiting != Waiting::Busy {
            return None;
        }
        let (pollers, cores) = (BUSY.fetch_add(1, Ordering::Relaxed) + 1, cores());
        if exceeds_cores(pollers, cores) {
            tracing::warn!(
                pollers,
                cores,
                "more busy pollers than cores available to this process (affinity mask and cgroup quota): \
                 pollers share cores, and calls wait for time slices. Use fewer pollers, or \
                 `Waiting::Adaptive`"
            );
        }
        Some(Self(()))
    }
}

impl Drop for BusyPoller {
    fn drop(&mut self) {
        BUSY.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns true if spinning pollers compete for cores. With a single core they always do, because
/// the thread that a poller waits for needs that core too.
fn exceeds_cores(pollers: usize, cores: usize) -> bool {
    cores == 1 || pollers > cores
}

/// Counts the cores that this process may use, before its first poller is made. The standard library
/// counts those of the calling thread, which may be pinned: another thread counts then.
pub(crate) fn count_cores<F: Fabric>(fabric: &F) {
    CORES.get_or_init(|| {
        let own = of_thread();
        if own >= fabric.allowed_cores().len() {
            return own;
        }
        let counting = fabric.start_thread("verbline-cores", of_thread);
        let counted = counting.ok().and_then(|thread| thread.join().ok());
        counted.unwrap_or(own)
    });
}

fn of_thread() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Returns the number of cores that this process may use.
fn cores() -> usize {
    *CORES.get_or_init(of_thread)
}

/// Counts the empty turns of one poller.
#[derive(Debug)]
pub(crate) struct Idle {
    waiting: Waiting,
    /// Empty turns after which it counts as spinning: [`SPINNING`], or 1 on one core.
    spinning: u32,
    /// Empty turns between two yields: [`YIELD_INTERVAL`], or 1 on one core.
    yield_interval: u32,
    empty_turns: u32,
    /// Start of the spinning phase of an adaptive poller.
    spinning_since: Option<Instant>,
}

impl Idle {
    pub(crate) fn new(waiting: Waiting) -> Self {
        Self::with_cores(waiting, cores())
    }

    fn with_cores(waiting: Waiting, cores: usize) -> Self {
        Self {
            waiting,
            spinning: if cores == 1 { 1 } else { SPINNING },
            yield_interval: if cores == 1 { 1 } else { YIELD_INTERVAL },
            empty_turns: 0,
            spinning_since: None,
        }
    }

    /// Records a turn and whether it found anything to do. Called after each turn. Returns true if
    /// the poller should sleep now.
    #[inline]
    pub(crate) fn after_turn(&mut self, found_any: bool) -> bool {
        if found_any {
            self.stop_spinning();
            return false;
        }
        if self.waiting == Waiting::Event {
            return true;
        }
        self.empty_turns = self.empty_turns.saturating_add(1);
        // Not earlier: the hint takes about 20 to 40 ns, by which an imminent response would be
        // delayed.
        if self.empty_turns >= self.spinning {
            hint::spin_loop();
            if self.empty_turns.is_multiple_of(self.yield_interval) {
                return self.spin();
            }
        }
        false
    }

    #[cold]
    fn spin(&mut self) -> bool {
        if self.empty_turns == self.spinning {
            SPINNERS.fetch_add(1, Ordering::Relaxed);
        }
        if self.waiting == Waiting::Adaptive && self.has_spun_enough() {
            self.stop_spinning();
            return true;
        }
        // An adaptive poller always yields: the thread that it waits for may need this very core,
        // and if that thread belongs to another process, this process's counter does not show it.
        let yields = self.waiting == Waiting::Adaptive
            || exceeds_cores(SPINNERS.load(Ordering::Relaxed), cores());
        if yields || self.empty_turns.is_multiple_of(BUSY_YIELD_INTERVAL) {
            thread::yield_now();
        }
        if self.empty_turns >= u32::MAX - YIELD_INTERVAL {
            self.empty_turns = SPINNING + YIELD_INTERVAL;
        }
        false
    }

    /// Returns true if an adaptive poller has spun long enough.
    fn has_spun_enough(&mut self) -> bool {
        let now = Instant::now();
        let since = *self.spinning_since.get_or_insert(now);
        now.duration_since(since) >= SPIN_TIME
    }

    fn stop_spinning(&mut self) {
        if std::mem::take(&mut self.empty_turns) >= self.spinning {
            SPINNERS.fetch_sub(1, Ordering::Relaxed);
            self.spinning_since = None;
        }
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        self.stop_spinning();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes up to `most` empty turns, until the poller should sleep.
    fn turns_until_sleep(idle: &mut Idle, most: u32) -> Option<u32> {
        (0..most).find(|_| idle.after_turn(false))
    }

    #[test]
    fn each_way_of_waiting_spins_as_long_as_it_says() {
        assert_eq!(
            turns_until_sleep(&mut Idle::new(Waiting::Event), 10),
            Some(0)
        );
        assert_eq!(
            turns_until_sleep(&mut Idle::new(Waiting::Busy), 100_000),
            None
        );
        let mut adaptive = Idle::with_cores(Waiting::Adaptive, 2);
        let started = Instant::now();
        let spun = turns_until_sleep(&mut adaptive, u32::MAX).unwrap();
        assert!(spun >= SPINNING && started.elapsed() >= SPIN_TIME, "{spun}");
        // Work resets the spinning phase.
        adaptive.after_turn(true);
        assert!(turns_until_sleep(&mut adaptive, u32::MAX).unwrap() >= SPINNING);
    }

    /// The thread that it waits for needs the core. An empty turn over TCP takes a system call.
    #[test]
    fn on_one_core_a_poller_yields_from_its_first_empty_turn_on() {
        for (cores, yields) in [(1, true), (2, false)] {
            let mut adaptive = Idle::with_cores(Waiting::Adaptive, cores);
            assert!(!adaptive.after_turn(false));
            // It has looked at the clock, and then yielded.
            assert_eq!(adaptive.spinning_since.is_some(), yields);
            let started = Instant::now();
            turns_until_sleep(&mut adaptive, u32::MAX).unwrap();
            assert!(yields || started.elapsed() >= SPIN_TIME);
        }
    }

    #[test]
    fn pollers_are_too_many_when_each_has_no_core() {
        assert!(!exceeds_cores(2, 2) && exceeds_cores(3, 2) && exceeds_cores(1, 1));
    }
}
