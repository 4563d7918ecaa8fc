//! [`Channel`]: a client that any number of threads share.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;

use futures_core::Stream;

use super::call::SharedCall;
use super::connectivity::{ConnectivityState, Watch};
use super::oneshot::oneshot;
use super::stream_call::PollerStreams;
use super::submissions::{PollerHandle, Shared};
use crate::call_error::CallError;
use crate::client::SendCaller;
use crate::client::intercepted::{Begun, InterceptedCall, begin_stream};
use crate::client::streaming::OpenCall;
use crate::codec::{Codec, MessageBuf};
use crate::intercept::{Chain, Interceptor};
use crate::limits::Limits;
use crate::message::{Request, Response};
use crate::method::MethodSpec;
use crate::method::remote::RemoteMethods;
use crate::stats::Stats;
use crate::stream::streaming::Streaming;
use crate::transport::ConnectError;

/// A client connection for any thread and any executor. Cheap to clone.
///
/// Calls are futures on any executor, or run through [`block_on`](crate::block_on()). The channel
/// connects again when its connection ends; [`state`](Self::state) and [`watch`](Self::watch)
/// report the state of the connection. The connection closes when the last clone and the last
/// [`Streaming`] of its calls are dropped.
///
/// A dropped call is cancelled. A leaked one ([`std::mem::forget`]) counts towards
/// [`max_in_flight`](super::ChannelBuilder::max_in_flight) forever. Streams do not count towards it.
///
/// [`ChannelBuilder`](super::ChannelBuilder) has the settings.
#[derive(Clone)]
pub struct Channel {
    shared: Arc<Shared>,
    chain: Option<Arc<Chain>>,
}

impl Channel {
    pub(super) fn new(shared: Shared, interceptors: &[Arc<dyn Interceptor>]) -> Self {
        Self {
            chain: Chain::and(None, interceptors, &shared.clock),
            shared: Arc::new(shared),
        }
    }

    /// Returns a channel over the same connections whose calls have this interceptor, too. It begins
    /// after those that the channel has.
    #[must_use]
    pub fn with_interceptor(&self, interceptor: impl Interceptor) -> Self {
        let added: [Arc<dyn Interceptor>; 1] = [Arc::new(interceptor)];
        Self {
            shared: Arc::clone(&self.shared),
            chain: Chain::and(self.chain.as_ref(), &added, &self.shared.clock),
        }
    }

    /// Returns the state of the connection.
    #[must_use]
    pub fn state(&self) -> ConnectivityState {
        self.shared.connectivity.state()
    }

    /// Returns the error of the latest failed attempt to connect, if any attempt has failed.
    #[must_use]
    pub fn latest_error(&self) -> Option<Arc<ConnectError>> {
        self.shared.connectivity.latest_error()
    }

    /// Returns a watch that reports changes of [`state`](Self::state) from now on.
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch::new(&self.shared.connectivity)
    }

    /// Returns the methods of the server that the channel has connected to latest, or `None` before the
    /// first connection.
    ///
    /// For programs that call methods which they do not know when they are compiled, such as proxies: the
    /// specs go with [`BytesCodec`](crate::BytesCodec). After the channel has connected again, the server
    /// may have other methods. A call of one that it does not have, or whose kind has changed, fails with
    /// `UNIMPLEMENTED`.
    #[must_use]
    pub fn methods(&self) -> Option<RemoteMethods> {
        self.shared.connectivity.methods.get()
    }

    /// Returns the sizes of each poller, or `None` until a poller has opened its device.
    #[must_use]
    pub fn limits(&self) -> Option<&Limits> {
        self.shared.pollers.iter().find_map(PollerHandle::limits)
    }

    /// Returns a snapshot of the pollers' statistics. The counters of a poller that has not opened
    /// its device yet are zero. The counters are those of whole pollers: of a channel over
    /// [`Pollers`](super::Pollers), they include what the pollers do for other channels.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let pollers = self
            .shared
            .pollers
            .iter()
            .map(|handle| handle.poller.stats());
        Stats {
            pollers: pollers.collect(),
            server: None,
        }
    }

    /// Allocates memory for a message, which goes out without a copy when it is a field of type
    /// `Bytes`: see [`MessageBuf`]. A poller of the channel allocates it, on its own thread, so the
    /// future completes when the poller has taken a turn.
    ///
    /// The memory belongs to one poller. If the channel has several, calls through the others copy it
    /// once. If no registered memory of this length is free, or the channel's poller has ended, the
    /// memory is the heap's.
    pub async fn allocate(&self, len: usize) -> MessageBuf {
        if (self.shared.is_forked)() {
            return MessageBuf::heap(len);
        }
        let handle = self.shared.next_poller();
        let (sender, receiver) = oneshot();
        let _ = handle.post(|pending| pending.allocations.push((len, sender)));
        let allocated = poll_fn(|cx| receiver.poll_take(cx)).await;
        allocated.unwrap_or_else(|| MessageBuf::heap(len))
    }

    /// Returns the server's address, as the application specified it.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.shared.address
    }
}

