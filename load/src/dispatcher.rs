//! [`Dispatcher`]: gives calls that are due to callers that are idle.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Matches calls with callers, which are tasks of one thread.
pub struct Dispatcher<T> {
    callers: RefCell<Vec<Caller<T>>>,
    /// In the order in which they became idle.
    idle: RefCell<VecDeque<usize>>,
    is_closed: Cell<bool>,
}

/// Which of the idle callers makes a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The one that became idle last: its data is still in the cache.
    Latest,
    /// The one that has been idle longest, so that connections take turns.
    Longest,
}

struct Caller<T> {
    call: Option<T>,
    /// The waker of its latest poll.
    waker: Option<Waker>,
}

impl<T> Dispatcher<T> {
    /// Creates a dispatcher for this many callers, which have the numbers from 0.
    pub fn new(callers: usize) -> Self {
        let callers = (0..callers).map(|_| Caller {
            call: None,
            waker: None,
        });
        Self {
            callers: RefCell::new(callers.collect()),
            idle: RefCell::default(),
            is_closed: Cell::new(false),
        }
    }

    /// Returns the next call of a caller, or `None` when there are no more calls.
    pub async fn next_call(&self, caller: usize) -> Option<T> {
        let mut was_pushed = false;
        poll_fn(|cx| {
            let state = &mut self.callers.borrow_mut()[caller];
            if let Some(call) = state.call.take() {
                return Poll::Ready(Some(call));
            }
            if self.is_closed.get() {
                return Poll::Ready(None);
            }
            match &mut state.waker {
                Some(waker) => waker.clone_from(cx.waker()),
                None => state.waker = Some(cx.waker().clone()),
            }
            if !std::mem::replace(&mut was_pushed, true) {
                self.idle.borrow_mut().push_back(caller);
            }
            Poll::Pending
        })
        .await
    }

    /// Assigns a call to an idle caller. Returns false if there is none.
    pub fn assign(&self, call: T, which: Which) -> bool {
        let mut idle = self.idle.borrow_mut();
        let caller = match which {
            Which::Latest => idle.pop_back(),
            Which::Longest => idle.pop_front(),
        };
        let Some(caller) = caller else {
            return false;
        };
        let state = &mut self.callers.borrow_mut()[caller];
        state.call = Some(call);
        if let Some(waker) = &state.waker {
            waker.wake_by_ref();
        }
        true
    }

    /// Returns true if there are no more calls.
    pub fn is_closed(&self) -> bool {
        self.is_closed.get()
    }

    /// Lets each caller end after its call.
    pub fn close(&self) {
        if !self.is_closed.replace(true) {
            for state in &*self.callers.borrow() {
                if let Some(waker) = &state.waker {
                    waker.wake_by_ref();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Context;

    use super::*;

    #[test]
    fn callers_take_turns_and_a_call_without_a_caller_is_not_assigned() {
        for (which, [of_first, of_second]) in [(Which::Longest, [2, 1]), (Which::Latest, [1, 2])] {
            let dispatcher = Dispatcher::new(2);
            let mut cx = Context::from_waker(Waker::noop());
            let (mut first, mut second) =
                (pin!(dispatcher.next_call(0)), pin!(dispatcher.next_call(1)));
            assert!(second.as_mut().poll(&mut cx).is_pending());
            assert!(first.as_mut().poll(&mut cx).is_pending());
            assert!(dispatcher.assign(1, which) && dispatcher.assign(2, which));
            assert!(!dispatcher.assign(3, which));
            assert_eq!(first.as_mut().poll(&mut cx), Poll::Ready(Some(of_first)));
            assert_eq!(second.as_mut().poll(&mut cx), Poll::Ready(Some(of_second)));
            dispatcher.close();
            let mut last = pin!(dispatcher.next_call(0));
            assert_eq!(last.as_mut().poll(&mut cx), Poll::Ready(None));
        }
    }
}
