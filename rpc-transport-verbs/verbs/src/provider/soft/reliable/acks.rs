//! Processes the peer's acknowledgements and NAKs, and completes sends.

use std::time::Instant;

use crate::hooks;
use crate::hooks::inject;
use crate::provider::soft::context::completion_queues::Completion;
use crate::provider::soft::context::pending::Matter;
use crate::provider::soft::context::queue_pair::{NotifyDrained, SoftQueuePair};
use crate::provider::soft::context::state::{Common, State};
use crate::types::{AsyncEvent, CompletionStatus};

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
    /// Processes the acknowledgements that polls wait for.
    pub(crate) fn process_awaited_acks(&mut self) {
        let Self {
            queue_pairs,
            common,
        } = self;
        let mut index = 0;
        while let Some(&qp_index) = common.awaiting.get(index) {
            let qp = &mut queue_pairs[qp_index as usize];
            qp.process_acks(common, hooks::now);
            // A queue pair that has failed meanwhile has removed itself from the list.
            if common.awaiting.get(index) != Some(&qp_index) {
                continue;
            }
            let sends = &qp.sends;
            let waits = if qp.link.is_tcp {
                qp.waits_for_time()
            } else {
                sends.signaled > 0 || sends.started < sends.posted || qp.draining.is_some()
            };
            if waits {
                index += 1;
            } else {
                qp.is_awaiting = false;
                common.awaiting.swap_remove(index);
            }
        }
        if common.awaiting.is_empty() {
            common.pending.remove(Matter::Awaiting);
        }
    }
}

impl SoftQueuePair {
    #[cold]
    #[inline(never)]
    pub(crate) fn await_progress(&mut self, common: &mut Common) {
        if !self.is_awaiting {
            self.is_awaiting = true;
            common.awaiting.push(self.index);
            common.pending.add(Matter::Awaiting);
        }
    }

    /// Returns true if the acknowledgements of this queue pair are awaited for nothing but the
    /// completions of plain sends, all of which are in the peer's ring.
    pub(crate) fn awaits_plain_sends(&self) -> bool {
        let sends = &self.sends;
        sends.general.is_empty()
            && sends.started == sends.posted
            && sends.local_failure.is_none()
            && self.draining.is_none()
    }

    /// Processes the peer's acknowledgements and NAKs for this queue pair's sends.
    #[inline]
    pub(crate) fn process_acks(&mut self, common: &mut Common, now: fn() -> Instant) {
        if inject!(LateCompletion) {
            return;
        }
        if self.link.is_tcp {
            return self.progress_over_tcp(common);
        }
        match self.complete_acked(common) {
            AckOutcome::Valid => {}
            // The peer's acknowledgement is invalid.
            AckOutcome::Invalid => return self.fail(common, Some(CompletionStatus::BadResponse)),
            AckOutcome::Failed => return self.fail_from_here(common, None),
        }
        if let Some(sender) = &mut self.link.sender
            && sender.unacked() > 0
        {
            if let Some(code) = sender.fatal_nak() {
                let status = CompletionStatus::from_code(u32::from(code));
                return self.fail(common, Some(status));
            }
            if !self.handle_rnr_nak(common, now) {
                return self.fail(common, Some(CompletionStatus::RnrRetryExceeded));
            }
        }
        if let Some(status) = self.sends.local_failure
            && self.sends.acked == self.sends.started
        {
            return self.fail(common, Some(status));
        }
        if self.sends.started < self.sends.posted {
            self.transmit(common);
        }
        if self.draining.is_some() && !self.has_sends_in_flight() {
            let notify = self.draining.take();
            if notify == Some(NotifyDrained(true)) {
                common.raise(AsyncEvent::SqDrained {
                    qp_num: self.number,
                });
            }
        }
    }

    /// Completes the sends that the peer has acknowledged.
    #[inline(always)]
    pub(crate) fn complete_acked(&mut self, common: &mut Common) -> AckOutcome {
        let Some(sender) = &mut self.link.sender else {
            return AckOutcome::Valid;
        };
        match sender.collect_ack() {
            Err(_) => return AckOutcome::Invalid,
            Ok(0) => {}
            Ok(_) => {
                self.retry.rnr_count = 0;
                self.retry.silent_since = None;
            }
        }
        let unacked = sender.unacked();
        if !self.sends.general.is_empty() {
            return self.complete_general(common);
        }
        // Every plain send took one slot of the ring, so the two counts advance together.
        let acked = self.sends.started.saturating_sub(unacked);
        while self.sends.acked < acked {
            let Some((number, entry)) = self.sends.retire() else {
                break;
            };
            if entry.signaled {
                let this = (self.index, self.number);
                let status = CompletionStatus::Success;
                let completion = Completion::of_send(entry.wr_id, this, number, status);
                common.complete(self.send_cq, completion);
            }
        }
        AckOutcome::Valid
    }
}
