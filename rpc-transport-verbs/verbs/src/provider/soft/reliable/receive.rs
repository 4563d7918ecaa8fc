//! Receives what a ring brings: the peer's messages and requests, and its acknowledgements; and does what
//! follows a message or an acknowledgement, over either link.
//!
//! The [`responder`](crate::provider::soft::context::responder) has the rules for requests.
//! [`rings`](crate::provider::soft::rings) finds their bytes, which this file moves. The thread that holds
//! the context's lock does this: the application's poll, or the engine.
//!
//! The process that owns the memory checks the keys under its context's lock. Deregistering
//! takes the same lock, so the device does not access the memory afterwards.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::connect::AckOutcome;
use super::execute::execute_at_once;
use crate::hooks;
use crate::hooks::{inject, point};
use crate::provider::soft::context::check::check_queue_pair;
use crate::provider::soft::context::initiator::NotifyDrained;
use crate::provider::soft::context::link::{Link, Rings, Tcp};
use crate::provider::soft::context::lists::RingPlace;
use crate::provider::soft::context::queue_pair::SoftQueuePair;
use crate::provider::soft::context::receive_queue::ReceiveQueue;
use crate::provider::soft::context::responder::{
    Done, LocalReport, Rejection, Responder, finish_straight, straight_receive,
};
use crate::provider::soft::context::state::Common;
use crate::provider::soft::rings::take::{Located, locate};
use crate::provider::soft::shared::commit::{Commit, Flags};
use crate::provider::soft::shared::copy::copy_message;
use crate::provider::soft::shared::ring::{Incoming, SLOT_COUNT};
use crate::types::{
    AsyncEvent, CompletionOpcode, CompletionStatus, Extras, QpState, RnrTimer, SrqNum,
    WorkCompletion,
};

/// Messages taken from one ring before the next ring is served. Half a ring: the sender can write
/// one half while it waits for the acknowledgement of the other.
const BATCH: usize = SLOT_COUNT as usize / 2;

/// Result of checking a ring for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiveOutcome {
    /// Number of messages received.
    Received(usize),
    /// The ring is empty, or it waits until its sender retries.
    Empty,
    /// Its next message names an arena that has not arrived.
    Blocked,
    /// The queue pair does not receive any more.
    Closed,
}

impl SoftQueuePair {
    // ---- messages ----

    /// Receives the message whose commit a look at this queue pair's ring found, if everything
    /// about it is usual: a plain message that fits the next receive. Returns its completion, which
    /// is due to completion queue `cq`; or does nothing and returns `None`, and then
    /// [`receive`](Self::receive) handles the message. The caller has checked that `cq` is empty and
    /// that no thread waits for it.
    #[inline(always)]
    pub(crate) fn receive_straight(
        &mut self,
        common: &mut Common,
        ring: RingPlace,
        commit: Commit,
        cq: usize,
    ) -> Option<WorkCompletion> {
        let receiver = &mut self.link.rings_mut()?.receiver;
        let (from, len) = receiver.plain_payload(commit)?;
        if self.core.state != QpState::Rts || self.core.recv_cq != cq {
            return None;
        }
        let shared = &mut common.shared_receive_queues;
        let queue = ReceiveQueue::of(shared, self.core.srq, &mut self.receives);
        let receive = straight_receive(&self.core, &common.memory, queue, len);
        let (place, receive) = receive.filter(|_| !inject!(ReceiverNotReady))?;
        // SAFETY: `plain_payload` checked that the slot has `len` readable bytes; the sender leaves
        // them alone until the acknowledgement. The receive is at least as long, and was checked to
        // lie in a region of this context, which stays registered while the context's lock is held. Its
        // bytes belong to the device until its completion is polled. A ring and a region are
        // different mappings, so the two ranges do not overlap.
        unsafe { copy_message(from, receive.addr, len) };
        point!(Copied);
        if queue.consume_at(place) {
            report_limit(common, self.core.srq);
        }
        receiver.advance_and_ack(commit, common.lists.next_of(ring));
        common.counters.receives += 1;
        Some(WorkCompletion {
            wr_id: receive.wr_id,
            status: 0,
            qp_num: self.core.number,
            byte_len: u32::from(commit.len),
            data: 0,
            src_qp: 0,
            opcode: CompletionOpcode::Receive,
            extras: Extras::default(),
        })
    }

