//! The transitions of a queue pair, from RESET to RTS and back, and the rings that they attach and
//! release.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::net::RecvFlags;

use super::initiator::{NotifyDrained, Retry};
use super::link::{Link, NewRing, NewTcpLink, Rings, Tcp};
use super::link_stream::LinkStream;
use super::peer::Peer;
use super::queue_pair::SoftQueuePair;
use super::state::{Common, State};
use super::tcp_link::TcpLink;
use crate::hooks;
use crate::provider::soft::shared::ring::{RingReceiver, RingSender};
use crate::provider::soft::wire::hello::Answer;
use crate::types::{
    AsyncEvent, CompletionStatus, Gid, ModifyError, PathMigration, QpAttributes, QpNum, QpState,
    QpType,
};

/// Maximum number of rings kept for a queue pair that is not at RTR yet, each of another process.
/// One is expected; more are mistakes of peers, or attacks.
const MAX_EARLY_RINGS: usize = 4;

/// What a reliable queue pair receives from, after INIT→RTR.
#[derive(Debug)]
pub(crate) enum Ready {
    /// A ring that this side has made and told the peer of.
    Ring(RingReceiver, Arc<Peer>),
    /// A TCP connection: one that this side has dialed, or the one that the peer dials.
    Tcp(Option<Box<TcpLink>>),
}

impl State {
    /// Makes a transition whose attributes were checked. INIT→RTR needs `ready`.
    pub(crate) fn modify(
        &mut self,
        qp_index: u32,
        to: QpState,
        attributes: &QpAttributes,
        ready: Option<Ready>,
    ) -> Result<(), ModifyError> {
        let (qp, common) = self.split(qp_index);
        qp.ring_doorbell(common);
        qp.modify(common, to, attributes, ready)?;
        qp.publish(common);
        if common.is_asleep() {
            // The new ring may be hot.
            self.stay_asleep();
        }
        self.settle_overrun();
        Ok(())
    }

    /// Handles a ring that arrived for a queue pair.
    pub(crate) fn attach(&mut self, qp_index: u32, number: u32, ring: NewRing) {
        // A ring of a previous connection may arrive late.
        if let Some(qp) = self.queue_pairs.get_mut(qp_index as usize)
            && qp.core.number == QpNum(number)
            && !ring.sender.is_receiver_closed()
        {
            qp.attach(&mut self.common, ring);
        }
    }

    /// Handles a TCP connection that arrived for a queue pair. Returns false if the queue pair is
    /// gone, and the connection is closed.
    pub(crate) fn attach_tcp(&mut self, qp_index: u32, number: u32, link: NewTcpLink) -> bool {
        let Some(qp) = self.queue_pairs.get_mut(qp_index as usize) else {
            return false;
        };
        if qp.core.number != QpNum(number) {
            return false;
        }
        qp.attach_tcp(&mut self.common, link);
        if self.common.is_asleep() {
            self.stay_asleep();
        }
        self.settle_overrun();
        true
    }

    /// Hands a queue pair the connection that its peer has dialed for it, as both had agreed: nothing
    /// was sent, so the peer expects this side's first request. Returns false if the queue pair is
    /// gone or has a connection.
    pub(crate) fn accept_agreed_link(
        &mut self,
        qp_index: u32,
        number: QpNum,
        stream: LinkStream,
    ) -> bool {
        let Some(qp) = self.queue_pairs.get_mut(qp_index as usize) else {
            return false;
        };
        let waits = matches!(
            qp.link,
            Link::Tcp(Tcp {
                connection: None,
                ..
            })
        );
        if qp.core.number != number || !waits || !qp.core.receives_now() {
            return false;
        }
        let peer_psn = qp.core.attributes.sq_psn.unwrap_or_default().get();
        qp.accept_link(&mut self.common, stream, peer_psn);
        self.read_held(qp_index);
        if self.common.is_asleep() {
            self.stay_asleep();
        }
        self.settle_overrun();
        true
    }

