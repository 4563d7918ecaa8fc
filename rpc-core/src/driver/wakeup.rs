//! [`Wakeup`]: wakes a poller from another thread. It costs a fence and a load while the poller
//! is awake.
//!
//! ```text
//!  poller                                    another thread with work for it
//!  P1 store asleep = true                    W1 store the work
//!  P2 fence                                  W2 fence
//!  P3 load the work; none: wait              W3 load asleep; true: end the wait
//! ```
//!
//! Without the fences both loads could miss the other side's store: the stores of P1 and W1 may
//! each stay in a store buffer while P3 and W3 read the old values, and the poller would sleep
//! although there is work. Both fences are sequentially consistent, so the load after the later
//! fence sees the other side's store.

use std::fmt;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::task::Waker;

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering, fence};

/// A poller's wakeup. Shared by all threads that give the poller work.
pub(crate) struct Wakeup {
    sleep_flag: SleepFlag,
    /// Ends the transport's wait.
    waker: Waker,
}

impl Wakeup {
    pub(crate) fn new(waker: Waker) -> Self {
        Self {
            sleep_flag: SleepFlag::new(),
            waker,
        }
    }

    /// Executes steps W2 and W3. Must be called after the work was stored where the poller finds
    /// it.
    pub(crate) fn notify(&self) {
        if self.sleep_flag.claim_wake() {
            self.waker.wake_by_ref();
        }
    }

    /// Executes steps P1 and P2. Afterwards the poller must check for work once more, and must call
    /// [`resume`](Self::resume) when it has slept or found work.
    pub(crate) fn prepare_sleep(&self) {
        self.sleep_flag.begin();
    }

    pub(crate) fn resume(&self) {
        self.sleep_flag.end();
    }
}

impl fmt::Debug for Wakeup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wakeup")
    }
}

/// Whether a poller sleeps or is about to.
pub(crate) struct SleepFlag(AtomicBool);

impl SleepFlag {
    pub(crate) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    pub(crate) fn begin(&self) {
        self.0.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    fn end(&self) {
        // A thread that still sees `true` ends a wait that is not in progress: the next wait then
        // returns early, once.
        self.0.store(false, Ordering::Relaxed);
    }

    /// Returns true if the caller must end the wait: of several concurrent callers, only the first.
    pub(crate) fn claim_wake(&self) -> bool {
        fence(Ordering::SeqCst);
        // The load keeps the cache line shared while the poller is awake.
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed)
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    use super::SleepFlag;

    /// Two threads store work each. If the poller sleeps after its check although it missed work,
    /// one of them wakes it, and no more than one makes the system call.
    #[test]
    fn loom_nothing_is_slept_through() {
        loom::model(|| {
            let sleep_flag = Arc::new(SleepFlag::new());
            let brought = Arc::new(AtomicU32::new(0));
            let woken = Arc::new(AtomicU32::new(0));
            let bring = |sleep_flag: &SleepFlag, brought: &AtomicU32, woken: &AtomicU32| {
                brought.fetch_add(1, Ordering::Relaxed);
                if sleep_flag.claim_wake() {
                    woken.fetch_add(1, Ordering::Relaxed);
                }
            };
            let others = [(); 2].map(|()| {
                let (sleep_flag, brought, woken) =
                    (sleep_flag.clone(), brought.clone(), woken.clone());
                thread::spawn(move || bring(&sleep_flag, &brought, &woken))
            });
            sleep_flag.begin();
            let found = brought.load(Ordering::Relaxed);
            for other in others {
                other.join().unwrap();
            }
            let woken = woken.load(Ordering::Relaxed);
            assert!(
                found == 2 || woken == 1,
                "found {found}, woken {woken} times"
            );
            assert!(woken <= 1);
        });
    }

    /// A queue of two halves under a lock, and a flag that says whether either has anything, as in
    /// `tasks.rs`. The poller takes one half after the other. Taking the first one must not clear the
    /// flag while the second one has something, and what comes in between must not be slept through.
    ///
    /// At most three switches between threads that could go on: all interleavings of both callers take
    /// a minute and a half.
    #[test]
    fn loom_taking_one_half_of_a_queue_hides_nothing_of_the_other() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| take_halves_and_sleep([0, 0], &[0, 1]));
    }

    /// Every interleaving of one caller, while the other half has something or has not.
    #[test]
    fn loom_taking_one_half_of_a_queue_hides_nothing_of_one_caller() {
        for (queued, half) in [([0, 1], 0), ([1, 0], 1), ([0, 0], 0), ([0, 0], 1)] {
            loom::model(move || take_halves_and_sleep(queued, &[half]));
        }
    }

    /// A poller takes both halves of a queue with `queued` and goes to sleep, while a caller brings
    /// something to each of `halves`.
    fn take_halves_and_sleep(queued: [u32; 2], halves: &[usize]) {
        let sleep_flag = Arc::new(SleepFlag::new());
        let any = Arc::new(AtomicBool::new(queued != [0, 0]));
        let queue = Arc::new(Mutex::new(queued));
        let callers: Vec<_> = halves
            .iter()
            .map(|&half| {
                let (sleep_flag, any, queue) = (sleep_flag.clone(), any.clone(), queue.clone());
                thread::spawn(move || {
                    let mut halves = queue.lock().unwrap();
                    halves[half] += 1;
                    any.store(true, Ordering::Relaxed);
                    drop(halves);
                    sleep_flag.claim_wake()
                })
            })
            .collect();
        let take = |half: usize| {
            let mut halves = queue.lock().unwrap();
            let taken = std::mem::take(&mut halves[half]);
            any.store(*halves != [0, 0], Ordering::Relaxed);
            taken
        };
        let mut taken = 0;
        if any.load(Ordering::Relaxed) {
            taken += take(0);
        }
        if any.load(Ordering::Relaxed) {
            taken += take(1);
        }
        sleep_flag.begin();
        let found = any.load(Ordering::Relaxed);
        let mut is_woken = false;
        for caller in callers {
            is_woken |= caller.join().unwrap();
        }
        let left: u32 = queue.lock().unwrap().iter().sum();
        let brought = queued.iter().sum::<u32>() + halves.len() as u32;
        assert_eq!(taken + left, brought);
        assert!(left == 0 || found || is_woken);
    }

    /// After a poller has resumed without being woken, later threads do not see it as asleep.
    #[test]
    fn loom_the_next_sleep_is_ended_too() {
        loom::model(|| {
            let sleep_flag = Arc::new(SleepFlag::new());
            let brought = Arc::new(AtomicBool::new(false));
            sleep_flag.begin();
            sleep_flag.end();
            let other = {
                let (sleep_flag, brought) = (sleep_flag.clone(), brought.clone());
                thread::spawn(move || {
                    brought.store(true, Ordering::Relaxed);
                    sleep_flag.claim_wake()
                })
            };
            sleep_flag.begin();
            let found = brought.load(Ordering::Relaxed);
            assert!(other.join().unwrap() || found);
        });
    }
}
