//! Receives messages: takes them out of a ring and puts them into posted receives.

use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use crate::hooks::{inject, point};
use crate::provider::soft::context::completion_queues::Completion;
use crate::provider::soft::context::link::{Link, Rings, Tcp};
use crate::provider::soft::context::peer::Peer;
use crate::provider::soft::context::queue_pair::SoftQueuePair;
use crate::provider::soft::context::receive_queue::ReceiveQueue;
use crate::provider::soft::context::responder::{Done, LocalReport, Responder, straight_receive};
use crate::provider::soft::context::state::Common;
use crate::provider::soft::shared::commit::{Commit, Flags};
use crate::provider::soft::shared::copy::copy_message;
use crate::provider::soft::shared::descriptor::{DESCRIPTOR_LEN, Descriptor};
use crate::provider::soft::shared::memory::Mapping;
use crate::provider::soft::shared::ring::Incoming;
use crate::types::{
    AsyncEvent, CompletionOpcode, CompletionStatus, Extras, QpState, RnrTimer, SrqNum,
    WorkCompletion,
};

/// Messages taken from one ring before the next ring is served. Half a ring: the sender can write
/// one half while it waits for the acknowledgement of the other.
const BATCH: usize = 64;

/// Result of checking a ring for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiveOutcome {
    /// Number of messages received.
    Received(usize),
    /// The ring is empty, or its next message cannot be received now.
    Empty,
    /// The queue pair does not receive any more.
    Closed,
}

/// Location of a message's bytes.
enum Body {
    /// In its slot of the ring, or in the sender's arena, which this keeps mapped.
    At(NonNull<u8>, usize, Option<Arc<Mapping>>),
    /// In an arena that has not arrived over the link yet.
    NotMapped,
    /// Nowhere: the descriptor is invalid.
    Invalid,
}

