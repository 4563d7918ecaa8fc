//! [`ResponseBody`]: the messages of a response, and its trailers.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;
use http::HeaderMap;
use http_body::{Body, Frame};
use tokio::sync::OwnedSemaphorePermit;
use verbline::message::bytes::{BufMut, Bytes, BytesMut};
use verbline::{Metadata, Streaming};

use crate::grpc_status::GrpcStatus;
use crate::request_body::{PREFIX_LEN, Torn};
use crate::stalls::{StallWatch, Stalls};

/// Messages from this length on, in bytes, go out without a copy, in frames of their own. Shorter
/// ones that are there together share frames: HTTP/2 sends frames of 16 KiB, and each costs a few
/// microseconds.
const OWN_FRAME_LEN: usize = 8 << 10;

/// Messages that share a frame have about this many bytes at most.
const SHARED_FRAME_LEN: usize = 32 << 10;

/// Long messages go out in pieces of this length, in bytes: each that has been written shows that the
/// client reads.
const PIECE_LEN: usize = 64 << 10;

/// The body of a response.
pub(crate) struct ResponseBody {
    ready: VecDeque<Encoded>,
    /// Who takes them. `None` if there are none.
    receiver: Option<Receiver>,
    messages: Option<Messages>,
    trailers: Option<HeaderMap>,
}

/// Bytes that go out: a long message, or short ones that share a frame, with the prefix of what follows.
enum Encoded {
    Short(Bytes),
    Long(Bytes),
}

/// Messages that are still to come, of a stream.
struct Messages {
    messages: Streaming<Bytes>,
    torn: Torn,
}

impl ResponseBody {
    /// The body of a response whose headers are all of it.
    pub(crate) fn empty() -> Self {
        Self {
            ready: VecDeque::new(),
            receiver: None,
            messages: None,
            trailers: None,
        }
    }

    /// The body of a call with one response message.
    pub(crate) fn one(receiver: Receiver, message: Bytes, trailing: Metadata) -> Self {
        let mut body = Self {
            receiver: Some(receiver),
            trailers: Some(GrpcStatus::ok(trailing).trailers()),
            ..Self::empty()
        };
        let mut shared = BytesMut::with_capacity(PREFIX_LEN + message.len().min(OWN_FRAME_LEN));
        body.push(message, &mut shared);
        body.push_shared(&mut shared);
        body
    }

    /// The body of a call with a stream of responses. Dropping it cancels the call.
    pub(crate) fn stream(receiver: Receiver, messages: Streaming<Bytes>, torn: Torn) -> Self {
        Self {
            receiver: Some(receiver),
            messages: Some(Messages { messages, torn }),
            ..Self::empty()
        }
    }

    /// Encodes a message: into `shared` if it is short.
    fn push(&mut self, message: Bytes, shared: &mut BytesMut) {
        shared.put_u8(0);
        // No message of a Verbline server is longer than 2 GiB.
        shared.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
        if message.len() < OWN_FRAME_LEN {
            shared.extend_from_slice(&message);
            return;
        }
        self.push_shared(shared);
        let message = self.hold(message);
        self.ready.push_back(Encoded::Long(message));
    }

    fn push_shared(&mut self, shared: &mut BytesMut) {
        if shared.is_empty() {
            return;
        }
        let frame = self.hold(shared.split().freeze());
        self.ready.push_back(Encoded::Short(frame));
    }

    fn hold(&self, frame: Bytes) -> Bytes {
        match &self.receiver {
            Some(receiver) => receiver.hold(frame),
            None => frame,
        }
    }

    /// Takes the next frame of data that is ready.
    fn take_ready(&mut self) -> Option<Bytes> {
        match self.ready.front_mut()? {
            Encoded::Long(message) if message.len() > PIECE_LEN => {
                let piece = message.split_to(PIECE_LEN);
                Some(self.watch(piece))
            }
            _ => match self.ready.pop_front()? {
                Encoded::Short(frame) => Some(frame),
                Encoded::Long(piece) => Some(self.watch(piece)),
            },
        }
    }

    fn watch(&self, piece: Bytes) -> Bytes {
        match &self.receiver {
            Some(receiver) => receiver.stall_watch.watch(piece),
            None => piece,
        }
    }

    /// Takes the messages that have arrived, or the end of the call.
    fn fill(&mut self, cx: &mut Context<'_>) {
        let mut shared = BytesMut::new();
        while self.ready.is_empty() && shared.len() < SHARED_FRAME_LEN {
            let Some(Messages { messages, torn }) = &mut self.messages else {
                break;
            };
            let next = pin!(&mut *messages).poll_next(cx);
            let status = match (torn.status(), next) {
                (Some(status), _) => status.clone(),
                (None, Poll::Ready(Some(Ok(message)))) => {
                    shared.reserve(PREFIX_LEN + message.len().min(OWN_FRAME_LEN));
                    self.push(message, &mut shared);
                    continue;
                }
                (None, Poll::Ready(Some(Err(error)))) => GrpcStatus::from_error(&error),
                (None, Poll::Ready(None)) => end(messages, cx),
                (None, Poll::Pending) => break,
            };
            self.trailers = Some(status.trailers());
            // Cancels the call if it has not ended.
            self.messages = None;
        }
        self.push_shared(&mut shared);
    }
}

/// Returns the status of a call whose last message has been taken.
fn end(messages: &mut Streaming<Bytes>, cx: &mut Context<'_>) -> GrpcStatus {
    // They have arrived with the end.
    match pin!(messages.trailers()).poll(cx) {
        Poll::Ready(Ok(trailing)) => GrpcStatus::ok(trailing),
        Poll::Ready(Err(error)) => GrpcStatus::from_error(&error),
        Poll::Pending => GrpcStatus::ok(Metadata::new()),
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.ready.is_empty() {
            self.fill(cx);
        }
        if let Some(data) = self.take_ready() {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        if self.messages.is_some() {
            return Poll::Pending;
        }
        let trailers = self.trailers.take();
        Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.ready.is_empty() && self.messages.is_none() && self.trailers.is_none()
    }
}

/// The client that takes a response.
pub(crate) struct Receiver {
    stall_watch: StallWatch,
    /// The call counts until all of its frames have been written to the client's socket.
    permit: Arc<OwnedSemaphorePermit>,
}

impl Receiver {
    pub(crate) fn new(stalls: &Arc<Stalls>, permit: OwnedSemaphorePermit) -> Self {
        Self {
            stall_watch: StallWatch::new(stalls),
            permit: Arc::new(permit),
        }
    }

    fn hold(&self, frame: Bytes) -> Bytes {
        Bytes::from_owner(Held {
            frame,
            _permit: Arc::clone(&self.permit),
        })
    }
}

/// A frame with what it holds until it has been written.
struct Held {
    frame: Bytes,
    _permit: Arc<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.frame
    }
}
