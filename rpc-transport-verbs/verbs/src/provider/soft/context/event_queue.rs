//! The asynchronous events of one context, and the wait for them.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::types::AsyncEvent;

/// Events in the order in which they were raised. Never used on the data path. The lock is
/// innermost and held only for a push or a pop.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    events: VecDeque<AsyncEvent>,
    /// Interruptions that no waiting thread has noticed yet.
    interruptions: usize,
}

impl EventQueue {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics under the lock; if it did, the queue would still be consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn raise(&self, event: AsyncEvent) {
        self.lock().events.push_back(event);
        self.changed.notify_one();
    }

    pub(crate) fn interrupt(&self) {
        self.lock().interruptions += 1;
        self.changed.notify_one();
    }

    /// Returns the next event; `None` after `timeout` or an interruption.
    pub(crate) fn next(&self, timeout: Option<Duration>) -> Option<AsyncEvent> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut state = self.lock();
        loop {
            if let Some(event) = state.events.pop_front() {
                return Some(event);
            }
            if state.interruptions > 0 {
                state.interruptions -= 1;
                return None;
            }
            state = match deadline {
                None => self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return None;
                    }
                    self.changed
                        .wait_timeout(state, left)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
            };
        }
    }
}
