//! The end of a server's threads: [`Ended`] lets a future wait for it, [`join`] a thread.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::{self, JoinHandle};

/// Waits for the end of a thread. Does not wait on the thread itself, on which a handler may stop its
/// own server; and not in the child of a fork, which has no such thread.
pub(super) fn join(thread: JoinHandle<()>, is_forked: fn() -> bool) -> thread::Result<()> {
    if is_forked() {
        mem::forget(thread);
        return Ok(());
    }
    match thread.thread().id() == thread::current().id() {
        true => Ok(()),
        false => thread.join(),
    }
}

/// How many of a server's threads have started and ended.
#[derive(Debug, Default)]
pub(super) struct Ended(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    started: usize,
    ended: usize,
    waker: Option<Waker>,
}

/// A thread that runs. Its end is reported when this is dropped.
#[derive(Debug)]
pub(super) struct RunningThread(Arc<Ended>);

impl Ended {
    /// Counts a thread that is about to start.
    pub(super) fn one_more(ended: &Arc<Self>) -> RunningThread {
        ended.state().started += 1;
        RunningThread(Arc::clone(ended))
    }

    /// Waits until a thread has ended.
    pub(super) fn poll_any(&self, cx: &Context<'_>) -> Poll<()> {
        self.poll(cx, |state| state.ended > 0)
    }

    /// Waits until all threads have ended. Joining them then takes no time.
    pub(super) fn poll_all(&self, cx: &Context<'_>) -> Poll<()> {
        self.poll(cx, |state| state.ended == state.started)
    }

    fn poll(&self, cx: &Context<'_>, is_done: impl FnOnce(&State) -> bool) -> Poll<()> {
        let waker = cx.waker().clone();
        let mut state = self.state();
        if is_done(&state) {
            return Poll::Ready(());
        }
        let previous = state.waker.replace(waker);
        drop(state);
        drop(previous);
        Poll::Pending
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Under this lock nothing panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RunningThread {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.ended += 1;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
