//! [`SharedCall`]: one call through a shared channel, as the caller's future.

use std::marker::PhantomData;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use prost::Message;

use super::permits::{Settled, Ticket, Wanted};
use super::submissions::{Lane, Shared, Submission};
use crate::call_error::{CallError, Cause, Execution};
use crate::client::encode::{RequestLens, decode, write_request};
use crate::clock::deadline_after;
use crate::driver::waiters::WaiterKey;
use crate::message::{Request, Response, TimeAllowed};
use crate::method::MethodSpec;
use crate::protocol::frame::HEADER_LEN;
use crate::stats::is_timed_here;

/// A call. It holds no device memory: what is on its way belongs to its poller and to its ticket, so it
/// may be dropped or forgotten in every state.
pub(super) struct SharedCall<'a, Req, Res> {
    shared: &'a Shared,
    method: &'static MethodSpec,
    request: Request<Req>,
    deadline: Option<Instant>,
    /// When it began, if it is one of the calls that are timed.
    began: Option<Instant>,
    state: State<'a>,
    response: PhantomData<fn() -> Res>,
}

#[derive(Clone, Copy)]
enum State<'a> {
    New,
    /// For a ticket.
    Waiting(&'a Lane, WaiterKey),
    /// With the poller, under this ticket.
    Submitted(&'a Lane, u32),
    Done,
}

// Nothing in it is ever pinned: its request is only borrowed.
impl<Req, Res> Unpin for SharedCall<'_, Req, Res> {}

impl<'a, Req, Res> SharedCall<'a, Req, Res> {
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
            response: PhantomData,
        }
    }
}

impl<Req: Message, Res: Message + Default> Future for SharedCall<'_, Req, Res> {
    type Output = Result<Response<Res>, CallError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        match this.state {
            State::New => {
                let now = || this.shared.clock.now();
                this.began = is_timed_here().then(now);
                this.deadline = match this.request.time_allowed() {
                    TimeAllowed::Unlimited => None,
                    TimeAllowed::For(timeout) => deadline_after(now(), timeout),
                    TimeAllowed::Until(deadline) => Some(deadline),
                };
                this.begin(this.shared.next_lane(), None, cx)
            }
            State::Waiting(lane, waiter) => this.begin(lane, Some(waiter), cx),
            State::Submitted(lane, number) => match lane.tickets.take(number, cx.waker()) {
                None => Poll::Pending,
                Some(settled) => {
                    this.state = State::Done;
                    Poll::Ready(finish(lane, number, settled))
                }
            },
            // Polled again after it was ready, which the contract of futures leaves open.
            State::Done => Poll::Pending,
        }
    }
}

impl<'a, Req: Message, Res: Message + Default> SharedCall<'a, Req, Res> {
    /// Gives the request to the poller, or waits for a ticket.
    fn begin(
        &mut self,
        lane: &'a Lane,
        waiter: Option<WaiterKey>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<Res>, CallError>> {
        let lens = RequestLens::of(&self.request);
        if let Some(cause) = self.cause_to_fail(lane, lens) {
            if let Some(waiter) = waiter {
                lane.tickets.leave_queue(waiter);
            }
            self.state = State::Done;
            return Poll::Ready(Err(CallError::new(cause, Execution::NeverSent)));
        }
        match lane.tickets.want(waiter, self.deadline, cx.waker()) {
            Wanted::Waiting(waiter) => {
                let joined = matches!(self.state, State::New);
                self.state = State::Waiting(lane, waiter);
                if joined && self.deadline.is_some() {
                    // The poller is to sleep no longer than until then.
                    lane.ring();
                }
                Poll::Pending
            }
            Wanted::Ticket(ticket) => {
                // It is out of the queue, whatever the message's own code does now.
                self.state = State::Done;
                self.submit(lane, ticket, lens, cx);
                Poll::Pending
            }
        }
    }

    fn cause_to_fail(&self, lane: &Lane, lens: RequestLens) -> Option<Cause> {
        let has_passed = |deadline| deadline <= self.shared.clock.now();
        if self.deadline.is_some_and(has_passed) {
            return Some(Cause::DeadlineExceeded);
        }
        if lens.metadata > usize::from(u16::MAX) {
            return Some(Cause::RequestTooLong {
                message_len: lens.metadata,
                limit: usize::from(u16::MAX),
            });
        }
        // Before a buffer is made for it. What the server's slots are too short for, the poller finds.
        let room = lane.limits.get()?.slot_len - HEADER_LEN;
        if lens.metadata + lens.message > room {
            return Some(Cause::RequestTooLong {
                message_len: lens.message,
                limit: room.saturating_sub(lens.metadata),
            });
        }
        None
    }

    /// Encodes on this thread, and hands the bytes over.
    fn submit(&mut self, lane: &'a Lane, ticket: Ticket, lens: RequestLens, cx: &mut Context<'_>) {
        let number = ticket.number;
        let mut guard = GiveBack {
            lane,
            ticket: Some(ticket),
        };
        if let Some(ticket) = &mut guard.ticket {
            ticket.buf.resize(lens.metadata + lens.message, 0);
            write_request(&self.request, self.method, &mut ticket.buf);
        }
        let Some(ticket) = guard.ticket.take() else {
            return;
        };
        lane.tickets.submit(number, cx.waker());
        self.state = State::Submitted(lane, number);
        let submission = Submission {
            ticket,
            method: self.method,
            deadline: self.deadline,
            metadata_len: lens.metadata,
            began: self.began,
            waits_for_ready: self
                .request
                .waits_for_ready()
                .unwrap_or(self.shared.waits_for_ready),
        };
        lane.submit(submission);
    }
}

impl<Req, Res> Drop for SharedCall<'_, Req, Res> {
    fn drop(&mut self) {
        match mem::replace(&mut self.state, State::Done) {
            State::New | State::Done => {}
            State::Waiting(lane, waiter) => lane.tickets.leave_queue(waiter),
            State::Submitted(lane, number) => {
                lane.tickets.leave(number);
                // It may lie in the backlog, for a poller that sleeps.
                lane.ring();
            }
        }
    }
}

/// Decodes the answer on the caller's thread; the ticket is free for the next call.
fn finish<Res: Message + Default>(
    lane: &Lane,
    number: u32,
    settled: Settled,
) -> Result<Response<Res>, CallError> {
    let Settled { buf, outcome } = settled;
    let guard = GiveBack {
        lane,
        ticket: Some(Ticket { number, buf }),
    };
    outcome?;
    decode(guard.ticket.as_ref().map_or(&[], |ticket| &ticket.buf))
}

/// Gives a ticket back when it is dropped, also by a panic of the message's own code.
struct GiveBack<'a> {
    lane: &'a Lane,
    ticket: Option<Ticket>,
}

impl Drop for GiveBack<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.lane.tickets.give_back(ticket);
        }
    }
}
