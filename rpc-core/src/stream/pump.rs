//! [`Pump`]: sends the messages of a `Stream`.
//!
//! A pump polls the application's stream, encodes its messages without the lock until they fill a
//! frame, and hands the batch to [`StreamCore`]. It hands over what it has when the stream is
//! pending, so that no message waits for another one.

use std::marker::PhantomData;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use pin_project_lite::pin_project;

use super::alone;
use super::batch::{PREFIX_LEN, push_prefix};
use super::core::StreamCore;
use super::from_fn::OneAtATime;
use super::outbound::{FrameRoom, PushOutcome};
use crate::call_error::{CallError, Cause, Execution};
use crate::codec::{Chunks, Codec, LengthChanged};
use crate::limits::{Direction, MessageLimit};
use crate::status::Status;

/// Most messages that a pump sends before it lets other tasks of its thread run.
const MESSAGES_PER_POLL: usize = 512;

/// The reason that a pump stopped before the end of its stream.
#[derive(Debug)]
pub(crate) enum PumpError {
    /// A message is longer than the peer accepts, or this side may send.
    TooLong {
        message_len: usize,
        limit: MessageLimit,
    },
    /// The initial metadata does not fit in a frame.
    MetadataTooLong { len: usize, limit: usize },
    /// The encoded length of a message changed between two calls of `encoded_len`.
    LengthChanged,
    /// The call has ended.
    Ended,
    /// The stream's item was an error.
    Item(Status),
}

impl PumpError {
    /// Returns the error of a client's call whose request stream cannot be sent, or `None` if the
    /// call has ended by itself.
    pub(super) fn into_call_error(self) -> Option<CallError> {
        let cause = match self {
            Self::TooLong { message_len, limit } => Cause::request_too_long(message_len, limit),
            Self::Ended => return None,
            error => Cause::Local(error.into_status(Direction::Request)),
        };
        Some(CallError::new(cause, Execution::MayHaveRun))
    }

    /// Returns the status of a handler whose stream cannot be sent.
    pub(super) fn into_status(self, direction: Direction) -> Status {
        let what = direction.name();
        match self {
            Self::TooLong { message_len, limit } => {
                Status::message_too_long(message_len, limit, direction)
            }
            Self::MetadataTooLong { len, limit } => Status::resource_exhausted(format!(
                "the {what}'s metadata of {len} bytes exceeds the limit of {limit} bytes"
            )),
            Self::LengthChanged => Status::internal(format!(
                "the encoded length of a message of the {what} stream changed between two calls of \
                 `encoded_len`"
            )),
            Self::Ended => Status::cancelled("the call has ended"),
            Self::Item(status) => status,
        }
    }
}

/// Encodes messages into a batch that fits in a frame, or one message that does not fit.
#[derive(Debug, Default)]
pub(super) struct Batcher {
    batch: Vec<u8>,
    count: u32,
    long: Option<Chunks>,
    /// Known once a driver has attached the stream.
    room: Option<FrameRoom>,
}

/// The result of adding a message to a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Added {
    /// The batch has the message.
    Yes,
    /// The batch has the message, and should be handed over.
    Last,
    /// The batch must be handed over before the message fits.
    No,
    /// The message fits in no frame: [`Batcher::encode_long`] comes next. The batch is empty.
    Long,
}

impl Batcher {
    /// Waits until the stream is attached and has room. Returns what fits in a frame.
    pub(super) fn poll_room(
        &mut self,
        core: &StreamCore,
        cx: &mut Context<'_>,
    ) -> Poll<Option<FrameRoom>> {
        if self.room.is_none() {
            self.room = ready!(core.poll_room(cx));
        }
        Poll::Ready(self.room)
    }

    /// Removes all messages.
    pub(super) fn clear(&mut self) {
        self.batch.clear();
        self.count = 0;
        if self.long.is_some() {
            self.drop_long();
        }
    }

    #[cold]
    #[inline(never)]
    fn drop_long(&mut self) {
        self.long = None;
    }

    /// Returns true if it is a message that does not fit.
    #[inline]
    fn has_long(&self) -> bool {
        self.long.is_some()
    }

    /// Returns true if there is something to hand over.
    #[inline]
    fn has_any(&self) -> bool {
        self.count > 0 || self.long.is_some()
    }

    /// Encodes a message into the batch if it fits.
    #[inline]
    pub(super) fn add<Q: Codec<M>, M>(
        &mut self,
        room: FrameRoom,
        message: &M,
    ) -> Result<Added, PumpError> {
        let len = Q::encoded_len(message);
        let start = self.batch.len();
        let end = start + PREFIX_LEN + len;
        if end > room.bytes && self.count > 0 {
            return Ok(Added::No);
        }
        if len > room.longest_message.bytes() {
            return Err(too_long(room, len));
        }
        // A message that is alone has no prefix in its frame.
        if len > room.bytes {
            return Ok(Added::Long);
        }
        self.batch.reserve(PREFIX_LEN + len);
        push_prefix(&mut self.batch, len);
        self.batch.resize(end, 0);
        let unfinished = Unfinished {
            batch: &mut self.batch,
            start,
        };
        Q::encode(message, &mut unfinished.batch[start + PREFIX_LEN..])
            .map_err(|LengthChanged| PumpError::LengthChanged)?;
        mem::forget(unfinished);
        self.count += 1;
        Ok(match room.coalesces {
            true => Added::Yes,
            false => Added::Last,
        })
    }

