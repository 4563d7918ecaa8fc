//! [`SharedCall`]: the caller's future of one call through a shared channel.

use std::marker::PhantomData;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use super::permits::{AcquireOutcome, CallPermit, Settled};
use super::submissions::{PollerHandle, Shared};
use super::unsent::UnaryRequest;
use crate::call_error::{CallError, Cause, Execution};
use crate::client::encode::{EncodedRequest, RequestLengths, decode, decode_long, write_request};
use crate::client::intercepted::UnaryCall;
use crate::clock::deadline_after;
use crate::codec::Codec;
use crate::driver::waiters::WaiterKey;
use crate::limits::{LengthLimit, MessageLimit};
use crate::message::{Head, Request, Response};
use crate::method::MethodSpec;
use crate::protocol::frame::HEADER_LEN;
use crate::stats::is_timed_here;

/// The future of a call. It may be dropped or leaked in any state, because it owns no device
/// memory: the poller and the call permit own everything in flight.
pub(super) struct SharedCall<'a, Q, S, Req, Res> {
    shared: &'a Shared,
    method: &'static MethodSpec,
    request: Request<Req>,
    deadline: Option<Instant>,
    /// Start time, if this call is timed.
    began: Option<Instant>,
    state: State<'a>,
    /// `Q` encodes the request, `S` decodes the response.
    codecs: PhantomData<fn(Q, S) -> Res>,
}

#[derive(Clone, Copy)]
enum State<'a> {
    New,
    /// Waiting for a permit.
    Waiting(&'a PollerHandle, WaiterKey),
    /// Submitted to the poller, with this permit.
    Submitted(&'a PollerHandle, u32),
    Done,
}

// No field is structurally pinned: the request is only borrowed.
impl<Q, S, Req, Res> Unpin for SharedCall<'_, Q, S, Req, Res> {}

impl<'a, Q, S, Req, Res> SharedCall<'a, Q, S, Req, Res> {
    pub(super) fn new(
        shared: &'a Shared,
        method: &'static MethodSpec,
        request: Request<Req>,
    ) -> Self {
        Self {
            shared,
            method,
            request,
            deadline: None,
            began: None,
            state: State::New,
            codecs: PhantomData,
        }
    }
}

impl<Q: Codec<Req>, S: Codec<Res>, Req, Res> Future for SharedCall<'_, Q, S, Req, Res> {
    type Output = Result<Response<Res>, CallError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        match this.state {
            State::New => {
                let now = || this.shared.clock.now();
                this.began = is_timed_here(this.shared.latency_sampling).then(now);
                let after = |timeout| deadline_after(now(), timeout);
                this.deadline = this.request.deadline_of_call(after);
                this.begin(this.shared.next_poller(), None, cx)
            }
            State::Waiting(handle, waiter) => this.begin(handle, Some(waiter), cx),
            State::Submitted(handle, number) => match handle.permits.take(number, cx.waker()) {
                None => Poll::Pending,
                Some(settled) => {
                    this.state = State::Done;
                    Poll::Ready(finish::<S, Res>(handle, number, this.method, settled))
                }
            },
            // The future was polled after completion. The contract of `Future` permits any result.
            State::Done => Poll::Pending,
        }
    }
}

