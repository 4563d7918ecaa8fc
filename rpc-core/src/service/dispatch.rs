//! Dispatch: from a method's number to its handler's future, and from there to a response.
//!
//! A [`Service`] registers its methods on every poller; a method's index in the poller's table is
//! its number. The future of a call is built in a cell of its method and stays there until it
//! completes. Cells are boxed once and refilled with [`Pin::set`], so a method allocates nothing
//! after warm-up.
//!
//! All application code runs here: decoding into the application's types, the handler, and its
//! destructors. None of it can bring the poller down, because a panic becomes `INTERNAL` for that
//! call alone.
//!
//! A response that finds no send slot stays in its method's slot, as a value. The driver keeps such
//! responses in its *blocked* queue and retries them in each turn, oldest first.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use prost::Message;

use crate::codec::{Codec, ProstCodec};
use crate::message::{Request, Response};
use crate::metadata::Metadata;
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
        let handler = Unary::<_, F, Q, S, Req, Res> {
            make: handler,
            cells: RefCell::default(),
            codecs: PhantomData,
        };
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

/// The index of a call's cell in its method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HandlerKey(u32);

/// Lengths in bytes of the parts of a response that follow the frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResponseLengths {
    pub(crate) metadata: usize,
    pub(crate) message: usize,
}

#[cfg(test)]
impl HandlerKey {
    pub(crate) fn test(index: u32) -> Self {
        Self(index)
    }
}

impl ResponseLengths {
    fn new<S: Codec<Res>, Res>(response: &Response<Res>) -> Result<Self, Status> {
        let metadata = response.metadata().encoded_len();
        if metadata > usize::from(u16::MAX) {
            return Err(Status::resource_exhausted(format!(
                "the response's metadata of {metadata} bytes exceeds the limit of {} bytes",
                u16::MAX
            )));
        }
        let message = S::encoded_len(response.get_ref());
        Ok(Self { metadata, message })
    }

    pub(crate) fn total(self) -> usize {
        self.metadata + self.message
    }
}

/// A method as seen by the driver, with the types of its messages and futures erased.
///
/// For each call, the driver calls `start`, then `poll` until it is ready, then exactly one of
/// `encode_response` (if the result was `Ok`) or `discard`. A `poll` that returns `Err` has freed
/// the cell.
pub(crate) trait Handler {
    /// Decodes the request and builds the future. Does not poll the future yet.
    fn start(
        &self,
        message: &[u8],
        metadata: &[u8],
        deadline: Option<Instant>,
    ) -> Result<HandlerKey, Status>;

    /// Polls the future. When it completes, the response stays in the cell until `encode_response`.
    fn poll(&self, key: HandlerKey, cx: &mut Context<'_>) -> Poll<Result<ResponseLengths, Status>>;

    /// Encodes the response into `out`, whose length `poll` has returned, and frees the cell.
    fn encode_response(&self, key: HandlerKey, out: &mut [u8]) -> Result<(), Status>;

    /// Drops the contents of the cell, a future or a response, and frees the cell.
    fn discard(&self, key: HandlerKey);

    /// Returns the number of cells in use.
    #[cfg(feature = "test-util")]
    fn in_use(&self) -> usize;
}

struct Unary<H, F, Q, S, Req, Res> {
    make: H,
    cells: RefCell<HandlerCells<F, Res>>,
    /// `Q` decodes the request, `S` encodes the response.
    codecs: PhantomData<fn(Q, S, Req)>,
}

struct HandlerCells<F, Res> {
    cells: Vec<HandlerCell<F, Res>>,
    free: Vec<u32>,
}

struct HandlerCell<F, Res> {
    /// `None` while the future is being polled, because the handler may call the same method.
    future: Option<Pin<Box<Option<F>>>>,
    response: Option<Response<Res>>,
}

impl<F, Res> Default for HandlerCells<F, Res> {
    fn default() -> Self {
        Self {
            cells: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<F, Res> HandlerCells<F, Res> {
    fn take_free(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.cells.push(HandlerCell {
                future: Some(Box::pin(None)),
                response: None,
            });
            // There is one cell per call in flight, which the 20 index bits of call ids bound.
            (self.cells.len() - 1) as u32
        })
    }
}

impl<H, F, Q, S, Req, Res> Unary<H, F, Q, S, Req, Res> {
    fn take_future(&self, key: HandlerKey) -> Option<Pin<Box<Option<F>>>> {
        self.cells.borrow_mut().cells[key.0 as usize].future.take()
    }

    fn put_future(&self, key: HandlerKey, future: Pin<Box<Option<F>>>) {
        self.cells.borrow_mut().cells[key.0 as usize].future = Some(future);
    }

    fn take_response(&self, key: HandlerKey) -> Option<Response<Res>> {
        self.cells.borrow_mut().cells[key.0 as usize]
            .response
            .take()
    }