    /// Encodes a message that fits in no frame.
    #[cold]
    #[inline(never)]
    pub(super) fn encode_long<Q: Codec<M>, M>(&mut self, message: &M) -> Result<(), PumpError> {
        let len = Q::encoded_len(message);
        // This may be any thread, and only the poller's has registered memory.
        let chunks = Q::encode_chunks(message, len, &mut |_| None)
            .map_err(|LengthChanged| PumpError::LengthChanged)?;
        self.long = Some(chunks);
        Ok(())
    }

    /// Encodes a message that fits in no frame as soon as the stream has room for it, for a caller
    /// that encodes it again if it cannot hand it over.
    #[cold]
    pub(super) fn poll_encode_long<Q: Codec<M>, M>(
        &mut self,
        core: &StreamCore,
        message: &M,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), PumpError>> {
        Poll::Ready(match ready!(core.poll_room(cx)) {
            Some(_) => self.encode_long::<Q, M>(message),
            None => Err(PumpError::Ended),
        })
    }

    /// Hands the batch or the long message to the stream.
    pub(super) fn poll_flush(
        &mut self,
        core: &StreamCore,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), PumpError>> {
        let pushed = match self.count {
            0 if self.long.is_none() => return Poll::Ready(Ok(())),
            0 => core.poll_push_long(&mut self.long, cx),
            count => core.poll_push(&mut self.batch, count, cx),
        };
        match ready!(pushed) {
            PushOutcome::Queued => {
                self.count = 0;
                Poll::Ready(Ok(()))
            }
            PushOutcome::Full | PushOutcome::Ended => Poll::Ready(Err(PumpError::Ended)),
        }
    }
}

#[cold]
fn too_long(room: FrameRoom, message_len: usize) -> PumpError {
    let limit = room.longest_message;
    PumpError::TooLong { message_len, limit }
}

/// Removes a message from a batch if its encoder fails or panics.
struct Unfinished<'a> {
    batch: &'a mut Vec<u8>,
    start: usize,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.batch.truncate(self.start);
    }
}

/// The progress of a stream that is being sent.
#[derive(Debug)]
pub(super) struct Engine<M> {
    batcher: Batcher,
    /// A message that did not fit beside those of the batch, or that followed one which would have gone
    /// alone.
    held: Option<M>,
    /// Initial metadata that has not been sent, encoded.
    initial: Option<Vec<u8>>,
    /// The latest message was long, and so may be the next one.
    is_long: bool,
    /// The stream has ended, with this result.
    outcome: Option<Result<(), PumpError>>,
}

impl<M> Engine<M> {
    /// Creates an engine. A server's initial metadata, encoded, precedes the first message.
    pub(super) fn new(initial: Option<Vec<u8>>) -> Self {
        Self {
            batcher: Batcher::default(),
            held: None,
            is_long: false,
            initial,
            outcome: None,
        }
    }

