//! [`RequestPermit`]: what a request has taken before it can be sent, given back unless it is sent.

use std::mem;
use std::time::Instant;

use super::TimerTarget;
use super::bodies::{Sending, TransferOwner};
use super::call_origin::{CallOrigin, CallingFuture};
use super::call_table::WakeTarget;
use super::connections::Connections;
use super::handle::{BeginOutcome, RequestHead};
use super::link::{Link, LinkKey};
use super::links::Links;
use super::outbox::{Class, Missing, Permit, Slot};
use super::timers::Timers;
use super::waiters::{RemovedWaiter, WaiterKey};
use crate::call_error::{CallError, Cause, Execution};
use crate::clock::Clock;
use crate::protocol::credit::ReceiveBudget;
use crate::protocol::frame::{CallId, FrameHeader, FrameKind, HEADER_LEN, room_for_metadata};
use crate::stats::{Counter, StallCounters};
use crate::transport::{Chunks, CloseReason, PeerClock, Transport};

/// The reason that a request is not sent now.
#[derive(Debug)]
pub(super) enum Obstacle {
    /// It lacks something that may come.
    Missing(Missing),
    /// The request can never be sent.
    Never(Cause),
}

/// A credit, room for one more call in flight, and the receive for the response. Dropping the permit
/// gives all of them back.
pub(super) struct RequestPermit<'a, T: Transport> {
    key: LinkKey,
    frame: Permit<'a, T>,
    receive: Promised<'a>,
    clock: &'a Clock,
    timers: &'a mut Timers<TimerTarget>,
}

/// A receive that is promised for a response. Dropping it takes the promise back.
struct Promised<'a>(&'a mut ReceiveBudget);

impl Drop for Promised<'_> {
    #[cold]
    fn drop(&mut self) {
        self.0.release(1);
    }
}