impl<'a, Q: Codec<Req>, S: Codec<Res>, Req, Res> SharedCall<'a, Q, S, Req, Res> {
    /// Submits the request to the poller, or waits for a permit.
    fn begin(
        &mut self,
        handle: &'a PollerHandle,
        waiter: Option<WaiterKey>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<Res>, CallError>> {
        let lengths = RequestLengths::new::<Q, Req>(&self.request);
        if let Some(cause) = self.cause_to_fail(handle, lengths) {
            if let Some(waiter) = waiter {
                handle.permits.leave_queue(waiter);
            }
            self.state = State::Done;
            return Poll::Ready(Err(CallError::new(cause, Execution::NeverSent)));
        }
        match handle.permits.acquire(waiter, self.deadline, cx.waker()) {
            AcquireOutcome::Waiting { waiter, is_first } => {
                let joined = matches!(self.state, State::New);
                self.state = State::Waiting(handle, waiter);
                if is_first {
                    let _ = handle.post(|pending| pending.any_queued = true);
                } else if joined && self.deadline.is_some() {
                    // Wakes the poller, so that its next sleep ends at this deadline at the latest.
                    handle.notify();
                }
                Poll::Pending
            }
            AcquireOutcome::Acquired(permit) => {
                // The call has left the queue. Set the state first, because the message's own code,
                // which runs next, may panic.
                self.state = State::Done;
                self.submit(handle, permit, lengths, cx);
                Poll::Pending
            }
        }
    }

    fn cause_to_fail(&self, handle: &PollerHandle, lengths: RequestLengths) -> Option<Cause> {
        // First: another thread may have held a lock when this process was forked.
        if (self.shared.is_forked)() {
            return Some(Cause::Forked);
        }
        let has_passed = |deadline| deadline <= self.shared.clock.now();
        if self.deadline.is_some_and(has_passed) {
            let latest = self.shared.connectivity.unready_error();
            return Some(Cause::DeadlineExceeded { latest });
        }
        if lengths.metadata > usize::from(u16::MAX) {
            let limit = usize::from(u16::MAX);
            return Some(Cause::metadata_too_long(lengths.metadata, limit));
        }
        // Checked before a buffer is allocated. The poller checks the server's limit.
        let limit = handle.limits()?.max_send_message_len;
        let limit = MessageLimit::new(limit, LengthLimit::Sender);
        let is_too_long = lengths.message > limit.bytes();
        is_too_long.then(|| Cause::request_too_long(lengths.message, limit))
    }

    /// Encodes the request on this thread and passes the bytes to the poller.
    fn submit(
        &mut self,
        handle: &'a PollerHandle,
        permit: CallPermit,
        lengths: RequestLengths,
        cx: &mut Context<'_>,
    ) {
        let number = permit.number;
        let mut guard = ReleaseOnDrop {
            handle,
            permit: Some(permit),
        };
        let frame_len = HEADER_LEN + lengths.metadata + lengths.message;
        let longest = handle.limits().map_or(usize::MAX, |limits| limits.slot_len);
        let mut long = None;
        if frame_len > longest {
            // This thread has no registered memory to encode into.
            let request =
                EncodedRequest::new::<Q, Req>(&self.request, lengths, self.method, &mut |_| None);
            long = Some(Box::new(request));
        } else if let Some(permit) = &mut guard.permit {
            // The poller writes the header.
            permit.buf.resize(frame_len, 0);
            let body = &mut permit.buf[HEADER_LEN..];
            write_request::<Q, Req>(&self.request, lengths, self.method, body);
        }
        // May run an executor's code, which may panic.
        handle.permits.submit(number, cx.waker());
        let Some(permit) = guard.permit.take() else {
            return;
        };
        self.state = State::Submitted(handle, number);
        let request = UnaryRequest {
            permit,
            long,
            method: self.method,
            deadline: self.deadline,
            lengths,
            began: self.began,
            waits_for_ready: self
                .request
                .waits_for_ready()
                .unwrap_or(self.shared.waits_for_ready),
        };
        handle.submit(request);
    }
}

impl<Q: Codec<Req>, S: Codec<Res>, Req, Res> UnaryCall for SharedCall<'_, Q, S, Req, Res> {
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

impl<Q, S, Req, Res> Drop for SharedCall<'_, Q, S, Req, Res> {
    fn drop(&mut self) {
        match mem::replace(&mut self.state, State::Done) {
            State::New | State::Done => {}
            State::Waiting(handle, waiter) => handle.permits.leave_queue(waiter),
            State::Submitted(handle, number) => {
                if handle.permits.abandon(number) {
                    let _ = handle.post(|pending| pending.abandoned.push(number));
                }
            }
        }
    }
}

/// Decodes the response on the caller's thread and releases the permit for the next call.
fn finish<S: Codec<Res>, Res>(
    handle: &PollerHandle,
    number: u32,
    method: &MethodSpec,
    settled: Settled,
) -> Result<Response<Res>, CallError> {
    let Settled { buf, long, outcome } = settled;
    let guard = ReleaseOnDrop {
        handle,
        permit: Some(CallPermit { number, buf }),
    };
    let head = outcome?;
    if let Some(long) = long {
        return decode_long::<S, Res>(head, &long, method);
    }
    decode::<S, Res>(
        head,
        guard.permit.as_ref().map_or(&[], |permit| &permit.buf),
        method,
    )
}

/// Releases a permit when dropped, even if the message's own code panics.
struct ReleaseOnDrop<'a> {
    handle: &'a PollerHandle,
    permit: Option<CallPermit>,
}

impl Drop for ReleaseOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take() {
            self.handle.permits.release(permit);
        }
    }
}
