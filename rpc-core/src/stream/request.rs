//! [`IntoStreamingRequest`]: the argument of stubs whose client sends a stream, and the future that
//! sends it.

use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;
use pin_project_lite::pin_project;

use super::core::StreamCore;
use super::pump::{Pump, PumpError, PumpFuture, RequestPump};
use super::sender::Messages;
use crate::codec::Codec;
use crate::message::Request;

/// The argument of a client stub that sends a stream: any `Stream`, or a [`Request`] of one.
///
/// The stream is sent while the response is awaited or read. A stream that the application feeds
/// while it does something else is a [`sender`](crate::sender)'s.
///
/// ```
/// use rpc_core::{IntoStreamingRequest, sender};
///
/// let (_sender, messages) = sender::<u64>();
/// let mut request = messages.into_streaming_request();
/// request.metadata_mut().insert("trace-id", "7")?;
/// # Ok::<(), rpc_core::MetadataError>(())
/// ```
pub trait IntoStreamingRequest {
    /// The stream of messages.
    type Stream: Stream<Item = Self::Message> + Send + 'static;

    /// The type of its messages.
    type Message;

    /// Converts `self` into a request.
    fn into_streaming_request(self) -> Request<Self::Stream>;
}

impl<S: Stream + Send + 'static> IntoStreamingRequest for S {
    type Stream = S;
    type Message = S::Item;

    fn into_streaming_request(self) -> Request<S> {
        Request::new(self)
    }
}

impl<S: Stream + Send + 'static> IntoStreamingRequest for Request<S> {
    type Stream = S;
    type Message = S::Item;

    fn into_streaming_request(self) -> Self {
        self
    }
}

pin_project! {
    /// Sends a stream that it has to poll until its end.
    struct PolledStream<F> {
        #[pin]
        sent: F,
    }
}

impl<F: Future<Output = ()>> Future for PolledStream<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.project().sent.poll(cx)
    }
}

impl<F: Future<Output = ()> + Send> RequestPump for PolledStream<F> {
    fn is_idle(&self) -> bool {
        false
    }
}

/// Returns the future that sends a request stream and half-closes, for
/// [`Streaming::attach_pump`](super::streaming::Streaming::attach_pump). If the stream cannot be
/// sent, the future fails the call.
pub(crate) fn request_pump<Q, Req, St>(core: Arc<StreamCore>, stream: St) -> PumpFuture
where
    Q: Codec<Req>,
    Req: Send + 'static,
    St: Stream<Item = Req> + Send + 'static,
{
    let mut stream = Some(stream);
    let any: &mut dyn Any = &mut stream;
    if let Some(messages) = any.downcast_mut::<Option<Messages<Req>>>()
        && let Some(messages) = messages.take()
    {
        return Box::pin(messages.link::<Q>(core));
    }
    let sent = async move {
        let Some(stream) = stream else { return };
        let sent = Pump::<Q, St>::new(Arc::clone(&core), stream).await;
        if let Some(error) = sent.err().and_then(PumpError::into_call_error) {
            core.fail(error);
        }
    };
    Box::pin(PolledStream { sent })
}
