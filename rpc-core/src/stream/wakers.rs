//! [`wake_all`]: calls the wakers of tasks.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

/// Calls wakers. They are an executor's code: if one panics, the others must still be called, and the
/// poller must go on.
#[inline]
pub(crate) fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    for waker in wakers {
        if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
            waker_panicked();
        }
    }
}

#[cold]
fn waker_panicked() {
    log_limited!(error, "the waker of a task panicked");
}
