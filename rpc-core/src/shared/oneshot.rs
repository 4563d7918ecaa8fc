//! [`oneshot`]: a value that a poller's thread passes to a caller's task.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::stream::wakers::wake_all;

/// Creates the two ends of one value.
pub(super) fn oneshot<T>() -> (Sender<T>, Receiver<T>) {
    let state = Arc::new(Mutex::new(State::Waiting(None)));
    (Sender(Arc::clone(&state)), Receiver(state))
}

/// The end that has the value. If it is dropped, there will be none.
pub(super) struct Sender<T>(Arc<Mutex<State<T>>>);

/// The end that waits for the value.
pub(super) struct Receiver<T>(Arc<Mutex<State<T>>>);

enum State<T> {
    /// With the waker of the task that waits.
    Waiting(Option<Waker>),
    Sent(T),
    /// The value has been taken, or there will be none.
    Over,
}

fn lock<T>(state: &Mutex<State<T>>) -> MutexGuard<'_, State<T>> {
    // Under this lock only the allocator can panic.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Sender<T> {
    pub(super) fn send(self, value: T) {
        self.end(State::Sent(value));
    }

    fn end(&self, end: State<T>) {
        let mut state = lock(&self.0);
        if let State::Waiting(waker) = &mut *state {
            let waker = waker.take();
            *state = end;
            drop(state);
            wake_all(waker);
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.end(State::Over);
    }
}

impl<T> Receiver<T> {
    /// Takes the value. Returns `None` if the other end was dropped without one.
    pub(super) fn poll_take(&self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        // Cloning and dropping a waker may run an executor's code, so nothing is locked.
        let waker = cx.waker().clone();
        let mut state = lock(&self.0);
        match mem::replace(&mut *state, State::Over) {
            State::Waiting(before) => {
                *state = State::Waiting(Some(waker));
                drop(state);
                drop(before);
                Poll::Pending
            }
            State::Sent(value) => Poll::Ready(Some(value)),
            State::Over => Poll::Ready(None),
        }
    }
}
