//! Dispatch: from a method's number to its handler.
//!
//! A [`Service`] registers its methods on every poller; a method's index in the poller's table is
//! its number.

use std::fmt;
use std::mem;
use std::rc::Rc;
use std::sync::Arc;

use super::executor::Executor;
use super::handler::Handler;
use super::handler_cells::HandlerCells;
use super::input::{Input, Message, Messages, WithResponses};
use super::intercepted::{Interceptors, NoInterceptors, PollerInterceptors};
use super::limited::Limited;
use crate::clock::Clock;
use crate::codec::{Codec, ProstCodec};
use crate::deadline::DeadlinePolicy;
use crate::intercept::{Chain, Interceptor};
use crate::message::{Request, Response};
use crate::method::MethodSpec;
use crate::status::Status;
use crate::stream::responses::Responses;
use crate::stream::streaming::Streaming;

/// A service that a server can serve. Generated `…Server` types implement it.
pub trait Service: Send + Sync + 'static {
    /// Returns the service's name, `package.Service`.
    fn name(&self) -> &'static str;

    /// Registers the service's methods on one poller. Called once per poller, on its thread.
    fn register(&self, methods: &mut Methods);

    /// Returns the encoded `google.protobuf.FileDescriptorSet` of the service: the file that defines
    /// it, and all files that it imports. `None` if it was generated without.
    fn descriptor_set(&self) -> Option<&'static [u8]> {
        None
    }

    /// Called once, when the server is told to stop: before its clients are told, and before the time
    /// of [`Shutdown::lame_duck`](crate::Shutdown::lame_duck). It is called on the thread that stops
    /// the server, and must not block. A panic is logged, and the shutdown goes on. Does nothing by
    /// default.
    fn stopping(&self) {}

    /// Called when no further calls are taken and those in flight finish: a stream that has no end
    /// of its own ends now. It is called by each poller, on its thread, and must not block. A panic is
    /// logged, and the shutdown goes on. Does nothing by default.
    fn finishing(&self) {}
}

/// A service that a server serves, as [`Methods::services`] shows it.
#[derive(Clone, Copy, Debug)]
pub struct ServedService {
    /// The service's name, `package.Service`.
    pub name: &'static str,
    /// What [`Service::descriptor_set`] returns.
    pub descriptor_set: Option<&'static [u8]>,
}

impl ServedService {
    /// Describes `service`.
    pub fn of(service: &(impl Service + ?Sized)) -> Self {
        Self {
            name: service.name(),
            descriptor_set: service.descriptor_set(),
        }
    }
}

/// The methods that one poller serves: what a [`Service`] registers.
///
/// Generated services register theirs. A service of one's own serves methods that are known at run time
/// only, such as those of a [`Channel`](crate::Channel), with
/// [`BytesCodec`](crate::BytesCodec): a proxy, or a mock of any server.
///
/// ```
/// use rpc_core::{BytesCodec, Channel, MethodKind, Methods, RemoteMethods, SendCaller, Service, Status};
///
/// /// Passes unary calls on to another server.
/// struct Proxy {
///     channel: Channel,
///     methods: RemoteMethods,
/// }
///
/// impl Service for Proxy {
///     fn name(&self) -> &'static str {
///         "proxy"
///     }
///
///     fn register(&self, methods: &mut Methods) {
///         for spec in self.methods.iter().filter(|spec| spec.kind == MethodKind::Unary) {
///             let channel = self.channel.clone();
///             methods.unary_with(spec, BytesCodec, BytesCodec, move |request| {
///                 let channel = channel.clone();
///                 async move {
///                     // The metadata and the deadline are those of the request.
///                     let response = channel.unary_with(spec, request, BytesCodec, BytesCodec);
///                     response.await.map_err(|error| match error.status() {
///                         Some(status) => status.clone(),
///                         None => Status::from(error),
///                     })
///                 }
///             });
///         }
///     }
/// }
/// ```
#[derive(Default)]
pub struct Methods {
    entries: Vec<(&'static MethodSpec, Rc<dyn Handler>)>,
    max_concurrent_calls: Option<u32>,
    deadline_policy: DeadlinePolicy,
    executor: Option<Arc<dyn Executor>>,
    /// The interceptors of the methods that are registered now.
    chain: Option<Arc<Chain>>,
    clock: Clock,
    /// The handlers of the methods that are registered now run on an executor, and their interceptors
    /// with them.
    registers_on_executor: bool,
    /// The numbers of the methods whose handlers run on an executor.
    on_executor: Vec<u16>,
    services: Vec<ServedService>,
}

impl Methods {
    /// Creates an empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a unary method, whose messages prost encodes and decodes. `handler` creates the future
    /// of one call.
    pub fn unary<Req, Res, F>(
        &mut self,
        spec: &'static MethodSpec,
        handler: impl Fn(Request<Req>) -> F + 'static,
    ) where
        Req: prost::Message + Default + 'static,
        Res: prost::Message + Default + 'static,
        F: Future<Output = Result<Response<Res>, Status>> + 'static,
    {
        self.unary_with(spec, ProstCodec, ProstCodec, handler);
    }

