//! [`Idle`]: what a poller does when there is nothing to do.
//!
//! It spins, and in time it sleeps, as its [`Waiting`] says. But a poller that shares its core with
//! whom it waits for would spin away the very time slice that the other needs, so it yields now and
//! then: rarely where every poller of this process has a core, often where there are more pollers than
//! cores.

use std::hint;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::limits::Waiting;

/// Empty turns after which a poller counts as spinning: some five microseconds, longer than any
/// answer that is worth waiting for takes, so that a quick call costs no shared counter.
const SPINNING: u32 = 256;

/// Empty turns between two yields where pollers have cores: some 200 microseconds. Longer than any
/// answer takes that another core is working on, over an emulated processor and the kernel's software
/// RDMA too, so that a call costs no system call but its doorbells; and far shorter than the time
/// slice that a poller of another process on the same core would otherwise have to wait for.
const PATIENT: u32 = 4096;

/// The same where they have not.
const CROWDED: u32 = 32;

/// How long an adaptive poller spins before it sleeps: many times what an answer takes on one host or in
/// one rack, and longer than a peer that sleeps takes to wake up, so that a first call after a rest pays
/// for one waking up and not for two.
const SPIN_TIME: Duration = Duration::from_micros(200);

/// Pollers of this process that spin at the moment.
static SPINNERS: AtomicUsize = AtomicUsize::new(0);

/// Cores that this process may use: its affinity mask and its control group's quota, whichever is
/// less. Asked once, since the answer takes system calls, and before any thread is pinned, since a
/// pinned thread's own mask has one core.
static CORES: LazyLock<usize> =
    LazyLock::new(|| thread::available_parallelism().map_or(1, usize::from));

/// Pollers of this process that never sleep.
static BUSY: AtomicUsize = AtomicUsize::new(0);

/// A poller that never sleeps, for as long as it is held.
#[derive(Debug)]
pub(crate) struct BusyPoller(());

impl BusyPoller {
    /// Counts one, if it is one; a sentence in the log says when there are more than cores.
    pub(crate) fn announce(waiting: Waiting) -> Option<Self> {
        if waiting != Waiting::Busy {
            return None;
        }
        let (pollers, cores) = (BUSY.fetch_add(1, Ordering::Relaxed) + 1, cores());
        if is_too_many(pollers, cores) {
            tracing::warn!(
                pollers,
                cores,
                "more busy pollers than cores that this process may use (its affinity mask and its control \
                 group's quota): they take turns, and calls wait for time slices. Use fewer pollers, or \
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

/// Whether pollers that spin keep each other from their cores. With one core there is nobody to wait for
/// who does not need it.
fn is_too_many(pollers: usize, cores: usize) -> bool {
    cores == 1 || pollers > cores
}

/// How many cores this process may use. First called on a thread that is not pinned.
pub(crate) fn cores() -> usize {
    *CORES
}

/// Counts empty turns of one poller.
#[derive(Debug)]
pub(crate) struct Idle {
    waiting: Waiting,
    empty_turns: u32,
    /// Of an adaptive poller that spins.
    spinning_since: Option<Instant>,
}

impl Idle {
    pub(crate) fn new(waiting: Waiting) -> Self {
        Self {
            waiting,
            empty_turns: 0,
            spinning_since: None,
        }
    }

    /// To be called after each turn, with whether it found anything. Whether the poller should sleep
    /// now.
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
        // Not before: the hint costs some 20 to 40 ns, by which an answer that is about to come would
        // be seen later.
        if self.empty_turns >= SPINNING {
            hint::spin_loop();
            if self.empty_turns.is_multiple_of(CROWDED) {
                return self.spin();
            }
        }
        false
    }

    #[cold]
    fn spin(&mut self) -> bool {
        if self.empty_turns == SPINNING {
            SPINNERS.fetch_add(1, Ordering::Relaxed);
        }
        if self.waiting == Waiting::Adaptive && self.is_enough() {
            self.stop_spinning();
            return true;
        }
        // Whoever is ready to sleep is ready to stand aside: what an adaptive poller waits for may need
        // this very core, in another process too, which no count of this one's pollers shows.
        let stands_aside = self.waiting == Waiting::Adaptive
            || is_too_many(SPINNERS.load(Ordering::Relaxed), cores());
        if stands_aside || self.empty_turns.is_multiple_of(PATIENT) {
            thread::yield_now();
        }
        if self.empty_turns >= u32::MAX - CROWDED {
            self.empty_turns = SPINNING + CROWDED;
        }
        false
    }

    /// Whether an adaptive poller has spun for long enough.
    fn is_enough(&mut self) -> bool {
        let now = Instant::now();
        let since = *self.spinning_since.get_or_insert(now);
        now.duration_since(since) >= SPIN_TIME
    }

    fn stop_spinning(&mut self) {
        if std::mem::take(&mut self.empty_turns) >= SPINNING {
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

    /// Takes empty turns until the poller is to sleep, or `most` have been taken.
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
        let mut adaptive = Idle::new(Waiting::Adaptive);
        let started = Instant::now();
        let spun = turns_until_sleep(&mut adaptive, u32::MAX).unwrap();
        assert!(spun >= SPINNING && started.elapsed() >= SPIN_TIME, "{spun}");
        // What comes begins the spinning anew.
        adaptive.after_turn(true);
        assert!(turns_until_sleep(&mut adaptive, u32::MAX).unwrap() >= SPINNING);
    }

    #[test]
    fn pollers_are_too_many_when_each_has_no_core() {
        assert!(!is_too_many(2, 2) && is_too_many(3, 2) && is_too_many(1, 1));
    }
}
