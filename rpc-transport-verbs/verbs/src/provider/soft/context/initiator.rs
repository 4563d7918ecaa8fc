//! The half of a queue pair that requests: which of its requests may begin, and which have completed.
//!
//! Who carries requests moves their bytes, a ring or TCP. It counts what it has carried in *units*,
//! which grow by one: slots of the ring, or sequence numbers. A request takes one of them, a long READ
//! over a ring one for each piece, and what this side carries out by itself none.
//! [`begin`](Initiator::begin) says whether a request may begin, [`begun`](Initiator::begun) records the
//! units that it took, and [`acknowledged`](Initiator::acknowledged) completes what the peer has
//! executed. Nothing here raises an event or fails the queue pair.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::completion_queues::Completion;
use super::core::Core;
use super::general_send::{GeneralSend, Outstanding};
use super::link::Link;
use super::memory::Memory;
use super::retry::{Requests, Retry};
use super::send_queue::{SendQueue, Units};
use crate::provider::soft::capacities::MAX_MESSAGE_LEN;
use crate::provider::work::Operation;
use crate::types::{Access, CompletionOpcode, CompletionStatus, QpState, RemoteOperation};

/// The requesting half of a queue pair.
#[derive(Debug)]
pub(crate) struct Initiator {
    pub(crate) sends: SendQueue,
    pub(crate) outstanding: Outstanding,
    pub(crate) retry: Retry,
    /// Set on the way to SQD: raise `SqDrained` when nothing is in flight.
    pub(crate) draining: Option<NotifyDrained>,
    /// True if the peer expects other sequence numbers than this side sends: it would silently drop
    /// every message.
    pub(crate) has_psn_mismatch: bool,
}

/// True if the application requested a `SqDrained` event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotifyDrained(pub(crate) bool);

/// The request that is looked at, and what has been gathered in front of it and is not written yet. A
/// ring is written to at once: nothing is in front of the next request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Next {
    pub(crate) number: u64,
    /// The unit that it will take.
    pub(crate) unit: u64,
    /// READs and atomics in flight, with those in front of it.
    pub(crate) reads: u8,
    pub(crate) is_first: bool,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Begin {
    /// It goes to the peer, or its next piece does. `outstanding` READs and atomics are in flight then.
    Send {
        operation: RemoteOperation,
        outstanding: u8,
    },
    /// It was carried out here.
    Done,
    /// It has to wait.
    Wait,
}

