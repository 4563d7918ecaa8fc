//! [`Streaming`]: the messages that a stream receives.

use std::any::Any;
use std::fmt;
use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use futures_core::Stream;

use super::batch::{Decode, next_message};
use super::core::{CancelOnPanic, StreamCore};
use super::end::{ResponseBody, StreamEnd};
use super::inbound::Taken;
use super::intercepted::InterceptedStream;
use super::long::LongRead;
use super::pump::PumpFuture;
use super::source::{Items, MessageSource, Source, poll_source};
use super::traffic::ReadLook;
use crate::call_error::CallError;
use crate::limits::Direction;
use crate::message::Response;
use crate::metadata::Metadata;
use crate::outcome::{self, Outcome, Section, decode_metadata, undecodable, unexpected};
use crate::protocol::frame::ResponseHead;
use crate::status::Status;

/// What a client's stream keeps alive besides itself.
pub(crate) type KeepAlive = Arc<dyn Any + Send + Sync>;

/// The messages that a stream receives: a client's responses, or a handler's requests.
///
/// Messages that have arrived in between are taken at once, and decoded one at a time.
///
/// - On a client, dropping it before its end cancels the call. The request stream is sent while it
///   is polled.
/// - In a handler, dropping it discards the rest of the client's messages.
///
/// ```
/// use rpc_core::{CallError, Streaming};
///
/// async fn sum(mut numbers: Streaming<u64>) -> Result<u64, CallError> {
///     let mut sum = 0;
///     while let Some(number) = numbers.message().await? {
///         sum += number;
///     }
///     Ok(sum)
/// }
/// # let _ = sum;
/// ```
pub struct Streaming<T> {
    /// Messages that have been taken, of which those before `at` have been returned.
    batch: Vec<u8>,
    at: usize,
    /// A long message that has been taken and not returned.
    long: Option<Box<LongRead<T>>>,
    decode: Decode<T>,
    core: Arc<StreamCore>,
    side: Side,
    look: ReadLook,
    /// Sends the request stream. The mutex is never locked: it makes `Streaming` be `Sync`.
    pump: Option<Mutex<PumpFuture>>,
    /// The pump has something to do, or a long message is being decoded. A pump that has nothing to do stays
    /// until the end, because a sender ends with it.
    is_busy: bool,
    /// Metadata or error with which the stream has ended. One that has a source has ended as far as a
    /// connection is concerned, so the source is looked at there only.
    end: Option<Result<Metadata, CallError>>,
    /// Where the messages come from, if not from a connection.
    source: Option<Source<T>>,
    /// Sees the end of a client's call.
    interceptors: Option<Box<InterceptedStream>>,
    /// Dropped after the call has been cancelled.
    _kept: Option<KeepAlive>,
}

/// The side of the call that reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// Reads the server's messages.
    Client,
    /// Reads the client's messages.
    Server,
}

impl<T> Streaming<T> {
    /// Creates the client's end of a stream of responses.
    pub(crate) fn of_server(core: Arc<StreamCore>, decode: Decode<T>) -> Self {
        Self::new(core, decode, Side::Client, usize::MAX)
    }

    /// Limits the length of the messages, if the method does.
    pub(crate) fn with_limit(mut self, max_response_len: Option<u32>) -> Self {
        let longest = max_response_len.map_or(usize::MAX, |len| len as usize);
        self.look = ReadLook::new(longest, Direction::Response);
        self
    }

    /// Counts the messages that the application reads, and returns the stream that has the counts.
    pub(crate) fn count(&mut self) -> Arc<StreamCore> {
        self.look.begin_count(self.core.read());
        Arc::clone(&self.core)
    }

    /// Creates the handler's end of a stream of requests.
    pub(crate) fn of_client(core: Arc<StreamCore>, decode: Decode<T>) -> Self {
        let longest = core.longest_request();
        Self::new(core, decode, Side::Server, longest)
    }

