//! Connects a queue pair and ends it: its transitions from RESET to RTS and back, the link that comes and
//! goes with them, the completion of sends, and its failure, which flushes what was posted.
//!
//! Nothing here writes a request: what waits is written by [`resume`](SoftQueuePair::resume), which
//! follows whatever may have let requests begin.

use std::sync::Arc;

use crate::hooks;
use crate::provider::soft::context::completion_queues::Completion;
use crate::provider::soft::context::initiator::NotifyDrained;
use crate::provider::soft::context::link::{Link, NewRing, NewTcpLink, Rings, Tcp};
use crate::provider::soft::context::link_stream::LinkStream;
use crate::provider::soft::context::peer::Peer;
use crate::provider::soft::context::queue_pair::SoftQueuePair;
use crate::provider::soft::context::retry::Retry;
use crate::provider::soft::context::state::Common;
use crate::provider::soft::context::tcp_link::{LinkToken, Phase, TcpLink};
use crate::provider::soft::shared::ring::{RingReceiver, RingSender};
use crate::provider::soft::wire::hello::Answer;
use crate::types::{AsyncEvent, CompletionStatus, Gid, ModifyError, QpAttributes, QpState, QpType};

/// Maximum number of rings, and of TCP connections, kept for a queue pair that is not at RTR yet, each of
/// another process. One is expected; more are mistakes of peers, or attacks.
const MAX_EARLY: usize = 4;

/// What a reliable queue pair receives from, after INIT→RTR.
#[derive(Debug)]
pub(crate) enum Ready {
    /// A ring that this side has made and told the peer of.
    Ring(RingReceiver, Arc<Peer>),
    /// A TCP connection: one that this side has dialed, or the one that the peer dials.
    Tcp(Option<Box<TcpLink>>),
}

/// What the peer has acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AckOutcome {
    /// This many messages are still not acknowledged.
    Valid(u64),
    /// The peer acknowledged messages that were never sent.
    Invalid,
    /// The oldest request has failed locally, and has completed.
    Failed,
}

impl SoftQueuePair {
    // ---- transitions ----

