//! The client side: [`Caller`], through which generated clients make calls, and [`LocalChannel`],
//! whose poller is the application's own thread.
//!
//! A call that is polled inside a turn of its poller only registers itself. Polled anywhere else, it
//! takes a turn, because nothing else on this thread would.

mod caller;
pub(crate) mod channel;
pub(crate) mod encode;
pub(crate) mod intercepted;
mod local_call;
pub(crate) mod local_turn;
pub(crate) mod streaming;

use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use futures_core::Stream;

pub use self::caller::{Caller, SendCaller};
use self::channel::ChannelCore;
use self::intercepted::{Begun, InterceptedCall, MaybeIntercepted, begin_stream};
use self::local_call::LocalCall;
use self::streaming::OpenCall;
use crate::call_error::CallError;
use crate::codec::{Codec, MessageBuf};
use crate::intercept::{Chain, Interceptor};
use crate::message::{Request, Response};
use crate::method::MethodSpec;
use crate::method::remote::RemoteMethods;
use crate::stream::streaming::Streaming;

/// A connection to a server, used only from its poller's thread. Cheap to clone. The connection
/// closes when the last clone and the last call on it are dropped.
#[derive(Clone)]
pub struct LocalChannel {
    core: Rc<ChannelCore>,
    chain: Option<Arc<Chain>>,
}

impl LocalChannel {
    pub(crate) fn new(core: ChannelCore) -> Self {
        Self {
            core: Rc::new(core),
            chain: None,
        }
    }

    /// Returns a channel over the same connection whose calls have this interceptor, too. It begins
    /// after those that the channel has.
    #[must_use]
    pub fn with_interceptor(&self, interceptor: impl Interceptor) -> Self {
        let added: [Arc<dyn Interceptor>; 1] = [Arc::new(interceptor)];
        let clock = self.core.poller.poller_counters().clock();
        Self {
            core: Rc::clone(&self.core),
            chain: Chain::and(self.chain.as_ref(), &added, clock),
        }
    }

    /// Allocates memory for a message: see [`LocalPoller::allocate`](crate::LocalPoller::allocate).
    #[must_use]
    pub fn allocate(&self, len: usize) -> MessageBuf {
        self.core.poller.allocate(len)
    }

    /// Returns the methods that the server has named: see [`Channel::methods`](crate::Channel::methods).
    #[must_use]
    pub fn methods(&self) -> RemoteMethods {
        self.core.methods()
    }
}

impl LocalChannel {
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

impl Caller for LocalChannel {
    #[inline]
    fn unary_with<Q: Codec<Req>, S: Codec<Res>, Req: Send, Res: Send>(
        &self,
        method: &'static MethodSpec,
        request: Request<Req>,
        _: Q,
        _: S,
    ) -> impl Future<Output = Result<Response<Res>, CallError>> {
        // Each arm makes the call where it stays.
        let call = |request| LocalCall::<Q, S, Req, Res>::new(&self.core, method, request);
        match &self.chain {
            None => MaybeIntercepted::Plain(call(request)),
            Some(chain) => {
                MaybeIntercepted::Intercepted(InterceptedCall::new(chain, call(request)))
            }
        }
    }

    async fn client_streaming_with<Q: Codec<Req>, S: Codec<Res>, Req: Send + 'static, Res: Send>(
        &self,
        method: &'static MethodSpec,
        mut request: Request<impl Stream<Item = Req> + Send + 'static>,
        _: Q,
        _: S,
    ) -> Result<Response<Res>, CallError> {
        let channel = &*self.core;
        let interceptors = match self.begin_stream(method, &mut request) {
            Some(begun) => Some(begun.await?),
            None => None,
        };
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
        let channel = &*self.core;
        let interceptors = match self.begin_stream(method, &mut request) {
            Some(begun) => Some(begun.await?),
            None => None,
        };
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
        let channel = &*self.core;
        let interceptors = match self.begin_stream(method, &mut request) {
            Some(begun) => Some(begun.await?),
            None => None,
        };
        let call = OpenCall::open_sending::<Q, S, Req, _>(channel, method, request, interceptors);
        call.begun().await
    }
}

impl fmt::Debug for LocalChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LocalChannel({})", self.core.address())
    }
}
