//! The progress loop over everything that may have changed: hot rings, ready bits, awaited
//! acknowledgements.

use std::time::Instant;

use super::receive::ReceiveOutcome;
use super::responses::AckOutcome;
use crate::hooks;
use crate::hooks::inject;
use crate::provider::soft::context::queue_pair::NotifyDrained;
use crate::provider::soft::context::state::State;
use crate::provider::soft::context::work_queues::Completion;
use crate::provider::soft::shared::memory::SharedMemory;
use crate::provider::soft::shared::ring::RingReceiver;
use crate::provider::soft::shared::wake::DomainReadyBits;
use crate::verbs::types::{
    AsyncEvent, CompletionOpcode, CompletionStatus, Extras, VerbsError, WorkCompletion,
};

/// Maximum number of rings that are polled directly. Each costs a poll one cached line. With more
/// rings than this, a poll of empty rings takes longer than the path over a ready bit.
const MAX_HOT: usize = 16;
/// Empty polls after which a ring goes cold while others are hot: some 10 µs of polling, far longer
/// than a response takes, so that connections in use stay hot.
const EMPTY_POLLS: u32 = 512;
/// As `EMPTY_POLLS`, while more than `MAX_HOT` rings are hot.
const EMPTY_POLLS_IF_CROWDED: u32 = 8;

/// Maximum number of batches that the engine does for a context when a peer wakes it, before it
/// turns to other contexts.
const PEER_WAKE_BATCHES: usize = 64;

impl State {
    /// Polls a completion queue, as `poll_cq` does: makes progress first if the queue is empty.
    #[inline]
    pub(crate) fn poll(
        &mut self,
        cq: usize,
        out: &mut Vec<WorkCompletion>,
        max: usize,
    ) -> Result<usize, VerbsError> {
        self.polls += 1;
        if self.is_unattended {
            self.mark_attended();
        }
        if self.completion_queues[cq].is_empty() {
            self.progress();
        }
        let queue = &mut self.completion_queues[cq];
        let max = if inject!(ShortPoll) { max / 2 } else { max };
        let mut count = 0;
        while count < max {
            let Some(completion) = queue.pop() else { break };
            if let Some((qp_index, number)) = completion.frees
                // A queue pair that has been destroyed since has no entry to free.
                && let Some(qp) = self.queue_pairs.get_mut(qp_index as usize)
                && qp.number == completion.qp_num
            {
                qp.sends.free_through(number);
            }
            out.push(completion.report());
            count += 1;
        }
        if count == 0 && max > 0 && queue.is_overrun() {
            return Err(VerbsError::CompletionQueueOverrun {
                capacity: queue.capacity(),
            });
        }
        Ok(count)
    }

    /// Makes one bounded batch of progress on everything. Returns the number of messages received.
    #[inline]
    pub(crate) fn progress(&mut self) -> usize {
        if !inject!(LateBell) {
            self.handle_ready_bits();
        }
        let mut received = 0;
        let mut index = 0;
        while let Some(&qp_index) = self.hot.get(index) {
            match self.receive(qp_index) {
                ReceiveOutcome::Received(count) => {
                    received += count;
                    self.queue_pairs[qp_index as usize].empty_polls = 0;
                    index += 1;
                }
                ReceiveOutcome::Empty => {
                    if self.stays_hot(qp_index) {
                        index += 1;
                    } else {
                        self.hot.swap_remove(index);
                    }
                }
                ReceiveOutcome::Closed => self.leave_hot(qp_index),
            }
        }
        if !self.awaiting.is_empty() {
            self.process_awaited_acks();
        }
        if self.is_asleep {
            self.stay_asleep();
        }
        if !self.overrun.is_empty() {
            self.fail_overrun();
        }
        received
    }

    // ---- hot and cold rings ----