    /// Makes a transition whose attributes were checked. INIT→RTR needs `ready`.
    pub(crate) fn modify(
        &mut self,
        common: &mut Common,
        to: QpState,
        attributes: &QpAttributes,
        ready: Option<Ready>,
    ) -> Result<(), ModifyError> {
        if self.initiator.draining.is_some()
            && self.core.state == QpState::Sqd
            && to == QpState::Rts
        {
            return Err(ModifyError::Draining);
        }
        match to {
            QpState::Reset => {
                self.disconnect(common);
                self.core.state = QpState::Reset;
                self.core.attributes = QpAttributes::default();
                self.initiator.sends.reset();
                self.receives.clear();
                return Ok(());
            }
            QpState::Error => {
                self.fail(common, None);
                return Ok(());
            }
            _ => {}
        }
        self.core.set(attributes);
        let from = std::mem::replace(&mut self.core.state, to);
        match (from, to) {
            (QpState::Init, QpState::Rtr) => match ready {
                Some(Ready::Ring(receiver, peer)) => {
                    self.receive_from_ring(common, receiver, peer);
                }
                Some(Ready::Tcp(link)) => self.receive_from_tcp(common, link),
                None => {}
            },
            (QpState::Rts, QpState::Sqd) => {
                self.initiator.draining =
                    Some(NotifyDrained(attributes.notify_drained == Some(true)));
                // Unreliable sends that have begun have already ended.
                if self.core.is_reliable() {
                    self.await_progress(common);
                }
            }
            (_, QpState::Rts) if self.core.is_reliable() => {
                self.initiator.draining = None;
                if from == QpState::Rtr {
                    self.initiator
                        .compare_sequence_numbers(&self.core, &self.link);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Adopts this side's ring, and the peer's ring if it has arrived.
    fn receive_from_ring(&mut self, common: &mut Common, receiver: RingReceiver, peer: Arc<Peer>) {
        receiver.set_ready();
        // A ring of the peer's previous connection is closed by now, or a newer one replaces it.
        let mut early = std::mem::take(&mut self.early.rings);
        early.retain(|ring| !ring.sender.is_receiver_closed());
        let mut own = early.into_iter().rev();
        let own = own.find(|ring| self.core.is_connected_to((ring.gid, ring.qp_num)));
        let rings = Rings {
            sender: own.map(|ring| ring.sender),
            ..Rings::new(receiver, peer)
        };
        common.lists.add_ring(&rings, self.core.index);
        self.link = Link::Rings(rings);
        self.initiator.retry = Retry::default();
        if let Some(remote) = self.early.refused_by.take() {
            self.attach_refused(common, remote);
        }
    }

    /// Handles the refusal of this side's ring by the process of the remote queue pair.
    pub(crate) fn attach_refused(&mut self, common: &mut Common, remote: (Gid, u32)) {
        if !self.core.receives_now() {
            self.early.refused_by = Some(remote);
        } else if self.core.is_connected_to(remote) {
            common.events.raise(AsyncEvent::QpFatal {
                qp_num: self.core.number,
            });
            self.fail(common, Some(CompletionStatus::RetryExceeded));
        }
    }

    /// Handles a ring that arrived for this queue pair: uses it if the queue pair is connected to
    /// the ring's owner, and keeps it otherwise. Returns true if it uses it.
    pub(crate) fn attach(&mut self, ring: NewRing) -> bool {
        // A peer that was reset and reconnected creates a new ring. If nothing was sent on the old
        // ring, the new ring replaces it. Otherwise the old ring stays, the messages sent on it are
        // lost, and their retries run out.
        let is_ours = self.core.is_connected_to((ring.gid, ring.qp_num));
        if let Link::Rings(rings) = &mut self.link
            && is_ours
            && !rings.sender.as_ref().is_some_and(RingSender::is_used)
        {
            rings.sender = Some(ring.sender);
            self.initiator
                .compare_sequence_numbers(&self.core, &self.link);
            return true;
        }
        let early = &mut self.early.rings;
        early.retain(|early| early.gid != ring.gid && !early.sender.is_receiver_closed());
        // No process displaces the ring of another.
        if early.len() < MAX_EARLY {
            early.push(ring);
        }
        false
    }

    /// Receives from this side's TCP connection, or from the one that the peer has dialed, or will
    /// dial.
    fn receive_from_tcp(&mut self, common: &mut Common, link: Option<Box<TcpLink>>) {
        self.link = Link::Tcp(Tcp::default());
        self.initiator.retry = Retry::default();
        let early = std::mem::take(&mut self.early.connections);
        if let Some(link) = link {
            return self.adopt_link(common, link);
        }
        let own = early.into_iter().rev();
        let mut own = own.filter(|link| self.core.is_connected_to((link.gid, link.qp_num)));
        if let Some(link) = own.next() {
            drop(own);
            let stream = LinkStream::new(link.socket, &common.options);
            self.accept_link(common, stream, link.peer_psn);
        }
    }

    /// Handles a TCP connection that a peer has dialed: uses it if the queue pair is connected to
    /// the peer's, and keeps it if the queue pair may be connected later. Who dials is not known, so
    /// nothing else is kept.
    pub(crate) fn attach_tcp(&mut self, common: &mut Common, link: NewTcpLink) {
        // As with rings: a connection that was used is not replaced.
        let is_used = self.link.tcp().is_some_and(|link| !link.is_unused());
        let is_ours = self.core.is_connected_to((link.gid, link.qp_num));
        if matches!(self.link, Link::Tcp(_)) && !is_used && is_ours {
            let stream = LinkStream::new(link.socket, &common.options);
            return self.accept_link(common, stream, link.peer_psn);
        }
        let may_be_connected = self.core.qp_type == QpType::ReliableConnection
            && matches!(self.core.state, QpState::Reset | QpState::Init);
        if !may_be_connected {
            return;
        }
        let early = &mut self.early.connections;
        early.retain(|early| early.gid != link.gid && !early.has_closed());
        if early.len() < MAX_EARLY {
            early.push(link);
        }
    }

    /// Answers the peer that has dialed, and uses its connection.
    pub(crate) fn accept_link(
        &mut self,
        common: &mut Common,
        mut stream: LinkStream,
        peer_psn: u32,
    ) {
        let expected_psn = self.core.attributes.rq_psn.unwrap_or_default().get();
        let answer = Answer {
            is_accepted: true,
            expected_psn,
        };
        // The first bytes on the connection fit its buffer, unless it has ended.
        if stream.write_message(&answer.encode()) {
            let link = TcpLink::new(stream, Some(peer_psn), expected_psn);
            self.adopt_link(common, Box::new(link));
        }
    }

    /// Uses a TCP connection in place of the one before, if there was one.
    pub(crate) fn adopt_link(&mut self, common: &mut Common, mut link: Box<TcpLink>) {
        let Link::Tcp(Tcp { connection, .. }) = &mut self.link else {
            return;
        };
        if let Some(mut old) = connection.take() {
            common.tcp.remove(&mut common.pending, &mut old);
            old.stream.shut_down();
        }
        let token = LinkToken {
            qp_index: self.core.index,
            qp_num: self.core.number,
        };
        if let Err(error) = common.tcp.add(&mut common.pending, &mut link, token) {
            log_limited!(warn, %error, qp_num = %self.core.number, "a link cannot be watched: closing it");
            return;
        }
        *connection = Some(link);
        self.initiator
            .compare_sequence_numbers(&self.core, &self.link);
    }

    /// Records the sequence number that the peer expects: now requests can be sent.
    pub(crate) fn open_link(&mut self, expected_psn: u32) {
        if let Some(link) = self.link.tcp_mut() {
            link.open(expected_psn);
        }
        self.initiator
            .compare_sequence_numbers(&self.core, &self.link);
    }

    // ---- the end ----

    /// Releases the link: nothing more is received from the peer, and our descriptors are void. Over TCP,
    /// requests whose doorbell has not been rung are not sent.
    /// Messages already received stay in the completion queue.
    pub(crate) fn disconnect(&mut self, common: &mut Common) {
        match std::mem::take(&mut self.link) {
            Link::Rings(mut rings) => {
                rings.ring_doorbell(&mut common.counters);
                // A poll may have taken messages whose acknowledgement was to cover later ones as well.
                rings.receiver.publish_ack();
                rings.receiver.set_closed();
                if let Some(sender) = &rings.sender {
                    sender.close();
                }
            }
            Link::Tcp(tcp) => {
                if let Some(mut link) = tcp.connection {
                    common.tcp.remove(&mut common.pending, &mut link);
                    link.close();
                }
            }
            Link::Down => {}
        }
        self.early.refused_by = None;
        self.initiator.disconnect();
        self.established = false;
        self.waiting.clear();
        common.memory.publish_queue_pair(&self.core, &self.link);
        let (lists, pending) = (&mut common.lists, &mut common.pending);
        lists.forget(pending, &mut self.listed, self.core.index);
    }

    /// Ends the queue pair's TCP connection, or records that it has ended.
    pub(crate) fn end_link(&mut self, common: &mut Common) {
        if let Some(link) = self.link.tcp_mut()
            && !link.has_ended()
        {
            link.phase = Phase::Ended;
            common.tcp.remove(&mut common.pending, link);
            link.stream.shut_down();
        }
    }

    /// Moves the queue pair to ERR. The oldest unacknowledged send completes with `first`, if
    /// given; then all remaining work is flushed in order, signaled or not.
    #[cold]
    #[inline(never)]
    pub(crate) fn fail(&mut self, common: &mut Common, first: Option<CompletionStatus>) {
        // Sends that the peer has acknowledged still complete successfully; an invalid
        // acknowledgement is ignored.
        let first = match self.complete_acked(common) {
            // The response of an earlier request could not be stored: that request is the one that
            // failed.
            AckOutcome::Failed => None,
            AckOutcome::Valid(_) | AckOutcome::Invalid => first,
        };
        self.fail_from_here(common, first);
    }

    /// Does the same as [`fail`](Self::fail), when acknowledged sends have already been completed
    /// as far as possible.
    #[cold]
    #[inline(never)]
    pub(crate) fn fail_from_here(&mut self, common: &mut Common, first: Option<CompletionStatus>) {
        self.flush_arriving(common);
        self.disconnect(common);
        let was = std::mem::replace(&mut self.core.state, QpState::Error);
        self.initiator.sends.local_failure = None;
        if let Some(status) = first {
            self.complete_oldest(common, status);
        }
        self.flush_sends(common);
        self.flush_receives(common);
        if was != QpState::Error && self.core.srq.is_some() {
            // A receive is taken from the shared queue together with its completion, or over TCP for
            // the message that was arriving. So every taken receive has completed.
            common.events.raise(AsyncEvent::QpLastWqeReached {
                qp_num: self.core.number,
            });
        }
    }

    /// Sends a fatal NAK for a request of the peer, with the status for its sender, and fails the queue
    /// pair. Over TCP, the request is the one with this sequence number, or the next; what cannot be
    /// sent now is not sent.
    #[cold]
    pub(crate) fn refuse(
        &mut self,
        common: &mut Common,
        sequence: Option<u32>,
        status: CompletionStatus,
    ) {
        match &mut self.link {
            Link::Rings(rings) => {
                rings.receiver.publish_ack();
                // The cast is lossless: status codes are below 256.
                rings.receiver.send_fatal_nak(status.code() as u8);
            }
            Link::Tcp(tcp) => {
                if let Some(link) = &mut tcp.connection {
                    // The cast takes the lower bits, as on the wire.
                    let sequence = sequence.unwrap_or(link.inbound.expected as u32);
                    let begun = self.initiator.sends.next_general();
                    let (core, memory) = (&self.core, &common.memory);
                    if link.refuse(sequence, status, core, memory, begun) {
                        let qp_num = core.number;
                        common.events.raise(AsyncEvent::QpAccessError { qp_num });
                    }
                }
            }
            Link::Down => {}
        }
        self.fail_gently(common);
    }

    /// Fails the queue pair, and keeps its TCP connection until the peer has read what was sent on it.
    #[cold]
    pub(crate) fn fail_gently(&mut self, common: &mut Common) {
        self.flush_arriving(common);
        if let Link::Tcp(tcp) = &mut self.link
            && let Some(mut link) = tcp.connection.take()
        {
            common.tcp.remove(&mut common.pending, &mut link);
            if let Some(socket) = link.stream.into_socket() {
                common.tcp.linger(socket, hooks::now());
            }
        }
        self.fail(common, None);
    }

    /// Flushes the receive of the message that was arriving over TCP when the queue pair failed.
    fn flush_arriving(&mut self, common: &mut Common) {
        if let Some(wr_id) = self.link.tcp_mut().and_then(TcpLink::drop_arriving) {
            let flushed = CompletionStatus::WorkRequestFlushed;
            let completion = Completion::of_receive(wr_id, self.core.number, flushed);
            let queues = &mut common.completion_queues;
            queues.push(&mut common.pending, self.core.recv_cq, completion);
        }
    }

    #[cold]
    pub(crate) fn flush_sends(&mut self, common: &mut Common) {
        self.waiting.clear();
        while self.complete_oldest(common, CompletionStatus::WorkRequestFlushed) {}
    }

    /// Flushes the queue pair's own receives. Receives of a shared queue stay for other queue
    /// pairs.
    pub(crate) fn flush_receives(&mut self, common: &mut Common) {
        while let Some(receive) = self.receives.next() {
            let flushed = CompletionStatus::WorkRequestFlushed;
            let completion = Completion::of_receive(receive.wr_id, self.core.number, flushed);
            self.receives.consume();
            let queues = &mut common.completion_queues;
            queues.push(&mut common.pending, self.core.recv_cq, completion);
        }
    }

    // ---- completion of sends ----

    /// Completes the oldest send with an error. Returns false if there is none.
    pub(crate) fn complete_oldest(
        &mut self,
        common: &mut Common,
        status: CompletionStatus,
    ) -> bool {
        let Some(completion) = self.initiator.fail_oldest(&self.core, status) else {
            return false;
        };
        let queues = &mut common.completion_queues;
        queues.push(&mut common.pending, self.core.send_cq, completion);
        true
    }

    /// Completes the sends that the peer has acknowledged in its ring. Over TCP, acknowledgements are
    /// heard: see [`read`](super::read).
    #[inline(always)]
    pub(crate) fn complete_acked(&mut self, common: &mut Common) -> AckOutcome {
        let Some(sender) = self.link.sender_mut() else {
            return AckOutcome::Valid(0);
        };
        match sender.collect_ack() {
            Err(_) => return AckOutcome::Invalid,
            Ok(0) => {}
            Ok(_) => self.initiator.retry.end_retries(),
        }
        let unacked = sender.unacked();
        if !self.initiator.sends.general.is_empty() {
            return self.complete_general(common, unacked);
        }
        let (queues, pending) = (&mut common.completion_queues, &mut common.pending);
        let (core, cq) = (&self.core, self.core.send_cq);
        self.initiator
            .acknowledged_plain(core, unacked, |completion| {
                queues.push(pending, cq, completion)
            });
        AckOutcome::Valid(unacked)
    }

    /// Completes acknowledged requests when some of them are not plain sends.
    #[cold]
    fn complete_general(&mut self, common: &mut Common, unacked: u64) -> AckOutcome {
        let taken = match &mut self.link {
            Link::Rings(rings) => {
                let sends = self.initiator.sends.general.iter_mut();
                rings.take_responses(sends, &self.core, &common.memory)
            }
            Link::Tcp(_) | Link::Down => Ok(()),
        };
        self.complete_acknowledged(common);
        match taken {
            Ok(()) => AckOutcome::Valid(unacked),
            Err(status) => {
                self.complete_oldest(common, status);
                AckOutcome::Failed
            }
        }
    }

    /// Completes the oldest requests that the peer has acknowledged, or that were carried out on this
    /// side, and whose responses have arrived.
    pub(crate) fn complete_acknowledged(&mut self, common: &mut Common) {
        let Some(units) = self.link.units() else {
            return;
        };
        let (queues, pending) = (&mut common.completion_queues, &mut common.pending);
        let (core, cq) = (&self.core, self.core.send_cq);
        self.initiator.acknowledged(core, units, |completion| {
            queues.push(pending, cq, completion)
        });
        if let Link::Rings(rings) = &mut self.link {
            rings.set_held(self.initiator.outstanding.reads > 0);
        }
    }

    /// Has polls look for progress of the sends.
    pub(crate) fn await_progress(&mut self, common: &mut Common) {
        let (lists, pending) = (&mut common.lists, &mut common.pending);
        lists.await_progress(pending, &mut self.listed, self.core.index);
    }
}
