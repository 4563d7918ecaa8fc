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

use super::input::{Input, Message, Messages, WithResponses};
use super::intercepted::on_executor;
use crate::codec::{Codec, ProstCodec};
use crate::intercept::Chain;
use crate::message::{Request, Response};
use crate::method::MethodSpec;
use crate::offload::{Offloaded, Spawned, offload};
use crate::status::Status;
use crate::stream::responses::Responses;
use crate::stream::streaming::Streaming;

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
    /// The interceptors of the service, which run on the executor, too.
    chain: Option<Arc<Chain>>,
}

impl<T> OnExecutor<T> {
    /// Combines a service with the executor that runs its handlers.
    pub fn new(service: Arc<T>, executor: impl Executor) -> Self {
        Self::shared(service, Arc::new(executor), None)
    }

    pub(super) fn shared(
        service: Arc<T>,
        executor: Arc<dyn Executor>,
        chain: Option<Arc<Chain>>,
    ) -> Self {
        Self {
            service,
            executor,
            chain,
        }
    }

    /// Passes a handler's future to the executor and returns a future that waits for its outcome.
    /// Calls that the handler makes on the executor inherit the deadline that is current here.
    /// Dropping the returned future wakes the handler's future, which is dropped when the executor
    /// next polls it.
    ///
    /// A handler with a stream of responses sends its messages from the executor's thread, and its
    /// outcome is `Response<()>`.
    ///
    /// # Panics
    ///
    /// Panics if the service has interceptors, which would not be asked: the call fails with `INTERNAL`.
    pub fn run<Res: Send + 'static>(
        &self,
        handler: impl Future<Output = Result<Response<Res>, Status>> + Send + 'static,
    ) -> Offloaded<Result<Response<Res>, Status>> {
        assert!(
            self.chain.is_none(),
            "the code of this service does not ask its interceptors: generate it with this version"
        );
        self.spawn(handler)
    }

    fn spawn<Res: Send + 'static>(
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

/// What generated code calls, by the kind of the method. `handler` makes the future of the call, on the
/// executor, where the service's interceptors run before.
impl<T: Send + Sync + 'static> OnExecutor<T> {
    /// Runs the handler of a unary method.
    pub fn unary<Q, S, Req, Res, F>(
        &self,
        spec: &'static MethodSpec,
        _request_codec: Q,
        _response_codec: S,
        request: Request<Req>,
        handler: impl FnOnce(Arc<T>, Request<Req>) -> F + Send + 'static,
    ) -> Offloaded<Result<Response<Res>, Status>>
    where
        Q: Codec<Req>,
        S: Codec<Res>,
        Req: Send + 'static,
        Res: Send + 'static,
        F: Future<Output = Result<Response<Res>, Status>> + Send + 'static,
    {
        self.run_intercepted::<Message<Q, Req>, S, Res, F>(spec, request, handler)
    }

    /// Runs the handler of a client-streaming method.
    pub fn client_streaming<Q, S, Req, Res, F>(
        &self,
        spec: &'static MethodSpec,
        _request_codec: Q,
        _response_codec: S,
        request: Request<Streaming<Req>>,
        handler: impl FnOnce(Arc<T>, Request<Streaming<Req>>) -> F + Send + 'static,
    ) -> Offloaded<Result<Response<Res>, Status>>
    where
        Q: Codec<Req>,
        S: Codec<Res>,
        Req: Send + 'static,
        Res: Send + 'static,
        F: Future<Output = Result<Response<Res>, Status>> + Send + 'static,
    {
        self.run_intercepted::<Messages<Q, Req>, S, Res, F>(spec, request, handler)
    }

    /// Runs the handler of a server-streaming method.
    pub fn server_streaming<Q, S, Req, Res, F>(
        &self,
        spec: &'static MethodSpec,
        _request_codec: Q,
        _response_codec: S,
        request: (Request<Req>, Responses<S, Res>),
        handler: impl FnOnce(Arc<T>, (Request<Req>, Responses<S, Res>)) -> F + Send + 'static,
    ) -> Offloaded<Result<Response<()>, Status>>
    where
        Q: Codec<Req>,
        S: Codec<Res>,
        Req: Send + 'static,
        Res: 'static,
        F: Future<Output = Result<Response<()>, Status>> + Send + 'static,
    {
        type I<Q, S, Req, Res> = WithResponses<Message<Q, Req>, S, Res>;
        self.run_intercepted::<I<Q, S, Req, Res>, ProstCodec, (), F>(spec, request, handler)
    }

    /// Runs the handler of a method with streams in both directions.
    pub fn streaming<Q, S, Req, Res, F>(
        &self,
        spec: &'static MethodSpec,
        _request_codec: Q,
        _response_codec: S,
        request: (Request<Streaming<Req>>, Responses<S, Res>),
        handler: impl FnOnce(Arc<T>, (Request<Streaming<Req>>, Responses<S, Res>)) -> F + Send + 'static,
    ) -> Offloaded<Result<Response<()>, Status>>
    where
        Q: Codec<Req>,
        S: Codec<Res>,
        Req: Send + 'static,
        Res: 'static,
        F: Future<Output = Result<Response<()>, Status>> + Send + 'static,
    {
        type I<Q, S, Req, Res> = WithResponses<Messages<Q, Req>, S, Res>;
        self.run_intercepted::<I<Q, S, Req, Res>, ProstCodec, (), F>(spec, request, handler)
    }

    fn run_intercepted<I, S, Res, F>(
        &self,
        spec: &'static MethodSpec,
        argument: I::Argument,
        handler: impl FnOnce(Arc<T>, I::Argument) -> F + Send + 'static,
    ) -> Offloaded<Result<Response<Res>, Status>>
    where
        I: Input + 'static,
        I::Argument: Send,
        S: Codec<Res>,
        Res: Send + 'static,
        F: Future<Output = Result<Response<Res>, Status>> + Send + 'static,
    {
        let service = Arc::clone(&self.service);
        match &self.chain {
            None => self.spawn(async move { handler(service, argument).await }),
            Some(chain) => {
                let make = move |argument| handler(service, argument);
                let chain = Arc::clone(chain);
                self.spawn(async move {
                    on_executor::<I, S, Res, F>(&chain, spec, argument, make).await
                })
            }
        }
    }
}

impl<T> fmt::Debug for OnExecutor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnExecutor")
    }
}
