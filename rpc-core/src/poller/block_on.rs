//! [`block_on`]: runs a future to completion on a thread without an executor.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// Runs a future to completion on this thread. The thread sleeps while the future is pending.
///
/// Use it for calls through a [`Channel`](crate::Channel) from a thread that runs no executor. On a
/// thread that is a poller, use [`LocalPoller::block_on`](crate::LocalPoller::block_on). Do not use
/// it in a service's handler, where it blocks the poller: await the call instead.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let sleeper = Arc::new(Sleeper {
        thread: thread::current(),
        is_woken: AtomicBool::new(false),
    });
    let waker = Waker::from(Arc::clone(&sleeper));
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        // Acquire: the poll sees the writes that precede the wake.
        while !sleeper.is_woken.swap(false, Ordering::Acquire) {
            thread::park();
        }
    }
}

/// Wakes a parked thread. The flag is needed because `park` may return without a wake: spuriously,
/// or because other code on the thread used its only park token.
struct Sleeper {
    thread: Thread,
    is_woken: AtomicBool,
}

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_woken.swap(true, Ordering::Release) {
            self.thread.unpark();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[test]
    fn a_future_that_is_woken_by_another_thread_ends() {
        let mut polls = 0;
        let value = block_on(poll_fn(|cx| {
            polls += 1;
            if polls == 3 {
                return Poll::Ready(7);
            }
            // Sets the park token without waking the future.
            thread::current().unpark();
            let waker = cx.waker().clone();
            thread::spawn(move || waker.wake());
            Poll::Pending
        }));
        assert_eq!((value, polls), (7, 3));
    }
}
