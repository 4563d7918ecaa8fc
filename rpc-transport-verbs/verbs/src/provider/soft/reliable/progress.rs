//! The progress loop over everything that may have changed: hot rings, ready bits, awaited
//! acknowledgements.

use std::time::Instant;

use slab::Slab;

use super::receive::ReceiveOutcome;
use crate::hooks;
use crate::hooks::inject;
use crate::provider::soft::context::cold_rings::ColdRings;
use crate::provider::soft::context::link::Link;
use crate::provider::soft::context::pending::Matter;
use crate::provider::soft::context::queue_pair::SoftQueuePair;
use crate::provider::soft::context::ready_peers::ReadyPeer;
use crate::provider::soft::context::state::{Common, HotRing, State};
use crate::provider::soft::shared::ring::NextMessage;
use crate::types::Gid;

/// Maximum number of rings that are polled directly. Each costs a poll one cached line. With more
/// rings than this, a poll of empty rings takes longer than the path over a ready bit.
const MAX_HOT: usize = 16;
/// Empty polls after which a ring goes cold while others are hot: some 10 µs of polling, far longer
/// than a response takes, so that connections in use stay hot.
const EMPTY_POLLS: u32 = 512;
/// As `EMPTY_POLLS`, while more than `MAX_HOT` rings are hot.
const EMPTY_POLLS_IF_CROWDED: u32 = 8;

/// Hot rings for each set of ready bits that a poll looks at, after the first set.
const HOT_PER_LOOK: usize = 4;

/// Maximum number of batches that the engine does for a context when a peer wakes it, before it
/// turns to other contexts.
const PEER_WAKE_BATCHES: usize = 64;

impl State {
    /// Makes one bounded batch of progress on everything. Returns the number of messages received.
    pub(crate) fn progress(&mut self) -> usize {
        if !inject!(LateBell) {
            self.handle_all_ready_bits();
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
        received + self.look_beyond_rings()
    }

    /// Makes progress on what does not begin with a message in a hot ring. Returns the number of
    /// messages from links over TCP.
    #[inline]
    pub(crate) fn look_beyond_rings(&mut self) -> usize {
        let mut executed = 0;
        if self.common.pending.has(Matter::TcpLinks) {
            executed = self.look_at_tcp_links();
        }
        if self.common.pending.has(Matter::Awaiting) {
            self.process_awaited_acks();
        }
        if self.common.is_asleep() {
            self.stay_asleep();
        }
        self.settle_overrun();
        executed
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
        match (&qp.link, common.hot.get_mut(place)) {
            (Link::Rings(rings), Some(ring)) if outcome != ReceiveOutcome::Closed => {
                rings.receiver.update(&mut ring.next);
            }
            _ => qp.leave_hot(common),
        }
        outcome
    }

    // ---- hot and cold rings ----

    /// Makes the cold rings hot that the next peer has set bits for: at most one word of them, of
    /// one peer, and of a few more peers if many rings are hot.
    #[inline]
    pub(crate) fn handle_ready_bits(&mut self) {
        let common = &mut self.common;
        let is_simple =
            common.hot.len() < HOT_PER_LOOK && !common.pending.has(Matter::ManyQueuePairs);
        if !is_simple || !common.ready.pass_if_empty() {
            self.handle_more_ready_bits();
        }
    }

    #[inline(never)]
    fn handle_more_ready_bits(&mut self) {
        for _ in 0..1 + self.common.hot.len() / HOT_PER_LOOK {
            if self.common.ready.is_round_over() {
                self.begin_round();
            }
            let State {
                queue_pairs,
                common,
            } = self;
            let Common {
                ready, hot, cold, ..
            } = common;
            ready.take_next(common.qp_index_end, |gid, qp_index| {
                make_hot_for(queue_pairs, hot, cold, gid, qp_index);
            });
        }
    }

    /// Makes cold rings hot if their bits are set, for all peers.
    pub(crate) fn handle_all_ready_bits(&mut self) {
        let State {
            queue_pairs,
            common,
        } = self;
        let Common {
            ready, hot, cold, ..
        } = common;
        ready.take_all(common.qp_index_end, |gid, qp_index| {
            make_hot_for(queue_pairs, hot, cold, gid, qp_index);
        });
    }

    /// Begins another round of looks at ready bits, after looks at cold rings.
    #[cold]
    #[inline(never)]
    pub(crate) fn begin_round(&mut self) {
        self.common.ready.begin_round();
        if !self.common.cold.is_empty() {
            self.look_at_cold_rings(hooks::now());
        }
    }

    /// Makes cold rings hot in which messages lie that no bit has announced.
    fn look_at_cold_rings(&mut self, now: Instant) {
        let State {
            queue_pairs,
            common,
        } = self;
        let mut looks = common.cold.looks_due(now);
        while let Some(qp_index) = common.cold.find(&mut looks) {
            if let Some(qp) = queue_pairs.get_mut(qp_index as usize) {
                qp.make_hot_again(&mut common.hot, &mut common.cold);
            }
        }
    }

    /// Removes the ready bits of a peer that has gone, after taking them: its last messages may lie
    /// in cold rings.
    pub(crate) fn forget_ready_peer(&mut self, gid: &Gid) -> Option<ReadyPeer> {
        self.handle_all_ready_bits();
        if self.common.is_asleep() {
            self.stay_asleep();
        }
        self.settle_overrun();
        self.common.ready.remove(gid)
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
        let rings = qp.link.rings_mut();
        let is_cold = rings.is_some_and(|rings| rings.receiver.try_go_cold());
        if is_cold {
            qp.is_hot = false;
            let ring = common.hot.swap_remove(place);
            common.cold.insert(ring.qp_index, ring.next);
        }
        is_cold
    }

    // ---- for the engine ----

    #[cold]
    #[inline(never)]
    pub(crate) fn mark_attended(&mut self) {
        self.common.pending.remove(Matter::Unattended);
        self.common.notes.sleep.set_attended();
        self.common.tcp.set_watched_by_engine(false);
    }

    /// Handles peers' requests for a context that no thread polls, until nothing is left for the
    /// moment. While this runs, peers need not wake the engine.
    pub(crate) fn handle_unattended(&mut self) {
        if !self.common.pending.has(Matter::Unattended) {
            return;
        }
        self.common.notes.sleep.set_attended();
        for _ in 0..PEER_WAKE_BATCHES {
            if self.progress() == 0 {
                break;
            }
        }
        self.common.notes.sleep.set_unattended();
        self.progress();
        self.common.tcp.set_watched_by_engine(true);
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
            common.notes.sleep.set_unattended();
            if !common.is_asleep() {
                self.end_silence();
            }
        }
        let common = &mut self.common;
        // A thread that sleeps on a completion channel waits for the links itself. The engine is told
        // once, so it is asked for at each tick: it may have found the owner word taken.
        if !is_polled && common.pending.has(Matter::TcpLinks) && !common.is_asleep() {
            common.tcp.set_watched_by_engine(true);
        }
        let received = if is_polled {
            0
        } else {
            self.look_at_cold_rings(now);
            self.progress()
        };
        self.expire_timers(now);
        self.settle_overrun();
        received > 0
    }
}