impl<T: Transport> Links<T> {
    /// Takes what a request needs. `is_turn` returns true if no other call has to be sent first.
    #[inline]
    pub(super) fn admit(
        &mut self,
        key: LinkKey,
        request: &RequestHead,
        now: Option<Instant>,
        is_turn: impl Fn(&Link<T::RecvBuf>) -> bool,
    ) -> Result<RequestPermit<'_, T>, Obstacle> {
        // Before the link is borrowed: the receive for the response has to be there, and posted.
        if self.budget.promised() >= self.promisable {
            self.post_more();
        }
        let mut has_share = true;
        if self.budget.left() <= self.kept_receives {
            has_share = self.find_receive(key, &is_turn);
        }
        let link = &mut self.table[key];
        let has_expired = request
            .deadline
            .zip(now)
            .is_some_and(|(end, now)| end <= now);
        if link.takes_no_calls() || has_expired || request.metadata_len > usize::from(u16::MAX) {
            return Err(Obstacle::Never(never_sent_cause(
                link,
                request,
                has_expired,
            )));
        }
        if !is_turn(link) {
            return Err(Missing::Turn.into());
        }
        let frame = self
            .outbox
            .permit(Class::Request, link, &mut self.transport)?;
        if !(has_share && self.budget.take(1)) {
            return Err(Missing::Receive.into());
        }
        Ok(RequestPermit {
            key,
            frame,
            receive: Promised(&mut self.budget),
            clock: &self.clock,
            timers: &mut self.timers,
        })
    }

    /// Returns the permit of a link that was taken before and held.
    fn held_permit(&mut self, key: LinkKey) -> RequestPermit<'_, T> {
        let link = &mut self.table[key];
        RequestPermit {
            key,
            frame: self
                .outbox
                .resume(Class::Request, link, &mut self.transport),
            receive: Promised(&mut self.budget),
            clock: &self.clock,
            timers: &mut self.timers,
        }
    }

    /// Frees the receives of responses that have not been taken, if a call lacks nothing else. Returns
    /// true if the link may have one of the last receives.
    #[cold]
    #[inline(never)]
    fn find_receive(&mut self, key: LinkKey, is_turn: &impl Fn(&Link<T::RecvBuf>) -> bool) -> bool {
        let link = &self.table[key];
        // A stream holds no receive for its response.
        let has_share = self.kept_receives == 0 || link.unary_calls() < self.link_share;
        // Without a share, the responses would free too few: then each refused request would look for
        // them in vain.
        let lacks_receive = has_share && self.budget.left() == 0;
        if lacks_receive && link.connection.requests_allowed() > 0 && is_turn(link) {
            self.copy_responses_out();
        }
        has_share || self.budget.left() > self.kept_receives
    }

    /// Returns a deadline for the header of a request: 0 if it has none.
    #[inline]
    pub(super) fn on_peers_clock(&self, key: LinkKey, deadline: Option<Instant>) -> u32 {
        deadline.map_or(0, |deadline| {
            let peer = self.transport.peer_clock(self.table[key].id);
            on_peers_clock(&self.clock, peer, deadline, self.clock.now())
        })
    }

    /// Starts the timer of a call that was sent.
    pub(super) fn set_deadline(&mut self, key: LinkKey, call: CallId, deadline: Option<Instant>) {
        if let Some(deadline) = deadline {
            let target = TimerTarget::Call(key, call);
            let timer = self.timers.insert(deadline, target);
            self.table[key].calls.set_timer(call, timer);
        }
    }

    /// Ends an attempt to send a call, or one that has waited. Returns the call's entry of the queue
    /// if it has left the queue, which the caller drops while nothing is borrowed.
    #[cold]
    pub(super) fn after_attempt<A: CallOrigin>(
        &mut self,
        link: LinkKey,
        request: &RequestHead,
        sent: Result<CallId, Obstacle>,
        origin: A,
        stalls: &StallCounters,
        wake: &mut WakeTarget,
    ) -> (BeginOutcome<A::Waiting>, Option<RemovedWaiter>) {
        let stall = match sent {
            Ok(call) => {
                return (BeginOutcome::Sent(call), self.leave(link, origin.waiter()));
            }
            Err(Obstacle::Never(cause)) => {
                let error = CallError::new(cause, Execution::NeverSent);
                return (
                    BeginOutcome::Failed(error),
                    self.leave(link, origin.waiter()),
                );
            }
            Err(Obstacle::Missing(missing)) => match missing {
                Missing::Turn => &stalls.queued,
                Missing::Credit | Missing::CallId => &stalls.no_credit,
                Missing::Receive => &stalls.no_receive,
                _ => &stalls.no_send_slot,
            },
        };
        let waiting = origin.wait(self, link, request.deadline, stall, wake);
        (waiting, None)
    }

    /// Sends a request whose message does not fit a frame. Takes the message if it is sent.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn send_long_request(
        &mut self,
        sending: &mut Sending,
        key: LinkKey,
        request: &RequestHead,
        now: Option<Instant>,
        (metadata, message): (&[u8], &mut Chunks),
        wake: &mut WakeTarget,
        is_turn: impl Fn(&Link<T::RecvBuf>) -> bool,
    ) -> Result<CallId, Obstacle> {
        self.admit(key, request, now, is_turn)?.hold();
        let time_us = self.on_peers_clock(key, request.deadline);
        let begin = |link: &mut Link<_>| {
            let header = link.begin_call(request, time_us, wake)?;
            Some((header, TransferOwner::Request(header.call)))
        };
        let sent = sending.send_long(self, key, Class::Request, metadata, message, begin);
        match sent {
            Ok((call, _)) => {
                self.set_deadline(key, call, request.deadline);
                Ok(call)
            }
            Err(missing) => {
                self.budget.release(1);
                Err(Obstacle::of(missing, request))
            }
        }
    }

    /// Queues the call of a future, whose waker is `wake`. `stall` counts the reason.
    pub(super) fn wait(
        &mut self,
        link: LinkKey,
        CallingFuture { waker, waiter }: CallingFuture<'_>,
        deadline: Option<Instant>,
        stall: &Counter,
        wake: &mut WakeTarget,
    ) -> WaiterKey {
        let waker = match mem::take(wake) {
            WakeTarget::Task(waker) => waker,
            // The poller's own, which runs no application code.
            _ => waker.clone(),
        };
        let waiters = &mut self.table[link].waiters;
        let key = match waiter {
            Some(key) => {
                waiters.requeue(key);
                if let Some(replaced) = waiters.set_waker(key, waker) {
                    *wake = WakeTarget::Task(replaced);
                }
                key
            }
            None => {
                stall.add(1);
                let key = waiters.enqueue(waker);
                if let Some(deadline) = deadline {
                    waiters.set_timer(
                        key,
                        self.timers.insert(deadline, TimerTarget::Waiter(link, key)),
                    );
                }
                key
            }
        };
        self.outbox.calls.insert(link);
        self.outbox.note_any();
        key
    }

    /// Removes a call from the queue. The caller drops the result while nothing is borrowed.
    #[must_use]
    pub(super) fn leave(
        &mut self,
        link: LinkKey,
        waiter: Option<WaiterKey>,
    ) -> Option<RemovedWaiter> {
        let entry = self.table.get_mut(link)?;
        let removed = entry.waiters.leave(waiter?);
        if let Some(timer) = removed.timer {
            self.timers.cancel(timer);
        }
        Some(removed)
    }

    pub(super) fn wake_waiters(&mut self) {
        for _ in 0..self.outbox.calls.len() {
            let Some(key) = self.outbox.calls.pop() else {
                break;
            };
            let (link, wakers) = (&mut self.table[key], &mut self.wakers);
            // On a link that has ended or is about to, wake all waiters, so that they fail as never
            // sent.
            let room = if link.takes_no_calls() {
                u32::MAX
            } else {
                link.connection.requests_allowed()
            };
            link.waiters.wake_next(room, |waker| wakers.push(waker));
            if !link.waiters.is_empty() {
                self.outbox.calls.insert(key);
                self.outbox.note_any();
            }
        }
    }
}

