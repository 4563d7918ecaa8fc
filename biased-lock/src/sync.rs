//! The atomics of the lock, so that loom can replace them with its own.

#[cfg(not(loom))]
pub(crate) use std::cell::UnsafeCell;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(loom)]
pub(crate) use std::cell::UnsafeCell;

/// Lets other threads run, for the `round`th time: a thread that is inside and has no core needs one to
/// leave.
pub(crate) fn pause(round: u32) {
    /// How often a thread that waits yields its core before it sleeps.
    const YIELDS: u32 = 64;
    /// How long it sleeps then.
    const SLEEP: std::time::Duration = std::time::Duration::from_micros(50);
    if cfg!(loom) || round < YIELDS {
        #[cfg(not(loom))]
        std::thread::yield_now();
        #[cfg(loom)]
        loom::thread::yield_now();
    } else {
        // A thread of a real-time class yields to its equals only.
        std::thread::sleep(SLEEP);
    }
}