    fn free(&self, key: HandlerKey) {
        self.cells.borrow_mut().free.push(key.0);
    }
}

impl<H, F, Q, S, Req, Res> Handler for Unary<H, F, Q, S, Req, Res>
where
    H: Fn(Request<Req>) -> F,
    F: Future<Output = Result<Response<Res>, Status>>,
    Q: Codec<Req>,
    S: Codec<Res>,
{
    fn start(
        &self,
        message: &[u8],
        metadata: &[u8],
        deadline: Option<Instant>,
    ) -> Result<HandlerKey, Status> {
        let undecodable = |what: &dyn fmt::Display| {
            Status::internal(format!("cannot decode the request: {what}"))
        };
        let metadata = Metadata::decode(metadata).map_err(|error| undecodable(&error))?;
        let future = catch_panic(|| {
            let message = Q::decode(message).map_err(|error| undecodable(&error))?;
            Ok::<F, Status>((self.make)(Request::received(message, metadata, deadline)))
        })??;
        let mut cells = self.cells.borrow_mut();
        let key = cells.take_free();
        if let Some(future_cell) = &mut cells.cells[key as usize].future {
            future_cell.set(Some(future));
        }
        Ok(HandlerKey(key))
    }

    fn poll(&self, key: HandlerKey, cx: &mut Context<'_>) -> Poll<Result<ResponseLengths, Status>> {
        let Some(mut future_cell) = self.take_future(key) else {
            return Poll::Pending;
        };
        // All of this is application code: the future, its destructor, and the message's length.
        let polled =
            catch_panic(|| {
                let Some(future) = future_cell.as_mut().as_pin_mut() else {
                    return Poll::Pending;
                };
                let Poll::Ready(outcome) = future.poll(cx) else {
                    return Poll::Pending;
                };
                future_cell.as_mut().set(None);
                Poll::Ready(outcome.and_then(|response| {
                    Ok((ResponseLengths::new::<S, Res>(&response)?, response))
                }))
            });
        let outcome = match polled {
            Ok(Poll::Pending) => {
                self.put_future(key, future_cell);
                return Poll::Pending;
            }
            Ok(Poll::Ready(outcome)) => outcome,
            Err(panicked) => {
                // The future may have panicked before or during its drop. It is not dropped twice.
                let _ = catch_panic(|| future_cell.as_mut().set(None));
                Err(panicked)
            }
        };
        let mut cells = self.cells.borrow_mut();
        let cell = &mut cells.cells[key.0 as usize];
        cell.future = Some(future_cell);
        Poll::Ready(match outcome {
            Ok((len, response)) => {
                cell.response = Some(response);
                Ok(len)
            }
            Err(status) => {
                cells.free.push(key.0);
                Err(status)
            }
        })
    }

    fn encode_response(&self, key: HandlerKey, out: &mut [u8]) -> Result<(), Status> {
        let response = self.take_response(key);
        self.free(key);
        let Some(response) = response else {
            return Err(Status::internal(
                "the handler's response is missing. This is a bug in Verbline",
            ));
        };
        catch_panic(|| {
            let metadata_len = response.metadata().encoded_len();
            let (metadata, message) = out.split_at_mut(metadata_len);
            response.metadata().encode(metadata);
            let encoded = S::encode(response.get_ref(), message);
            drop(response);
            encoded.map_err(|_| {
                Status::internal(
                    "the encoded length of the response changed between two calls of `encoded_len`",
                )
            })
        })?
    }

    fn discard(&self, key: HandlerKey) {
        let response = self.take_response(key);
        let mut future_cell = self.take_future(key);
        let dropped = catch_panic(|| {
            drop(response);
            if let Some(future_cell) = &mut future_cell {
                future_cell.as_mut().set(None);
            }
        });
        // The call has ended, so a panic in a destructor can only be logged.
        if let Err(panicked) = dropped {
            tracing::error!(%panicked, "the destructor of a handler's future or response panicked");
        }
        if let Some(future_cell) = future_cell {
            self.put_future(key, future_cell);
        }
        self.free(key);
    }

    #[cfg(feature = "test-util")]
    fn in_use(&self) -> usize {
        let cells = self.cells.borrow();
        cells.cells.len() - cells.free.len()
    }
}

/// Runs application code and converts a panic to a status.
pub(crate) fn catch_panic<R>(run: impl FnOnce() -> R) -> Result<R, Status> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|payload| {
        let message = panic_message(&*payload);
        let status = Status::internal(format!("the handler panicked: {message}"));
        // The panic's payload may panic in its destructor. The payload of that second panic is
        // leaked.
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            mem::forget(again);
        }
        status
    })
}

fn panic_message(payload: &(dyn Any + Send)) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(no message)")
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
