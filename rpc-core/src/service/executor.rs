//! Services whose handlers run on the application's executor: [`Executor`], [`OnExecutor`] and the
//! link between them and a poller.
//!
//! A poller has no reactor, so a handler that waits for a socket, file or timer of a runtime has to
//! run on that runtime. For each call, the poller passes the handler's future to the executor and
//! keeps an [`Offloaded`], which waits for the outcome like any handler. Meanwhile the call takes
//! no time on the poller's thread.
//!
//! ```text
//!  poller's thread                         executor's threads
//!  request ─▶ Offloaded ── spawn ────────▶ handler's future
//!                │  ▲                          │
//!                │  └── outcome and wake ──────┘
//!                └── dropped: cancel and wake ─▶ drops the handler's future
//! ```
//!
//! Each call has exactly one outcome, whatever the executor does: if it drops a future unfinished,
//! the response is `UNAVAILABLE`; if the future panics, `INTERNAL`.

use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::catch_panic::{Panic, catch_panic};
use crate::deadline;
use crate::message::Response;
use crate::status::Status;

/// A boxed future, as passed to an [`Executor`].
pub type Spawned = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs the handlers of a service that must not run on a poller: the application's own runtime.
///
/// Every closure that takes a future is an executor. With tokio:
///
/// ```ignore
/// let handle = tokio::runtime::Handle::current();
/// Server::builder(&device).executor(move |future| drop(handle.spawn(future)))
/// ```
///
/// [`ServerBuilder::executor`](crate::ServerBuilder::executor) sets it for all services of a server,
/// and `.executor(…)` of a generated `…Server` for one.
///
/// `spawn` is called on the poller's thread, once per call, and must not block. An executor may
/// drop a future at any time: the response to its call is then `UNAVAILABLE`.
pub trait Executor: Send + Sync + 'static {
    /// Runs a future to completion, on any thread.
    fn spawn(&self, future: Spawned);
}

impl<F: Fn(Spawned) + Send + Sync + 'static> Executor for F {
    fn spawn(&self, future: Spawned) {
        self(future);
    }
}

/// A service whose handlers run on an executor.
pub struct OnExecutor<T> {
    service: Arc<T>,
    executor: Arc<dyn Executor>,
}

impl<T> OnExecutor<T> {
    /// Combines a service with the executor that runs its handlers.
    pub fn new(service: Arc<T>, executor: impl Executor) -> Self {
        Self::shared(service, Arc::new(executor))
    }

    pub(super) fn shared(service: Arc<T>, executor: Arc<dyn Executor>) -> Self {
        Self { service, executor }
    }

    /// Returns the service, to be owned by a handler's future.
    #[must_use]
    pub fn service(&self) -> Arc<T> {
        Arc::clone(&self.service)
    }

    /// Passes a handler's future to the executor and returns a future that waits for its outcome.
    /// Calls that the handler makes on the executor inherit the deadline that is current here.
    /// Dropping the returned future wakes the handler's future, which is dropped when the executor
    /// next polls it.
    ///
    /// A handler with a stream of responses sends its messages from the executor's thread, and its
    /// outcome is `Response<()>`.
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

/// Wraps a handler's future into the future that the executor runs for one call.
fn run_handler<Res: Send + 'static>(
    shared: Arc<Shared<Res>>,
    handler: impl Future<Output = Result<Response<Res>, Status>> + Send + 'static,
) -> impl Future<Output = ()> + Send {
    // Created before the first poll, because an executor may drop the future without polling it.
    let outcome = Outcome(shared);
    let deadline = deadline::current();
    async move {
        let outcome = outcome;
        let mut handler = pin!(Some(handler));
        let finished = poll_fn(|cx| {
            if !outcome.0.is_wanted(cx.waker()) {
                return Poll::Ready(None);
            }
            let _scope = deadline::enter(deadline);
            let polled = catch_panic(|| match handler.as_mut().as_pin_mut() {
                Some(handler) => handler.poll(cx),
                None => Poll::Pending,
            });
            match polled {
                Ok(Poll::Pending) => Poll::Pending,
                Ok(Poll::Ready(finished)) => Poll::Ready(Some(Ok(finished))),
                Err(panicked) => Poll::Ready(Some(Err(panicked))),
            }
        })
        .await;
        // Dropped before the response is sent, so that the handler's resources are free when its
        // client continues.
        let dropped = catch_panic(|| handler.set(None));
        if let Some(finished) = finished {
            outcome.0.finish(dropped.and(finished));
        }
    }
}

/// The poller's side of a call on an executor: waits for the outcome.
pub struct Offloaded<Res> {
    shared: Arc<Shared<Res>>,
}

impl<Res> Future for Offloaded<Res> {
    type Output = Result<Response<Res>, Status>;

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

/// The executor's side. If it is dropped before there is an outcome, it reports `UNAVAILABLE`.
struct Outcome<Res>(Arc<Shared<Res>>);

impl<Res> Drop for Outcome<Res> {
    fn drop(&mut self) {
        if !self.0.lock().is_finished {
            self.0.finish(Ok(Err(Status::unavailable(
                "the executor dropped the handler before it completed; the call may have run. Check whether the executor is shutting down",
            ))));
        }
    }
}

/// The state shared by both sides of a call. The lock is only held for a few moves and never across
/// application code (destructors of messages, wakers of the executor), which may reenter.
struct Shared<Res>(Mutex<State<Res>>);

struct State<Res> {
    outcome: Option<Result<Result<Response<Res>, Status>, Panic>>,
    /// There is an outcome, or it has been taken.
    is_finished: bool,
    /// The poller's side has been dropped.
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

    /// Returns true if the poller's side still waits for the outcome. If so, registers `waker` to
    /// be woken when it stops waiting.
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

    fn finish(&self, outcome: Result<Result<Response<Res>, Status>, Panic>) {
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