    fn new(core: Arc<StreamCore>, decode: Decode<T>, side: Side, longest: usize) -> Self {
        let direction = match side {
            Side::Client => Direction::Response,
            Side::Server => Direction::Request,
        };
        Self {
            batch: Vec::new(),
            at: 0,
            long: None,
            decode,
            core,
            side,
            look: ReadLook::new(longest, direction),
            pump: None,
            is_busy: false,
            end: None,
            source: None,
            interceptors: None,
            _kept: None,
        }
    }

    /// Creates a stream whose messages come from `source` instead of a connection: for channels over
    /// other protocols, and for mocks. [`MessageSource`] has an example.
    ///
    /// Dropping the stream drops the source. If the source panics, the panic passes on, and the stream
    /// has ended with an error.
    #[must_use]
    pub fn from_source(source: impl MessageSource<T> + 'static) -> Self {
        let (core, decode) = (StreamCore::new(), Decode::nothing());
        let mut stream = Self::new(core, decode, Side::Client, usize::MAX);
        stream.end = Some(Ok(Metadata::new()));
        stream.source = Some(Source::new(source));
        stream
    }

    /// Like [`from_source`](Self::from_source), with the items of a stream. The trailing metadata is
    /// empty.
    #[must_use]
    pub fn from_stream(
        messages: impl Stream<Item = Result<T, CallError>> + Send + 'static,
    ) -> Self {
        Self::from_source(Items(Box::pin(messages)))
    }

    /// Keeps the channel of a call alive until this is dropped.
    pub(crate) fn keep_alive(&mut self, kept: KeepAlive) {
        self._kept = Some(kept);
    }

    /// Shows the end of the call to its interceptors.
    pub(crate) fn intercept(&mut self, mut interceptors: Box<InterceptedStream>) {
        interceptors.messages.stream = Some(self.count());
        self.interceptors = Some(interceptors);
    }

    /// Adds the future that sends the request stream. It is polled with the stream.
    pub(crate) fn attach_pump(&mut self, pump: PumpFuture) {
        self.pump = Some(Mutex::new(pump));
        self.is_busy = true;
    }

    /// Waits, on a client, until the server has begun to respond. Returns its initial metadata. The
    /// call may have ended already, without a message.
    pub(crate) fn poll_begun(&mut self, cx: &mut Context<'_>) -> Poll<Result<Metadata, CallError>> {
        self.poll_pump(cx);
        let begun = match ready!(self.core.poll_begun(cx)) {
            Ok(metadata) => decode_metadata(&metadata).inspect_err(|_| self.abandon()),
            Err(StreamEnd::Response { head, body }) => {
                outcome::decode(head, body.without_long(), Section::Trailing).map(|outcome| {
                    self.finish(Ok(outcome.trailing_metadata));
                    outcome.initial_metadata
                })
            }
            Err(StreamEnd::Failed(error)) => Err(error),
            Err(StreamEnd::HalfClosed) => Err(unexpected("a half-close")),
        };
        if let Err(error) = &begun {
            self.finish(Err(error.clone()));
        }
        Poll::Ready(begun)
    }

