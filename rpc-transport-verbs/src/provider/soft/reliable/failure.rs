//! Queue pairs that fail, and what becomes of what was posted to them.

use super::answers::Acked;
use crate::provider::soft::context::state::State;
use crate::provider::soft::context::work_queues::Completion;
use crate::verbs::types::{AsyncEvent, CompletionOpcode, CompletionStatus, Extras, QpState};

impl State {
    /// To ERR: the oldest send that is not acknowledged completes with `first`, if that is given;
    /// then everything else is flushed, in order, signaled or not.
    pub(crate) fn fail(&mut self, place: u32, first: Option<CompletionStatus>) {
        // What the peer has taken is not lost; a peer that lies about it is not believed.
        let first = match self.complete_acked(place) {
            // The answer of an earlier one could not be taken in: it is the one that failed.
            Acked::Failed => None,
            Acked::Fine | Acked::Nonsense => first,
        };
        self.fail_from_here(place, first);
    }

    /// The same, where what is acknowledged has been completed already, as far as it may.
    pub(crate) fn fail_from_here(&mut self, place: u32, first: Option<CompletionStatus>) {
        self.disconnect(place);
        let qp = &mut self.queue_pairs[place as usize];
        let was = std::mem::replace(&mut qp.state, QpState::Error);
        qp.sends.local_failure = None;
        if let Some(status) = first {
            self.complete_oldest_send(place, status);
        }
        self.flush_sends(place);
        self.flush_receives(place);
        let qp = &self.queue_pairs[place as usize];
        if was != QpState::Error && qp.srq.is_some() {
            // A receive is taken from the shared queue only together with its completion, so all
            // that were taken are completed.
            self.raise(AsyncEvent::QpLastWqeReached { qp_num: qp.number });
        }
    }

    pub(crate) fn flush_sends(&mut self, place: u32) {
        self.queue_pairs[place as usize].waiting.clear();
        while self.complete_oldest_send(place, CompletionStatus::WorkRequestFlushed) {}
    }

    pub(crate) fn complete_oldest_send(&mut self, place: u32, status: CompletionStatus) -> bool {
        let qp = &mut self.queue_pairs[place as usize];
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
            frees: Some((place, number)),
        };
        let cq = qp.send_cq;
        self.complete(cq, completion);
        true
    }

    /// Receives of a queue pair's own; those of a shared queue stay for the others.
    pub(crate) fn flush_receives(&mut self, place: u32) {
        let qp = &mut self.queue_pairs[place as usize];
        let (cq, qp_num) = (qp.recv_cq, qp.number);
        while let Some(receive) = self.queue_pairs[place as usize].receives.front() {
            self.queue_pairs[place as usize].receives.consume();
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

    /// A completion queue that overran takes its queue pairs with it.
    #[cold]
    pub(crate) fn fail_overrun(&mut self) {
        // Failing flushes, and may overrun another queue: until none is left.
        while let Some(cq) = self.overrun.pop() {
            let number = self.completion_queues[cq as usize].number;
            self.raise(AsyncEvent::CompletionQueueError { cq: number });
            let attached: Vec<_> = self
                .queue_pairs
                .iter()
                .filter(|(_, qp)| qp.send_cq == cq as usize || qp.recv_cq == cq as usize)
                .filter(|(_, qp)| !matches!(qp.state, QpState::Reset | QpState::Error))
                .map(|(place, qp)| (place as u32, qp.number))
                .collect();
            for (place, qp_num) in attached {
                self.raise(AsyncEvent::QpFatal { qp_num });
                self.fail(place, None);
            }
        }
    }

    /// Takes a queue pair off all lists.
    pub(crate) fn forget_in_lists(&mut self, place: u32) {
        let qp = &mut self.queue_pairs[place as usize];
        if qp.is_hot {
            qp.is_hot = false;
            self.hot.retain(|other| *other != place);
        }
        if qp.is_awaiting {
            qp.is_awaiting = false;
            self.awaiting.retain(|other| *other != place);
        }
        if qp.is_unacked {
            qp.is_unacked = false;
            self.unacked.retain(|other| *other != place);
        }
    }
}
