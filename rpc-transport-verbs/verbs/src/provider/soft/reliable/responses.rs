//! Completion of requests of any kind: processes the peer's acknowledgements and responses.

use std::ops::Range;

use super::acks::AckOutcome;
use crate::provider::soft::context::completion_queues::Completion;
use crate::provider::soft::context::link::{Link, Rings};
use crate::provider::soft::context::queue_pair::SoftQueuePair;
use crate::provider::soft::context::state::Common;
use crate::types::{Access, CompletionOpcode, CompletionStatus};

impl SoftQueuePair {
    /// Completes acknowledged requests when some of them are not plain sends.
    #[cold]
    pub(crate) fn complete_general(&mut self, common: &mut Common) -> AckOutcome {
        loop {
            let Some(sender) = self.link.sender() else {
                return AckOutcome::Valid;
            };
            let oldest = self.sends.acked;
            let front = self.sends.general.front();
            let begun = front.and_then(|send| Some((send.number, send.slots.clone()?)));
            match begun {
                Some((number, _)) if number == oldest => match self.finish(common) {
                    Ok(true) => {}
                    Ok(false) => return AckOutcome::Valid,
                    Err(status) => {
                        self.complete_oldest_send(common, status);
                        return AckOutcome::Failed;
                    }
                },
                // Plain sends precede the request at the front. Each took one slot; the last of
                // them took the slot before the front's first.
                Some((number, slots)) => {
                    let last = slots.start - (number - oldest);
                    if last > sender.acked() {
                        return AckOutcome::Valid;
                    }
                    self.complete_oldest_plain(common);
                }
                None => {
                    let unacked = sender.unacked();
                    if self.sends.started - oldest <= unacked {
                        return AckOutcome::Valid;
                    }
                    self.complete_oldest_plain(common);
                }
            }
        }
    }

    /// Completes the oldest requests as long as they were executed on this side when they were
    /// issued, so that they need no response of the peer.
    #[inline]
    pub(crate) fn complete_without_peer(&mut self, common: &mut Common) {
        while let Some(send) = self.sends.general.front()
            && send.number == self.sends.acked
            && self.sends.started > send.number
            && send.slots.as_ref().is_some_and(Range::is_empty)
        {
            if self.finish(common) != Ok(true) {
                return;
            }
        }
    }

    fn complete_oldest_plain(&mut self, common: &mut Common) {
        self.complete_oldest_successfully(common, CompletionOpcode::Send, 0);
    }

    /// Finishes the oldest request if all its slots are acknowledged. Returns `false` if they are
    /// not.
    fn finish(&mut self, common: &mut Common) -> Result<bool, CompletionStatus> {
        let is_started = self.sends.started > self.sends.acked;
        let Link::Rings(Rings {
            sender: Some(sender),
            unstaged,
            ..
        }) = &mut self.link
        else {
            return Ok(false);
        };
        let Some(send) = self.sends.general.front_mut() else {
            return Ok(false);
        };
        let Some(slots) = &send.slots else {
            return Ok(false);
        };
        if send.operation.has_response() {
            // Start at the first slot whose response has not been read yet.
            let mut slot = slots.start;
            if send.operation.is_read() {
                slot += send.pieces_received();
            }
            while slot < slots.end && slot <= sender.acked() {
                common.memory.regions.check_all(
                    send.elements(),
                    self.core.domain,
                    Access::LOCAL_WRITE,
                )?;
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
                slot += 1;
            }
            if !is_started || slot < slots.end {
                return Ok(false);
            }
            let len = send.total as u32;
            let held_up = u32::from(send.holds_up_reads());
            self.outstanding.unexecuted = self.outstanding.unexecuted.saturating_sub(held_up);
            self.outstanding.reads = self.outstanding.reads.saturating_sub(1);
            sender.set_held(self.outstanding.reads > 0);
            let opcode = send.operation.opcode();
            self.complete_oldest_successfully(common, opcode, len);
            return Ok(true);
        }
        if !is_started || slots.end > sender.acked() + 1 {
            return Ok(false);
        }
        let opcode = send.operation.opcode();
        let held_up = u32::from(send.holds_up_reads());
        self.outstanding.unexecuted = self.outstanding.unexecuted.saturating_sub(held_up);
        self.complete_oldest_successfully(common, opcode, 0);
        Ok(true)
    }

    pub(crate) fn complete_oldest_successfully(
        &mut self,
        common: &mut Common,
        opcode: CompletionOpcode,
        byte_len: u32,
    ) {
        let Some((number, entry)) = self.sends.retire() else {
            return;
        };
        self.sends.forget_general(number);
        if !entry.signaled {
            return;
        }
        let this = (self.core.index, self.core.number);
        let completion = Completion {
            opcode,
            byte_len,
            ..Completion::of_send(entry.wr_id, this, number, CompletionStatus::Success)
        };
        common.complete(self.core.send_cq, completion);
    }
}
