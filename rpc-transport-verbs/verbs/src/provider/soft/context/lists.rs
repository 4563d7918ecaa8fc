//! The lists of queue pairs of one context that polls and the engine go through.

use super::cold_rings::ColdRings;
use super::link::Rings;
use super::pending::{Matter, Pending};
use crate::member_list::{Listed, MemberList};
use crate::provider::soft::shared::ring::NextMessage;

/// The lists of one context. A ring is hot or cold, from INIT→RTR until its queue pair loses it.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    /// The rings that are polled directly.
    pub(crate) hot: Vec<HotRing>,
    /// The rings that are not: their senders announce messages by ready bits.
    pub(crate) cold: ColdRings,
    /// Index in `hot` of the ring that the next poll looks at first.
    pub(crate) first_look: usize,
    /// Queue pairs with something that a poll has to wait for: a signaled send, a send that found
    /// no room, a pause that the receiver asked for, a failure that has to complete in order, or the
    /// end of what is in flight. The matter `Awaiting` is pending
    /// exactly while there are any.
    pub(crate) awaiting: MemberList<0>,
    /// Queue pairs with unacknowledged sends, signaled or not; the engine checks them at each tick.
    pub(crate) unacked: MemberList<1>,
}

/// A ring that is polled directly.
#[derive(Debug)]
pub(crate) struct HotRing {
    /// Where the ring's next message will appear. The code that takes messages keeps it in step
    /// with the queue pair's receiver.
    pub(crate) next: NextMessage,
    pub(crate) qp_index: u32,
    /// Consecutive polls that found the ring empty.
    pub(crate) empty_polls: u32,
}

impl Lists {
    /// Has polls look for progress of a queue pair's sends.
    #[cold]
    #[inline(never)]
    pub(crate) fn await_progress(
        &mut self,
        pending: &mut Pending,
        listed: &mut Listed,
        qp_index: u32,
    ) {
        if self.awaiting.insert(listed, qp_index) {
            pending.add(Matter::Awaiting);
        }
    }

    /// Ends that for the queue pair at this place of the list.
    #[inline]
    pub(crate) fn await_no_more(
        &mut self,
        pending: &mut Pending,
        place: usize,
        listed: &mut Listed,
    ) {
        self.awaiting.remove_at(place, listed);
        if self.awaiting.is_empty() {
            pending.remove(Matter::Awaiting);
        }
    }

    /// Does the same for an index at this place that has no queue pair.
    #[cold]
    pub(crate) fn await_nobody(&mut self, pending: &mut Pending, place: usize) {
        self.awaiting.discard_at(place);
        if self.awaiting.is_empty() {
            pending.remove(Matter::Awaiting);
        }
    }

    /// Adds the ring of a queue pair, which has just got it.
    pub(crate) fn add_ring(&mut self, rings: &Rings, qp_index: u32) {
        self.push_hot(rings.receiver.next_message(), qp_index);
    }

    /// Makes a cold ring hot. Does nothing with another.
    pub(crate) fn make_hot(&mut self, rings: &Rings, qp_index: u32) {
        if let Some(mut next) = self.cold.remove(qp_index) {
            rings.receiver.go_hot();
            rings.receiver.update(&mut next);
            self.push_hot(next, qp_index);
        }
    }

    fn push_hot(&mut self, next: NextMessage, qp_index: u32) {
        debug_assert!(
            self.hot.iter().all(|ring| ring.qp_index != qp_index),
            "the ring of queue pair {qp_index} is hot already"
        );
        self.hot.push(HotRing {
            next,
            qp_index,
            empty_polls: 0,
        });
    }

    /// Moves the hot ring at this place to the cold ones. The last hot ring takes its place.
    pub(crate) fn make_cold(&mut self, place: usize) {
        let ring = self.hot.swap_remove(place);
        self.cold.insert(ring.qp_index, ring.next);
    }

    /// Removes the ring of a queue pair, which receives nothing more from it.
    pub(crate) fn remove_ring(&mut self, qp_index: u32) {
        self.hot.retain(|ring| ring.qp_index != qp_index);
        self.cold.remove(qp_index);
    }

    /// Removes a queue pair from all lists.
    pub(crate) fn forget(&mut self, pending: &mut Pending, listed: &mut Listed, qp_index: u32) {
        self.remove_ring(qp_index);
        if self.awaiting.remove(listed, qp_index) && self.awaiting.is_empty() {
            pending.remove(Matter::Awaiting);
        }
        self.unacked.remove(listed, qp_index);
    }
}
