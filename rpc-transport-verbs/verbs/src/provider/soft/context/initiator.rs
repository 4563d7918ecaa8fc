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
use super::memory::Memory;
use super::send_queue::{SendQueue, Units};
use crate::provider::soft::capacities::MAX_MESSAGE_LEN;
use crate::provider::work::Operation;
use crate::types::{
    Access, CompletionOpcode, CompletionStatus, DeviceCounters, QpState, RemoteOperation, RnrRetry,
    RnrTimer,
};

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

/// Retry state of a queue pair.
#[derive(Debug, Default)]
pub(crate) struct Retry {
    /// RNR NAKs since the last progress.
    pub(crate) rnr_count: u32,
    /// Time at which the receiver may be asked to retry.
    pub(crate) rnr_until: Option<Instant>,
    /// Start of the peer's silence: it is dead or does not accept messages.
    pub(crate) silent_since: Option<Instant>,
    /// Time for which a peer over TCP has answered nothing that waits for an answer. The time in which
    /// this process did not run does not count.
    pub(crate) ignored_for: Duration,
}

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

    /// Records that a request, or a piece of one, was given to the peer, in these units.
    pub(crate) fn begun(&mut self, number: u64, units: Range<u64>) {
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

impl Retry {
    /// Handles an RNR NAK: requests wait for the time that the receiver asks for. Fails if the
    /// permitted number of retries is used up.
    pub(crate) fn begin_pause(
        &mut self,
        counters: &mut DeviceCounters,
        permitted: Option<RnrRetry>,
        timer: u8,
        now: fn() -> Instant,
    ) -> Result<(), CompletionStatus> {
        counters.rnr_nak_received += 1;
        let limit = permitted.and_then(RnrRetry::limit);
        if limit.is_some_and(|limit| self.rnr_count >= u32::from(limit)) {
            return Err(CompletionStatus::RnrRetryExceeded);
        }
        self.rnr_count = self.rnr_count.saturating_add(1);
        self.rnr_until = Some(now() + RnrTimer::from_wire(timer).duration());
        Ok(())
    }

    /// Ends the pause that the receiver has asked for, if it is over. Returns true if it ends now.
    pub(crate) fn ends_pause(&mut self, now: fn() -> Instant) -> bool {
        let is_over = self.rnr_until.is_some_and(|until| now() >= until);
        if is_over {
            self.rnr_until = None;
        }
        is_over
    }
}
