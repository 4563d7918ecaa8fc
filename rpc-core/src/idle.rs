//! [`Idle`]: how a busy poller behaves when there is nothing to do.
//!
//! It spins. But a poller that shares its core with whom it waits for would spin away the very time
//! slice that the other needs, so it yields now and then: rarely where every poller of this process
//! has a core, often where there are more pollers than cores.

use std::hint;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

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

/// Pollers of this process that spin at the moment.
static SPINNERS: AtomicUsize = AtomicUsize::new(0);

/// Cores that this process may use. Asked once: the answer takes system calls.
static CORES: LazyLock<usize> =
    LazyLock::new(|| thread::available_parallelism().map_or(1, usize::from));

/// Counts empty turns of one poller.
#[derive(Debug, Default)]
pub(crate) struct Idle {
    empty_turns: u32,
}

impl Idle {
    /// To be called after each turn, with whether it found anything.
    pub(crate) fn after_turn(&mut self, found_any: bool) {
        if found_any {
            self.stop_spinning();
            return;
        }
        self.empty_turns = self.empty_turns.saturating_add(1);
        // Not before: the hint costs some 20 to 40 ns, by which an answer that is about to come would
        // be seen later.
        if self.empty_turns >= SPINNING {
            hint::spin_loop();
            if self.empty_turns.is_multiple_of(CROWDED) {
                self.spin();
            }
        }
    }

    #[cold]
    fn spin(&mut self) {
        if self.empty_turns == SPINNING {
            SPINNERS.fetch_add(1, Ordering::Relaxed);
        }
        // With one core there is nobody to wait for who does not need it.
        let is_crowded = *CORES == 1 || SPINNERS.load(Ordering::Relaxed) > *CORES;
        if is_crowded || self.empty_turns.is_multiple_of(PATIENT) {
            thread::yield_now();
        }
        if self.empty_turns >= u32::MAX - CROWDED {
            self.empty_turns = SPINNING + CROWDED;
        }
    }

    fn stop_spinning(&mut self) {
        if std::mem::take(&mut self.empty_turns) >= SPINNING {
            SPINNERS.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        self.stop_spinning();
    }
}