    /// As [`receive_straight`](Self::receive_straight), for a message whose bytes are in the
    /// sender's arena.
    #[inline(never)]
    pub(crate) fn receive_straight_from_arena(
        &mut self,
        common: &mut Common,
        ring: RingPlace,
        commit: Commit,
        cq: usize,
    ) -> Option<WorkCompletion> {
        let Rings {
            receiver,
            peer,
            arena,
            ..
        } = self.link.rings_mut()?;
        if commit.flags != Flags(Flags::DESCRIPTOR) || self.core.state != QpState::Rts {
            return None;
        }
        let incoming = receiver.peek().ok()??;
        let Located::At(from, len, _arena) = locate(&incoming, peer, arena) else {
            return None;
        };
        let shared = &mut common.shared_receive_queues;
        let queue = ReceiveQueue::of(shared, self.core.srq, &mut self.receives);
        let receive = straight_receive(&self.core, &common.memory, queue, len);
        let (place, receive) = receive.filter(|_| !inject!(ReceiverNotReady))?;
        if self.core.recv_cq != cq {
            return None;
        }
        // SAFETY: `locate` found `len` readable bytes in an arena that `_arena` keeps mapped. The
        // receive is at least as long, and was checked to lie in a region of this context, which
        // stays registered while the context's lock is held. Its bytes belong to the device until its
        // completion is polled. The two ranges are in different mappings, so they do not overlap.
        unsafe { copy_message(from, receive.addr, len) };
        if receiver.is_closed_after_copy() {
            // As in `receive_one`: the message is lost, and nothing behind it is delivered.
            receiver.stop();
            return None;
        }
        point!(Copied);
        if queue.consume_at(place) {
            report_limit(common, self.core.srq);
        }
        receiver.advance_and_ack(commit, common.lists.next_of(ring));
        common.counters.receives += 1;
        Some(WorkCompletion {
            wr_id: receive.wr_id,
            status: 0,
            qp_num: self.core.number,
            // Lossless: the length is at most the receive's.
            byte_len: len as u32,
            data: 0,
            src_qp: 0,
            opcode: CompletionOpcode::Receive,
            extras: Extras::default(),
        })
    }

    /// Receives the messages in the queue pair's ring: at most a batch, with one acknowledgement.
    pub(crate) fn receive(&mut self, common: &mut Common) -> ReceiveOutcome {
        if !self.core.receives_now() {
            return ReceiveOutcome::Closed;
        }
        let mut received = 0;
        let outcome = loop {
            if received == BATCH {
                break ReceiveOutcome::Received(received);
            }
            match self.receive_one(common) {
                Step::Received => received += 1,
                Step::Wait if received == 0 => break ReceiveOutcome::Empty,
                // The arena may have arrived after the look and before the flag was set. The engine then
                // tells nobody, so this looks once more.
                Step::Blocked if !common.awaits_arena.swap(true, Ordering::Relaxed) => {}
                Step::Blocked if received == 0 => break ReceiveOutcome::Blocked,
                Step::Wait | Step::Blocked => break ReceiveOutcome::Received(received),
                Step::Failed => break ReceiveOutcome::Closed,
            }
        };
        if let Link::Rings(rings) = &mut self.link {
            rings.receiver.publish_ack();
        }
        common.counters.receives += received as u64;
        check_queue_pair(self);
        outcome
    }

    fn receive_one(&mut self, common: &mut Common) -> Step {
        let Link::Rings(Rings {
            receiver,
            peer,
            arena,
            ..
        }) = &mut self.link
        else {
            return Step::Failed;
        };
        let incoming = match receiver.peek() {
            Ok(Some(incoming)) => incoming,
            Ok(None) => return Step::Wait,
            Err(_) => {
                self.reject(common, Rejection::Invalid);
                return Step::Failed;
            }
        };
        if incoming.flags.has(Flags::REQUEST) {
            return self.execute(common, &incoming);
        }
        let shared = &mut common.shared_receive_queues;
        let queue = ReceiveQueue::of(shared, self.core.srq, &mut self.receives);
        if queue.next().is_some_and(|_| inject!(ReceiverNotReady)) {
            self.send_rnr_nak(common);
            return Step::Wait;
        }
        let Located::At(from, len, _arena) = locate(&incoming, peer, arena) else {
            return self.execute(common, &incoming);
        };
        let receive = straight_receive(&self.core, &common.memory, queue, len);
        let Some((place, receive)) = receive else {
            return self.execute(common, &incoming);
        };
        // SAFETY: `locate` found `len` readable bytes, in the ring's slot, which the sender leaves
        // alone until the acknowledgement, or in an arena that `_arena` keeps mapped. The receive
        // was checked to lie in a region of this context, which stays registered while the
        // context's lock is held, and its bytes belong to the device until its completion is polled. The two
        // ranges are in different mappings, so they do not overlap.
        unsafe { copy_message(from, receive.addr, len) };
        if incoming.flags.has(Flags::DESCRIPTOR) && receiver.is_closed_after_copy() {
            // The sender has reclaimed its memory, so the message no longer exists: see `execute`.
            receiver.stop();
            return Step::Wait;
        }
        point!(Copied);
        receiver.advance(incoming.commit());
        let (held, is_solicited) = ((place, receive.wr_id), incoming.flags.has(Flags::SOLICITED));
        // The cast is lossless: the length is at most the receive's.
        let done = finish_straight(&self.core, queue, held, len as u32, is_solicited);
        self.apply(common, done);
        self.communication_established(common);
        Step::Received
    }