impl<T: Transport> RequestPermit<'_, T> {
    /// Keeps what was taken, until [`Links::held_permit`].
    pub(super) fn hold(self) {
        self.frame.hold();
        mem::forget(self.receive);
    }

    /// Sends the request in `frame`, whose header is still to be written.
    #[inline]
    pub(super) fn send_inline(
        self,
        request: &RequestHead,
        now: Option<Instant>,
        frame: &mut [u8],
        wake: &mut WakeTarget,
    ) -> Result<CallId, Obstacle> {
        let time_us = self.time_on_peers_clock(request, now);
        let (key, timers) = (self.key, self.timers);
        let sent = self.frame.send_inline(frame, |link, frame| {
            begin(key, link, timers, request, time_us, wake, frame)
        });
        let call = sent.map_err(|missing| Obstacle::of(missing, request))?;
        mem::forget(self.receive);
        Ok(call)
    }

    /// Sends the request in a slot that was reserved, whose header is still to be written.
    fn send_reserved(
        self,
        request: &RequestHead,
        now: Option<Instant>,
        buf: T::SendBuf,
        wake: &mut WakeTarget,
    ) -> Result<CallId, Obstacle> {
        let time_us = self.time_on_peers_clock(request, now);
        let (key, timers) = (self.key, self.timers);
        let sent = self.frame.send(Slot::Reserved(buf), |link, frame| {
            begin(key, link, timers, request, time_us, wake, frame)
        });
        let call = sent.map_err(|missing| Obstacle::of(missing, request))?;
        mem::forget(self.receive);
        Ok(call)
    }

    /// Reserves a slot for a request that is longer than an inline frame, and holds the permit.
    pub(super) fn reserve(self, request: &RequestHead) -> Result<T::SendBuf, Obstacle> {
        let reserved = self.frame.reserve(request.frame_len());
        let buf = reserved.map_err(|missing| Obstacle::of(missing, request))?;
        mem::forget(self.receive);
        Ok(buf)
    }

    /// Returns the deadline of a request for its header.
    #[inline(always)]
    fn time_on_peers_clock(&self, request: &RequestHead, now: Option<Instant>) -> u32 {
        now.zip(request.deadline).map_or(0, |(now, deadline)| {
            let peer = self.frame.transport.peer_clock(self.frame.link.id);
            on_peers_clock(self.clock, peer, deadline, now)
        })
    }
}

impl<B> Link<B> {
    /// Adds a call to the call table, takes `wake` for it, and returns the header of its request. After
    /// that, the request has to be sent. Returns `None` if responses that leaked futures never took
    /// occupy all ids.
    #[inline(always)]
    pub(super) fn begin_call(
        &mut self,
        request: &RequestHead,
        time_us: u32,
        wake: &mut WakeTarget,
    ) -> Option<FrameHeader> {
        let call = self.calls.begin(wake)?;
        let (kind, method) = (FrameKind::Request, request.method);
        let mut header = self.connection.next_header(kind, call, method);
        // Longer metadata was rejected.
        header.metadata_len = request.metadata_len as u16;
        header.time_us = time_us;
        Some(header)
    }
}

