//! Services whose handlers run on the application's executor: [`Executor`] and [`OnExecutor`].
//!
//! A poller has no reactor, so a handler that waits for a socket, file or timer of a runtime has to
//! run on that runtime. For each call, the poller passes the handler's future to the executor and
//! keeps an [`Offloaded`], which waits for the outcome like any handler. Meanwhile the call takes
//! no time on the poller's thread.
//!
//! Each call has exactly one outcome, whatever the executor does: if it drops a future unfinished,
//! the response is `UNAVAILABLE`; if the future panics, `INTERNAL`.

use std::fmt;
use std::sync::Arc;

use crate::message::Response;
use crate::offload::{Offloaded, Spawned, offload};
use crate::status::Status;

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
    ) -> Offloaded<Result<Response<Res>, Status>> {
        let (spawned, offloaded) = offload(handler, || {
            Err(Status::unavailable(
                "the executor dropped the handler before it completed; the call may have run. Check whether the executor is shutting down",
            ))
        });
        self.executor.spawn(spawned);
        offloaded
    }
}

impl<T> fmt::Debug for OnExecutor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnExecutor")
    }
}