    /// Hands a queue pair the connection that this side has dialed, whose answer has not been read.
    pub(crate) fn adopt_agreed_link(&mut self, qp_index: u32, stream: LinkStream) {
        let (qp, common) = self.split(qp_index);
        // It may have failed since the connection was dialed.
        if !qp.core.receives_now() {
            return;
        }
        let expected_psn = qp.core.attributes.rq_psn.unwrap_or_default().get();
        let link = TcpLink::new(stream, None, expected_psn);
        qp.adopt_link(common, Box::new(link));
        self.read_held(qp_index);
        if self.common.is_asleep() {
            self.stay_asleep();
        }
        self.settle_overrun();
    }

    /// Reads what the stream of a new link holds: nothing else tells of it.
    fn read_held(&mut self, qp_index: u32) {
        let link = self.queue_pairs[qp_index as usize].link.tcp();
        if link.is_some_and(|link| link.stream.holds_unread()) {
            self.read_link(qp_index);
        }
    }

    /// Handles the refusal of this side's ring by the process of the remote queue pair: it never
    /// sends, so the queue pair fails.
    pub(crate) fn attach_refused(&mut self, qp_index: u32, number: u32, remote: (Gid, u32)) {
        // The refusal of a previous connection may arrive late.
        if let Some(qp) = self.queue_pairs.get_mut(qp_index as usize)
            && qp.core.number == QpNum(number)
        {
            qp.attach_refused(&mut self.common, remote);
        }
        self.settle_overrun();
    }
}

