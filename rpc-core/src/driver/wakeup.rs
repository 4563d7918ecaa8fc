//! [`Doorbell`]: how a thread that has something for a poller wakes it, for the price of a fence and a
//! load while the poller is awake.
//!
//! ```text
//!  poller                               whoever has something for it
//!  P1 asleep = true                     W1 put it where the poller looks
//!  P2 fence                             W2 fence
//!  P3 look; there is nothing: wait      W3 look at asleep; true: end the wait
//! ```
//!
//! Without the fences both looks could miss: the store of P1 and that of W1 may each wait in a store
//! buffer while P3 and W3 read the old values, and the poller would sleep on what it was brought. With
//! both fences sequentially consistent, whichever comes second sees the other side's store.

use std::fmt;
use std::task::Waker;

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// A poller's bell. Shared by all who bring it something.
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

    /// W2 and W3: to be called after something was put where the poller looks.
    pub(crate) fn ring(&self) {
        if self.slumber.is_to_be_ended() {
            self.waker.wake_by_ref();
        }
    }

    /// P1 and P2: the poller has to look once more after this, and to call [`get_up`](Self::get_up)
    /// when it has slept, or when it has found something.
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

/// Whether a poller sleeps, or is about to.
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
        // Whoever still sees it asleep ends a wait that is not under way: the next one returns early,
        // once.
        self.0.store(false, Ordering::Relaxed);
    }

    /// Whether the caller is the one to end the wait: of many who come at once, the first.
    fn is_to_be_ended(&self) -> bool {
        fence(Ordering::SeqCst);
        // The load keeps the line shared while the poller is awake.
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed)
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use loom::thread;

    use super::Slumber;

    /// Two threads bring something each. A poller that sleeps after its look has missed nothing that
    /// nobody wakes it for; and no more than one of them makes the system call.
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

    /// A poller that gets up by itself is not left asleep for those who come later.
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
