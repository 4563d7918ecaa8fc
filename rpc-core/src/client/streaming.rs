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

use std::any::Any;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::Caller;
use super::channel::ChannelCore;
use super::encode::{RequestLengths, decode, write_request};
use super::local_turn;
use crate::call_error::{CallError, Cause, Execution};
use crate::codec::Codec;
use crate::driver::handle::StreamRequest;
use crate::message::{Request, Response, TimeAllowed};
use crate::metadata::Metadata;
use crate::method::MethodSpec;
use crate::protocol::frame::HEADER_LEN;
use crate::status::{Code, Status};
use crate::stream::core::StreamCore;
use crate::stream::inbound::{StreamEnd, Taken};

/// What a stream keeps alive besides itself.
pub(crate) type KeepAlive = Arc<dyn Any + Send + Sync>;

/// A stream to open: its request, encoded.
pub(crate) struct NewStream {
    pub(crate) method: &'static MethodSpec,
    pub(crate) deadline: Option<Instant>,
    pub(crate) waits_for_ready: Option<bool>,
    /// The client sends messages after the request, which has none itself.
    pub(crate) sends_messages: bool,
    pub(crate) metadata_len: usize,
    /// Room for the header, metadata, message.
    pub(crate) frame: Vec<u8>,
}

/// A channel, for one streaming call.
pub(crate) trait OpenStream {
    /// Returns the deadline of a call that begins now.
    fn deadline(&self, time: TimeAllowed) -> Option<Instant>;
    /// Creates the state of the stream.
    fn new_core(&self) -> Arc<StreamCore>;
    /// Passes the stream to its poller, which ends it if it cannot be opened. Returns its number
    /// there.
    fn open(&self, core: &Arc<StreamCore>, stream: NewStream) -> u64;
    /// Removes a stream that has been cancelled, if it still waits for its poller.
    fn give_up(&self, number: u64);
    /// Handles the answer of a server that refused the stream, and wants no further calls for this
    /// long.
    fn push_back(&self, pushback: Duration);
    /// Returns what has to live for as long as the stream.
    fn keep_alive(&self) -> Option<KeepAlive>;
}

impl OpenStream for ChannelCore {
    fn deadline(&self, time: TimeAllowed) -> Option<Instant> {
        self.deadline_of(time)
    }

    fn new_core(&self) -> Arc<StreamCore> {
        StreamCore::of_local_poller(local_turn::of(&self.poller))
    }

    fn open(&self, core: &Arc<StreamCore>, stream: NewStream) -> u64 {
        let method = self.resolve(stream.method);
        let counters = Arc::clone(&method.counters);
        if let Some(number) = method.number {
            let request = StreamRequest {
                method: number,
                counters,
                deadline: stream.deadline,
                sends_messages: stream.sends_messages,
                metadata_len: stream.metadata_len,
                frame: stream.frame,
            };
            self.poller
                .open_stream(self.link, Arc::clone(core), request);
        } else {
            let path = stream.method.path;
            let error = CallError::new(Cause::Unimplemented { path }, Execution::NeverSent);
            counters.begin();
            counters.end(error.code().number());
            core.end(StreamEnd::Failed(error));
        }
        0
    }

    // The driver has the stream.
    fn give_up(&self, _: u64) {}

    fn push_back(&self, _: Duration) {}

    // The driver keeps a connection open while it has streams.
    fn keep_alive(&self) -> Option<KeepAlive> {
        None
    }
}

/// A call that has been opened. Cancels it when dropped, unless it has been completed.
struct OpenCall<'a, C: OpenStream> {
    channel: &'a C,
    core: Arc<StreamCore>,
    number: u64,
    is_complete: bool,
}

impl<'a, C: OpenStream> OpenCall<'a, C> {
    /// Opens a call whose request has metadata and message of these lengths, which `write` encodes.
    fn new<R>(
        channel: &'a C,
        method: &'static MethodSpec,
        request: &Request<R>,
        lengths: RequestLengths,
        sends_messages: bool,
        write: impl FnOnce(&mut [u8]),
    ) -> Self {
        let deadline = channel.deadline(request.time_allowed());
        // The driver checks the lengths.
        let mut frame = vec![0; HEADER_LEN + lengths.metadata + lengths.message];
        write(&mut frame[HEADER_LEN..]);
        let core = channel.new_core();
        let stream = NewStream {
            method,
            deadline,
            waits_for_ready: request.waits_for_ready(),
            sends_messages,
            metadata_len: lengths.metadata,
            frame,
        };
        let number = channel.open(&core, stream);
        Self {
            channel,
            core,
            number,
            is_complete: false,
        }
    }

    /// Opens a call whose request is followed by messages.
    fn sending<R>(channel: &'a C, method: &'static MethodSpec, request: &Request<R>) -> Self {
        let lengths = RequestLengths {
            metadata: request.metadata().encoded_len(),
            message: 0,
        };
        let write = |out: &mut [u8]| request.metadata().encode(out);
        Self::new(channel, method, request, lengths, true, write)
    }

