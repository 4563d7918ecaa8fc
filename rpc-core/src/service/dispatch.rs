//! Dispatch: from a method's number to its handler.
//!
//! A [`Service`] registers its methods on every poller; a method's index in the poller's table is
//! its number.

use std::fmt;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use prost::Message;

use super::handler::Handler;
use super::unary::Unary;
use crate::codec::{Codec, ProstCodec};
use crate::message::{Request, Response};
use crate::method::MethodSpec;
use crate::status::Status;

/// A service that a server can serve. Generated `…Server` types implement it.
pub trait Service: Send + Sync + 'static {
    /// Returns the service's name, `package.Service`.
    fn name(&self) -> &'static str;

    /// Registers the service's methods on one poller. Called once per poller, on its thread.
    fn register(&self, methods: &mut Methods);
}

/// The methods that one poller serves.
#[derive(Default)]
pub struct Methods {
    entries: Vec<(&'static MethodSpec, Rc<dyn Handler>)>,
    max_concurrent_calls: Option<u32>,
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
        Req: Message + Default + 'static,
        Res: Message + Default + 'static,
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
        Q: Codec<Req> + 'static,
        S: Codec<Res> + 'static,
        Req: 'static,
        Res: 'static,
        F: Future<Output = Result<Response<Res>, Status>> + 'static,
    {
        let handler = Unary::<_, F, Q, S, Req, Res>::new(handler);
        self.entries.push((spec, Rc::new(handler)));
    }

    /// Limits how many handlers may run concurrently, over all methods: see
    /// [`ServerBuilder::max_concurrent_calls`](crate::server::ServerBuilder::max_concurrent_calls).
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

/// The source of a generated server's service instances: one instance for all pollers, or one per
/// poller.
pub struct Instances<T>(Arc<dyn Fn() -> InstanceKind<T> + Send + Sync>);

impl<T: Send + Sync + 'static> Instances<T> {
    /// Shares one instance between all pollers.
    #[must_use]
    pub fn shared(instance: Arc<T>) -> Self {
        Self(Arc::new(move || {
            InstanceKind::Shared(Arc::clone(&instance))
        }))
    }
}

impl<T: 'static> Instances<T> {
    /// Creates one instance per poller, on the poller's thread. The instance need not be `Send`.
    pub fn per_poller(make: impl Fn() -> T + Send + Sync + 'static) -> Self {
        Self(Arc::new(move || InstanceKind::PerPoller(make())))
    }

    /// Returns the instance for the poller that runs on the calling thread.
    #[must_use]
    pub fn instance(&self) -> Instance<T> {
        Instance(Rc::new((self.0)()))
    }
}

impl<T> Clone for Instances<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> fmt::Debug for Instances<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Instances")
    }
}

/// One poller's instance of a service. It is cloned for each call, so the count is not atomic.
pub struct Instance<T>(Rc<InstanceKind<T>>);

enum InstanceKind<T> {
    Shared(Arc<T>),
    PerPoller(T),
}

impl<T> Clone for Instance<T> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<T> Deref for Instance<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &*self.0 {
            InstanceKind::Shared(instance) => instance,
            InstanceKind::PerPoller(instance) => instance,
        }
    }
}

impl<T> fmt::Debug for Instance<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Instance")
    }
}
