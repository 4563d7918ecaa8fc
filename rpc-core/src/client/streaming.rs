//! Streaming calls of a client, through either kind of channel ([`OpenStream`]).
//!
//! ```text
//!  encode metadata, and the message if there is one
//!  open ──▶ the stream waits for its connection, a credit and a send slot, or ends
//!  server streaming, bidirectional:        client streaming:
//!    wait until the server has begun         wait until the server has responded
//!    return a `Streaming`                    return the message
//! ```
//!
//! The messages of a request stream are encoded by the task that polls the call (`stream/pump.rs`),
//! and later by the one that polls its [`Streaming`]. A call that is dropped in any of these states
//! is cancelled.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_core::Stream;

use super::channel::ChannelCore;
use super::encode::{EncodedRequest, RequestLengths, write_request};
use crate::call_error::{CallError, Cause, Execution};
use crate::codec::{Chunks, Codec};
use crate::driver::handle::StreamRequest;
use crate::limits::SLOT_MESSAGE_LEN;
use crate::message::{Request, Response};
use crate::method::MethodSpec;
use crate::protocol::frame::HEADER_LEN;
use crate::stats::CalledStream;
use crate::stream::batch::Decode;
use crate::stream::core::StreamCore;
use crate::stream::end::StreamEnd;
use crate::stream::intercepted::InterceptedStream;
use crate::stream::request::request_pump;
use crate::stream::streaming::{KeepAlive, Streaming};
use crate::stream::turns::Turns;

/// A channel, for one streaming call.
pub(crate) trait OpenStream {
    /// Returns the time at which this timeout has passed.
    fn deadline_after(&self, timeout: Duration) -> Option<Instant>;
    /// Creates the state of the stream.
    fn new_core(&self) -> Arc<StreamCore>;
    /// Passes the stream to its poller, which ends it if it cannot be opened. Returns its number
    /// there.
    fn open(&self, core: &Arc<StreamCore>, request: StreamRequest) -> u64;
    /// Removes a stream that has been cancelled, if it still waits for its poller. Otherwise the driver
    /// has it.
    fn give_up(&self, _: u64) {}
    /// Handles the answer of a server that refused the stream, and wants no further calls for this
    /// long.
    fn push_back(&self, _: Duration) {}
    /// Returns what has to live for as long as the stream. The driver keeps a connection open while it
    /// has streams.
    fn keep_alive(&self) -> Option<KeepAlive> {
        None
    }
}

impl OpenStream for ChannelCore {
    fn deadline_after(&self, timeout: Duration) -> Option<Instant> {
        self.poller.deadline_after(timeout)
    }

    fn new_core(&self) -> Arc<StreamCore> {
        self.poller.new_stream()
    }

    fn open(&self, core: &Arc<StreamCore>, mut request: StreamRequest) -> u64 {
        let method = self.resolve(request.spec);
        let poller = self.poller.poller_counters();
        request.counters = CalledStream::begin(Arc::clone(&method.counters), || poller.now());
        if let Some(number) = method.number {
            request.method = number;
            let core = Arc::clone(core);
            self.poller.open_stream(self.link, core, request);
        } else {
            let path = request.spec.path;
            let error = CallError::new(Cause::Unimplemented { path }, Execution::NeverSent);
            request.counters.end(poller, error.code().number());
            core.end(StreamEnd::Failed(error));
        }
        0
    }
}

/// A step of a call that polls its [`Streaming`].
type PollStreaming<T, R> = fn(&mut Streaming<T>, &mut Context<'_>) -> Poll<Result<R, CallError>>;

/// A call that has been opened. Its [`Streaming`] cancels it when dropped.
pub(crate) struct OpenCall<'a, C: OpenStream, Res> {
    // Dropped before `waiting`, which removes cancelled streams.
    messages: Streaming<Res>,
    waiting: Waiting<'a, C>,
    turns: Turns,
}

/// A stream that may wait for its poller. When dropped, removes it.
struct Waiting<'a, C: OpenStream> {
    channel: &'a C,
    number: u64,
    is_over: bool,
}

impl<C: OpenStream> Drop for Waiting<'_, C> {
    fn drop(&mut self) {
        if !self.is_over {
            self.channel.give_up(self.number);
        }
    }
}

/// Makes the request of a stream. Its frame begins with room for the header, and metadata of this length.
/// The driver checks the lengths.
fn opening<C: OpenStream, R>(
    channel: &C,
    spec: &'static MethodSpec,
    request: &Request<R>,
    metadata_len: usize,
    (frame, message): (Vec<u8>, Chunks),
) -> StreamRequest {
    StreamRequest {
        spec,
        method: 0,
        counters: CalledStream::default(),
        deadline: request.deadline_of_call(|timeout| channel.deadline_after(timeout)),
        waits_for_ready: request.waits_for_ready(),
        sends_messages: false,
        metadata_len,
        frame,
        message,
    }
}

