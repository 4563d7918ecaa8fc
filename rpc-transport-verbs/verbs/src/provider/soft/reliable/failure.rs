//! Failing of queue pairs, and flushing of the work posted to them.

use super::acks::AckOutcome;
use crate::provider::soft::context::completion_queues::Completion;
use crate::provider::soft::context::pending::Matter;
use crate::provider::soft::context::queue_pair::SoftQueuePair;
use crate::provider::soft::context::state::{Common, State};
use crate::types::{AsyncEvent, CompletionStatus, QpState};

impl SoftQueuePair {
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
            self.complete_oldest_send(common, status);
        }
        self.flush_sends(common);
        self.flush_receives(common);
        if was != QpState::Error && self.core.srq.is_some() {
            // A receive is taken from the shared queue together with its completion, or over TCP for
            // the message that was arriving. So every taken receive has completed.
            common.raise(AsyncEvent::QpLastWqeReached {
                qp_num: self.core.number,
            });
        }
    }

    #[cold]
    pub(crate) fn flush_sends(&mut self, common: &mut Common) {
        self.waiting.clear();
        while self.complete_oldest_send(common, CompletionStatus::WorkRequestFlushed) {}
    }

    pub(crate) fn complete_oldest_send(
        &mut self,
        common: &mut Common,
        status: CompletionStatus,
    ) -> bool {
        let Some(completion) = self.initiator.fail_oldest(&self.core, status) else {
            return false;
        };
        common.complete(self.core.send_cq, completion);
        true
    }

    /// Flushes the queue pair's own receives. Receives of a shared queue stay for other queue
    /// pairs.
    pub(crate) fn flush_receives(&mut self, common: &mut Common) {
        while let Some(receive) = self.receives.next() {
            let flushed = CompletionStatus::WorkRequestFlushed;
            let completion = Completion::of_receive(receive.wr_id, self.core.number, flushed);
            self.receives.consume();
            common.complete(self.core.recv_cq, completion);
        }
    }

    /// Removes the queue pair from all lists.
    pub(crate) fn forget_in_lists(&mut self, common: &mut Common) {
        self.leave_hot(common);
        if self.is_awaiting {
            self.is_awaiting = false;
            common.awaiting.retain(|other| *other != self.core.index);
            if common.awaiting.is_empty() {
                common.pending.remove(Matter::Awaiting);
            }
        }
        if self.is_unacked {
            self.is_unacked = false;
            common.unacked.retain(|other| *other != self.core.index);
        }
    }
}

impl State {
    /// Fails the queue pairs of the completion queues that overran. Call this before releasing the
    /// owner word after anything that may have completed requests.
    #[inline]
    pub(crate) fn settle_overrun(&mut self) {
        if self.common.completion_queues.has_overrun() {
            self.fail_overrun();
        }
    }

    #[cold]
    #[inline(never)]
    fn fail_overrun(&mut self) {
        // Failing flushes work, which may overrun another queue, so repeat until none is left.
        while let Some(cq) = self.common.completion_queues.take_overrun() {
            let number = self.common.completion_queues.queue(cq as usize).number;
            self.common
                .raise(AsyncEvent::CompletionQueueError { cq: number });
            for (_, qp) in &mut self.queue_pairs {
                let is_attached = qp.core.send_cq == cq as usize || qp.core.recv_cq == cq as usize;
                if is_attached && !matches!(qp.core.state, QpState::Reset | QpState::Error) {
                    self.common.raise(AsyncEvent::QpFatal {
                        qp_num: qp.core.number,
                    });
                    qp.fail(&mut self.common, None);
                }
            }
        }
    }
}