impl SoftQueuePair {
    /// Receives the message whose commit a look at hot ring number `ring` found, if everything
    /// about it is usual: a plain message that fits the next receive. Returns its completion, which
    /// is due to completion queue `cq`; or does nothing and returns `None`, and then
    /// [`receive`](Self::receive) handles the message. The caller has checked that `cq` is empty and
    /// that no thread waits for it.
    #[inline(always)]
    pub(crate) fn receive_straight(
        &mut self,
        common: &mut Common,
        ring: usize,
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
        // lie in a region of this context, which stays registered while the owner word is held. Its
        // bytes belong to the device until its completion is polled. A ring and a region are
        // different mappings, so the two ranges do not overlap.
        unsafe { copy_message(from, receive.addr, len) };
        point!(Copied);
        if queue.consume_at(place) {
            common.raise_limit_event(self.core.srq);
        }
        receiver.advance_and_ack(&mut common.hot[ring].next);
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
        ring: usize,
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
        let Body::At(from, len, _arena) = locate(&incoming, peer, arena) else {
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
        // stays registered while the owner word is held. Its bytes belong to the device until its
        // completion is polled. The two ranges are in different mappings, so they do not overlap.
        unsafe { copy_message(from, receive.addr, len) };
        if receiver.is_closed_after_copy() {
            // As in `receive_one`: the message is lost, and nothing behind it is delivered.
            receiver.stop();
            return None;
        }
        point!(Copied);
        if queue.consume_at(place) {
            common.raise_limit_event(self.core.srq);
        }
        receiver.advance_and_ack(&mut common.hot[ring].next);
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
                Step::Wait => break ReceiveOutcome::Received(received),
                Step::Failed => break ReceiveOutcome::Closed,
            }
        };
        if let Link::Rings(rings) = &mut self.link {
            rings.receiver.publish_ack();
        }
        common.counters.receives += received as u64;
        #[cfg(debug_assertions)]
        crate::provider::soft::context::check::check_queue_pair(self);
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
            Err(_) => return self.fail_invalid_message(common),
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
        let Body::At(from, len, _arena) = locate(&incoming, peer, arena) else {
            return self.execute(common, &incoming);
        };
        let receive = straight_receive(&self.core, &common.memory, queue, len);
        let Some((place, receive)) = receive else {
            return self.execute(common, &incoming);
        };
        // SAFETY: `locate` found `len` readable bytes, in the ring's slot, which the sender leaves
        // alone until the acknowledgement, or in an arena that `_arena` keeps mapped. The receive
        // was checked to lie in a region of this context, which stays registered while the owner
        // word is held, and its bytes belong to the device until its completion is polled. The two
        // ranges are in different mappings, so they do not overlap.
        unsafe { copy_message(from, receive.addr, len) };
        if incoming.flags.has(Flags::DESCRIPTOR) && receiver.is_closed_after_copy() {
            // The sender has reclaimed its memory, so the message no longer exists: see `execute`.
            receiver.stop();
            return Step::Wait;
        }
        point!(Copied);
        receiver.advance();
        let solicited = if incoming.flags.has(Flags::SOLICITED) {
            Extras::SOLICITED
        } else {
            0
        };
        let success = CompletionStatus::Success;
        let done = Done {
            reached_limit: queue.consume_at(place),
            completion: Some(Completion {
                extras: Extras(solicited),
                // The cast is lossless: the length is at most the receive's.
                byte_len: len as u32,
                ..Completion::of_receive(receive.wr_id, self.core.number, success)
            }),
        };
        self.apply(common, done);
        self.communication_established(common);
        Step::Received
    }

    /// Carries out what a request of the peer has led to.
    #[inline]
    pub(crate) fn apply(&mut self, common: &mut Common, done: Done) {
        if done.reached_limit {
            common.raise_limit_event(self.core.srq);
        }
        if let Some(completion) = done.completion {
            common.complete(self.core.recv_cq, completion);
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
            LocalReport::RequestError => common.raise(AsyncEvent::QpRequestError { qp_num }),
            LocalReport::AccessError => common.raise(AsyncEvent::QpAccessError { qp_num }),
        }
    }

    /// Sends a fatal NAK for the next message, with the status for its sender, and fails the queue
    /// pair.
    #[cold]
    pub(crate) fn refuse_message(&mut self, common: &mut Common, remote: CompletionStatus) {
        if let Some(link) = self.link.tcp() {
            let sequence = link.inbound.expected as u32;
            return self.refuse_over_tcp(common, sequence, remote);
        }
        if let Link::Rings(rings) = &mut self.link {
            rings.receiver.publish_ack();
            // The cast is lossless: status codes are below 256.
            rings.receiver.send_fatal_nak(remote.code() as u8);
        }
        self.fail(common, None);
    }

    /// Raises `CommunicationEstablished` for the first message before RTS.
    #[inline]
    pub(crate) fn communication_established(&mut self, common: &mut Common) {
        if self.core.state == QpState::Rtr && !self.established {
            self.established = true;
            let qp_num = self.core.number;
            common.raise(AsyncEvent::CommunicationEstablished { qp_num });
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

    /// Handles input that no software device sends: sends a fatal NAK and fails the queue pair.
    #[cold]
    #[inline(never)]
    pub(crate) fn fail_invalid_message(&mut self, common: &mut Common) -> Step {
        let qp_num = self.core.number;
        log_limited!(warn, %qp_num, "a peer sent an invalid message: closing the connection. The software device never sends these: check that the peer runs the same version");
        common.raise(AsyncEvent::QpFatal { qp_num });
        self.refuse_message(common, CompletionStatus::RemoteInvalidRequest);
        Step::Failed
    }
}

impl Common {
    /// Reports that a shared receive queue has fewer receives than its limit.
    #[cold]
    #[inline(never)]
    pub(super) fn raise_limit_event(&mut self, srq: Option<usize>) {
        if let Some(srq) = srq {
            let srq = SrqNum(self.shared_receive_queues[srq].number);
            self.counters.srq_limit_events += 1;
            self.raise(AsyncEvent::SrqLimitReached { srq });
        }
    }
}

/// Outcome of one message.
pub(crate) enum Step {
    Received,
    Wait,
    Failed,
}

/// Locates the bytes of a message. All of it comes from a peer and is validated.
#[inline]
fn locate(incoming: &Incoming, peer: &Peer, recent: &mut Option<(u64, Weak<Mapping>)>) -> Body {
    if !incoming.flags.has(Flags::DESCRIPTOR) {
        return Body::At(incoming.payload, incoming.len, None);
    }
    if incoming.len != DESCRIPTOR_LEN {
        return Body::Invalid;
    }
    let mut bytes = [0; DESCRIPTOR_LEN];
    // SAFETY: the payload has `incoming.len` readable bytes, which is the array's length. They are
    // copied once, so that the checked bytes are the ones used.
    unsafe {
        copy_message(
            incoming.payload,
            NonNull::from(&mut bytes).cast(),
            DESCRIPTOR_LEN,
        );
    }
    let Some(descriptor) = Descriptor::parse(&bytes) else {
        return Body::Invalid;
    };
    let cached = match recent {
        Some((number, arena)) if *number == descriptor.arena => arena.upgrade(),
        _ => None,
    };
    let arena = match cached {
        Some(arena) => arena,
        None => {
            let found = peer.arena(descriptor.arena);
            let Some(arena) = found else {
                return Body::NotMapped;
            };
            *recent = Some((descriptor.arena, Arc::downgrade(&arena)));
            arena
        }
    };
    match descriptor.offset_within(arena.len()) {
        Some(offset) => {
            // SAFETY: `offset_within` checked that the offset, and `len` bytes after it, are inside
            // the mapping, which the body keeps alive.
            let from = unsafe { arena.start().add(offset) };
            Body::At(from, descriptor.len as usize, Some(arena))
        }
        None => Body::Invalid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Gid;

    /// What the peer has withdrawn no longer counts against its limits, so it must not stay mapped.
    #[test]
    fn an_arena_that_its_peer_has_withdrawn_is_unmapped() {
        let peer = Arc::new(Peer::new(Gid([1; 16])));
        assert!(peer.add_arena(7, Mapping::for_tests(4096)));
        let mapping = Arc::downgrade(&peer.arena(7).unwrap());
        let descriptor = Descriptor {
            arena: 7,
            offset: 96,
            len: 4000,
        };
        let mut bytes = descriptor.encode();
        let incoming = Incoming {
            payload: NonNull::from(&mut bytes).cast(),
            len: DESCRIPTOR_LEN,
            flags: Flags(Flags::DESCRIPTOR),
            sequence: 0,
        };
        let mut recent = None;
        let mut locate = || locate(&incoming, &peer, &mut recent);
        assert!(matches!(locate(), Body::At(_, 4000, Some(_))));
        let body = locate();
        peer.remove_arena(7);
        assert!(mapping.upgrade().is_some(), "while the message is copied");
        drop(body);
        assert!(mapping.upgrade().is_none());
        assert!(matches!(locate(), Body::NotMapped));
    }
}
