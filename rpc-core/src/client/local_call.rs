//! [`LocalCall`]: a unary call of a [`LocalChannel`](super::LocalChannel), from its request to its response.

use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use super::channel::{CalledMethod, ChannelCore};
use super::encode::{EncodedRequest, RequestLengths, decode, read_long, write_request};
use super::intercepted::UnaryCall;
use crate::call_error::{CallError, Cause, Execution};
use crate::codec::Codec;
use crate::driver::body::BodyRef;
use crate::driver::handle::{BeginOutcome, PollOutcome, RequestHead};
use crate::driver::waiters::WaiterKey;
use crate::message::{Head, Request, Response};
use crate::method::MethodSpec;
use crate::outcome::undecodable;
use crate::protocol::frame::{CallId, HEADER_LEN};
use crate::protocol::inline_frame::InlineFrame;
use crate::status::Code;
use crate::stream::long::LongRead;

/// The future of one call. It may be dropped or leaked in any state, because it owns no device
/// memory: the driver's call table does.
pub(super) struct LocalCall<'a, Q, S, Req, Res> {
    channel: &'a ChannelCore,
    method: &'static MethodSpec,
    request: Request<Req>,
    deadline: Option<Instant>,
    state: CallState<'a>,
    /// The request, if it does not fit a frame, until it is sent; later the response that is decoded beside
    /// the poller.
    long: Option<Box<Long<Res>>>,
    /// Start time, if this call is timed.
    began: Option<Instant>,
    /// `Q` encodes the request, `S` decodes the response.
    codecs: PhantomData<fn(Q, S) -> Res>,
}

#[derive(Clone, Copy)]
enum CallState<'a> {
    New,
    Waiting(&'a CalledMethod, WaiterKey),
    InFlight(&'a CalledMethod, CallId),
    Decoding(&'a CalledMethod),
    Done,
}

/// What does not fit a frame.
enum Long<Res> {
    Request(EncodedRequest),
    Response(LongRead<Res>),
}

// No field is structurally pinned: the request is only borrowed.
impl<Q, S, Req, Res> Unpin for LocalCall<'_, Q, S, Req, Res> {}

impl<Q: Codec<Req>, S: Codec<Res>, Req, Res> Future for LocalCall<'_, Q, S, Req, Res> {
    type Output = Result<Response<Res>, CallError>;

    // Always inlined: a call with interceptors polls it from another place.
    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let Poll::Ready(outcome) = this.step(cx) {
            return Poll::Ready(outcome);
        }
        if this.channel.poller.turning().get() {
            return Poll::Pending;
        }
        this.take_turn(cx)
    }
}

impl<'a, Q, S, Req, Res> LocalCall<'a, Q, S, Req, Res> {
    #[inline]
    pub(super) fn new(
        channel: &'a ChannelCore,
        method: &'static MethodSpec,
        request: Request<Req>,
    ) -> Self {
        Self {
            channel,
            method,
            request,
            deadline: None,
            state: CallState::New,
            long: None,
            began: None,
            codecs: PhantomData,
        }
    }
}

impl<'a, Q: Codec<Req>, S: Codec<Res>, Req, Res> LocalCall<'a, Q, S, Req, Res> {
    #[inline(always)]
    fn step(&mut self, cx: &mut Context<'_>) -> Poll<Result<Response<Res>, CallError>> {
        match self.state {
            CallState::InFlight(method, call) => self.take_response(method, call, cx),
            CallState::New => {
                let method = self.start();
                self.send(method, None, cx)
            }
            CallState::Waiting(method, waiter) => self.send_again(method, waiter, cx),
            CallState::Decoding(method) => self.decode_long(method, cx),
            // The future was polled after completion. The contract of `Future` permits any result.
            CallState::Done => Poll::Pending,
        }
    }

    /// Takes a turn for a future that is polled by an executor that does not run this poller, and
    /// requests another poll.
    #[cold]
    #[inline(never)]
    fn take_turn(&mut self, cx: &mut Context<'_>) -> Poll<Result<Response<Res>, CallError>> {
        self.channel.poller.turn();
        let polled = self.step(cx);
        if polled.is_pending() {
            cx.waker().wake_by_ref();
        }
        polled
    }

