//! Receives messages: takes them out of a ring and puts them into posted receives.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use crate::hooks::{inject, point};
use crate::provider::soft::context::state::State;
use crate::provider::soft::context::work_queues::Completion;
use crate::provider::soft::shared::commit::Flags;
use crate::provider::soft::shared::descriptor::{DESCRIPTOR_LEN, Descriptor};
use crate::provider::soft::shared::ring::Incoming;
use crate::verbs::types::{
    Access, AsyncEvent, CompletionOpcode, CompletionStatus, Extras, QpNum, QpState, RnrTimer,
    SrqNum, WrId,
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
    /// In its slot of the ring, or in the sender's arena.
    At(NonNull<u8>, usize),
    /// In an arena that has not arrived over the link yet.
    NotMapped,
    /// Nowhere: the descriptor is invalid.
    Invalid,
}

impl State {
    /// Receives the messages in a queue pair's ring: at most a batch, with one acknowledgement.
    #[inline]
    pub(crate) fn receive(&mut self, qp_index: u32) -> ReceiveOutcome {
        let qp = &mut self.queue_pairs[qp_index as usize];
        if !qp.receives_now() {
            return ReceiveOutcome::Closed;
        }
        let Some(receiver) = &mut qp.link.receiver else {
            return ReceiveOutcome::Closed;
        };
        if inject!(LateMessage) {
            return ReceiveOutcome::Received(0);
        }
        // The usual case, and the only cost of a poll without traffic.
        match receiver.peek() {
            Ok(None) => return ReceiveOutcome::Empty,
            Ok(Some(_)) => {}
            Err(_) => return self.fail_invalid_message(qp_index),
        }
        let mut received = 0;
        let outcome = loop {
            if received == BATCH {
                break ReceiveOutcome::Received(received);
            }
            match self.receive_one(qp_index) {
                Step::Received => received += 1,
                Step::Wait if received == 0 => break ReceiveOutcome::Empty,
                Step::Wait => break ReceiveOutcome::Received(received),
                Step::Failed => break ReceiveOutcome::Closed,
            }
        };
        let qp = &mut self.queue_pairs[qp_index as usize];
        if let Some(receiver) = &mut qp.link.receiver {
            receiver.publish_ack();
        }
        self.counters.receives += received as u64;
        outcome
    }

    #[inline]
    fn receive_one(&mut self, qp_index: u32) -> Step {
        let qp = &mut self.queue_pairs[qp_index as usize];
        let Some(receiver) = &mut qp.link.receiver else {
            return Step::Failed;
        };
        let incoming = match receiver.peek() {
            Ok(Some(incoming)) => incoming,
            Ok(None) => return Step::Wait,
            Err(_) => {
                self.fail_invalid_message(qp_index);
                return Step::Failed;
            }
        };
        if incoming.flags.has(Flags::REQUEST) {
            return self.execute(qp_index, &incoming);
        }
        let queue = match qp.srq {
            Some(srq) => &mut self.shared_receive_queues[srq].queue,
            None => &mut qp.receives,
        };
        let Some(receive) = queue.front().filter(|_| !inject!(ReceiverNotReady)) else {
            self.send_rnr_nak(qp_index);
            return Step::Wait;
        };
        if queue.has_lists() {
            return self.execute(qp_index, &incoming);
        }
        let (from, len) = match locate(&incoming, &qp.link.peer, &mut qp.link.arena) {
            Body::At(from, len) => (from, len),
            Body::NotMapped => return Step::Wait,
            Body::Invalid => {
                self.fail_invalid_message(qp_index);
                return Step::Failed;
            }
        };
        let rejection = if len > receive.len as usize {
            Some((
                CompletionStatus::LocalLength,
                CompletionStatus::RemoteInvalidRequest,
            ))
        } else if len == 0 {
            None
        } else {
            let whole = (receive.addr, receive.len as usize);
            let check =
                self.regions
                    .check(receive.local_key, qp.domain, whole, Access::LOCAL_WRITE);
            check
                .err()
                .map(|status| (status, CompletionStatus::RemoteOperation))
        };
        if rejection.is_none() {
            // SAFETY: `locate` found `len` readable bytes, in the ring's slot, which the sender
            // leaves alone until the acknowledgement, or in a mapped arena. The receive was checked
            // to lie in a region of this context, which stays registered while the owner word is
            // held, and its bytes belong to the device until its completion is polled. The two
            // ranges are in different mappings, so they do not overlap. A faulty sender may change
            // the bytes meanwhile, but they are untrusted in any case.
            unsafe { ptr::copy_nonoverlapping(from.as_ptr(), receive.addr.as_ptr(), len) };
            if incoming.flags.has(Flags::DESCRIPTOR) && receiver.is_closed_after_copy() {
                // The sender has reclaimed its memory, so the message no longer exists: it is
                // dropped, and the receive stays for the next message.
                receiver.advance();
                return Step::Received;
            }
        }
        point!(Copied);
        if queue.consume()
            && let Some(srq) = qp.srq
        {
            let srq = SrqNum(self.shared_receive_queues[srq].number);
            self.counters.srq_limit_events += 1;
            self.events.raise(AsyncEvent::SrqLimitReached { srq });
        }
        let completion = Completion {
            wr_id: receive.wr_id,
            status: rejection.map_or(0, |(local, _)| local.code()),
            opcode: CompletionOpcode::Receive,
            extras: if incoming.flags.has(Flags::SOLICITED) {
                Extras(Extras::SOLICITED)
            } else {
                Extras::default()
            },
            data: 0,
            src_qp: 0,
            qp_num: qp.number,
            // The cast is lossless: the length is at most the receive's.
            byte_len: len as u32,
            frees: None,
        };
        let recv_cq = qp.recv_cq;
        if self.completion_queues[recv_cq].push(completion) {
            self.overrun.push(recv_cq as u32);
        }
        if let Some((_, remote)) = rejection {
            receiver.publish_ack();
            // The cast is lossless: status codes are below 256.
            receiver.send_fatal_nak(remote.code() as u8);
            self.fail(qp_index, None);
            return Step::Failed;
        }
        receiver.advance();
        if qp.state == QpState::Rtr {
            self.communication_established(qp_index);
        }
        Step::Received
    }

