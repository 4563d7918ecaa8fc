//! The transitions of a queue pair, from RESET to RTS and back, and the rings that they attach and
//! release.

use std::sync::Arc;

use super::general_send::Outstanding;
use super::peer::Peer;
use super::queue_pair::{Link, NewRing, NotifyDrained, Retry};
use super::state::State;
use crate::hooks;
use crate::provider::soft::shared::ring::{RingReceiver, RingSender};
use crate::verbs::types::{Gid, ModifyError, PathMigration, QpAttributes, QpNum, QpState};

/// Maximum number of rings kept for a queue pair that is not at RTR yet. One is expected; more are
/// a peer's mistakes.
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
        let qp = &mut self.queue_pairs[qp_index as usize];
        if qp.draining.is_some() && qp.state == QpState::Sqd && to == QpState::Rts {
            return Err(ModifyError::Draining);
        }
        match to {
            QpState::Reset => {
                self.disconnect(qp_index);
                let qp = &mut self.queue_pairs[qp_index as usize];
                qp.state = QpState::Reset;
                qp.attributes = QpAttributes::default();
                qp.sends.reset();
                qp.receives.clear();
                return Ok(());
            }
            QpState::Error => {
                self.fail(qp_index, None);
                return Ok(());
            }
            _ => {}
        }
        qp.set(attributes);
        let from = std::mem::replace(&mut qp.state, to);
        match (from, to) {
            (QpState::Init, QpState::Rtr) => {
                if let Some((receiver, peer)) = ready {
                    self.start_receiving(qp_index, receiver, peer);
                }
            }
            (QpState::Rts, QpState::Sqd) => {
                qp.draining = Some(NotifyDrained(attributes.notify_drained == Some(true)));
                // Unreliable sends that have begun have already ended.
                if qp.is_reliable() {
                    self.await_progress(qp_index);
                }
                self.process_acks(qp_index, hooks::now);
            }
            // The caller carries out the waiting sends, after leaving the context.
            (_, QpState::Rts) if !qp.is_reliable() => {}
            (_, QpState::Rts) => {
                qp.draining = None;
                if from == QpState::Rtr {
                    qp.compare_sequence_numbers();
                }
                self.transmit(qp_index);
            }
            _ => {}
        }
        Ok(())
    }

    /// Adopts this side's ring, and the peer's ring if it has arrived.
    fn start_receiving(&mut self, qp_index: u32, receiver: RingReceiver, peer: Arc<Peer>) {
        let qp = &mut self.queue_pairs[qp_index as usize];
        receiver.set_ready();
        qp.link.receiver = Some(receiver);
        qp.link.peer = Some(peer);
        qp.retry = Retry::default();
        // A ring of the peer's previous connection is closed by now, or a newer one replaces it.
        let mut early = std::mem::take(&mut qp.link.early);
        early.retain(|ring| !ring.sender.is_receiver_closed());
        if let Some(ring) = early.into_iter().rev().find(|ring| qp.is_remote(ring)) {
            qp.link.sender = Some(ring.sender);
        }
        self.make_hot(qp_index);
        if self.is_asleep {
            self.stay_asleep();
        }
    }

    /// Handles a ring that arrived for this queue pair: uses it if the queue pair is connected to
    /// the ring's owner, and keeps it otherwise.
    pub(crate) fn attach(&mut self, qp_index: u32, number: u32, ring: NewRing) {
        let Some(qp) = self.queue_pairs.get_mut(qp_index as usize) else {
            return;
        };
        // A ring of a previous connection may arrive late.
        if qp.number != QpNum(number) || ring.sender.is_receiver_closed() {
            return;
        }
        // A peer that was reset and reconnected creates a new ring. If nothing was sent on the old
        // ring, the new ring replaces it. Otherwise the old ring stays, the messages sent on it are
        // lost, and their retries run out.
        let is_used = qp.link.sender.as_ref().is_some_and(RingSender::is_used);
        if qp.receives_now() && !is_used && qp.is_remote(&ring) {
            qp.link.sender = Some(ring.sender);
            qp.compare_sequence_numbers();
            self.transmit(qp_index);
            return;
        }
        qp.link
            .early
            .retain(|ring| !ring.sender.is_receiver_closed());
        if qp.link.early.len() == MAX_EARLY_RINGS {
            qp.link.early.remove(0);
        }
        qp.link.early.push(ring);
    }

    /// Releases both rings: nothing more is received from the peer, and our descriptors are void.
    /// Messages already received stay in the completion queue.
    pub(crate) fn disconnect(&mut self, qp_index: u32) {
        let qp = &mut self.queue_pairs[qp_index as usize];
        if let Some(receiver) = &qp.link.receiver {
            receiver.set_closed();
        }
        if let Some(sender) = &qp.link.sender {
            sender.close();
        }
        let early = std::mem::take(&mut qp.link.early);
        qp.link = Link {
            early,
            ..Link::default()
        };
        qp.retry = Retry::default();
        qp.outstanding = Outstanding::default();
        qp.draining = None;
        qp.established = false;
        qp.waiting.clear();
        self.forget_in_lists(qp_index);
    }

    /// Returns the attributes, as `query` reports them.
    pub(crate) fn query(&self, qp_index: u32) -> QpAttributes {
        let qp = &self.queue_pairs[qp_index as usize];
        QpAttributes {
            state: Some(qp.state),
            sq_draining: Some(qp.state == QpState::Sqd && qp.draining.is_some()),
            // The device has a single path, so there is nothing to migrate to.
            path_migration: qp
                .attributes
                .path_migration
                .or(Some(PathMigration::Migrated)),
            ..qp.attributes
        }
    }
}

/// Returns the remote queue pair that INIT→RTR connects to.
pub(crate) fn remote_of(attributes: &QpAttributes) -> Option<(Gid, QpNum)> {
    Some((attributes.address?.gid, attributes.dest_qp_num?))
}
