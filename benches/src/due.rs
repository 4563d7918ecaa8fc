//! An executor that also polls at given times, and sleeps in between.
//!
//! Only `overload` needs it, whose calls `verbline_load::OpenLoop` cannot make:
//!
//! - `OpenLoop` wakes itself on every poll. Above the capacity, the pollers of a shared channel and the
//!   server need every core, and a thread that spins would take one of them.
//! - `OpenLoop` sends a call late if no caller is idle, and a caller does not learn when its call should
//!   have been sent. Here such a call is dropped, and deadlines count from intended starts.
//! - `OpenLoop` has one rate, and `overload` goes from one load to the next without a pause.

use std::cell::Cell;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// Polls a future to its end on this thread: when it is woken, and at the times in `due`.
pub fn run_when_due<F: Future>(due: &Cell<Option<Instant>>, future: F) -> F::Output {
    struct Unpark {
        thread: Thread,
        is_woken: AtomicBool,
    }
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            // Release: the future sees what the waking thread did before.
            self.is_woken.store(true, Ordering::Release);
            self.thread.unpark();
        }
    }
    let unpark = Arc::new(Unpark {
        thread: thread::current(),
        is_woken: AtomicBool::new(false),
    });
    let waker = Waker::from(Arc::clone(&unpark));
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        while !unpark.is_woken.swap(false, Ordering::Acquire) {
            match due
                .get()
                .map(|due| due.saturating_duration_since(Instant::now()))
            {
                Some(Duration::ZERO) => break,
                Some(left) => thread::park_timeout(left),
                None => thread::park(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[test]
    fn a_future_is_polled_when_it_is_due_without_being_woken() {
        let due = Cell::new(None);
        let mut polls = 0;
        let start = Instant::now();
        run_when_due(
            &due,
            poll_fn(|_| {
                polls += 1;
                due.set(Some(start + Duration::from_millis(5) * polls));
                if polls == 4 {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            }),
        );
        assert!(start.elapsed() >= Duration::from_millis(15));
    }
}