    /// Adds a unary method, with a codec for the request and one for the response. `handler`
    /// creates the future of one call.
    pub fn unary_with<Q, S, Req, Res, F>(
        &mut self,
        spec: &'static MethodSpec,
        _request_codec: Q,
        _response_codec: S,
        handler: impl Fn(Request<Req>) -> F + 'static,
    ) where
        Q: Codec<Req>,
        S: Codec<Res>,
        Req: 'static,
        Res: 'static,
        F: Future<Output = Result<Response<Res>, Status>> + 'static,
    {
        self.add::<_, F, Message<Q, Req>, S, Res>(spec, handler);
    }

    /// Adds a client-streaming method, whose messages prost encodes and decodes. `handler` creates
    /// the future of one call.
    pub fn client_streaming<Req, Res, F>(
        &mut self,
        spec: &'static MethodSpec,
        handler: impl Fn(Request<Streaming<Req>>) -> F + 'static,
    ) where
        Req: prost::Message + Default + 'static,
        Res: prost::Message + Default + 'static,
        F: Future<Output = Result<Response<Res>, Status>> + 'static,
    {
        self.client_streaming_with(spec, ProstCodec, ProstCodec, handler);
    }

    /// Adds a client-streaming method, with a codec for the requests and one for the response.
    /// `handler` creates the future of one call.
    pub fn client_streaming_with<Q, S, Req, Res, F>(
        &mut self,
        spec: &'static MethodSpec,
        _request_codec: Q,
        _response_codec: S,
        handler: impl Fn(Request<Streaming<Req>>) -> F + 'static,
    ) where
        Q: Codec<Req>,
        S: Codec<Res>,
        Req: 'static,
        Res: 'static,
        F: Future<Output = Result<Response<Res>, Status>> + 'static,
    {
        self.add::<_, F, Messages<Q, Req>, S, Res>(spec, handler);
    }

    /// Adds a server-streaming method, whose messages prost encodes and decodes. `handler` creates
    /// the future of one call, which sends the messages through its [`Responses`].
    pub fn server_streaming<Req, Res, F>(
        &mut self,
        spec: &'static MethodSpec,
        handler: impl Fn(Request<Req>, Responses<ProstCodec, Res>) -> F + 'static,
    ) where
        Req: prost::Message + Default + 'static,
        Res: prost::Message + Default + 'static,
        F: Future<Output = Result<Response<()>, Status>> + 'static,
    {
        self.server_streaming_with(spec, ProstCodec, ProstCodec, handler);
    }

