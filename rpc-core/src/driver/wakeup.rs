//! [`Doorbell`]: wakes a poller from another thread. It costs a fence and a load while the poller
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
use std::task::Waker;

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// A poller's wakeup. Shared by all threads that give the poller work.
pub(crate) struct Doorbell {
    slumber: Slumber,
    /// Ends the transport's wait.
    waker: Waker,
}

impl Doorbell {
    pub(crate) fn new(waker: Waker) -> Self {
        Self {
            slumber: Slumber::new(),
            waker,
        }
    }

    /// Executes steps W2 and W3. Must be called after the work was stored where the poller finds
    /// it.
    pub(crate) fn ring(&self) {
        if self.slumber.is_to_be_ended() {
            self.waker.wake_by_ref();
        }
    }

    /// Executes steps P1 and P2. Afterwards the poller must check for work once more, and must call
    /// [`get_up`](Self::get_up) when it has slept or found work.
    pub(crate) fn lie_down(&self) {
        self.slumber.begin();
    }

    pub(crate) fn get_up(&self) {
        self.slumber.end();
    }
}

impl fmt::Debug for Doorbell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Doorbell")
    }
}

/// Whether a poller sleeps or is about to.
struct Slumber(AtomicBool);

impl Slumber {
    fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    fn begin(&self) {
        self.0.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    fn end(&self) {
        // A thread that still sees `true` ends a wait that is not in progress: the next wait then
        // returns early, once.
        self.0.store(false, Ordering::Relaxed);
    }

    /// Returns true if the caller must end the wait: of several concurrent callers, only the first.
    fn is_to_be_ended(&self) -> bool {
        fence(Ordering::SeqCst);
        // The load keeps the cache line shared while the poller is awake.
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed)
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use loom::thread;

    use super::Slumber;

    /// Two threads store work each. If the poller sleeps after its check although it missed work,
    /// one of them wakes it, and no more than one makes the system call.
    #[test]
    fn loom_nothing_is_slept_through() {
        loom::model(|| {
            let slumber = Arc::new(Slumber::new());
            let brought = Arc::new(AtomicU32::new(0));
            let woken = Arc::new(AtomicU32::new(0));
            let bring = |slumber: &Slumber, brought: &AtomicU32, woken: &AtomicU32| {
                brought.fetch_add(1, Ordering::Relaxed);
                if slumber.is_to_be_ended() {
                    woken.fetch_add(1, Ordering::Relaxed);
                }
            };
            let others = [(); 2].map(|()| {
                let (slumber, brought, woken) = (slumber.clone(), brought.clone(), woken.clone());
                thread::spawn(move || bring(&slumber, &brought, &woken))
            });
            slumber.begin();
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

    /// A poller that resumes by itself is not seen as asleep by threads that come later.
    #[test]
    fn loom_the_next_sleep_is_ended_too() {
        loom::model(|| {
            let slumber = Arc::new(Slumber::new());
            let brought = Arc::new(AtomicBool::new(false));
            slumber.begin();
            slumber.end();
            let other = {
                let (slumber, brought) = (slumber.clone(), brought.clone());
                thread::spawn(move || {
                    brought.store(true, Ordering::Relaxed);
                    slumber.is_to_be_ended()
                })
            };
            slumber.begin();
            let found = brought.load(Ordering::Relaxed);
            assert!(other.join().unwrap() || found);
        });
    }
}
