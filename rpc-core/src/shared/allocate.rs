//! [`Allocation`]: memory for a message, from the poller of a shared channel, which alone has some.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::codec::MessageBuf;

/// A request for memory, shared by the caller's future and the poller.
#[derive(Debug)]
pub(super) struct Allocation {
    pub(super) len: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    /// The poller has not answered. With the waker of the caller's task.
    Waiting(Option<Waker>),
    Allocated(MessageBuf),
    /// The poller has ended without an answer, or the caller has taken it.
    Over,
}

impl Allocation {
    pub(super) fn new(len: usize) -> Arc<Self> {
        Arc::new(Self {
            len,
            state: Mutex::new(State::Waiting(None)),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the memory. It is the heap's if the poller has ended.
    pub(super) fn poll_take(&self, cx: &mut Context<'_>) -> Poll<MessageBuf> {
        let waker = cx.waker().clone();
        let mut state = self.lock();
        if let State::Waiting(waiting) = &mut *state {
            let replaced = waiting.replace(waker);
            drop(state);
            drop(replaced);
            return Poll::Pending;
        }
        match std::mem::replace(&mut *state, State::Over) {
            State::Allocated(buf) => Poll::Ready(buf),
            State::Waiting(_) | State::Over => Poll::Ready(MessageBuf::heap(self.len)),
        }
    }

    /// Answers the caller, with memory if the poller still runs. Returns the waker of its task.
    #[must_use]
    pub(super) fn answer(&self, buf: Option<MessageBuf>) -> Option<Waker> {
        let answer = buf.map_or(State::Over, State::Allocated);
        match std::mem::replace(&mut *self.lock(), answer) {
            State::Waiting(waker) => waker,
            State::Allocated(_) | State::Over => None,
        }
    }
}
