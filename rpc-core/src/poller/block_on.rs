//! [`block_on`]: a future, run to its end by a thread that has no executor.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// Runs a future on this thread, which sleeps while the future waits.
///
/// For calls through a [`Channel`](crate::Channel) from threads that are nobody's executor; whose
/// thread is a poller uses [`LocalPoller::block_on`](crate::LocalPoller::block_on). A handler of a
/// service that uses this blocks its poller: it is to await instead.
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
        // Acquire: what was done before the wake is seen by the poll.
        while !sleeper.is_woken.swap(false, Ordering::Acquire) {
            thread::park();
        }
    }
}

/// Told apart from other uses of the thread's one token: a park that ends for another reason, or for
/// none, is not a wake.
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
            // A token for the thread that is no wake for the future.
            thread::current().unpark();
            let waker = cx.waker().clone();
            thread::spawn(move || waker.wake());
            Poll::Pending
        }));
        assert_eq!((value, polls), (7, 3));
    }
}