/// Adds the call of a request that leaves in `frame`, and writes its header.
#[inline(always)]
fn begin<B>(
    key: LinkKey,
    link: &mut Link<B>,
    timers: &mut Timers<TimerTarget>,
    request: &RequestHead,
    time_us: u32,
    wake: &mut WakeTarget,
    frame: &mut [u8],
) -> Option<CallId> {
    let header = link.begin_call(request, time_us, wake)?;
    if let Some(deadline) = request.deadline {
        let timer = timers.insert(deadline, TimerTarget::Call(key, header.call));
        link.calls.set_timer(header.call, timer);
    }
    header.encode(frame);
    Some(header.call)
}

/// Returns a deadline as the server's clock shows it, with the error of that clock, so that the server
/// never takes a call for expired before it is. Returns 0, no deadline, as long as the server's clock
/// is not known: this side's timer ends the call then.
fn on_peers_clock(clock: &Clock, peer: Option<PeerClock>, deadline: Instant, now: Instant) -> u32 {
    let Some(peer) = peer else {
        return 0;
    };
    let ahead_us = peer.ahead_us.wrapping_add(peer.error_us.into());
    clock.to_wire(deadline, now, ahead_us)
}

/// A request that is being encoded into a slot, while nothing is borrowed. Dropping it gives back the
/// slot and the permit.
pub(super) struct LongRequest<'a, T: Transport> {
    connections: &'a Connections<T>,
    key: LinkKey,
    buf: Option<T::SendBuf>,
}

impl<'a, T: Transport> LongRequest<'a, T> {
    pub(super) fn new(connections: &'a Connections<T>, key: LinkKey, buf: T::SendBuf) -> Self {
        connections.state.borrow_mut().links.lend_receive();
        let buf = Some(buf);
        Self {
            connections,
            key,
            buf,
        }
    }

    /// Returns the part of the frame that follows the header.
    pub(super) fn body_mut(&mut self) -> &mut [u8] {
        let buf = self.buf.as_mut();
        buf.map_or(&mut [], |buf| &mut buf.as_mut()[HEADER_LEN..])
    }

    /// Sends the request.
    pub(super) fn send(
        mut self,
        request: &RequestHead,
        now: Option<Instant>,
        wake: &mut WakeTarget,
    ) -> Result<CallId, Obstacle> {
        let state = &mut *self.connections.state.borrow_mut();
        let Some(buf) = self.buf.take() else {
            return Err(Missing::Slot.into());
        };
        state.links.take_receive_back();
        // The call's future holds its channel, so the link is still there, although it may have ended.
        let permit = state.links.held_permit(self.key);
        if let Some(reason) = &permit.frame.link.ended {
            let cause = Cause::Disconnected(reason.clone());
            permit.frame.transport.cancel(buf);
            return Err(Obstacle::Never(cause));
        }
        // If the connection ends meanwhile, the next event reports it and fails this call.
        permit.send_reserved(request, now, buf, wake)
    }
}

impl<T: Transport> Drop for LongRequest<'_, T> {
    fn drop(&mut self) {
        // Still here only if the message's own code has panicked.
        if let Some(buf) = self.buf.take() {
            let state = &mut *self.connections.state.borrow_mut();
            state.links.take_receive_back();
            let permit = state.links.held_permit(self.key);
            permit.frame.transport.cancel(buf);
        }
    }
}

impl From<Missing> for Obstacle {
    fn from(missing: Missing) -> Self {
        match missing {
            Missing::Connection => Self::Never(Cause::Disconnected(CloseReason::PeerGone)),
            missing => Self::Missing(missing),
        }
    }
}

impl Obstacle {
    #[cold]
    pub(super) fn of(missing: Missing, request: &RequestHead) -> Self {
        match missing {
            Missing::Length { limit } => {
                let room = room_for_metadata(limit);
                Self::Never(Cause::metadata_too_long(request.metadata_len, room))
            }
            missing => missing.into(),
        }
    }
}

/// Returns the reason that a link takes no call, or not this one.
#[cold]
fn never_sent_cause<B>(link: &Link<B>, request: &RequestHead, has_expired: bool) -> Cause {
    if let Some(reason) = link.end() {
        Cause::Disconnected(reason)
    } else if has_expired {
        Cause::DeadlineExceeded { latest: None }
    } else {
        Cause::metadata_too_long(request.metadata_len, usize::from(u16::MAX))
    }
}