    /// Adds a server-streaming method, with a codec for the request and one for the responses.
    /// `handler` creates the future of one call, which sends the messages through its
    /// [`Responses`].
    pub fn server_streaming_with<Q, S, Req, Res, F>(
        &mut self,
        spec: &'static MethodSpec,
        _request_codec: Q,
        _response_codec: S,
        handler: impl Fn(Request<Req>, Responses<S, Res>) -> F + 'static,
    ) where
        Q: Codec<Req>,
        S: Codec<Res>,
        Req: 'static,
        Res: 'static,
        F: Future<Output = Result<Response<()>, Status>> + 'static,
    {
        self.add::<_, F, WithResponses<Message<Q, Req>, S, Res>, ProstCodec, ()>(
            spec,
            move |(request, responses)| handler(request, responses),
        );
    }

    /// Adds a method with streams in both directions, whose messages prost encodes and decodes.
    /// `handler` creates the future of one call, which sends the messages through its
    /// [`Responses`].
    pub fn streaming<Req, Res, F>(
        &mut self,
        spec: &'static MethodSpec,
        handler: impl Fn(Request<Streaming<Req>>, Responses<ProstCodec, Res>) -> F + 'static,
    ) where
        Req: prost::Message + Default + 'static,
        Res: prost::Message + Default + 'static,
        F: Future<Output = Result<Response<()>, Status>> + 'static,
    {
        self.streaming_with(spec, ProstCodec, ProstCodec, handler);
    }

    /// Adds a method with streams in both directions, with a codec for the requests and one for the
    /// responses. `handler` creates the future of one call, which sends the messages through its
    /// [`Responses`].
    pub fn streaming_with<Q, S, Req, Res, F>(
        &mut self,
        spec: &'static MethodSpec,
        _request_codec: Q,
        _response_codec: S,
        handler: impl Fn(Request<Streaming<Req>>, Responses<S, Res>) -> F + 'static,
    ) where
        Q: Codec<Req>,
        S: Codec<Res>,
        Req: 'static,
        Res: 'static,
        F: Future<Output = Result<Response<()>, Status>> + 'static,
    {
        self.add::<_, F, WithResponses<Messages<Q, Req>, S, Res>, ProstCodec, ()>(
            spec,
            move |(request, responses)| handler(request, responses),
        );
    }

