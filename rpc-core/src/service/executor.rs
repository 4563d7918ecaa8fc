//! Services on an executor of the user's: [`Executor`], [`OnExecutor`] and what lies between them
//! and a poller.
//!
//! A poller has no reactor: a handler that waits for a socket, a file or a timer of some runtime
//! has to run there. For each call the handler's future is given to the executor, and the poller
//! keeps an [`Offloaded`], which waits for the outcome as any handler does: the poller's thread does
//! nothing for the call meanwhile.
//!
//! ```text
//!  poller's thread                         executor's threads
//!  request ─▶ Offloaded ── spawn ────────▶ handler's future
//!                │  ▲                          │
//!                │  └── outcome, and a wake ───┘
//!                └── dropped: no longer wanted, and a wake ─▶ drops the handler's future
//! ```
//!
//! Each call has one outcome, whatever the executor does: a future that it drops unfinished answers
//! `UNAVAILABLE`, one that panics `INTERNAL`.

use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::dispatch::guard;
use crate::message::Response;
use crate::status::Status;

/// A future as an [`Executor`] is given it.
pub type Spawned = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Where the handlers of a service run that are not to run on a poller: the user's own runtime.
///
/// Every closure that takes a future is one. With tokio:
///
/// ```ignore
/// let handle = tokio::runtime::Handle::current();
/// GreeterServer::on_executor(MyGreeter, move |future| drop(handle.spawn(future)))
/// ```
///
/// `spawn` is called on the poller's thread, once for each call, and must not block. An executor may
/// drop a future whenever it likes: its call is answered `UNAVAILABLE`.
pub trait Executor: Send + Sync + 'static {
    /// Runs a future to its end, on whichever thread.
    fn spawn(&self, future: Spawned);
}

impl<F: Fn(Spawned) + Send + Sync + 'static> Executor for F {
    fn spawn(&self, future: Spawned) {
        self(future);
    }
}

/// A service whose handlers run on an executor: what a generated `…Server::on_executor` serves.
pub struct OnExecutor<T> {
    service: Arc<T>,
    executor: Arc<dyn Executor>,
}

impl<T> OnExecutor<T> {
    /// `service`, whose handlers are to run on `executor`.
    pub fn new(service: Arc<T>, executor: impl Executor) -> Self {
        Self {
            service,
            executor: Arc::new(executor),
        }
    }

    /// The service, for a handler's future to hold.
    #[must_use]
    pub fn service(&self) -> Arc<T> {
        Arc::clone(&self.service)
    }

    /// Gives a handler's future to the executor; the returned one waits for its outcome. Dropping
    /// that drops the handler's future, too, as soon as the executor polls it again, for which it
    /// is woken.
    pub fn run<Res: Send + 'static>(
        &self,
        handler: impl Future<Output = Result<Response<Res>, Status>> + Send + 'static,
    ) -> Offloaded<Res> {
        let shared = Arc::new(Shared::default());
        self.executor
            .spawn(Box::pin(run_handler(Arc::clone(&shared), handler)));
        Offloaded { shared }
    }
}

impl<T> fmt::Debug for OnExecutor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnExecutor")
    }
}

/// What the executor runs for one call.
fn run_handler<Res: Send + 'static>(
    shared: Arc<Shared<Res>>,
    handler: impl Future<Output = Result<Response<Res>, Status>> + Send + 'static,
) -> impl Future<Output = ()> + Send {
    // Made before the first poll: an executor may drop the future without one.
    let outcome = Outcome(shared);
    async move {
        let outcome = outcome;
        let mut handler = pin!(Some(handler));
        let finished = poll_fn(|cx| {
            if !outcome.0.is_wanted(cx.waker()) {
                return Poll::Ready(None);
            }
            let polled = guard(|| match handler.as_mut().as_pin_mut() {
                Some(handler) => handler.poll(cx),
                None => Poll::Pending,
            });
            match polled {
                Ok(Poll::Pending) => Poll::Pending,
                Ok(Poll::Ready(finished)) => Poll::Ready(Some(finished)),
                Err(panicked) => Poll::Ready(Some(Err(panicked))),
            }
        })
        .await;
        // Before the answer goes out: what the handler held is free when its client goes on.
        let dropped = guard(|| handler.set(None));
        if let Some(finished) = finished {
            outcome.0.finish(dropped.and(finished));
        }
    }
}

/// The poller's end of a call on an executor: waits for its outcome.
pub struct Offloaded<Res> {
    shared: Arc<Shared<Res>>,
}

impl<Res> Future for Offloaded<Res> {
    type Output = Result<Response<Res>, Status>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let waker = cx.waker().clone();
        let mut state = self.shared.lock();
        if let Some(outcome) = state.outcome.take() {
            return Poll::Ready(outcome);
        }
        let before = state.poller.replace(waker);
        drop(state);
        drop(before);
        Poll::Pending
    }
}

impl<Res> Drop for Offloaded<Res> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_unwanted = true;
        let (executor, outcome) = (state.executor.take(), state.outcome.take());
        drop(state);
        drop(outcome);
        if let Some(waker) = executor {
            waker.wake();
        }
    }
}

impl<Res> fmt::Debug for Offloaded<Res> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Offloaded")
    }
}

/// The executor's end: if it goes away before there is an outcome, that is one.
struct Outcome<Res>(Arc<Shared<Res>>);

impl<Res> Drop for Outcome<Res> {
    fn drop(&mut self) {
        if !self.0.lock().is_finished {
            self.0.finish(Err(Status::unavailable(
                "the executor dropped the call before it was done: is it shutting down? The call may have run",
            )));
        }
    }
}

/// What both ends of a call have in common. The lock is held for a few moves, never across code of the
/// user's: messages' destructors, and wakers of their executor, which may come back here.
struct Shared<Res>(Mutex<State<Res>>);

struct State<Res> {
    outcome: Option<Result<Response<Res>, Status>>,
    /// There is an outcome, or was.
    is_finished: bool,
    /// The poller's end is gone.
    is_unwanted: bool,
    poller: Option<Waker>,
    executor: Option<Waker>,
}

impl<Res> Default for Shared<Res> {
    fn default() -> Self {
        Self(Mutex::new(State {
            outcome: None,
            is_finished: false,
            is_unwanted: false,
            poller: None,
            executor: None,
        }))
    }
}

impl<Res> Shared<Res> {
    fn lock(&self) -> MutexGuard<'_, State<Res>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anybody waits for the outcome; if so, `waker` is woken when nobody does any more.
    fn is_wanted(&self, waker: &Waker) -> bool {
        let waker = waker.clone();
        let mut state = self.lock();
        if state.is_unwanted {
            return false;
        }
        let before = state.executor.replace(waker);
        drop(state);
        drop(before);
        true
    }

    fn finish(&self, outcome: Result<Response<Res>, Status>) {
        let mut state = self.lock();
        state.is_finished = true;
        let (poller, executor) = (state.poller.take(), state.executor.take());
        let unwanted = if state.is_unwanted {
            Some(outcome)
        } else {
            state.outcome.replace(outcome)
        };
        drop(state);
        drop((executor, unwanted));
        if let Some(waker) = poller {
            waker.wake();
        }
    }
}