impl SoftQueuePair {
    fn modify(
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
                    self.start_receiving(common, receiver, peer);
                }
                Some(Ready::Tcp(link)) => self.start_receiving_over_tcp(common, link),
                None => {}
            },
            (QpState::Rts, QpState::Sqd) => {
                self.initiator.draining =
                    Some(NotifyDrained(attributes.notify_drained == Some(true)));
                // Unreliable sends that have begun have already ended.
                if self.core.is_reliable() {
                    self.await_progress(common);
                }
                self.process_acks(common, hooks::now);
            }
            // The caller carries out the waiting sends, after leaving the context.
            (_, QpState::Rts) if !self.core.is_reliable() => {}
            (_, QpState::Rts) => {
                self.initiator.draining = None;
                if from == QpState::Rtr {
                    self.compare_sequence_numbers();
                }
                self.transmit(common);
            }
            _ => {}
        }
        Ok(())
    }

    /// Adopts this side's ring, and the peer's ring if it has arrived.
    fn start_receiving(&mut self, common: &mut Common, receiver: RingReceiver, peer: Arc<Peer>) {
        receiver.set_ready();
        // A ring of the peer's previous connection is closed by now, or a newer one replaces it.
        let mut early = std::mem::take(&mut self.early.rings);
        early.retain(|ring| !ring.sender.is_receiver_closed());
        let mut own = early.into_iter().rev();
        let own = own.find(|ring| self.core.is_connected_to((ring.gid, ring.qp_num)));
        self.link = Link::Rings(Rings {
            sender: own.map(|ring| ring.sender),
            ..Rings::new(receiver, peer)
        });
        self.initiator.retry = Retry::default();
        self.make_hot(common);
        if let Some(remote) = self.early.refused_by.take() {
            self.attach_refused(common, remote);
        }
    }

    fn attach_refused(&mut self, common: &mut Common, remote: (Gid, u32)) {
        if !self.core.receives_now() {
            self.early.refused_by = Some(remote);
        } else if self.core.is_connected_to(remote) {
            common.raise(AsyncEvent::QpFatal {
                qp_num: self.core.number,
            });
            self.fail(common, Some(CompletionStatus::RetryExceeded));
        }
    }

    /// Handles a ring that arrived for this queue pair: uses it if the queue pair is connected to
    /// the ring's owner, and keeps it otherwise.
    fn attach(&mut self, common: &mut Common, ring: NewRing) {
        // A peer that was reset and reconnected creates a new ring. If nothing was sent on the old
        // ring, the new ring replaces it. Otherwise the old ring stays, the messages sent on it are
        // lost, and their retries run out.
        let is_ours = self.core.is_connected_to((ring.gid, ring.qp_num));
        if let Link::Rings(rings) = &mut self.link
            && is_ours
            && !rings.sender.as_ref().is_some_and(RingSender::is_used)
        {
            rings.sender = Some(ring.sender);
            self.compare_sequence_numbers();
            self.transmit(common);
            return;
        }
        let early = &mut self.early.rings;
        early.retain(|early| early.gid != ring.gid && !early.sender.is_receiver_closed());
        // No process displaces the ring of another.
        if early.len() < MAX_EARLY_RINGS {
            early.push(ring);
        }
    }

    /// Receives from this side's TCP connection, or from the one that the peer has dialed, or will
    /// dial.
    fn start_receiving_over_tcp(&mut self, common: &mut Common, link: Option<Box<TcpLink>>) {
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
    fn attach_tcp(&mut self, common: &mut Common, link: NewTcpLink) {
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
        early.retain(|early| early.gid != link.gid && !has_closed(&early.socket));
        if early.len() < MAX_EARLY_RINGS {
            early.push(link);
        }
    }

    /// Answers the peer that has dialed, and uses its connection.
    fn accept_link(&mut self, common: &mut Common, mut stream: LinkStream, peer_psn: u32) {
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
    fn adopt_link(&mut self, common: &mut Common, link: Box<TcpLink>) {
        let Link::Tcp(Tcp { connection, .. }) = &mut self.link else {
            return;
        };
        if let Some(mut old) = connection.take() {
            common.tcp.remove(&old, self.core.index);
            old.stream.shut_down();
        }
        if let Err(error) = common.tcp.add(&link, self.core.index) {
            log_limited!(warn, %error, qp_num = %self.core.number, "a link cannot be watched: closing it");
            return;
        }
        common.note_tcp_links();
        common.tcp.make_hot(self.core.index);
        *connection = Some(link);
        self.compare_sequence_numbers();
        if self.core.state == QpState::Rts {
            self.transmit(common);
        }
    }

    /// Records the sequence number that the peer expects: now requests can be sent.
    pub(crate) fn open_link(&mut self, common: &mut Common, expected_psn: u32) {
        if let Some(link) = self.link.tcp_mut() {
            link.open(expected_psn);
        }
        self.compare_sequence_numbers();
        if self.core.state == QpState::Rts {
            self.transmit(common);
        }
    }

    /// Releases both rings: nothing more is received from the peer, and our descriptors are void.
    /// Messages already received stay in the completion queue.
    pub(crate) fn disconnect(&mut self, common: &mut Common) {
        self.ring_doorbell(common);
        if let Link::Rings(rings) = &mut self.link {
            // A poll may have taken messages whose acknowledgement was to cover later ones as well.
            rings.receiver.publish_ack();
            rings.receiver.set_closed();
            if let Some(sender) = &rings.sender {
                sender.close();
            }
        }
        self.close_link(common);
        self.link = Link::Down;
        self.early.refused_by = None;
        self.initiator.disconnect();
        common.note_tcp_links();
        self.established = false;
        self.waiting.clear();
        self.publish(common);
        self.forget_in_lists(common);
    }

    /// Returns the attributes, as `query` reports them.
    pub(crate) fn query(&self) -> QpAttributes {
        QpAttributes {
            state: Some(self.core.state),
            sq_draining: Some(self.core.state == QpState::Sqd && self.initiator.draining.is_some()),
            // The device has a single path, so there is nothing to migrate to.
            path_migration: self
                .core
                .attributes
                .path_migration
                .or(Some(PathMigration::Migrated)),
            ..self.core.attributes
        }
    }
}

/// Returns the remote queue pair that INIT→RTR connects to.
pub(crate) fn remote_of(attributes: &QpAttributes) -> Option<(Gid, QpNum)> {
    Some((attributes.address?.gid, attributes.dest_qp_num?))
}

/// Returns true if the peer has closed its end of a connection.
fn has_closed(socket: &OwnedFd) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    matches!(rustix::net::recv(socket, &mut [0; 1], flags), Ok((_, 0)))
}