    fn add<H, F, I, S, Res>(&mut self, spec: &'static MethodSpec, handler: H)
    where
        H: Fn(I::Argument) -> F + 'static,
        F: Future<Output = Result<Response<Res>, Status>> + 'static,
        I: Input + 'static,
        S: Codec<Res>,
        Res: 'static,
    {
        match &self.chain {
            Some(chain) if !self.registers_on_executor => {
                let interceptors = PollerInterceptors::new(chain, spec);
                self.add_cells::<H, F, I, S, Res, _>(spec, handler, interceptors);
            }
            _ => self.add_cells::<H, F, I, S, Res, _>(spec, handler, NoInterceptors),
        }
    }

    fn add_cells<H, F, I, S, Res, X>(
        &mut self,
        spec: &'static MethodSpec,
        handler: H,
        interceptors: X,
    ) where
        H: Fn(I::Argument) -> F + 'static,
        F: Future<Output = Result<Response<Res>, Status>> + 'static,
        I: Input + 'static,
        S: Codec<Res>,
        Res: 'static,
        X: Interceptors<I> + 'static,
    {
        let cells = HandlerCells::<H, F, I, S, Res, X>::new(spec.path, handler, interceptors);
        let handler: Rc<dyn Handler> = match Limited::of(spec, cells) {
            Ok(limited) => Rc::new(limited),
            Err(cells) => Rc::new(cells),
        };
        self.entries.push((spec, handler));
    }

    /// Sets the interceptors of the services that are registered from now on: see
    /// [`ServerBuilder::interceptor`](crate::server::ServerBuilder::interceptor).
    #[doc(hidden)]
    pub fn set_interceptors(&mut self, interceptors: &[Arc<dyn Interceptor>]) {
        self.chain = Chain::and(None, interceptors, &self.clock);
    }

    /// Sets the clock by which interceptors measure: the poller's, if that is not the system's.
    #[cfg(feature = "test-util")]
    pub(crate) fn set_clock(&mut self, clock: &Clock) {
        self.clock = clock.clone();
    }

    /// Registers methods with further interceptors, which begin after those of the server.
    pub(super) fn register_intercepted(
        &mut self,
        interceptors: &[Arc<dyn Interceptor>],
        register: impl FnOnce(&mut Self),
    ) {
        let chain = Chain::and(self.chain.as_ref(), interceptors, &self.clock);
        let before = mem::replace(&mut self.chain, chain);
        register(self);
        self.chain = before;
    }

    /// Returns the interceptors of the methods that are registered now.
    pub(super) fn chain(&self) -> Option<&Arc<Chain>> {
        self.chain.as_ref()
    }

    /// Sets the executor for the services that are registered from now on, unless they choose
    /// another place: see [`ServerBuilder::executor`](crate::server::ServerBuilder::executor).
    #[doc(hidden)]
    pub fn set_executor(&mut self, executor: Arc<dyn Executor>) {
        self.executor = Some(executor);
    }

    /// Sets what [`services`](Self::services) returns.
    pub(crate) fn set_services(&mut self, services: Vec<ServedService>) {
        self.services = services;
    }

    /// Returns all services of the server, also those that register later: for a service that answers
    /// what is served.
    #[must_use]
    pub fn services(&self) -> &[ServedService] {
        &self.services
    }

    pub(super) fn executor(&self) -> Option<&Arc<dyn Executor>> {
        self.executor.as_ref()
    }

    /// Notes that the handlers of the methods that `register` adds run on an executor.
    pub(super) fn register_on_executor(&mut self, register: impl FnOnce(&mut Self)) {
        let first = self.entries.len();
        let before = mem::replace(&mut self.registers_on_executor, true);
        register(self);
        self.registers_on_executor = before;
        // More methods than there are numbers are never called.
        let numbers = (first..self.entries.len()).filter_map(|number| u16::try_from(number).ok());
        self.on_executor.extend(numbers);
    }

    /// Returns the numbers of the methods whose handlers run on an executor.
    pub(crate) fn on_executor(&self) -> &[u16] {
        &self.on_executor
    }

    /// Sets the policy for the deadlines of all calls: see
    /// [`ServerBuilder::deadlines`](crate::server::ServerBuilder::deadlines).
    #[doc(hidden)]
    pub fn set_deadline_policy(&mut self, policy: DeadlinePolicy) {
        self.deadline_policy = policy;
    }

    pub(crate) fn deadline_policy(&self) -> DeadlinePolicy {
        self.deadline_policy
    }

    /// Limits how many handlers may run concurrently, over all methods: see
    /// [`ServerBuilder::max_concurrent_calls`](crate::server::ServerBuilder::max_concurrent_calls).
    #[doc(hidden)]
    pub fn limit_concurrent_calls(&mut self, calls: u32) {
        self.max_concurrent_calls = Some(calls);
    }

    pub(crate) fn max_concurrent_calls(&self) -> u32 {
        self.max_concurrent_calls.unwrap_or(u32::MAX)
    }

    /// Returns the number of methods.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if there are no methods.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Iterates over the methods with their numbers.
    pub(crate) fn numbered(&self) -> impl Iterator<Item = (u16, &'static MethodSpec)> {
        (0..).zip(self.entries.iter().map(|(spec, _)| *spec))
    }

    /// Returns the static description of a method.
    pub(crate) fn spec(&self, number: u16) -> Option<&'static MethodSpec> {
        self.entries.get(usize::from(number)).map(|(spec, _)| *spec)
    }

    /// Returns the number of cells in use, over all methods.
    #[cfg(feature = "test-util")]
    pub(crate) fn in_use(&self) -> usize {
        self.entries
            .iter()
            .map(|(_, handler)| handler.in_use())
            .sum()
    }

    pub(crate) fn handler(&self, number: u16) -> Option<&Rc<dyn Handler>> {
        self.entries
            .get(usize::from(number))
            .map(|(_, handler)| handler)
    }
}

impl fmt::Debug for Methods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.entries.iter().map(|(spec, _)| spec.path))
            .finish()
    }
}