    /// Executes the message that was found in the ring: a request other than a plain message, or
    /// one that does not simply go to the next receive.
    #[cold]
    fn execute(&mut self, common: &mut Common, incoming: &Incoming) -> Step {
        let Some(rings) = self.link.rings() else {
            return Step::Failed;
        };
        let (memory, shared) = (&mut common.memory, &mut common.shared_receive_queues);
        let responder = Responder::new(&self.core, &mut self.receives, memory, shared);
        match execute_at_once(responder, rings, incoming) {
            Ok(done) => {
                if let Link::Rings(rings) = &mut self.link {
                    rings.receiver.advance(incoming.commit());
                }
                self.apply(common, done);
                self.communication_established(common);
                Step::Received
            }
            Err(Rejection::NotReady) => {
                self.send_rnr_nak(common);
                Step::Wait
            }
            Err(Rejection::NotYet) => Step::Blocked,
            Err(Rejection::Lost) => {
                // Messages behind it may be whole, but a reliable connection delivers nothing behind a
                // message that it has lost. The receive stays posted.
                if let Link::Rings(rings) = &mut self.link {
                    rings.receiver.stop();
                }
                Step::Wait
            }
            Err(rejection) => {
                self.reject(common, rejection);
                Step::Failed
            }
        }
    }

    // ---- what follows a message, from a ring or over TCP ----

    /// Carries out what a request of the peer has led to.
    #[inline]
    pub(crate) fn apply(&mut self, common: &mut Common, done: Done) {
        if done.reached_limit {
            report_limit(common, self.core.srq);
        }
        if let Some(completion) = done.completion {
            let queues = &mut common.completion_queues;
            queues.push(&mut common.pending, self.core.recv_cq, completion);
        }
    }

    /// Raises `CommunicationEstablished` for the first message before RTS.
    #[inline]
    pub(crate) fn communication_established(&mut self, common: &mut Common) {
        if self.core.state == QpState::Rtr && !self.established {
            self.established = true;
            let qp_num = self.core.number;
            let event = AsyncEvent::CommunicationEstablished { qp_num };
            common.events.raise(event);
        }
    }

    /// Refuses a request of the peer, which ends the queue pair.
    #[cold]
    pub(crate) fn reject(&mut self, common: &mut Common, rejection: Rejection) {
        match rejection {
            Rejection::Status(status, report) => {
                self.report(common, report);
                self.refuse(common, None, status);
            }
            Rejection::Invalid | Rejection::NotReady | Rejection::NotYet | Rejection::Lost => {
                let qp_num = self.core.number;
                log_limited!(warn, %qp_num, "a peer sent an invalid message: closing the connection. The software device never sends these: check that the peer runs the same version");
                common.events.raise(AsyncEvent::QpFatal { qp_num });
                self.refuse(common, None, CompletionStatus::RemoteInvalidRequest);
            }
        }
    }

    /// Reports on this side that a request of the peer has failed.
    #[cold]
    pub(crate) fn report(&mut self, common: &mut Common, report: LocalReport) {
        let qp_num = self.core.number;
        match report {
            LocalReport::Receive {
                wr_id,
                is_taken,
                status,
            } => {
                let done = Responder::new(
                    &self.core,
                    &mut self.receives,
                    &mut common.memory,
                    &mut common.shared_receive_queues,
                )
                .fail_receive(wr_id, is_taken, status);
                self.apply(common, done);
            }
            LocalReport::RequestError => common.events.raise(AsyncEvent::QpRequestError { qp_num }),
            LocalReport::AccessError => common.events.raise(AsyncEvent::QpAccessError { qp_num }),
        }
    }

