//! [`block_on`]: runs a future to completion on a thread without an executor.

use std::cell::{Cell, RefCell};
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
    // A waker may block, although it should not: nothing that this thread sleeps for is collected.
    let _ = COLLECTED.try_with(Collected::wake);
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
        if !COLLECTED
            .try_with(|collected| collected.add(self))
            .unwrap_or(false)
        {
            self.unpark();
        }
    }
}

impl Sleeper {
    fn unpark(&self) {
        if !self.is_woken.swap(true, Ordering::Release) {
            self.thread.unpark();
        }
    }
}

thread_local! {
    static COLLECTED: Collected = const { Collected::new() };
}

/// The sleepers that this thread is to wake, while it collects them.
struct Collected {
    is_collecting: Cell<bool>,
    sleepers: RefCell<Vec<Arc<Sleeper>>>,
}

/// How many of the latest sleepers are compared with the next one. One that is in the list twice is woken
/// twice, which costs little.
const COMPARED: usize = 8;

impl Collected {
    const fn new() -> Self {
        Self {
            is_collecting: Cell::new(false),
            sleepers: RefCell::new(Vec::new()),
        }
    }

    /// Adds a sleeper. Returns false if it has to be woken at once.
    fn add(&self, sleeper: &Arc<Sleeper>) -> bool {
        if !self.is_collecting.get() {
            return false;
        }
        let mut sleepers = self.sleepers.borrow_mut();
        let mut latest = sleepers.iter().rev().take(COMPARED);
        if !latest.any(|other| Arc::ptr_eq(other, sleeper)) {
            sleepers.push(Arc::clone(sleeper));
        }
        true
    }

    /// Wakes the sleepers, and collects no more.
    fn wake(&self) {
        self.is_collecting.set(false);
        let mut sleepers = self.sleepers.take();
        for sleeper in sleepers.drain(..) {
            sleeper.unpark();
        }
        self.sleepers.replace(sleepers);
    }
}

/// Calls `wake_all`, which calls wakers, and then wakes the threads that sleep in [`block_on`] among them. A
/// thread with many calls wakes up once, and finds all of them. Otherwise the first waker would wake it; it
/// would preempt this thread, find one call that has ended, and sleep again.
pub(crate) fn wake_threads_after(wake_all: impl FnOnce()) {
    // While the thread ends, there is no such variable: wakers wake at once.
    let _ = COLLECTED.try_with(|collected| collected.is_collecting.set(true));
    wake_all();
    let _ = COLLECTED.try_with(Collected::wake);
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    /// Returns whether the sleeper's thread has been woken.
    fn is_woken(sleeper: &Sleeper) -> bool {
        sleeper.is_woken.load(Ordering::Relaxed)
    }

    fn sleeper() -> Arc<Sleeper> {
        Arc::new(Sleeper {
            thread: thread::current(),
            is_woken: AtomicBool::new(false),
        })
    }

    #[test]
    fn threads_are_woken_behind_all_wakers() {
        let sleepers = [sleeper(), sleeper()];
        wake_threads_after(|| {
            for sleeper in sleepers.iter().cycle().take(10) {
                sleeper.wake_by_ref();
            }
            assert!(!sleepers.iter().any(|sleeper| is_woken(sleeper)));
            COLLECTED.with(|collected| assert_eq!(collected.sleepers.borrow().len(), 2));
        });
        assert!(sleepers.iter().all(|sleeper| is_woken(sleeper)));
        let later = sleeper();
        later.wake_by_ref();
        assert!(is_woken(&later), "nobody collects any more");
    }

    #[test]
    fn a_waker_that_blocks_waits_for_nothing_that_is_collected() {
        let first = sleeper();
        wake_threads_after(|| {
            first.wake_by_ref();
            let mut polls = 0;
            block_on(poll_fn(|cx| {
                polls += 1;
                cx.waker().wake_by_ref();
                if polls == 2 {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            }));
            assert!(is_woken(&first));
        });
    }

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