    /// Waits, on a client, for the only response to a stream of requests.
    pub(crate) fn poll_response(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<T>, CallError>> {
        self.poll_pump(cx);
        let mut len = 0;
        let mut response = match self.long.take() {
            Some(long) => {
                len = long.message_len();
                ready!(self.poll_long(long, cx))
            }
            None => match ready!(self.core.poll_take(&mut self.batch, cx)) {
                Taken::End(StreamEnd::Response { head, body }) => {
                    len = body.message_len(head);
                    ready!(self.poll_response_in(head, body, cx))
                }
                Taken::End(StreamEnd::Failed(error)) => Err(error),
                Taken::End(StreamEnd::HalfClosed) => Err(unexpected("a half-close")),
                Taken::Batch | Taken::Long(_) | Taken::Nothing => {
                    self.core.cancel();
                    Err(unexpected("a stream"))
                }
            },
        };
        if let Some(interceptors) = self.interceptors.take() {
            interceptors.end_with(&mut response, len);
        }
        self.finish(Ok(Metadata::new()));
        Poll::Ready(response)
    }

    /// Decodes the only response.
    fn poll_response_in(
        &mut self,
        head: ResponseHead,
        body: ResponseBody,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<T>, CallError>> {
        let outcome = outcome::decode(head, body.without_long(), Section::Initial)?;
        let len = outcome.message.len();
        self.look.check(len)?;
        if let ResponseBody::Short(_) = body {
            let message = (self.decode.copied)(outcome.message).map_err(undecodable)?;
            return Poll::Ready(Ok(outcome.respond(message)));
        }
        let outcome = outcome.without_message();
        let ResponseBody::Long(long) = body else {
            unreachable!("it is not short");
        };
        self.poll_long(Box::new(LongRead::new(*long, outcome)), cx)
    }

    /// Waits for the next message. Returns `None` at the end, and ever after.
    ///
    /// Dropping the future loses no message.
    ///
    /// # Errors
    ///
    /// Returns the error of the call: the server's status, a failure on this side, or a message that
    /// cannot be decoded, which cancels the call. Later calls return `None`. In a handler, an error
    /// means that the client has cancelled the call or is gone.
    pub async fn message(&mut self) -> Result<Option<T>, CallError> {
        poll_fn(|cx| self.poll_message(cx)).await.transpose()
    }

    /// Discards the remaining messages, and returns the trailing metadata with which the server has
    /// ended the call. In a handler it is empty.
    ///
    /// # Errors
    ///
    /// Returns the error of the call. The metadata of a call that the server failed is in its
    /// [`status`](CallError::status).
    pub async fn trailers(&mut self) -> Result<Metadata, CallError> {
        poll_fn(|cx| self.poll_end(cx)).await;
        self.end.clone().unwrap_or_else(|| Ok(Metadata::new()))
    }

    #[inline]
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<T, CallError>>> {
        loop {
            match next_message(&self.batch, &mut self.at) {
                Ok(Some(message)) => {
                    if let Err(error) = self.look.at(message.len(), self.core.read()) {
                        return Poll::Ready(Some(Err(self.give_up(error))));
                    }
                    return match (self.decode.copied)(message) {
                        Ok(message) => Poll::Ready(Some(Ok(message))),
                        Err(error) => Poll::Ready(Some(Err(self.give_up(undecodable(error))))),
                    };
                }
                Ok(None) => match ready!(self.poll_batch(cx)) {
                    Ok(true) => {
                        if let Some(long) = self.long.take() {
                            return Poll::Ready(Some(ready!(self.poll_long_message(long, cx))));
                        }
                    }
                    Ok(false) => return poll_source(&mut self.source, &mut self.end, cx),
                    Err(error) => return Poll::Ready(Some(Err(error))),
                },
                Err(error) => {
                    let error = CallError::remote(Status::internal(error.to_string()));
                    return Poll::Ready(Some(Err(self.give_up(error))));
                }
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn poll_long_message(
        &mut self,
        long: Box<LongRead<T>>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<T, CallError>> {
        let decoded = ready!(self.poll_long(long, cx));
        let message = decoded.map(Response::into_inner);
        Poll::Ready(message.map_err(|error| self.give_up(error)))
    }

    /// Decodes a long message. While it is decoded beside the poller, what has arrived behind it stays where
    /// it is.
    fn poll_long(
        &mut self,
        mut long: Box<LongRead<T>>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<T>, CallError>> {
        let decode = self.decode.long;
        let mut decoded = long.poll(decode, cx);
        if decoded.is_pending() {
            let turns = self.core.turns();
            decoded = turns.poll_again(cx, |cx| long.poll(decode, cx));
        }
        match decoded {
            Poll::Ready(decoded) => Poll::Ready(decoded.map_err(undecodable)),
            Poll::Pending => {
                self.long = Some(long);
                self.is_busy = true;
                Poll::Pending
            }
        }
    }

    /// Takes the next batch, which is not empty, or long message, unless one is being decoded. Returns false
    /// at the end.
    // Always inlined: most messages that are alone are read here, and each read ends here with a wait.
    #[inline(always)]
    fn poll_batch(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, CallError>> {
        if self.end.is_some() {
            return Poll::Ready(Ok(false));
        }
        if self.is_busy {
            self.poll_pump(cx);
            if self.long.is_some() {
                return Poll::Ready(Ok(true));
            }
        }
        self.at = 0;
        if ready!(self.core.poll_batch(&mut self.batch, cx)) {
            return Poll::Ready(Ok(true));
        }
        self.poll_other(cx)
    }

    /// Takes a batch, a long message or the end, perhaps in a turn.
    #[inline(never)]
    fn poll_other(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, CallError>> {
        let taken = self.take_other(cx);
        if taken.is_ready() {
            return taken;
        }
        let turns = self.core.turns();
        turns.poll_again(cx, |cx| {
            self.poll_pump(cx);
            self.take_other(cx)
        })
    }

    fn take_other(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, CallError>> {
        let end = match ready!(self.core.poll_take(&mut self.batch, cx)) {
            Taken::Batch => return Poll::Ready(Ok(true)),
            Taken::Long(long) => {
                self.look.at_long(long.message.len(), self.core.read());
                self.long = Some(Box::new(LongRead::new(long, Outcome::default())));
                return Poll::Ready(Ok(true));
            }
            Taken::Nothing | Taken::End(StreamEnd::HalfClosed) => Ok(Metadata::new()),
            Taken::End(StreamEnd::Failed(error)) => Err(error),
            Taken::End(StreamEnd::Response { head, body }) => {
                let outcome = outcome::decode(head, body.without_long(), Section::Trailing);
                outcome.map(
                    |Outcome {
                         trailing_metadata, ..
                     }| trailing_metadata,
                )
            }
        };
        let error = end.as_ref().err().cloned();
        self.finish(end);
        Poll::Ready(error.map_or(Ok(false), Err))
    }

    /// Discards messages until the stream has ended.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // The error stays in `end`.
        let has_more = match ready!(self.poll_batch(cx)) {
            Ok(true) | Err(_) => true,
            Ok(false) => ready!(poll_source(&mut self.source, &mut self.end, cx)).is_some(),
        };
        if has_more {
            // Other tasks of the thread run before the next batch.
            self.batch.clear();
            self.long = None;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    #[inline]
    fn poll_pump(&mut self, cx: &mut Context<'_>) {
        if self.is_busy {
            self.is_busy = self.pump(cx) | self.long.is_some();
        }
    }

    /// Polls the pump. Returns true if it has something left to do.
    fn pump(&mut self, cx: &mut Context<'_>) -> bool {
        // It is dropped if it panics.
        let Some(mut pump) = self.pump.take() else {
            return false;
        };
        let future = pump.get_mut().unwrap_or_else(PoisonError::into_inner);
        // The application's stream may panic.
        let guard = CancelOnPanic(&self.core);
        let polled = future.as_mut().poll(cx);
        mem::forget(guard);
        if polled.is_ready() {
            return false;
        }
        let is_idle = future.is_idle();
        self.pump = Some(pump);
        !is_idle
    }

    /// Ends the call because of an error in what the peer sent.
    #[cold]
    fn give_up(&mut self, error: CallError) -> CallError {
        self.abandon();
        self.finish(Err(error.clone()));
        error
    }

    /// Tells the driver that the application reads no more messages.
    fn abandon(&self) {
        match self.side {
            Side::Client => self.core.cancel(),
            Side::Server => self.core.discard(),
        }
    }

    /// Notes the end, and drops the request stream, which is of no use any more.
    fn finish(&mut self, mut end: Result<Metadata, CallError>) {
        if let Some(interceptors) = self.interceptors.take() {
            interceptors.end(&mut end);
        }
        self.end = Some(end);
        self.batch = Vec::new();
        self.long = None;
        self.at = 0;
        self.pump = None;
    }
}

impl<T> Stream for Streaming<T> {
    type Item = Result<T, CallError>;

    #[inline]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_message(cx)
    }
}

impl<T> Drop for Streaming<T> {
    fn drop(&mut self) {
        if self.end.is_none() {
            self.abandon();
        }
    }
}

impl<T> fmt::Debug for Streaming<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Streaming")
            .field("has_ended", &(self.end.is_some() && self.source.is_none()))
            .finish_non_exhaustive()
    }
}