    /// Raises `CommunicationEstablished` for the first message before RTS.
    pub(crate) fn communication_established(&mut self, qp_index: u32) {
        let qp = &mut self.queue_pairs[qp_index as usize];
        if qp.state == QpState::Rtr && !qp.established {
            qp.established = true;
            let qp_num = qp.number;
            self.raise(AsyncEvent::CommunicationEstablished { qp_num });
        }
    }

    /// Sends an RNR NAK for the next message, which has no receive: its sender has to wait and
    /// repeat it.
    #[cold]
    pub(crate) fn send_rnr_nak(&mut self, qp_index: u32) {
        let qp = &mut self.queue_pairs[qp_index as usize];
        if let Some(receiver) = &mut qp.link.receiver {
            // Acknowledge earlier messages first: the sender has to repeat only this one.
            receiver.publish_ack();
            let timer = qp.attributes.min_rnr_timer.unwrap_or(RnrTimer::LONGEST);
            receiver.send_rnr_nak(timer.code());
            self.counters.rnr_nak_sent += 1;
        }
    }

    /// Consumes the oldest receive and completes it. `extras` specifies which optional fields are
    /// valid, and whether `data` is an immediate or a key.
    pub(crate) fn complete_receive(
        &mut self,
        qp_index: u32,
        status: CompletionStatus,
        opcode: CompletionOpcode,
        byte_len: u32,
        data: Option<u32>,
        extras: u8,
    ) {
        self.take_receive(qp_index, |wr_id, qp_num| Completion {
            wr_id,
            status: status.code(),
            opcode,
            extras: Extras(extras),
            qp_num,
            byte_len,
            data: data.unwrap_or(0),
            src_qp: 0,
            frees: None,
        });
    }

    /// Consumes the oldest receive and completes it with the result of `completion`.
    pub(crate) fn take_receive(
        &mut self,
        qp_index: u32,
        completion: impl FnOnce(WrId, QpNum) -> Completion,
    ) {
        let qp = &mut self.queue_pairs[qp_index as usize];
        let queue = match qp.srq {
            Some(srq) => &mut self.shared_receive_queues[srq].queue,
            None => &mut qp.receives,
        };
        let Some(receive) = queue.front() else { return };
        let completion = completion(receive.wr_id, qp.number);
        if queue.consume()
            && let Some(srq) = qp.srq
        {
            let srq = SrqNum(self.shared_receive_queues[srq].number);
            self.counters.srq_limit_events += 1;
            self.events.raise(AsyncEvent::SrqLimitReached { srq });
        }
        let recv_cq = qp.recv_cq;
        self.complete(recv_cq, completion);
    }

    /// Handles input that no software device sends: sends a fatal NAK and fails the queue pair.
    #[cold]
    pub(crate) fn fail_invalid_message(&mut self, qp_index: u32) -> ReceiveOutcome {
        let qp = &mut self.queue_pairs[qp_index as usize];
        let qp_num = qp.number;
        tracing::warn!(%qp_num, "a peer sent an invalid message: closing the connection. The software device never sends these: check that the peer runs the same version");
        if let Some(receiver) = &mut qp.link.receiver {
            receiver.publish_ack();
            receiver.send_fatal_nak(CompletionStatus::RemoteInvalidRequest.code() as u8);
        }
        self.events.raise(AsyncEvent::QpFatal { qp_num });
        self.fail(qp_index, None);
        ReceiveOutcome::Closed
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
fn locate(
    incoming: &Incoming,
    peer: &Option<Arc<crate::provider::soft::context::peer::Peer>>,
    recent: &mut Option<(u64, Arc<crate::provider::soft::shared::memory::Mapping>)>,
) -> Body {
    if !incoming.flags.has(Flags::DESCRIPTOR) {
        return Body::At(incoming.payload, incoming.len);
    }
    if incoming.len != DESCRIPTOR_LEN {
        return Body::Invalid;
    }
    let mut bytes = [0; DESCRIPTOR_LEN];
    // SAFETY: the payload has `incoming.len` readable bytes, which is the array's length. They are
    // copied once, so that the checked bytes are the ones used.
    unsafe {
        ptr::copy_nonoverlapping(
            incoming.payload.as_ptr(),
            bytes.as_mut_ptr(),
            DESCRIPTOR_LEN,
        );
    }
    let Some(descriptor) = Descriptor::parse(&bytes) else {
        return Body::Invalid;
    };
    if recent
        .as_ref()
        .is_none_or(|(number, _)| *number != descriptor.arena)
    {
        let found = peer.as_ref().and_then(|peer| peer.arena(descriptor.arena));
        match found {
            Some(arena) => *recent = Some((descriptor.arena, arena)),
            None => return Body::NotMapped,
        }
    }
    let Some((_, arena)) = recent else {
        return Body::NotMapped;
    };
    match descriptor.offset_within(arena.len()) {
        // SAFETY: `offset_within` checked that the offset, and `len` bytes after it, are inside the
        // mapping, which `recent` keeps alive.
        Some(offset) => Body::At(
            unsafe { arena.start().add(offset) },
            descriptor.len as usize,
        ),
        None => Body::Invalid,
    }
}