    #[inline]
    pub(crate) fn handle_ready_bits(&mut self) {
        let (queue_pairs, hot) = (&mut self.queue_pairs, &mut self.hot);
        ready_bits(&self.ready).take(self.qp_index_end, |qp_index| {
            // A peer can set any bit: a bit without a ring behind it is ignored.
            if let Some(qp) = queue_pairs.get_mut(qp_index)
                && !qp.is_hot
                && let Some(receiver) = &qp.link.receiver
            {
                receiver.go_hot();
                qp.is_hot = true;
                qp.empty_polls = 0;
                // The cast is lossless: the index is below `qp_index_end`, which fits.
                hot.push(qp_index as u32);
            }
        });
    }

    pub(crate) fn make_hot(&mut self, qp_index: u32) {
        let qp = &mut self.queue_pairs[qp_index as usize];
        if !qp.is_hot {
            qp.is_hot = true;
            qp.empty_polls = 0;
            self.hot.push(qp_index);
        }
    }

    pub(crate) fn leave_hot(&mut self, qp_index: u32) {
        if let Some(qp) = self.queue_pairs.get_mut(qp_index as usize) {
            qp.is_hot = false;
        }
        self.hot.retain(|hot| *hot != qp_index);
    }

    /// Decides whether a ring stays hot after it was found empty. Returns `false` if it has gone
    /// cold; the caller then removes it from the list.
    #[inline]
    fn stays_hot(&mut self, qp_index: u32) -> bool {
        let crowd = self.hot.len();
        let qp = &mut self.queue_pairs[qp_index as usize];
        qp.empty_polls += 1;
        let patience = if crowd > MAX_HOT {
            EMPTY_POLLS_IF_CROWDED
        } else {
            EMPTY_POLLS
        };
        // A lone ring stays hot, because it delays no other ring.
        let is_patient = qp.empty_polls < patience && !inject!(GoesCold);
        if is_patient || crowd == 1 {
            return true;
        }
        !self.goes_cold(qp_index)
    }

    /// Makes a ring cold unless it holds a message, and returns true if it did. The caller then
    /// removes it from the list.
    #[inline]
    pub(crate) fn goes_cold(&mut self, qp_index: u32) -> bool {
        let qp = &mut self.queue_pairs[qp_index as usize];
        qp.empty_polls = 0;
        qp.is_hot = !qp
            .link
            .receiver
            .as_mut()
            .is_some_and(RingReceiver::try_go_cold);
        !qp.is_hot
    }

    // ---- acknowledgements ----

    pub(crate) fn await_progress(&mut self, qp_index: u32) {
        let qp = &mut self.queue_pairs[qp_index as usize];
        if !qp.is_awaiting {
            qp.is_awaiting = true;
            self.awaiting.push(qp_index);
        }
    }

    #[inline]
    fn process_awaited_acks(&mut self) {
        let mut index = 0;
        while let Some(&qp_index) = self.awaiting.get(index) {
            self.process_acks(qp_index, hooks::now);
            // A queue pair that has failed meanwhile has removed itself from the list.
            if self.awaiting.get(index) != Some(&qp_index) {
                continue;
            }
            let qp = &mut self.queue_pairs[qp_index as usize];
            let sends = &qp.sends;
            if sends.signaled > 0 || sends.started < sends.posted || qp.draining.is_some() {
                index += 1;
            } else {
                qp.is_awaiting = false;
                self.awaiting.swap_remove(index);
            }
        }
    }

    /// Processes the peer's acknowledgements and NAKs for this queue pair's sends.
    #[inline]
    pub(crate) fn process_acks(&mut self, qp_index: u32, now: fn() -> Instant) {
        if inject!(LateCompletion) {
            return;
        }
        match self.complete_acked(qp_index) {
            AckOutcome::Valid => {}
            // The peer's acknowledgement is invalid.
            AckOutcome::Invalid => return self.fail(qp_index, Some(CompletionStatus::BadResponse)),
            AckOutcome::Failed => return self.fail_from_here(qp_index, None),
        }
        let qp = &mut self.queue_pairs[qp_index as usize];
        if let Some(sender) = &mut qp.link.sender
            && sender.unacked() > 0
        {
            if let Some(code) = sender.fatal_nak() {
                let status = CompletionStatus::from_code(u32::from(code));
                return self.fail(qp_index, Some(status));
            }
            if !self.handle_rnr_nak(qp_index, now) {
                return self.fail(qp_index, Some(CompletionStatus::RnrRetryExceeded));
            }
        }
        let qp = &mut self.queue_pairs[qp_index as usize];
        if let Some(status) = qp.sends.local_failure
            && qp.sends.acked == qp.sends.started
        {
            return self.fail(qp_index, Some(status));
        }
        if qp.sends.started < qp.sends.posted {
            self.transmit(qp_index);
        }
        let qp = &mut self.queue_pairs[qp_index as usize];
        if qp.draining.is_some() && !qp.has_sends_in_flight() {
            let notify = qp.draining.take();
            let qp_num = qp.number;
            if notify == Some(NotifyDrained(true)) {
                self.raise(AsyncEvent::SqDrained { qp_num });
            }
        }
    }