    /// Sends messages until the stream is pending or has ended.
    pub(super) fn poll<Q: Codec<M>, St: Stream>(
        &mut self,
        core: &StreamCore,
        mut stream: Pin<&mut St>,
        message_of: impl Fn(St::Item) -> Result<M, Status>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), PumpError>> {
        let Some(room) = ready!(self.batcher.poll_room(core, cx)) else {
            return Poll::Ready(Err(PumpError::Ended));
        };
        self.check_metadata(room)?;
        // What did not fit in the queue when this was polled before.
        ready!(self.poll_flush(core, cx))?;
        let mut one_at_a_time = None;
        if self.is_long {
            ready!(core.poll_reader(cx));
            one_at_a_time = Some(OneAtATime::begin());
        }
        for _ in 0..MESSAGES_PER_POLL {
            if self.outcome.is_some() {
                ready!(self.poll_flush(core, cx))?;
                if self
                    .initial
                    .as_ref()
                    .is_some_and(|initial| !initial.is_empty())
                {
                    self.begin(core);
                }
                return Poll::Ready(self.outcome.take().unwrap_or(Ok(())));
            }
            let message = match self.held.take() {
                Some(message) => message,
                None => match self.poll_next(stream.as_mut(), &message_of, cx) {
                    Poll::Pending => {
                        ready!(self.poll_flush(core, cx))?;
                        self.begin(core);
                        return Poll::Pending;
                    }
                    Poll::Ready(None) => continue,
                    Poll::Ready(Some(message)) => message,
                },
            };
            if !self.batcher.has_any()
                && core.expects_lone_message()
                && self.send_alone::<Q, St>(core, room, &message, stream.as_mut(), &message_of, cx)
            {
                if self.outcome.is_some() {
                    continue;
                }
                return Poll::Pending;
            }
            match self.batcher.add::<Q, M>(room, &message) {
                Ok(Added::Yes) => {}
                Ok(Added::Last) => ready!(self.poll_flush(core, cx))?,
                Ok(Added::Long) => match self.batcher.encode_long::<Q, M>(&message) {
                    Ok(()) => {
                        one_at_a_time.get_or_insert_with(OneAtATime::begin);
                        ready!(self.poll_flush(core, cx))?;
                        ready!(core.poll_reader(cx));
                    }
                    Err(error) => self.outcome = Some(Err(error)),
                },
                Ok(Added::No) => {
                    self.held = Some(message);
                    ready!(self.poll_flush(core, cx))?;
                }
                Err(error) => self.outcome = Some(Err(error)),
            }
        }
        ready!(self.poll_flush(core, cx))?;
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Sends a message at once, if it may go alone: the stream is pending behind it, or it is the only
    /// message of a handler, whose answer has a frame of its own. Otherwise holds the next message.
    // Not inlined: messages in a row do not pay for it.
    #[inline(never)]
    fn send_alone<Q: Codec<M>, St: Stream>(
        &mut self,
        core: &StreamCore,
        room: FrameRoom,
        message: &M,
        stream: Pin<&mut St>,
        message_of: impl Fn(St::Item) -> Result<M, Status>,
        cx: &mut Context<'_>,
    ) -> bool {
        let is_first = self.initial.is_some();
        // No other is made before it has been queued, if it is long. Later ones mostly are as long as those before.
        if is_first && Q::encoded_len(message) > room.bytes {
            return false;
        }
        // Metadata shares a frame with the message.
        if self
            .initial
            .as_ref()
            .is_some_and(|initial| !initial.is_empty())
        {
            return false;
        }
        if let Poll::Ready(next) = self.poll_next(stream, message_of, cx) {
            self.held = next;
            if self.held.is_some() || !is_first {
                return false;
            }
        }
        let is_sent = alone::send::<Q, M>(core, room, message);
        if is_sent {
            // The message says that the server has begun.
            self.initial = None;
            self.is_long = false;
        }
        is_sent
    }

    /// Waits for the stream's next message. Returns `None` if the stream has an outcome instead.
    #[inline(always)]
    fn poll_next<St: Stream>(
        &mut self,
        stream: Pin<&mut St>,
        message_of: impl Fn(St::Item) -> Result<M, Status>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<M>> {
        let outcome = match ready!(stream.poll_next(cx)).map(message_of) {
            Some(Ok(message)) => return Poll::Ready(Some(message)),
            Some(Err(status)) => Err(PumpError::Item(status)),
            None => Ok(()),
        };
        self.outcome = Some(outcome);
        Poll::Ready(None)
    }

    fn poll_flush(
        &mut self,
        core: &StreamCore,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), PumpError>> {
        if !self.batcher.has_any() {
            return Poll::Ready(Ok(()));
        }
        self.begin(core);
        self.is_long = self.batcher.has_long();
        self.batcher.poll_flush(core, cx)
    }

    /// Sends the initial metadata, unless it has been sent.
    fn begin(&mut self, core: &StreamCore) {
        if let Some(initial) = self.initial.take() {
            core.begin(initial);
        }
    }

    fn check_metadata(&self, room: FrameRoom) -> Result<(), PumpError> {
        let len = self.initial.as_ref().map_or(0, Vec::len);
        let limit = room.bytes.min(u16::MAX.into());
        if len > limit {
            return Err(PumpError::MetadataTooLong { len, limit });
        }
        Ok(())
    }
}

/// The future that sends a client's request stream.
pub(crate) trait RequestPump: Future<Output = ()> + Send {
    /// Returns true if it has nothing left to do, although the request stream has not ended.
    fn is_idle(&self) -> bool;
}

/// A [`RequestPump`], whatever the stream is.
pub(crate) type PumpFuture = Pin<Box<dyn RequestPump>>;

pin_project! {
    /// Sends the messages of a client's request stream, then half-closes. `Q` encodes them.
    pub(crate) struct Pump<Q, St: Stream> {
        core: Arc<StreamCore>,
        engine: Engine<St::Item>,
        #[pin]
        stream: St,
        codec: PhantomData<fn(Q)>,
    }
}

impl<Q, St: Stream> Pump<Q, St> {
    /// Creates a pump, which does nothing until it is polled.
    pub(crate) fn new(core: Arc<StreamCore>, stream: St) -> Self {
        Self {
            core,
            engine: Engine::new(None),
            stream,
            codec: PhantomData,
        }
    }
}

impl<Q: Codec<St::Item>, St: Stream> Future for Pump<Q, St> {
    type Output = Result<(), PumpError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let outcome = ready!(this.engine.poll::<Q, St>(this.core, this.stream, Ok, cx));
        if outcome.is_ok() {
            this.core.close();
        }
        Poll::Ready(outcome)
    }
}
