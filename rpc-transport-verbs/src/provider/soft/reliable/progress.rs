//! The progress loop over everything that may have changed: hot rings, ready bits, awaited
//! acknowledgements.

use std::time::Instant;

use super::receive::ReceiveOutcome;
use crate::hooks::inject;
use crate::provider::soft::context::pending::Matter;
use crate::provider::soft::context::queue_pair::SoftQueuePair;
use crate::provider::soft::context::state::{Common, HotRing, State};
use crate::provider::soft::shared::ring::RingReceiver;

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
    /// Makes one bounded batch of progress on everything. Returns the number of messages received.
    pub(crate) fn progress(&mut self) -> usize {
        if !inject!(LateBell) {
            self.handle_ready_bits();
        }
        let mut received = 0;
        let mut place = 0;
        while place < self.common.hot.len() {
            if inject!(LateMessage) {
                place += 1;
                continue;
            }
            match self.receive_batch(place) {
                ReceiveOutcome::Received(count) => {
                    received += count;
                    self.common.hot[place].empty_polls = 0;
                    place += 1;
                }
                ReceiveOutcome::Empty => place += usize::from(self.stays_hot(place)),
                ReceiveOutcome::Closed => {}
            }
        }
        self.look_beyond_rings();
        received
    }

    /// Makes progress on what does not begin with a message in a hot ring.
    #[inline]
    pub(crate) fn look_beyond_rings(&mut self) {
        if self.common.pending.has(Matter::Awaiting) {
            self.process_awaited_acks();
        }
        if self.common.is_asleep() {
            self.stay_asleep();
        }
        self.settle_overrun();
    }

    /// Receives a batch of messages from a hot ring. If the outcome is `Closed`, the ring is not hot
    /// any more.
    pub(crate) fn receive_batch(&mut self, place: usize) -> ReceiveOutcome {
        let Self {
            queue_pairs,
            common,
        } = self;
        let qp = &mut queue_pairs[common.hot[place].qp_index as usize];
        let outcome = qp.receive(common);
        match (&qp.link.receiver, common.hot.get_mut(place)) {
            (Some(receiver), Some(ring)) if outcome != ReceiveOutcome::Closed => {
                receiver.update(&mut ring.next);
            }
            _ => qp.leave_hot(common),
        }
        outcome
    }

    // ---- hot and cold rings ----

    /// Makes the cold rings hot whose bits are set.
    #[inline]
    pub(crate) fn handle_ready_bits(&mut self) {
        let Self {
            queue_pairs,
            common,
        } = self;
        let hot = &mut common.hot;
        common.ready.take(common.qp_index_end, |qp_index| {
            // A peer can set any bit: a bit without a ring behind it is ignored.
            if let Some(qp) = queue_pairs.get_mut(qp_index)
                && !qp.is_hot
                && let Some(receiver) = &qp.link.receiver
            {
                receiver.go_hot();
                qp.is_hot = true;
                hot.push(HotRing::new(receiver, qp.index));
            }
        });
    }

    /// Decides whether a ring stays hot after it was found empty. If not, it is removed from the
    /// list, and the last ring takes its place.
    #[inline]
    pub(crate) fn stays_hot(&mut self, place: usize) -> bool {
        let crowd = self.common.hot.len();
        let ring = &mut self.common.hot[place];
        ring.empty_polls += 1;
        let patience = if crowd > MAX_HOT {
            EMPTY_POLLS_IF_CROWDED
        } else {
            EMPTY_POLLS
        };
        // A lone ring stays hot, because it delays no other ring.
        let is_patient = ring.empty_polls < patience && !inject!(GoesCold);
        is_patient || crowd == 1 || !self.goes_cold(place)
    }

    /// Makes a hot ring cold unless it holds a message, and returns true if it did. The ring is then
    /// removed from the list, and the last ring takes its place.
    pub(crate) fn goes_cold(&mut self, place: usize) -> bool {
        let Self {
            queue_pairs,
            common,
        } = self;
        let ring = &mut common.hot[place];
        ring.empty_polls = 0;
        let qp = &mut queue_pairs[ring.qp_index as usize];
        let receiver = qp.link.receiver.as_mut();
        let is_cold = receiver.is_some_and(RingReceiver::try_go_cold);
        if is_cold {
            qp.is_hot = false;
            common.hot.swap_remove(place);
        }
        is_cold
    }

    // ---- for the engine ----

    #[cold]
    #[inline(never)]
    pub(crate) fn mark_attended(&mut self) {
        self.common.pending.remove(Matter::Unattended);
        self.common.ready.note.set_attended();
    }

    /// Handles peers' requests for a context that no thread polls, until nothing is left for the
    /// moment. While this runs, peers need not wake the engine.
    pub(crate) fn handle_unattended(&mut self) {
        if !self.common.pending.has(Matter::Unattended) {
            return;
        }
        self.common.ready.note.set_attended();
        for _ in 0..PEER_WAKE_BATCHES {
            if self.progress() == 0 {
                break;
            }
        }
        self.common.ready.note.set_unattended();
        self.progress();
    }

    /// Does the work that the application has not done since the last call, and expires timers.
    /// Returns `true` if there may be more work.
    pub(crate) fn progress_while_idle(&mut self, now: Instant) -> bool {
        let common = &mut self.common;
        let is_polled = common.polls != common.polls_at_tick;
        common.polls_at_tick = common.polls;
        if !is_polled && !common.pending.has(Matter::Unattended) {
            common.pending.add(Matter::Unattended);
            // This precedes the check of the rings below.
            common.ready.note.set_unattended();
        }
        let received = if is_polled { 0 } else { self.progress() };
        self.expire_timers(now);
        self.settle_overrun();
        received > 0
    }
}

impl SoftQueuePair {
    pub(crate) fn make_hot(&mut self, common: &mut Common) {
        if let Some(receiver) = &self.link.receiver
            && !self.is_hot
        {
            self.is_hot = true;
            common.hot.push(HotRing::new(receiver, self.index));
        }
    }

    pub(crate) fn leave_hot(&mut self, common: &mut Common) {
        if self.is_hot {
            self.is_hot = false;
            common.hot.retain(|ring| ring.qp_index != self.index);
        }
    }
}

impl HotRing {
    fn new(receiver: &RingReceiver, qp_index: u32) -> Self {
        Self {
            next: receiver.next_message(),
            qp_index,
            empty_polls: 0,
        }
    }
}