impl Initiator {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            sends: SendQueue::new(capacity),
            outstanding: Outstanding::default(),
            retry: Retry::default(),
            draining: None,
            has_psn_mismatch: false,
        }
    }

    /// Forgets what belongs to a connection, which has ended.
    pub(crate) fn disconnect(&mut self) {
        self.outstanding = Outstanding::default();
        self.retry = Retry::default();
        self.draining = None;
        self.has_psn_mismatch = false;
    }

    /// Compares the sequence numbers of both sides, to detect that the peer would drop every message.
    /// Call this when both are known and nothing has been sent.
    pub(crate) fn compare_sequence_numbers(&mut self, core: &Core, link: &Link) {
        self.has_psn_mismatch = match (link.expected_psn(), core.attributes.sq_psn) {
            (Some(expected), Some(psn)) => expected != psn.get(),
            _ => false,
        };
    }

    /// Returns true if plain messages may be sent now.
    #[inline]
    pub(crate) fn may_send(&self, core: &Core) -> bool {
        core.state == QpState::Rts && !self.has_psn_mismatch
    }

    /// Returns whether a request may begin, or go on if pieces of it have begun. Carries it out if it
    /// concerns this side only. An error is the status that the request completes with.
    pub(crate) fn begin(
        &mut self,
        core: &Core,
        memory: &mut Memory,
        next: Next,
    ) -> Result<Begin, CompletionStatus> {
        if self.has_psn_mismatch || self.sends.local_failure.is_some() {
            return Ok(Begin::Wait);
        }
        let is_oldest = self.sends.acked == next.number;
        let is_next = self.sends.started == next.number && next.is_first;
        let Some(send) = self.sends.general_at_mut(next.number) else {
            return Ok(Begin::Wait);
        };
        let is_begun = send.slots.is_some();
        let may_begin = match core.state {
            QpState::Rts => true,
            // In SQD, requests that have begun are finished.
            QpState::Sqd => is_begun,
            _ => false,
        };
        if !may_begin {
            return Ok(Begin::Wait);
        }
        // What has begun over TCP, and is sent again, has given its place among the READs back. So it
        // is asked again, unlike the next piece of a READ over a ring.
        let goes_on = send.requested > 0;
        let has_response = send.operation.has_response();
        if !goes_on {
            let depth = core.attributes.max_rd_atomic.unwrap_or(0);
            if (send.fenced && next.reads > 0) || (has_response && next.reads >= depth) {
                return Ok(Begin::Wait);
            }
            if send.total > MAX_MESSAGE_LEN as u64 {
                return Err(CompletionStatus::LocalLength);
            }
        }
        match send.operation {
            // Earlier requests may use the key, so it is invalidated only after they have
            // completed.
            Operation::LocalInvalidate(_) if !is_oldest => Ok(Begin::Wait),
            Operation::LocalInvalidate(key) => {
                send.slots = Some(next.unit..next.unit);
                // Unlike in a peer's request, a wrong key is this side's mistake.
                let invalidated = memory.invalidate(key, core.domain, core.number);
                invalidated.map_err(|_| CompletionStatus::MemoryWindowBind)?;
                Ok(Begin::Done)
            }
            // It counts as begun only when those before it have.
            Operation::BindWindow(_) if !is_next => Ok(Begin::Wait),
            Operation::BindWindow(binding) => {
                // A request before it may have been sent again: the window is bound once.
                if !is_begun {
                    memory.bind_window(&binding, core.domain, core.number)?;
                    send.slots = Some(next.unit..next.unit);
                }
                Ok(Begin::Done)
            }
            Operation::Remote(operation) => {
                send.check_payload(core, memory)?;
                Ok(Begin::Send {
                    operation,
                    outstanding: next.reads + u8::from(has_response && !goes_on),
                })
            }
        }
    }

    /// Records that a request, or a piece of one, was given to the peer, in these units. Of a READ that
    /// is requested in pieces, the peer was asked for `asked` bytes more.
    #[inline]
    pub(crate) fn begun(&mut self, number: u64, units: Range<u64>, asked: u64) {
        let Some(send) = self.sends.general_at_mut(number) else {
            return;
        };
        let goes_on = send.requested > 0;
        let first = match &send.slots {
            Some(slots) if goes_on => slots.start,
            _ => units.start,
        };
        send.slots = Some(first..units.end);
        if !goes_on {
            self.outstanding.reads += u8::from(send.operation.has_response());
            self.outstanding.unexecuted += u32::from(send.holds_up_reads());
        }
        send.requested += asked;
    }

    /// Records what was written of the requests from `started` on, of which the first has unit `first`:
    /// those of the units `begun` have begun, and all bytes of the first `whole` were taken.
    pub(crate) fn sent(&mut self, first: u64, begun: Range<u64>, whole: u64) {
        for unit in begun {
            let number = self.sends.started + (unit - first);
            self.begun(number, unit..unit + 1, 0);
        }
        self.sends.started += whole;
    }

    /// Returns true if a READ need not wait for requests before it to be executed, and the peer has not
    /// begun to execute it.
    pub(crate) fn may_overtake(&self, send: &GeneralSend) -> bool {
        self.outstanding.unexecuted == 0 && send.slots.is_none()
    }

    /// Records that a READ has been executed on this side: it has taken no unit, of which this is the
    /// next.
    pub(crate) fn executed_here(&mut self, number: u64, unit: u64) {
        self.begun(number, unit..unit, 0);
        if let Some(send) = self.sends.general_at_mut(number) {
            (send.requested, send.received) = (send.total, send.total);
        }
    }

    /// Completes the oldest requests that the peer has acknowledged, and whose responses have arrived.
    pub(crate) fn acknowledged(
        &mut self,
        core: &Core,
        units: Units,
        mut complete: impl FnMut(Completion),
    ) {
        while self.sends.acked < self.sends.started {
            let oldest = self.sends.acked;
            let front = self.sends.general.front();
            let (opcode, len) = match front.map(|send| (send, send.number, &send.slots)) {
                Some((send, number, slots)) if number == oldest => {
                    let Some(slots) = slots else { return };
                    // A request that was carried out on this side has no units.
                    let is_acked = slots.is_empty() || slots.end <= units.acked;
                    let wanted = send.response_len();
                    if !is_acked || send.received < wanted.unwrap_or(0) {
                        return;
                    }
                    let (is_read, held_up) = (wanted.is_some(), send.holds_up_reads());
                    // The cast is lossless: the length was checked when the request began.
                    let len = wanted.map_or(0, |_| send.total as u32);
                    let opcode = send.operation.opcode();
                    self.outstanding.give_back(is_read, held_up);
                    (opcode, len)
                }
                // A plain message of a ring, which took one unit: those behind it have the next.
                Some((_, number, Some(slots)))
                    if slots.start - (number - oldest) >= units.acked =>
                {
                    return;
                }
                Some((_, _, None)) | None
                    if units.next - (self.sends.started - oldest) >= units.acked =>
                {
                    return;
                }
                _ => (CompletionOpcode::Send, 0),
            };
            if let Some(completion) = self.complete_oldest(core, opcode, len) {
                complete(completion);
            }
        }
    }

    /// Does the same if all requests are plain messages, of which the peer has not acknowledged this
    /// many.
    #[inline(always)]
    pub(crate) fn acknowledged_plain(
        &mut self,
        core: &Core,
        unacked: u64,
        mut complete: impl FnMut(Completion),
    ) {
        // Every plain send took one slot of the ring, so the two counts advance together.
        let acked = self.sends.started.saturating_sub(unacked);
        while self.sends.acked < acked {
            let Some((number, entry)) = self.sends.retire() else {
                break;
            };
            if entry.signaled {
                let (this, success) = ((core.index, core.number), CompletionStatus::Success);
                complete(Completion::of_send(entry.wr_id, this, number, success));
            }
        }
    }

    /// Completes the oldest request successfully. Returns its completion if it is signaled.
    pub(crate) fn complete_oldest(
        &mut self,
        core: &Core,
        opcode: CompletionOpcode,
        byte_len: u32,
    ) -> Option<Completion> {
        let (number, entry) = self.sends.retire()?;
        self.sends.forget_general(number);
        let (this, success) = ((core.index, core.number), CompletionStatus::Success);
        entry.signaled.then(|| Completion {
            opcode,
            byte_len,
            ..Completion::of_send(entry.wr_id, this, number, success)
        })
    }

    /// Completes the oldest request with an error. Returns its completion, or `None` if there is no
    /// request.
    pub(crate) fn fail_oldest(
        &mut self,
        core: &Core,
        status: CompletionStatus,
    ) -> Option<Completion> {
        let (number, entry) = self.sends.retire()?;
        self.sends.forget_general(number);
        let this = (core.index, core.number);
        Some(Completion::of_send(entry.wr_id, this, number, status))
    }

    /// Returns the number of the request whose response comes next, and how many bytes of it are
    /// missing, if this is its unit.
    pub(crate) fn awaited_response(&self, unit: u64) -> Option<(u64, u64)> {
        let started = self.sends.started;
        let mut begun = self
            .sends
            .general
            .iter()
            .take_while(|send| send.number < started);
        let (send, wanted) = begun.find_map(|send| {
            let wanted = send.response_len()?;
            (send.received < wanted).then_some((send, wanted))
        })?;
        let is_this = send.slots.as_ref().is_some_and(|own| own.start == unit);
        is_this.then_some((send.number, wanted - send.received))
    }

    /// Returns true if polls have to look for progress of the sends. Over TCP, only what its connection
    /// does not announce needs them.
    #[inline]
    pub(crate) fn awaits_polls(&self, link: &Link) -> bool {
        let sends = &self.sends;
        let is_pending = if link.repeats_requests() {
            self.retry.rnr_until.is_some() || sends.local_failure.is_some()
        } else {
            sends.signaled > 0 || sends.started < sends.posted
        };
        is_pending || self.draining.is_some()
    }

    /// Returns true if the acknowledgements are awaited for nothing but the completions of plain sends,
    /// all of which are in the peer's ring.
    pub(crate) fn awaits_plain_sends(&self) -> bool {
        self.sends.general.is_empty()
            && self.sends.started == self.sends.posted
            && self.sends.local_failure.is_none()
            && self.draining.is_none()
    }

    /// Returns true if half of the send queue waits for acknowledgements.
    pub(crate) fn is_half_unacked(&self) -> bool {
        2 * (self.sends.posted - self.sends.acked) >= self.sends.capacity() as u64
    }

    /// Returns true if a request is in flight: it has begun and has not ended.
    pub(crate) fn has_in_flight(&self, link: &Link) -> bool {
        // One that was begun may have to be sent again.
        let oldest = self.sends.general.front();
        let is_repeated =
            link.repeats_requests() && oldest.is_some_and(|send| send.slots.is_some());
        is_repeated || link.has_unacked() || self.sends.acked < self.sends.started
    }

    /// Returns true if the peer has been silent for as long as all retries take: see
    /// [`Retry::are_used_up`].
    pub(crate) fn has_retried_enough(
        &mut self,
        core: &Core,
        link: &Link,
        time: (Instant, Duration),
        instantly: bool,
    ) -> bool {
        let requests = Requests {
            are_in_flight: self.has_in_flight(link),
            await_responses: self.outstanding.reads > 0,
            are_dropped: self.has_psn_mismatch,
        };
        self.retry
            .are_used_up(core, link, requests, time, instantly)
    }

    /// Goes back to the request of this unit, which is sent again with all behind it.
    pub(crate) fn go_back(&mut self, unit: u64) {
        // The request that failed here is behind those that are sent again: it fails again in its
        // turn.
        self.sends.local_failure = None;
        while let Some(before) = self.sends.started.checked_sub(1)
            && let Some(send) = self.sends.general_at(before)
            && send.slots.as_ref().is_some_and(|own| own.end > unit)
        {
            let (is_read, held_up) = (send.operation.has_response(), send.holds_up_reads());
            self.outstanding.give_back(is_read, held_up);
            self.sends.started = before;
        }
    }
}

impl Outstanding {
    /// Gives back what a request has taken when it began.
    fn give_back(&mut self, is_read: bool, held_up_reads: bool) {
        self.reads = self.reads.saturating_sub(u8::from(is_read));
        self.unexecuted = self.unexecuted.saturating_sub(u32::from(held_up_reads));
    }
}

impl GeneralSend {
    /// Makes the local protection check for the bytes that a request sends.
    #[inline]
    pub(crate) fn check_payload(
        &self,
        core: &Core,
        memory: &Memory,
    ) -> Result<(), CompletionStatus> {
        // The destination of a response is checked when the response arrives.
        if self.operation.has_response() || self.inline.is_some() {
            return Ok(());
        }
        memory
            .regions
            .check_all(self.elements(), core.domain, Access::NONE)
    }
}
