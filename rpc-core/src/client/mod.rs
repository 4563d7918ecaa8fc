//! The client side: [`Caller`], through which generated clients make calls, and [`LocalChannel`],
//! whose poller is the application's own thread.
//!
//! A call that is polled inside a turn of its poller only registers itself. Polled anywhere else, it
//! takes a turn, because nothing else on this thread would.

mod caller;
pub(crate) mod channel;
pub(crate) mod encode;
mod local_call;
pub(crate) mod local_turn;
pub(crate) mod streaming;

use std::fmt;
use std::rc::Rc;

use futures_core::Stream;

pub use self::caller::{Caller, SendCaller};
use self::channel::ChannelCore;
use self::local_call::LocalCall;
use self::streaming::OpenCall;
use crate::call_error::CallError;
use crate::codec::{Codec, MessageBuf};
use crate::message::{Request, Response};
use crate::method::MethodSpec;
use crate::method::remote::RemoteMethods;
use crate::stream::streaming::Streaming;

/// A connection to a server, used only from its poller's thread. Cheap to clone. The connection
/// closes when the last clone and the last call on it are dropped.
#[derive(Clone)]
pub struct LocalChannel(pub(crate) Rc<ChannelCore>);

impl LocalChannel {
    /// Allocates memory for a message: see [`LocalPoller::allocate`](crate::LocalPoller::allocate).
    #[must_use]
    pub fn allocate(&self, len: usize) -> MessageBuf {
        self.0.poller.allocate(len)
    }

    /// Returns the methods that the server has named: see [`Channel::methods`](crate::Channel::methods).
    #[must_use]
    pub fn methods(&self) -> RemoteMethods {
        self.0.methods()
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
        LocalCall::<Q, S, Req, Res>::new(&self.0, method, request)
    }

    async fn client_streaming_with<Q: Codec<Req>, S: Codec<Res>, Req: Send + 'static, Res: Send>(
        &self,
        method: &'static MethodSpec,
        request: Request<impl Stream<Item = Req> + Send + 'static>,
        _: Q,
        _: S,
    ) -> Result<Response<Res>, CallError> {
        let channel = &*self.0;
        let call = OpenCall::open_sending::<Q, S, Req, _>(channel, method, request);
        call.response().await
    }

    async fn server_streaming_with<Q: Codec<Req>, S: Codec<Res>, Req: Send, Res: Send>(
        &self,
        method: &'static MethodSpec,
        request: Request<Req>,
        _: Q,
        _: S,
    ) -> Result<Response<Streaming<Res>>, CallError> {
        let channel = &*self.0;
        let call = OpenCall::open::<Q, S, Req>(channel, method, &request);
        call.begun().await
    }

    async fn streaming_with<Q: Codec<Req>, S: Codec<Res>, Req: Send + 'static, Res: Send>(
        &self,
        method: &'static MethodSpec,
        request: Request<impl Stream<Item = Req> + Send + 'static>,
        _: Q,
        _: S,
    ) -> Result<Response<Streaming<Res>>, CallError> {
        let channel = &*self.0;
        let call = OpenCall::open_sending::<Q, S, Req, _>(channel, method, request);
        call.begun().await
    }
}

impl fmt::Debug for LocalChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LocalChannel({})", self.0.address())
    }
}