impl SoftQueuePair {
    pub(crate) fn make_hot(&mut self, common: &mut Common) {
        if let Link::Rings(rings) = &self.link
            && !self.is_hot
        {
            self.is_hot = true;
            let next = rings.receiver.next_message();
            common.hot.push(HotRing::new(next, self.core.index));
        }
    }

    /// Makes a cold ring hot.
    fn make_hot_again(&mut self, hot: &mut Vec<HotRing>, cold: &mut ColdRings) {
        if let Link::Rings(rings) = &self.link
            && let Some(mut next) = cold.remove(self.core.index)
        {
            rings.receiver.go_hot();
            rings.receiver.update(&mut next);
            self.is_hot = true;
            hot.push(HotRing::new(next, self.core.index));
        }
    }

    /// Removes the ring from the lists of hot and of cold rings.
    pub(crate) fn leave_hot(&mut self, common: &mut Common) {
        if self.is_hot {
            self.is_hot = false;
            common.hot.retain(|ring| ring.qp_index != self.core.index);
        }
        common.cold.remove(self.core.index);
    }
}

impl HotRing {
    fn new(next: NextMessage, qp_index: u32) -> Self {
        Self {
            next,
            qp_index,
            empty_polls: 0,
        }
    }
}

/// Makes a cold ring hot, because a peer has set its bit. A peer can set any bit: a bit without a
/// cold ring of that peer behind it is ignored.
fn make_hot_for(
    queue_pairs: &mut Slab<SoftQueuePair>,
    hot: &mut Vec<HotRing>,
    cold: &mut ColdRings,
    gid: &Gid,
    qp_index: usize,
) {
    if let Some(qp) = queue_pairs.get_mut(qp_index)
        && qp.link.rings().is_some_and(|rings| rings.peer.gid == *gid)
    {
        qp.make_hot_again(hot, cold);
    }
}
