//! The transitions of a queue pair, from RESET to RTS and back, and the rings that they attach and
//! release.

use std::sync::Arc;

use super::general_send::Outstanding;
use super::peer::Peer;
use super::queue_pair::{Link, NewRing, NotifyDrained, Retry, SoftQueuePair, Unannounced};
use super::state::{Common, State};
use crate::hooks;
use crate::provider::soft::shared::ring::{RingReceiver, RingSender};
use crate::verbs::types::{
    AsyncEvent, CompletionStatus, Gid, ModifyError, PathMigration, QpAttributes, QpNum, QpState,
};

/// Maximum number of rings kept for a queue pair that is not at RTR yet, each of another process.
/// One is expected; more are mistakes of peers, or attacks.
const MAX_EARLY_RINGS: usize = 4;

impl State {
    /// Makes a transition whose attributes were checked. INIT→RTR needs `ready`.
    pub(crate) fn modify(
        &mut self,
        qp_index: u32,
        to: QpState,
        attributes: &QpAttributes,
        ready: Option<(RingReceiver, Arc<Peer>)>,
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
            && qp.number == QpNum(number)
            && !ring.sender.is_receiver_closed()
        {
            qp.attach(&mut self.common, ring);
        }
    }

    /// Handles the refusal of this side's ring by the process of the remote queue pair: it never
    /// sends, so the queue pair fails.
    pub(crate) fn attach_refused(&mut self, qp_index: u32, number: u32, remote: (Gid, u32)) {
        // The refusal of a previous connection may arrive late.
        if let Some(qp) = self.queue_pairs.get_mut(qp_index as usize)
            && qp.number == QpNum(number)
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
        ready: Option<(RingReceiver, Arc<Peer>)>,
    ) -> Result<(), ModifyError> {
        if self.draining.is_some() && self.state == QpState::Sqd && to == QpState::Rts {
            return Err(ModifyError::Draining);
        }
        match to {
            QpState::Reset => {
                self.disconnect(common);
                self.state = QpState::Reset;
                self.attributes = QpAttributes::default();
                self.sends.reset();
                self.receives.clear();
                return Ok(());
            }
            QpState::Error => {
                self.fail(common, None);
                return Ok(());
            }
            _ => {}
        }
        self.set(attributes);
        let from = std::mem::replace(&mut self.state, to);
        match (from, to) {
            (QpState::Init, QpState::Rtr) => {
                if let Some((receiver, peer)) = ready {
                    self.start_receiving(common, receiver, peer);
                }
            }
            (QpState::Rts, QpState::Sqd) => {
                self.draining = Some(NotifyDrained(attributes.notify_drained == Some(true)));
                // Unreliable sends that have begun have already ended.
                if self.is_reliable() {
                    self.await_progress(common);
                }
                self.process_acks(common, hooks::now);
            }
            // The caller carries out the waiting sends, after leaving the context.
            (_, QpState::Rts) if !self.is_reliable() => {}
            (_, QpState::Rts) => {
                self.draining = None;
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
        self.link.receiver = Some(receiver);
        self.link.peer = Some(peer);
        self.retry = Retry::default();
        // A ring of the peer's previous connection is closed by now, or a newer one replaces it.
        let mut early = std::mem::take(&mut self.link.early);
        early.retain(|ring| !ring.sender.is_receiver_closed());
        if let Some(ring) = early
            .into_iter()
            .rev()
            .find(|ring| self.is_connected_to((ring.gid, ring.qp_num)))
        {
            self.link.sender = Some(ring.sender);
        }
        self.make_hot(common);
        if let Some(remote) = self.link.refused_by.take() {
            self.attach_refused(common, remote);
        }
    }

    fn attach_refused(&mut self, common: &mut Common, remote: (Gid, u32)) {
        if !self.receives_now() {
            // The ring is announced before the transition to RTR.
            self.link.refused_by = Some(remote);
        } else if self.is_connected_to(remote) {
            common.raise(AsyncEvent::QpFatal {
                qp_num: self.number,
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
        let is_used = self.link.sender.as_ref().is_some_and(RingSender::is_used);
        if self.receives_now() && !is_used && self.is_connected_to((ring.gid, ring.qp_num)) {
            self.link.sender = Some(ring.sender);
            self.compare_sequence_numbers();
            self.transmit(common);
            return;
        }
        self.link
            .early
            .retain(|early| early.gid != ring.gid && !early.sender.is_receiver_closed());
        // No process displaces the ring of another.
        if self.link.early.len() < MAX_EARLY_RINGS {
            self.link.early.push(ring);
        }
    }

    /// Releases both rings: nothing more is received from the peer, and our descriptors are void.
    /// Messages already received stay in the completion queue.
    pub(crate) fn disconnect(&mut self, common: &mut Common) {
        self.ring_doorbell(common);
        if let Some(receiver) = &mut self.link.receiver {
            // A poll may have taken messages whose acknowledgement was to cover later ones as well.
            receiver.publish_ack();
            receiver.set_closed();
        }
        if let Some(sender) = &self.link.sender {
            sender.close();
        }
        let early = std::mem::take(&mut self.link.early);
        self.link = Link {
            early,
            ..Link::default()
        };
        self.retry = Retry::default();
        self.outstanding = Outstanding::default();
        self.unannounced = Unannounced::Nothing;
        self.draining = None;
        self.established = false;
        self.waiting.clear();
        self.publish(common);
        self.forget_in_lists(common);
    }

    /// Returns the attributes, as `query` reports them.
    pub(crate) fn query(&self) -> QpAttributes {
        QpAttributes {
            state: Some(self.state),
            sq_draining: Some(self.state == QpState::Sqd && self.draining.is_some()),
            // The device has a single path, so there is nothing to migrate to.
            path_migration: self
                .attributes
                .path_migration
                .or(Some(PathMigration::Migrated)),
            ..self.attributes
        }
    }
}

/// Returns the remote queue pair that INIT→RTR connects to.
pub(crate) fn remote_of(attributes: &QpAttributes) -> Option<(Gid, QpNum)> {
    Some((attributes.address?.gid, attributes.dest_qp_num?))
}
