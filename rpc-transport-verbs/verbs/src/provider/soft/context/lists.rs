//! The lists of queue pairs of one context that polls and the engine go through.
//!
//! A ring is hot or cold, from INIT→RTR until its queue pair loses it. A hot ring costs each poll a look, and
//! a cold one costs each of its messages an announcement. So a ring is hot while few messages of other rings
//! come between two of its own. With more connections in turn than [`MAX_HOT`], all are cold, and a poll that
//! finds nothing looks at announcements only.

use super::cold_rings::{ColdRing, ColdRings};
use super::link::Rings;
use super::pending::{Matter, Pending};
use crate::member_list::{Listed, MemberList};
use crate::provider::soft::shared::announcements::Announcement;
use crate::provider::soft::shared::commit::Commit;
use crate::provider::soft::shared::ring::NextMessage;
use crate::types::Gid;

/// Maximum number of rings that are polled directly, but for those that have just been connected. Each costs
/// a poll one cached line.
pub(super) const MAX_HOT: usize = 16;
/// A ring goes hot if it is announced with fewer arrivals than this since its last message.
const ARRIVALS_TO_GO_HOT: u64 = MAX_HOT as u64;
/// A ring goes cold when so many arrivals have passed it: twice as many, so that rings in turn do not go to
/// and fro.
const ARRIVALS_TO_GO_COLD: u64 = 2 * ARRIVALS_TO_GO_HOT;
/// Polls that find all hot rings empty and count as one arrival: a ring that has had nothing for 512 polls,
/// some 10 µs and far longer than a response takes, goes cold.
const EMPTY_POLLS_PER_ARRIVAL: u32 = 16;

/// The lists of one context.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    /// The rings that are polled directly.
    pub(crate) hot: Vec<HotRing>,
    /// The rings that are not: their senders announce them.
    pub(crate) cold: ColdRings,
    /// Index in `hot` of the ring that the next poll looks at first.
    pub(crate) first_look: usize,
    /// A clock for the age of rings: messages that were found where there was more than one ring to look at,
    /// and empty polls of several hot rings.
    pub(super) arrivals: u64,
    empty_polls: u32,
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
    /// The arrivals when it last had a message.
    seen: u64,
}

/// What a look has found that expects at most one ring to be polled.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StraightLook {
    Nothing,
    Message(RingPlace, u32, Commit),
    /// Several rings are polled.
    SeveralHot,
}

/// Where a ring is in the lists.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RingPlace {
    /// At this place of `hot`.
    Hot(usize),
    /// The cold ring of the queue pair with this index.
    Cold(u32),
}

impl Lists {
    /// Returns where the next message of a ring will appear.
    #[inline(always)]
    pub(crate) fn next_of(&mut self, place: RingPlace) -> &mut NextMessage {
        match place {
            RingPlace::Hot(place) => &mut self.hot[place].next,
            RingPlace::Cold(qp_index) => self.cold.next_of(qp_index),
        }
    }

    /// Looks at the announced rings, and at the hot one if there is only one.
    #[inline]
    pub(crate) fn look_straight(&mut self) -> StraightLook {
        if let Some((qp_index, commit)) = self.cold.next_announced() {
            return StraightLook::Message(RingPlace::Cold(qp_index), qp_index, commit);
        }
        match &*self.hot {
            [] => StraightLook::Nothing,
            [ring] => match ring.next.look() {
                Some(commit) => StraightLook::Message(RingPlace::Hot(0), ring.qp_index, commit),
                None => StraightLook::Nothing,
            },
            _ => StraightLook::SeveralHot,
        }
    }

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
        if let Some(ColdRing { mut next, .. }) = self.cold.remove(qp_index) {
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
            seen: self.arrivals,
        });
    }

    /// Moves the hot ring at this place to the cold ones. The last hot ring takes its place.
    pub(crate) fn make_cold(&mut self, place: usize, sender: Gid) {
        let ring = self.hot.swap_remove(place);
        let cold = ColdRing::new(ring.next, sender, ring.seen);
        self.cold.insert(ring.qp_index, cold);
    }

    /// Has polls look at what `sender` has announced. It can announce any ring: those that are not its own cold
    /// rings are ignored.
    #[inline]
    pub(crate) fn announced(&mut self, sender: &Gid, found: Announcement) {
        let Announcement::Ring(qp_index) = found else {
            return self.cold.owe_all();
        };
        let Some(ring) = self.cold.get_mut(qp_index) else {
            return;
        };
        if ring.sender == *sender {
            ring.is_recent = self.arrivals - ring.seen < ARRIVALS_TO_GO_HOT;
            self.arrivals += 1;
            ring.seen = self.arrivals;
            self.cold.announce(qp_index);
        }
    }

    /// Notes that a message was taken from a ring. A cold one may go hot.
    #[inline]
    pub(crate) fn taken(&mut self, place: RingPlace, rings: &Rings) {
        match place {
            RingPlace::Hot(place) => self.arrived(place),
            RingPlace::Cold(qp_index) => {
                if self.cold.end_turn() && self.hot.len() < MAX_HOT {
                    self.make_hot(rings, qp_index);
                }
            }
        }
    }

    /// Notes that a message was found in the hot ring at this place.
    #[inline]
    pub(crate) fn arrived(&mut self, place: usize) {
        self.arrivals += 1;
        self.hot[place].seen = self.arrivals;
    }

    /// Notes that a poll has found all hot rings empty.
    #[inline]
    pub(crate) fn found_none(&mut self) {
        self.empty_polls += 1;
        if self.empty_polls == EMPTY_POLLS_PER_ARRIVAL {
            self.empty_polls = 0;
            self.arrivals += 1;
        }
    }

    /// Returns true if a hot ring that was found empty is to stay hot.
    #[inline]
    pub(crate) fn is_recent(&self, place: usize) -> bool {
        match self.hot.len() {
            // It delays no other.
            0 | 1 => true,
            2..=MAX_HOT => self.arrivals - self.hot[place].seen < ARRIVALS_TO_GO_COLD,
            _ => false,
        }
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