    /// Notes the call's deadline, and its start if it is timed.
    #[inline(always)]
    fn start(&mut self) -> &'a CalledMethod {
        let channel = self.channel;
        let method = channel.resolve(self.method);
        if method.counters.begin() {
            self.began = Some(channel.poller.poller_counters().now());
        }
        let after = |timeout| channel.poller.deadline_after(timeout);
        self.deadline = self.request.deadline_of_call(after);
        method
    }

    /// Sends the call, or queues it. Either way the waker is registered.
    #[inline(always)]
    fn send(
        &mut self,
        method: &'a CalledMethod,
        waiter: Option<WaiterKey>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<Res>, CallError>> {
        let Some(number) = method.number else {
            return self.fail(method, self.unimplemented());
        };
        let lengths = RequestLengths::new::<Q, Req>(&self.request);
        let head = RequestHead {
            method: number,
            deadline: self.deadline,
            metadata_len: lengths.metadata,
            message_len: lengths.message,
        };
        let is_permitted = !self.method.limits_request(head.message_len);
        if head.frame_len() <= self.channel.longest_inline && is_permitted {
            return self.send_inline(method, &head, lengths, waiter, cx);
        }
        let begun = self.send_long(&head, lengths, waiter, cx);
        self.begun(method, begun)
    }

    /// Notes the outcome of an attempt to send the call.
    #[inline]
    fn begun(
        &mut self,
        method: &'a CalledMethod,
        outcome: BeginOutcome<WaiterKey>,
    ) -> Poll<Result<Response<Res>, CallError>> {
        match outcome {
            BeginOutcome::Sent(call) => {
                self.sent(method, call);
                Poll::Pending
            }
            BeginOutcome::Waiting(waiter) => {
                self.state = CallState::Waiting(method, waiter);
                Poll::Pending
            }
            BeginOutcome::Failed(error) => self.fail(method, error),
        }
    }

    #[inline(always)]
    fn sent(&mut self, method: &'a CalledMethod, call: CallId) {
        self.state = CallState::InFlight(method, call);
        method.counters.start();
    }

    /// Sends a call that has waited, if it is its turn.
    #[cold]
    #[inline(never)]
    fn send_again(
        &mut self,
        method: &'a CalledMethod,
        waiter: WaiterKey,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<Res>, CallError>> {
        self.send(method, Some(waiter), cx)
    }

    #[inline(always)]
    fn send_inline(
        &mut self,
        method: &'a CalledMethod,
        head: &RequestHead,
        lengths: RequestLengths,
        waiter: Option<WaiterKey>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<Res>, CallError>> {
        let channel = self.channel;
        let mut memory = channel.inline_frame.take();
        let frame = &mut memory.bytes_mut()[..head.frame_len()];
        let body = &mut frame[HEADER_LEN..];
        write_request::<Q, Req>(&self.request, lengths, self.method, body);
        if waiter.is_none()
            && let Some(call) = channel
                .poller
                .send_inline(channel.link, head, frame, cx.waker())
        {
            channel.inline_frame.put_back(memory);
            self.sent(method, call);
            return Poll::Pending;
        }
        self.begin_inline(method, head, memory, waiter, cx)
    }

    /// Sends a call that is encoded in `memory`, or queues it.
    #[cold]
    #[inline(never)]
    fn begin_inline(
        &mut self,
        method: &'a CalledMethod,
        head: &RequestHead,
        mut memory: InlineFrame,
        waiter: Option<WaiterKey>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<Res>, CallError>> {
        let channel = self.channel;
        let frame = &mut memory.bytes_mut()[..head.frame_len()];
        let poller = &*channel.poller;
        let begun = poller.begin_inline(channel.link, head, frame, cx.waker(), waiter);
        channel.inline_frame.put_back(memory);
        self.begun(method, begun)
    }

    #[inline(never)]
    fn send_long(
        &mut self,
        head: &RequestHead,
        lengths: RequestLengths,
        waiter: Option<WaiterKey>,
        cx: &mut Context<'_>,
    ) -> BeginOutcome<WaiterKey> {
        let limits = self.channel.lengths;
        if head.message_len > limits.message_of(self.method).bytes() {
            return self.too_long(head, waiter);
        }
        if head.frame_len() > limits.frame {
            return self.send_chunks(head, lengths, waiter, cx);
        }
        let write = &mut |out: &mut [u8]| {
            write_request::<Q, Req>(&self.request, lengths, self.method, out);
        };
        let poller = &*self.channel.poller;
        poller.begin_long(self.channel.link, head, write, cx.waker(), waiter)
    }

    /// Sends a request whose message does not fit a frame. It is encoded once, and waits encoded.
    #[cold]
    #[inline(never)]
    fn send_chunks(
        &mut self,
        head: &RequestHead,
        lengths: RequestLengths,
        waiter: Option<WaiterKey>,
        cx: &mut Context<'_>,
    ) -> BeginOutcome<WaiterKey> {
        let (link, poller) = (self.channel.link, &*self.channel.poller);
        let long = self.long.get_or_insert_with(|| {
            let allocate = &mut |len| poller.allocate_for(link, len);
            let encoded =
                EncodedRequest::new::<Q, Req>(&self.request, lengths, self.method, allocate);
            Box::new(Long::Request(encoded))
        });
        let Long::Request(EncodedRequest { metadata, message }) = &mut **long else {
            unreachable!("no response comes before the request is sent");
        };
        let begun = poller.begin_chunks(link, head, metadata, message, cx.waker(), waiter);
        if !matches!(begun, BeginOutcome::Waiting(_)) {
            self.long = None;
        }
        begun
    }

    /// Ends a call whose request is longer than the limit.
    #[cold]
    #[inline(never)]
    fn too_long(&self, head: &RequestHead, waiter: Option<WaiterKey>) -> BeginOutcome<WaiterKey> {
        if let Some(waiter) = waiter {
            self.channel.poller.leave(self.channel.link, waiter);
        }
        let limit = self.channel.lengths.message_of(self.method);
        let cause = Cause::request_too_long(head.message_len, limit);
        BeginOutcome::Failed(CallError::new(cause, Execution::NeverSent))
    }

    #[inline(always)]
    fn take_response(
        &mut self,
        method: &'a CalledMethod,
        call: CallId,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<Res>, CallError>> {
        let channel = self.channel;
        let poller = &*channel.poller;
        let mut memory = channel.inline_frame.take();
        let body = memory.bytes_mut();
        let taken = poller.take_response(channel.link, call, self.deadline, cx.waker(), body);
        if let PollOutcome::Received { head, len } = taken {
            let outcome = decode::<S, Res>(head, &body[..len], self.method);
            channel.inline_frame.put_back(memory);
            let code = outcome.as_ref().map_or_else(CallError::code, |_| Code::Ok);
            self.end(method, code);
            return Poll::Ready(outcome);
        }
        channel.inline_frame.put_back(memory);
        match taken {
            PollOutcome::Failed(error) => self.fail(method, error),
            PollOutcome::Long => self.read_response(method, call, cx),
            PollOutcome::Pending | PollOutcome::Received { .. } => Poll::Pending,
        }
    }

    /// Decodes a response that is too long for an inline frame from its slot, or from its own memory.
    #[inline(never)]
    fn read_response(
        &mut self,
        method: &'a CalledMethod,
        call: CallId,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<Res>, CallError>> {
        let (mut received, mut long) = (None, None);
        let (channel, spec) = (self.channel, self.method);
        let polled = channel.poller.read_response(
            channel.link,
            call,
            self.deadline,
            cx.waker(),
            &mut |head, body| match body {
                BodyRef::Frame(body) => received = Some(decode::<S, Res>(head, body, spec)),
                BodyRef::Long(body) => long = Some(read_long(head, body, spec)),
            },
        );
        match (polled, received, long) {
            (PollOutcome::Failed(error), ..)
            | (_, Some(Err(error)), _)
            | (_, _, Some(Err(error))) => self.fail(method, error),
            (_, Some(Ok(response)), _) => {
                self.end(method, Code::Ok);
                Poll::Ready(Ok(response))
            }
            (_, _, Some(Ok(long))) => {
                self.long = Some(Box::new(Long::Response(long)));
                self.state = CallState::Decoding(method);
                self.decode_long(method, cx)
            }
            (_, None, None) => Poll::Pending,
        }
    }

    /// Decodes a response whose message is long.
    #[cold]
    #[inline(never)]
    fn decode_long(
        &mut self,
        method: &'a CalledMethod,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<Res>, CallError>> {
        let Some(Long::Response(long)) = self.long.as_deref_mut() else {
            unreachable!("the response has arrived");
        };
        let decoded = ready!(long.poll(S::begin_decode, cx));
        match decoded.map_err(undecodable) {
            Ok(response) => {
                self.end(method, Code::Ok);
                Poll::Ready(Ok(response))
            }
            Err(error) => self.fail(method, error),
        }
    }

    #[inline]
    fn end(&mut self, method: &CalledMethod, code: Code) {
        self.state = CallState::Done;
        method.counters.end(code.number());
        if let Some(began) = self.began {
            let counters = self.channel.poller.poller_counters();
            counters.time(&method.counters, began);
        }
    }

    #[cold]
    #[inline(never)]
    fn fail(
        &mut self,
        method: &CalledMethod,
        error: CallError,
    ) -> Poll<Result<Response<Res>, CallError>> {
        self.end(method, error.code());
        Poll::Ready(Err(error))
    }

    #[cold]
    fn unimplemented(&self) -> CallError {
        let path = self.method.path;
        CallError::new(Cause::Unimplemented { path }, Execution::NeverSent)
    }
}

impl<Q: Codec<Req>, S: Codec<Res>, Req, Res> UnaryCall for LocalCall<'_, Q, S, Req, Res> {
    type Response = Res;

    fn head(&mut self) -> &mut Head {
        self.request.head_mut()
    }

    fn method(&self) -> &'static MethodSpec {
        self.method
    }

    fn request_len(&self) -> usize {
        Q::encoded_len(self.request.get_ref())
    }

    fn response_len(response: &Res) -> usize {
        S::encoded_len(response)
    }
}

impl<Q, S, Req, Res> Drop for LocalCall<'_, Q, S, Req, Res> {
    #[inline]
    fn drop(&mut self) {
        if let CallState::Waiting(..) | CallState::InFlight(..) | CallState::Decoding(_) =
            self.state
        {
            self.give_up();
        }
    }
}

impl<Q, S, Req, Res> LocalCall<'_, Q, S, Req, Res> {
    /// Ends a call whose future is dropped before the response was taken.
    #[cold]
    #[inline(never)]
    fn give_up(&mut self) {
        let channel = self.channel;
        let method = match self.state {
            CallState::New | CallState::Done => return,
            CallState::Waiting(method, waiter) => {
                channel.poller.leave(channel.link, waiter);
                method
            }
            CallState::InFlight(method, call) => {
                channel.poller.abandon(channel.link, call);
                method
            }
            CallState::Decoding(method) => method,
        };
        method.counters.drop_one();
    }
}
