//! [`offload`]: work of a poller that runs on another thread, and [`Offloaded`], which waits for its
//! outcome.
//!
//! Two kinds of work do: handlers on the application's executor (`service/executor.rs`), and decodes
//! that take long (`codec/beside.rs`).
//!
//! ```text
//!  poller's thread                         other threads
//!  request ─▶ Offloaded ── spawn ────────▶ the work
//!                │  ▲                          │
//!                │  └── outcome and wake ──────┘
//!                └── dropped: cancel and wake ─▶ drops the work
//! ```

use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::catch_panic::{Panic, catch_panic};
use crate::deadline;

/// A boxed future, as passed to an [`Executor`](crate::Executor).
pub type Spawned = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Returns the future that does the work on another thread, and the one that waits for its outcome.
/// Calls that the work makes inherit the deadline that is current here. If the first is dropped
/// unfinished, the outcome is `unfinished`. If the second one is dropped, the first is woken, and drops
/// the work when it is next polled.
pub(crate) fn offload<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
    unfinished: fn() -> T,
) -> (Spawned, Offloaded<T>) {
    let shared = Arc::new(Shared::default());
    let outcome = Outcome {
        shared: Arc::clone(&shared),
        unfinished,
    };
    (Box::pin(run(outcome, work)), Offloaded { shared })
}

/// Does the work. `outcome` is created before, because an executor may drop this future without polling
/// it.
fn run<T: Send + 'static>(
    outcome: Outcome<T>,
    work: impl Future<Output = T> + Send + 'static,
) -> impl Future<Output = ()> + Send {
    let deadline = deadline::current();
    async move {
        let outcome = outcome;
        let mut work = pin!(Some(work));
        let finished = poll_fn(|cx| {
            if !outcome.shared.is_wanted(cx.waker()) {
                return Poll::Ready(None);
            }
            let _scope = deadline::enter(deadline);
            let polled = catch_panic(|| match work.as_mut().as_pin_mut() {
                Some(work) => work.poll(cx),
                None => Poll::Pending,
            });
            match polled {
                Ok(Poll::Pending) => Poll::Pending,
                Ok(Poll::Ready(finished)) => Poll::Ready(Some(Ok(finished))),
                Err(panicked) => Poll::Ready(Some(Err(panicked))),
            }
        })
        .await;
        // Dropped before the outcome is passed on, so that a handler's resources are free when its client
        // continues.
        let dropped = catch_panic(|| work.set(None));
        if let Some(finished) = finished {
            outcome.shared.finish(dropped.and(finished));
        }
    }
}

/// The poller's side of work on another thread: waits for the outcome.
pub struct Offloaded<T> {
    shared: Arc<Shared<T>>,
}

impl<T> Offloaded<T> {
    /// Stops waiting. Returns the outcome if there is one.
    pub(crate) fn leave(&self) -> Option<Result<T, Panic>> {
        let mut state = self.shared.lock();
        state.is_unwanted = true;
        let (worker, outcome) = (state.worker.take(), state.outcome.take());
        drop(state);
        if let Some(waker) = worker {
            waker.wake();
        }
        outcome
    }
}

impl<T> Future for Offloaded<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let waker = cx.waker().clone();
        let mut state = self.shared.lock();
        if let Some(outcome) = state.outcome.take() {
            drop(state);
            return match outcome {
                Ok(outcome) => Poll::Ready(outcome),
                // The poller reports it, like a panic of any handler.
                Err(panicked) => panicked.resume(),
            };
        }
        let before = state.poller.replace(waker);
        drop(state);
        drop(before);
        Poll::Pending
    }
}

impl<T> Drop for Offloaded<T> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl<T> fmt::Debug for Offloaded<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Offloaded")
    }
}

/// The other thread's side.
struct Outcome<T> {
    shared: Arc<Shared<T>>,
    /// The outcome if this is dropped before there is one.
    unfinished: fn() -> T,
}

impl<T> Drop for Outcome<T> {
    fn drop(&mut self) {
        let state = self.shared.lock();
        let is_over = state.is_finished || state.is_unwanted;
        drop(state);
        if !is_over {
            self.shared.finish(Ok((self.unfinished)()));
        }
    }
}

/// The state shared by both sides. The lock is only held for a few moves and never across application
/// code (destructors of messages, wakers of the executor), which may reenter.
struct Shared<T>(Mutex<State<T>>);

struct State<T> {
    outcome: Option<Result<T, Panic>>,
    /// There is an outcome, or it has been taken.
    is_finished: bool,
    /// The poller's side has been dropped.
    is_unwanted: bool,
    poller: Option<Waker>,
    worker: Option<Waker>,
}

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Self(Mutex::new(State {
            outcome: None,
            is_finished: false,
            is_unwanted: false,
            poller: None,
            worker: None,
        }))
    }
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if the poller's side still waits for the outcome. If so, registers `waker` to
    /// be woken when it stops waiting.
    fn is_wanted(&self, waker: &Waker) -> bool {
        let waker = waker.clone();
        let mut state = self.lock();
        if state.is_unwanted {
            return false;
        }
        let before = state.worker.replace(waker);
        drop(state);
        drop(before);
        true
    }

    fn finish(&self, outcome: Result<T, Panic>) {
        let mut state = self.lock();
        state.is_finished = true;
        let (poller, worker) = (state.poller.take(), state.worker.take());
        let unwanted = if state.is_unwanted {
            Some(outcome)
        } else {
            state.outcome.replace(outcome)
        };
        drop(state);
        drop((worker, unwanted));
        if let Some(waker) = poller {
            waker.wake();
        }
    }
}
