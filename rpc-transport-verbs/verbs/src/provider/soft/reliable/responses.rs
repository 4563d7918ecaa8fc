//! Completion of requests of any kind: takes the responses of READs and atomics out of the ring, and
//! completes what the peer has executed.

use super::acks::AckOutcome;
use crate::provider::soft::context::link::{Link, Rings};
use crate::provider::soft::context::queue_pair::SoftQueuePair;
use crate::provider::soft::context::state::Common;
use crate::types::{Access, CompletionStatus};

impl SoftQueuePair {
    /// Completes acknowledged requests when some of them are not plain sends.
    #[cold]
    pub(crate) fn complete_general(&mut self, common: &mut Common, unacked: u64) -> AckOutcome {
        let taken = self.take_responses(common);
        self.complete_acknowledged(common);
        match taken {
            Ok(()) => AckOutcome::Valid(unacked),
            Err(status) => {
                self.complete_oldest_send(common, status);
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
        let (core, cq) = (&self.core, self.core.send_cq);
        self.initiator
            .acknowledged(core, units, |completion| common.complete(cq, completion));
        if let Some(sender) = self.link.sender_mut() {
            sender.set_held(self.initiator.outstanding.reads > 0);
        }
    }

    /// Takes the responses that have arrived out of the ring. An error is the status of the oldest
    /// request whose response has not been taken.
    fn take_responses(&mut self, common: &mut Common) -> Result<(), CompletionStatus> {
        let Link::Rings(Rings {
            sender: Some(sender),
            unstaged,
            ..
        }) = &mut self.link
        else {
            return Ok(());
        };
        for send in &mut self.initiator.sends.general {
            let Some(slots) = send.slots.clone() else {
                return Ok(());
            };
            // Units only grow: nothing behind this one is acknowledged. So a look does not take longer
            // with many requests that are not.
            if slots.start > sender.acked() {
                return Ok(());
            }
            if !send.operation.has_response() {
                continue;
            }
            // Start at the first slot whose response has not been taken yet.
            for slot in slots.start + send.pieces_received()..slots.end {
                if slot > sender.acked() {
                    return Ok(());
                }
                let (regions, domain) = (&common.memory.regions, self.core.domain);
                regions.check_all(send.elements(), domain, Access::LOCAL_WRITE)?;
                let piece = send.piece(send.received);
                let from = if piece.is_staged {
                    let stage = sender.response_in_stage(*unstaged);
                    *unstaged += 1;
                    // The peer permits reads but created a ring without staging memory.
                    stage.ok_or(CompletionStatus::BadResponse)?
                } else {
                    sender.response_in_slot(slot)
                };
                // SAFETY: the elements were checked above, and deregistering them takes the
                // context's owner word, which is held. A stage holds at least one piece, and a slot
                // at least a short one.
                unsafe { send.scatter(from, send.received, piece.len as usize) };
                send.received += u64::from(piece.len);
            }
        }
        Ok(())
    }
}