    /// Passes on that the server has refused the call.
    fn note_pushback(&self, end: &StreamEnd) {
        if let StreamEnd::Response { head, .. } = end
            && head.pushback_us > 1
        {
            let pushback = Duration::from_micros(u64::from(head.pushback_us) - 1);
            self.channel.push_back(pushback);
        }
    }
}

impl<C: OpenStream> Drop for OpenCall<'_, C> {
    fn drop(&mut self) {
        if !self.is_complete {
            self.core.cancel();
            self.channel.give_up(self.number);
        }
    }
}

/// A future that sends the messages of a request stream.
type BoxedPump = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Sends the messages of a request stream. If they cannot be sent, the call ends with the reason.
async fn send_all<Q, St>(core: Arc<StreamCore>, messages: St)
where
    Q: Codec<St::Item>,
    St: Stream,
{
    // The application's stream may panic.
    let mut guard = CancelOnDrop(Some(core));
    let Some(core) = &guard.0 else { return };
    let sent = Pump::<Q, St>::new(Arc::clone(core), messages).await;
    if let Some(core) = guard.0.take()
        && let Err(error) = sent
        && let Some(error) = error.into_call_error()
    {
        core.fail(error);
    }
}

/// Cancels a call when dropped.
struct CancelOnDrop(Option<Arc<StreamCore>>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if let Some(core) = &self.0 {
            core.cancel();
        }
    }
}

/// Makes a call with any number of request messages and one response message.
pub(crate) async fn client_streaming<C, Q, S, St, Res>(
    channel: &C,
    method: &'static MethodSpec,
    request: Request<St>,
) -> Result<Response<Res>, CallError>
where
    C: OpenStream,
    Q: Codec<St::Item>,
    S: Codec<Res>,
    St: Stream,
{
    let mut call = OpenCall::sending(channel, method, &request);
    let core = &*call.core;
    let mut pump = pin!(send_all::<Q, St>(
        Arc::clone(&call.core),
        request.into_inner()
    ));
    let mut is_sending = true;
    let mut batch = Vec::new();
    let taken = poll_fn(|cx| {
        core.poll_with_turn(cx, |cx| {
            if is_sending {
                is_sending = pump.as_mut().poll(cx).is_pending();
            }
            core.poll_take(&mut batch, cx)
        })
    })
    .await;
    let end = match taken {
        Taken::End(end) => end,
        Taken::Batch | Taken::Nothing => return Err(unexpected_message()),
    };
    call.note_pushback(&end);
    call.is_complete = true;
    match end {
        StreamEnd::Response { head, body } => decode::<S, Res>(head, &body),
        StreamEnd::Failed(error) => Err(error),
        StreamEnd::HalfClosed => Err(unexpected_message()),
    }
}

/// Makes a call with one request message and any number of response messages.
pub(crate) async fn server_streaming<C, Q, S, Req, Res>(
    channel: &C,
    method: &'static MethodSpec,
    request: Request<Req>,
) -> Result<Response<Streaming<Res>>, CallError>
where
    C: OpenStream,
    Q: Codec<Req>,
    S: Codec<Res>,
{
    let call = {
        let lengths = RequestLengths::new::<Q, Req>(&request);
        let write = |out: &mut [u8]| write_request::<Q, Req>(&request, lengths, method, out);
        OpenCall::new(channel, method, &request, lengths, false, write)
    };
    drop(request);
    begun::<C, S, Res>(call, None).await
}

/// Makes a call with any number of messages in both directions.
pub(crate) async fn streaming<C, Q, S, St, Res>(
    channel: &C,
    method: &'static MethodSpec,
    request: Request<St>,
) -> Result<Response<Streaming<Res>>, CallError>
where
    C: OpenStream,
    Q: Codec<St::Item>,
    S: Codec<Res>,
    St: Stream + Send + 'static,
    St::Item: Send,
{
    let call = OpenCall::sending(channel, method, &request);
    let pump = send_all::<Q, St>(Arc::clone(&call.core), request.into_inner());
    begun::<C, S, Res>(call, Some(Box::pin(pump))).await
}

/// Waits until the server has begun to answer, and meanwhile sends messages.
async fn begun<C, S, Res>(
    mut call: OpenCall<'_, C>,
    mut pump: Option<BoxedPump>,
) -> Result<Response<Streaming<Res>>, CallError>
where
    C: OpenStream,
    S: Codec<Res>,
{
    let begun = poll_fn(|cx| {
        let core = &*call.core;
        core.poll_with_turn(cx, |cx| {
            if let Some(sending) = &mut pump
                && sending.as_mut().poll(cx).is_ready()
            {
                pump = None;
            }
            core.poll_begun(cx)
        })
    })
    .await;
    let metadata = match begun {
        Ok(metadata) => decode_initial(&metadata)?,
        Err(end) => {
            call.note_pushback(&end);
            let metadata = initial_metadata(&end)?;
            call.core.put_back(end);
            metadata
        }
    };
    let mut messages = Streaming::of_server(Arc::clone(&call.core), S::decode);
    // From now on, dropping `messages` cancels the call.
    call.is_complete = true;
    if let Some(pump) = pump {
        messages.attach_pump(pump);
    }
    if let Some(kept) = call.channel.keep_alive() {
        messages.keep_alive(kept);
    }
    Ok(Response::received(messages, metadata))
}