    /// Sends an RNR NAK for the next message, which has no receive: its sender has to wait and
    /// repeat it.
    #[cold]
    #[inline(never)]
    pub(crate) fn send_rnr_nak(&mut self, common: &mut Common) {
        let timer = self.core.attributes.min_rnr_timer;
        let timer = timer.unwrap_or(RnrTimer::LONGEST).code();
        match &mut self.link {
            Link::Rings(rings) => {
                // Acknowledge earlier messages first: the sender has to repeat only this one.
                rings.receiver.publish_ack();
                rings.receiver.send_rnr_nak(timer);
            }
            Link::Tcp(Tcp {
                connection: Some(link),
                ..
            }) => link.push_rnr_nak(timer),
            Link::Tcp(_) | Link::Down => return,
        }
        common.counters.rnr_nak_sent += 1;
    }

    // ---- acknowledgements ----

    /// Goes on after a change of the state or of the link: writes what waits, or ends draining.
    pub(crate) fn resume(&mut self, common: &mut Common) {
        match self.core.state {
            // The caller carries out unreliable sends, after leaving the context.
            QpState::Rts if self.core.is_reliable() => self.transmit(common),
            QpState::Sqd => self.process_acks(common, hooks::now),
            _ => {}
        }
    }

    /// Processes the peer's acknowledgements and NAKs for this queue pair's sends.
    // Always inlined: one of its callers is on the path of every message that is acknowledged.
    #[inline(always)]
    pub(crate) fn process_acks(&mut self, common: &mut Common, now: fn() -> Instant) {
        if inject!(LateCompletion) {
            return;
        }
        match self.link {
            Link::Rings(_) => {
                if !self.process_ring_acks(common, now) {
                    return;
                }
            }
            // Acknowledgements are found as everything else that the connection brings.
            Link::Tcp(_) => {
                self.initiator.retry.ends_pause(now);
            }
            Link::Down => {}
        }
        if let Some(status) = self.initiator.sends.local_failure
            && self.initiator.sends.acked == self.initiator.sends.started
        {
            return self.fail(common, Some(status));
        }
        if self.initiator.sends.started < self.initiator.sends.posted && self.core.is_reliable() {
            self.transmit(common);
        }
        if self.initiator.draining.is_some() && !self.initiator.has_in_flight(&self.link) {
            let notify = self.initiator.draining.take();
            if notify == Some(NotifyDrained(true)) {
                common.events.raise(AsyncEvent::SqDrained {
                    qp_num: self.core.number,
                });
            }
        }
    }

    /// Processes what the peer has written into its ring's acknowledgement. Returns false if the queue
    /// pair has failed.
    #[inline(always)]
    fn process_ring_acks(&mut self, common: &mut Common, now: fn() -> Instant) -> bool {
        let first = match self.complete_acked(common) {
            // The peer's acknowledgement is invalid.
            AckOutcome::Invalid => Some(CompletionStatus::BadResponse),
            AckOutcome::Failed => None,
            AckOutcome::Valid(0) => return true,
            AckOutcome::Valid(_) => match self.process_naks(common, now) {
                Ok(()) => return true,
                Err(status) => Some(status),
            },
        };
        match first {
            Some(_) => self.fail(common, first),
            None => self.fail_from_here(common, None),
        }
        false
    }

    /// Processes the NAKs of the peer's ring, which has not acknowledged everything. An error is the
    /// status of the oldest request, which has failed.
    fn process_naks(
        &mut self,
        common: &mut Common,
        now: fn() -> Instant,
    ) -> Result<(), CompletionStatus> {
        let Link::Rings(Rings {
            sender: Some(sender),
            naks,
            ..
        }) = &mut self.link
        else {
            return Ok(());
        };
        if let Some(code) = sender.fatal_nak() {
            return Err(CompletionStatus::of_refusal(code).unwrap_or(CompletionStatus::BadResponse));
        }
        let nak = sender.nak();
        let retry = &mut self.initiator.retry;
        if nak.count != *naks {
            *naks = nak.count;
            let rnr_retry = self.core.attributes.rnr_retry;
            retry.begin_pause(&mut common.counters, rnr_retry, nak.timer, now)?;
        }
        if retry.ends_pause(now) {
            sender.allow_retry(nak);
        }
        Ok(())
    }
}

/// Reports that a shared receive queue, the one of a queue pair if it has one, has fewer receives than its
/// limit.
#[cold]
#[inline(never)]
pub(super) fn report_limit(common: &mut Common, srq: Option<usize>) {
    if let Some(srq) = srq {
        let srq = SrqNum(common.shared_receive_queues[srq].number);
        common.counters.srq_limit_events += 1;
        common.events.raise(AsyncEvent::SrqLimitReached { srq });
    }
}

/// Outcome of one message.
enum Step {
    Received,
    Wait,
    Blocked,
    Failed,
}