/// Encodes a request whose message fits in no slot of the usual length. The driver copies it into its
/// frame if the slots are longer.
#[cold]
fn encode_long<Q: Codec<Req>, Req>(
    method: &'static MethodSpec,
    request: &Request<Req>,
    lengths: RequestLengths,
) -> (Vec<u8>, Chunks) {
    // This may be any thread, and only the poller's has registered memory.
    let encoded = EncodedRequest::new::<Q, Req>(request, lengths, method, &mut |_| None);
    let frame = [&[0; HEADER_LEN], &*encoded.metadata].concat();
    (frame, encoded.message)
}

impl<'a, C: OpenStream, Res> OpenCall<'a, C, Res> {
    /// Opens a call with one request message.
    pub(crate) fn open<Q, S, Req>(
        channel: &'a C,
        method: &'static MethodSpec,
        request: &Request<Req>,
        mut interceptors: Option<Box<InterceptedStream>>,
    ) -> Self
    where
        Q: Codec<Req>,
        S: Codec<Res>,
    {
        let lengths = RequestLengths::new::<Q, Req>(request);
        let encoded = if lengths.message > SLOT_MESSAGE_LEN {
            encode_long::<Q, Req>(method, request, lengths)
        } else {
            let mut frame = vec![0; HEADER_LEN + lengths.metadata + lengths.message];
            write_request::<Q, Req>(request, lengths, method, &mut frame[HEADER_LEN..]);
            (frame, Chunks::new())
        };
        if let Some(interceptors) = &mut interceptors {
            interceptors.messages.request_len = lengths.message;
        }
        let opening = opening(channel, method, request, lengths.metadata, encoded);
        Self::new::<S>(channel, opening, interceptors).0
    }

    /// Opens a call with a stream of request messages.
    pub(crate) fn open_sending<Q, S, Req, St>(
        channel: &'a C,
        method: &'static MethodSpec,
        request: Request<St>,
        interceptors: Option<Box<InterceptedStream>>,
    ) -> Self
    where
        Q: Codec<Req>,
        S: Codec<Res>,
        Req: Send + 'static,
        St: Stream<Item = Req> + Send + 'static,
    {
        let metadata_len = request.metadata().encoded_len();
        let mut frame = vec![0; HEADER_LEN + metadata_len];
        request.metadata().encode(&mut frame[HEADER_LEN..]);
        let encoded = (frame, Chunks::new());
        let mut opening = opening(channel, method, &request, metadata_len, encoded);
        opening.sends_messages = true;
        let (mut call, core) = Self::new::<S>(channel, opening, interceptors);
        let pump = request_pump::<Q, Req, St>(core, request.into_inner());
        call.messages.attach_pump(pump);
        call
    }

    fn new<S: Codec<Res>>(
        channel: &'a C,
        opening: StreamRequest,
        interceptors: Option<Box<InterceptedStream>>,
    ) -> (Self, Arc<StreamCore>) {
        let core = channel.new_core();
        let max_response_len = opening.spec.max_response_len;
        let mut messages = Streaming::of_server(Arc::clone(&core), Decode::with::<S>())
            .with_limit(max_response_len);
        if let Some(interceptors) = interceptors {
            messages.intercept(interceptors);
        }
        let call = Self {
            messages,
            waiting: Waiting {
                channel,
                number: channel.open(&core, opening),
                is_over: false,
            },
            turns: core.turns(),
        };
        (call, core)
    }

    /// Waits for the only response message.
    pub(crate) async fn response(mut self) -> Result<Response<Res>, CallError> {
        self.wait(Streaming::poll_response).await
    }

    /// Waits until the server has begun to respond.
    pub(crate) async fn begun(mut self) -> Result<Response<Streaming<Res>>, CallError> {
        let metadata = self.wait(Streaming::poll_begun).await?;
        let Self {
            mut messages,
            waiting,
            ..
        } = self;
        if let Some(kept) = waiting.channel.keep_alive() {
            messages.keep_alive(kept);
        }
        Ok(Response::received(messages, metadata))
    }

    async fn wait<R>(&mut self, poll: PollStreaming<Res, R>) -> Result<R, CallError> {
        let (messages, turns) = (&mut self.messages, self.turns);
        let outcome = poll_fn(|cx| turns.poll(cx, |cx| poll(messages, cx))).await;
        self.waiting.is_over = true;
        if let Err(error) = &outcome
            && let Some(pushback) = error.pushback()
        {
            self.waiting.channel.push_back(pushback);
        }
        outcome
    }
}

#[cfg(test)]
mod tests;