    /// Completes the sends that the peer has acknowledged.
    #[inline]
    pub(crate) fn complete_acked(&mut self, qp_index: u32) -> AckOutcome {
        let qp = &mut self.queue_pairs[qp_index as usize];
        let Some(sender) = &mut qp.link.sender else {
            return AckOutcome::Valid;
        };
        match sender.collect_ack() {
            Err(_) => return AckOutcome::Invalid,
            Ok(0) => {}
            Ok(_) => {
                qp.retry.rnr_count = 0;
                qp.retry.silent_since = None;
            }
        }
        if !qp.sends.general.is_empty() {
            return self.complete_general(qp_index);
        }
        // Every plain send took one slot of the ring, so the two counts advance together.
        let unacked = sender.unacked();
        let acked = qp.sends.started - unacked.min(qp.sends.started);
        while qp.sends.acked < acked {
            let Some((number, work)) = qp.sends.retire() else {
                break;
            };
            if work.signaled {
                let completion = Completion {
                    wr_id: work.wr_id,
                    status: CompletionStatus::Success.code(),
                    opcode: CompletionOpcode::Send,
                    extras: Extras::default(),
                    data: 0,
                    src_qp: 0,
                    qp_num: qp.number,
                    byte_len: 0,
                    frees: Some((qp_index, number)),
                };
                if self.completion_queues[qp.send_cq].push(completion) {
                    self.overrun.push(qp.send_cq as u32);
                }
            }
        }
        AckOutcome::Valid
    }

    // ---- for the engine ----

    #[cold]
    fn mark_attended(&mut self) {
        self.is_unattended = false;
        ready_bits(&self.ready).note.set_attended();
    }

    /// Handles peers' requests for a context that no thread polls, until nothing is left for the
    /// moment. While this runs, peers need not wake the engine.
    pub(crate) fn handle_unattended(&mut self) {
        if !self.is_unattended {
            return;
        }
        ready_bits(&self.ready).note.set_attended();
        for _ in 0..PEER_WAKE_BATCHES {
            if self.progress() == 0 {
                break;
            }
        }
        ready_bits(&self.ready).note.set_unattended();
        self.progress();
    }

    /// Does the work that the application has not done since the last call, and expires timers.
    /// Returns `true` if there may be more work.
    pub(crate) fn progress_while_idle(&mut self, now: Instant) -> bool {
        let is_polled = self.polls != self.polls_at_tick;
        self.polls_at_tick = self.polls;
        if !is_polled && !self.is_unattended {
            self.is_unattended = true;
            // This precedes the check of the rings below.
            ready_bits(&self.ready).note.set_unattended();
        }
        let received = if is_polled { 0 } else { self.progress() };
        self.expire_timers(now);
        if !self.overrun.is_empty() {
            self.fail_overrun();
        }
        received > 0
    }
}

/// Returns the ready bits in a context's own memory.
#[inline]
pub(crate) fn ready_bits(memory: &SharedMemory) -> &DomainReadyBits {
    // SAFETY: the only such memory of this process belongs to a context. `Domain::open` made it
    // large enough for the bits; it is aligned to a page and lives as long as the borrow. The bits
    // are atomics, for which all bit patterns are valid.
    unsafe { memory.mapping.start().cast().as_ref() }
}
