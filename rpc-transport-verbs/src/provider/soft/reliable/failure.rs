//! Failing of queue pairs, and flushing of the work posted to them.

use super::responses::AckOutcome;
use crate::provider::soft::context::state::State;
use crate::provider::soft::context::work_queues::Completion;
use crate::verbs::types::{AsyncEvent, CompletionOpcode, CompletionStatus, Extras, QpState};

impl State {
    /// Moves a queue pair to ERR. The oldest unacknowledged send completes with `first`, if given;
    /// then all remaining work is flushed in order, signaled or not.
    pub(crate) fn fail(&mut self, qp_index: u32, first: Option<CompletionStatus>) {
        // Sends that the peer has acknowledged still complete successfully; an invalid
        // acknowledgement is ignored.
        let first = match self.complete_acked(qp_index) {
            // The response of an earlier request could not be stored: that request is the one that
            // failed.
            AckOutcome::Failed => None,
            AckOutcome::Valid | AckOutcome::Invalid => first,
        };
        self.fail_from_here(qp_index, first);
    }

    /// Does the same as [`fail`](Self::fail), when acknowledged sends have already been completed
    /// as far as possible.
    pub(crate) fn fail_from_here(&mut self, qp_index: u32, first: Option<CompletionStatus>) {
        self.disconnect(qp_index);
        let qp = &mut self.queue_pairs[qp_index as usize];
        let was = std::mem::replace(&mut qp.state, QpState::Error);
        qp.sends.local_failure = None;
        if let Some(status) = first {
            self.complete_oldest_send(qp_index, status);
        }
        self.flush_sends(qp_index);
        self.flush_receives(qp_index);
        let qp = &self.queue_pairs[qp_index as usize];
        if was != QpState::Error && qp.srq.is_some() {
            // A receive is taken from the shared queue only together with its completion, so every
            // taken receive has completed.
            self.raise(AsyncEvent::QpLastWqeReached { qp_num: qp.number });
        }
    }

    pub(crate) fn flush_sends(&mut self, qp_index: u32) {
        self.queue_pairs[qp_index as usize].waiting.clear();
        while self.complete_oldest_send(qp_index, CompletionStatus::WorkRequestFlushed) {}
    }

    pub(crate) fn complete_oldest_send(&mut self, qp_index: u32, status: CompletionStatus) -> bool {
        let qp = &mut self.queue_pairs[qp_index as usize];
        let Some((number, work)) = qp.sends.retire() else {
            return false;
        };
        qp.sends.forget_general(number);
        let completion = Completion {
            wr_id: work.wr_id,
            status: status.code(),
            opcode: CompletionOpcode::Send,
            extras: Extras::default(),
            data: 0,
            src_qp: 0,
            qp_num: qp.number,
            byte_len: 0,
            frees: Some((qp_index, number)),
        };
        let cq = qp.send_cq;
        self.complete(cq, completion);
        true
    }

    /// Flushes the queue pair's own receives. Receives of a shared queue stay for other queue
    /// pairs.
    pub(crate) fn flush_receives(&mut self, qp_index: u32) {
        let qp = &mut self.queue_pairs[qp_index as usize];
        let (cq, qp_num) = (qp.recv_cq, qp.number);
        while let Some(receive) = self.queue_pairs[qp_index as usize].receives.front() {
            self.queue_pairs[qp_index as usize].receives.consume();
            let completion = Completion {
                wr_id: receive.wr_id,
                status: CompletionStatus::WorkRequestFlushed.code(),
                opcode: CompletionOpcode::Receive,
                extras: Extras::default(),
                data: 0,
                src_qp: 0,
                qp_num,
                byte_len: 0,
                frees: None,
            };
            self.complete(cq, completion);
        }
    }

    pub(crate) fn complete(&mut self, cq: usize, completion: Completion) {
        if self.completion_queues[cq].push(completion) {
            self.overrun.push(cq as u32);
        }
    }

    /// Fails the queue pairs of the completion queues that overran.
    #[cold]
    pub(crate) fn fail_overrun(&mut self) {
        // Failing flushes work, which may overrun another queue, so repeat until none is left.
        while let Some(cq) = self.overrun.pop() {
            let number = self.completion_queues[cq as usize].number;
            self.raise(AsyncEvent::CompletionQueueError { cq: number });
            let attached: Vec<_> = self
                .queue_pairs
                .iter()
                .filter(|(_, qp)| qp.send_cq == cq as usize || qp.recv_cq == cq as usize)
                .filter(|(_, qp)| !matches!(qp.state, QpState::Reset | QpState::Error))
                .map(|(qp_index, qp)| (qp_index as u32, qp.number))
                .collect();
            for (qp_index, qp_num) in attached {
                self.raise(AsyncEvent::QpFatal { qp_num });
                self.fail(qp_index, None);
            }
        }
    }

    /// Removes a queue pair from all lists.
    pub(crate) fn forget_in_lists(&mut self, qp_index: u32) {
        let qp = &mut self.queue_pairs[qp_index as usize];
        if qp.is_hot {
            qp.is_hot = false;
            self.hot.retain(|other| *other != qp_index);
        }
        if qp.is_awaiting {
            qp.is_awaiting = false;
            self.awaiting.retain(|other| *other != qp_index);
        }
        if qp.is_unacked {
            qp.is_unacked = false;
            self.unacked.retain(|other| *other != qp_index);
        }
    }
}
