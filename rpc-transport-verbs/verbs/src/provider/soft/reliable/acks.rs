//! Processes the peer's acknowledgements and NAKs, and completes sends.

use std::time::Instant;

use crate::hooks;
use crate::hooks::inject;
use crate::provider::soft::context::completion_queues::Completion;
use crate::provider::soft::context::initiator::NotifyDrained;
use crate::provider::soft::context::link::Link;
use crate::provider::soft::context::pending::Matter;
use crate::provider::soft::context::queue_pair::SoftQueuePair;
use crate::provider::soft::context::state::{Common, State};
use crate::types::{AsyncEvent, CompletionStatus};

/// Outcome of processing the peer's acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AckOutcome {
    /// This many messages are still not acknowledged.
    Valid(u64),
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
            #[cfg(debug_assertions)]
            crate::provider::soft::context::check::check_queue_pair(qp);
            // A queue pair that has failed meanwhile has removed itself from the list.
            if common.awaiting.get(index) != Some(&qp_index) {
                continue;
            }
            if qp.awaits_polls() {
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
            common.awaiting.push(self.core.index);
            common.pending.add(Matter::Awaiting);
        }
    }

    /// Returns true if the acknowledgements of this queue pair are awaited for nothing but the
    /// completions of plain sends, all of which are in the peer's ring.
    pub(crate) fn awaits_plain_sends(&self) -> bool {
        let sends = &self.initiator.sends;
        sends.general.is_empty()
            && sends.started == sends.posted
            && sends.local_failure.is_none()
            && self.initiator.draining.is_none()
    }

    /// Processes the peer's acknowledgements and NAKs for this queue pair's sends.
    #[inline]
    pub(crate) fn process_acks(&mut self, common: &mut Common, now: fn() -> Instant) {
        if inject!(LateCompletion) {
            return;
        }
        match self.link {
            Link::Rings(_) => {
                if !self.process_ring_acks(common, now) {
                    return;
                }
            }
            // Acknowledgements are found as everything else that the connection brings.
            Link::Tcp(_) => {
                self.initiator.retry.ends_pause(now);
            }
            Link::Down => {}
        }
        if let Some(status) = self.initiator.sends.local_failure
            && self.initiator.sends.acked == self.initiator.sends.started
        {
            return self.fail(common, Some(status));
        }
        if self.initiator.sends.started < self.initiator.sends.posted {
            self.transmit(common);
        }
        if self.initiator.draining.is_some() && !self.has_sends_in_flight() {
            let notify = self.initiator.draining.take();
            if notify == Some(NotifyDrained(true)) {
                common.raise(AsyncEvent::SqDrained {
                    qp_num: self.core.number,
                });
            }
        }
    }

    /// Processes what the peer has written into its ring's acknowledgement. Returns false if the queue
    /// pair has failed.
    #[inline(always)]
    fn process_ring_acks(&mut self, common: &mut Common, now: fn() -> Instant) -> bool {
        let first = match self.complete_acked(common) {
            // The peer's acknowledgement is invalid.
            AckOutcome::Invalid => Some(CompletionStatus::BadResponse),
            AckOutcome::Failed => None,
            AckOutcome::Valid(0) => return true,
            AckOutcome::Valid(_) => match self.process_naks(common, now) {
                Ok(()) => return true,
                Err(status) => Some(status),
            },
        };
        match first {
            Some(_) => self.fail(common, first),
            None => self.fail_from_here(common, None),
        }
        false
    }

    /// Returns true if polls have to look for progress of this queue pair's sends. Over TCP, only what
    /// its connection does not announce needs them.
    #[inline]
    pub(crate) fn awaits_polls(&self) -> bool {
        let sends = &self.initiator.sends;
        let is_pending = match self.link {
            Link::Tcp(_) => {
                self.initiator.retry.rnr_until.is_some() || sends.local_failure.is_some()
            }
            Link::Rings(_) | Link::Down => sends.signaled > 0 || sends.started < sends.posted,
        };
        is_pending || self.initiator.draining.is_some()
    }

    /// Completes the sends that the peer has acknowledged.
    #[inline(always)]
    pub(crate) fn complete_acked(&mut self, common: &mut Common) -> AckOutcome {
        let Some(sender) = self.link.sender_mut() else {
            return AckOutcome::Valid(0);
        };
        match sender.collect_ack() {
            Err(_) => return AckOutcome::Invalid,
            Ok(0) => {}
            Ok(_) => {
                self.initiator.retry.rnr_count = 0;
                self.initiator.retry.silent_since = None;
            }
        }
        let unacked = sender.unacked();
        if !self.initiator.sends.general.is_empty() {
            return self.complete_general(common, unacked);
        }
        // Every plain send took one slot of the ring, so the two counts advance together.
        let acked = self.initiator.sends.started.saturating_sub(unacked);
        while self.initiator.sends.acked < acked {
            let Some((number, entry)) = self.initiator.sends.retire() else {
                break;
            };
            if entry.signaled {
                let this = (self.core.index, self.core.number);
                let status = CompletionStatus::Success;
                let completion = Completion::of_send(entry.wr_id, this, number, status);
                common.complete(self.core.send_cq, completion);
            }
        }
        AckOutcome::Valid(unacked)
    }
}
