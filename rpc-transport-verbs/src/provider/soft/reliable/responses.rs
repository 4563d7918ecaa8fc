//! Completion of requests of any kind: processes the peer's acknowledgements and responses.

use crate::provider::soft::context::state::State;
use crate::provider::soft::context::work_queues::Completion;
use crate::provider::work::Operation;
use crate::verbs::types::{Access, CompletionOpcode, CompletionStatus, Extras};

/// Outcome of processing the peer's acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AckOutcome {
    Valid,
    /// The peer acknowledged messages that were never sent.
    Invalid,
    /// The oldest request has failed locally, and has completed.
    Failed,
}

impl State {
    /// Completes acknowledged requests when some of them are not plain sends.
    #[cold]
    pub(crate) fn complete_general(&mut self, qp_index: u32) -> AckOutcome {
        loop {
            let qp = &mut self.queue_pairs[qp_index as usize];
            let Some(sender) = &qp.link.sender else {
                return AckOutcome::Valid;
            };
            let oldest = qp.sends.acked;
            let front = qp.sends.general.front();
            let begun = front.and_then(|send| Some((send.number, send.slots.clone()?)));
            match begun {
                Some((number, _)) if number == oldest => match self.finish(qp_index) {
                    Ok(true) => {}
                    Ok(false) => return AckOutcome::Valid,
                    Err(status) => {
                        self.complete_oldest_send(qp_index, status);
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
                    self.complete_oldest_plain(qp_index);
                }
                None => {
                    let unacked = sender.unacked();
                    if qp.sends.started - oldest <= unacked {
                        return AckOutcome::Valid;
                    }
                    self.complete_oldest_plain(qp_index);
                }
            }
        }
    }

    fn complete_oldest_plain(&mut self, qp_index: u32) {
        self.complete_oldest_successfully(qp_index, CompletionOpcode::Send, 0);
    }

    /// Finishes the oldest request if all its slots are acknowledged. Returns `false` if they are
    /// not.
    fn finish(&mut self, qp_index: u32) -> Result<bool, CompletionStatus> {
        let qp = &mut self.queue_pairs[qp_index as usize];
        let is_started = qp.sends.started > qp.sends.acked;
        let (Some(send), Some(sender)) = (qp.sends.general.front_mut(), &qp.link.sender) else {
            return Ok(false);
        };
        let Some(slots) = &send.slots else {
            return Ok(false);
        };
        if let Some(opcode) = send.response_opcode() {
            // Start at the first slot whose response has not been read yet.
            let mut slot = match send.operation {
                Operation::Read(_) => slots.start + send.pieces_received(),
                _ => slots.start,
            };
            while slot < slots.end && slot <= sender.acked() {
                self.regions
                    .check_all(send.elements(), qp.domain, Access::LOCAL_WRITE)?;
                let piece = send.piece(send.received);
                let from = if piece.is_staged {
                    let stage = sender.response_in_stage(qp.outstanding.unstaged);
                    qp.outstanding.unstaged += 1;
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
            qp.outstanding.reads = qp.outstanding.reads.saturating_sub(1);
            if let Some(sender) = &mut qp.link.sender {
                sender.set_held(qp.outstanding.reads > 0);
            }
            self.complete_oldest_successfully(qp_index, opcode, len);
            return Ok(true);
        }
        if !is_started || slots.end > sender.acked() + 1 {
            return Ok(false);
        }
        let opcode = send.opcode();
        self.complete_oldest_successfully(qp_index, opcode, 0);
        Ok(true)
    }

    pub(crate) fn complete_oldest_successfully(
        &mut self,
        qp_index: u32,
        opcode: CompletionOpcode,
        byte_len: u32,
    ) {
        let qp = &mut self.queue_pairs[qp_index as usize];
        let Some((number, work)) = qp.sends.retire() else {
            return;
        };
        qp.sends.forget_general(number);
        if !work.signaled {
            return;
        }
        let completion = Completion {
            wr_id: work.wr_id,
            status: CompletionStatus::Success.code(),
            opcode,
            extras: Extras::default(),
            qp_num: qp.number,
            byte_len,
            data: 0,
            src_qp: 0,
            frees: Some((qp_index, number)),
        };
        let cq = qp.send_cq;
        self.complete(cq, completion);
    }
}