impl Channel {
    /// Asks the interceptors, if there are some, whether a stream may be opened.
    fn begin_stream<'a, R>(
        &'a self,
        method: &'static MethodSpec,
        request: &'a mut Request<R>,
    ) -> Option<Pin<Box<impl Future<Output = Begun> + use<'a, R>>>> {
        // Boxed, so that a stream without interceptors has a pointer for it.
        let chain = self.chain.as_ref()?;
        Some(Box::pin(begin_stream(chain, method, request)))
    }
}

impl SendCaller for Channel {
    async fn unary_with<Q: Codec<Req>, S: Codec<Res>, Req: Send, Res: Send>(
        &self,
        method: &'static MethodSpec,
        request: Request<Req>,
        _: Q,
        _: S,
    ) -> Result<Response<Res>, CallError> {
        let call = SharedCall::<Q, S, Req, Res>::new(&self.shared, method, request);
        match &self.chain {
            None => call.await,
            Some(chain) => InterceptedCall::new(chain, call).await,
        }
    }

    async fn client_streaming_with<Q: Codec<Req>, S: Codec<Res>, Req: Send + 'static, Res: Send>(
        &self,
        method: &'static MethodSpec,
        mut request: Request<impl Stream<Item = Req> + Send + 'static>,
        _: Q,
        _: S,
    ) -> Result<Response<Res>, CallError> {
        let interceptors = match self.begin_stream(method, &mut request) {
            Some(begun) => Some(begun.await?),
            None => None,
        };
        let channel = &PollerStreams::choose(&self.shared);
        let call = OpenCall::open_sending::<Q, S, Req, _>(channel, method, request, interceptors);
        call.response().await
    }

    async fn server_streaming_with<Q: Codec<Req>, S: Codec<Res>, Req: Send, Res: Send>(
        &self,
        method: &'static MethodSpec,
        mut request: Request<Req>,
        _: Q,
        _: S,
    ) -> Result<Response<Streaming<Res>>, CallError> {
        let interceptors = match self.begin_stream(method, &mut request) {
            Some(begun) => Some(begun.await?),
            None => None,
        };
        let channel = &PollerStreams::choose(&self.shared);
        let call = OpenCall::open::<Q, S, Req>(channel, method, &request, interceptors);
        call.begun().await
    }

    async fn streaming_with<Q: Codec<Req>, S: Codec<Res>, Req: Send + 'static, Res: Send>(
        &self,
        method: &'static MethodSpec,
        mut request: Request<impl Stream<Item = Req> + Send + 'static>,
        _: Q,
        _: S,
    ) -> Result<Response<Streaming<Res>>, CallError> {
        let interceptors = match self.begin_stream(method, &mut request) {
            Some(begun) => Some(begun.await?),
            None => None,
        };
        let channel = &PollerStreams::choose(&self.shared);
        let call = OpenCall::open_sending::<Q, S, Req, _>(channel, method, request, interceptors);
        call.begun().await
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Channel({}, {})", self.shared.address, self.state())
    }
}
