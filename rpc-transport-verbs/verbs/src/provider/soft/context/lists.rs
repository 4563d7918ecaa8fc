//! The lists of queue pairs of one context that polls and the engine go through.
//!
//! A ring is hot or cold, from INIT→RTR until its queue pair loses it. A hot ring costs each poll a look, and
//! a cold one costs each of its messages an announcement. So a ring is hot while few messages of other rings
//! come between two of its own. With twice as many connections in turn as [`MAX_HOT`], all are cold, and a poll
//! that finds nothing looks at announcements only.

use super::cold_rings::{ColdRing, ColdRings};
use super::link::{Link, Rings};
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
    /// A clock for the age of rings: messages that were taken where there was more than one ring to look at,
    /// and empty polls of several hot rings. What is only announced does not count: a peer would age the
    /// rings of others.
    pub(super) arrivals: u64,
    /// Polls that found all of several hot rings empty, since such polls last counted as an arrival.
    empty_polls: u32,
    /// Messages that may still be taken from announced rings and from hot ones, before the others come first:
    /// in each round one for each ring.
    cold_turns: usize,
    hot_turns: usize,
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

/// A message that a look has found: its ring, the index of the ring's queue pair, and its commit.
pub(crate) type Found = (RingPlace, u32, Commit);

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

    /// Looks at the announced rings, and at the hot one, which is the only one.
    #[inline]
    pub(crate) fn look_straight(&mut self) -> Option<Found> {
        debug_assert!(self.hot.len() <= 1);
        match self.is_turn_of_cold() {
            true => self.look_at_announced().or_else(|| self.look_at_only_hot()),
            false => self.look_at_only_hot().or_else(|| self.look_at_announced()),
        }
    }

    #[inline]
    pub(crate) fn look_at_announced(&mut self) -> Option<Found> {
        let Some((qp_index, commit)) = self.cold.next_announced() else {
            self.cold_turns = 0;
            return None;
        };
        Some((RingPlace::Cold(qp_index), qp_index, commit))
    }

    fn look_at_only_hot(&mut self) -> Option<Found> {
        let found = self.hot.first().and_then(|ring| {
            let commit = ring.next.look()?;
            Some((RingPlace::Hot(0), ring.qp_index, commit))
        });
        if found.is_none() {
            self.hot_turns = 0;
        }
        found
    }

    /// Returns true if announced rings are to be looked at before hot ones.
    #[inline]
    pub(crate) fn is_turn_of_cold(&mut self) -> bool {
        if self.cold_turns == 0 && self.hot_turns == 0 {
            self.cold_turns = self.cold.count_announced();
            self.hot_turns = self.hot.len();
        }
        self.cold_turns > 0
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
    fn make_hot(&mut self, rings: &Rings, qp_index: u32) {
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
            return self.cold.owe(sender);
        };
        let Some(ring) = self.cold.get_mut(qp_index) else {
            return;
        };
        if ring.sender == *sender {
            let is_recent = self.arrivals - ring.seen < ARRIVALS_TO_GO_HOT;
            self.cold.announce(qp_index, is_recent);
        }
    }

    /// Has polls look at the blocked rings.
    pub(crate) fn unblock(&mut self) {
        while let Some(qp_index) = self.cold.pop_blocked() {
            self.cold.announce(qp_index, false);
        }
    }

    /// Notes that messages were taken from the ring of a queue pair with this link, which may go hot.
    #[inline(always)]
    pub(crate) fn taken_from(&mut self, place: RingPlace, qp_index: u32, link: &Link) {
        if self.taken(place)
            && let Some(rings) = link.rings()
        {
            self.make_hot(rings, qp_index);
        }
    }

    /// Notes that a message was taken from a ring. Returns true if it is a cold one that is to go hot.
    #[inline]
    fn taken(&mut self, place: RingPlace) -> bool {
        match place {
            RingPlace::Hot(place) => {
                self.taken_from_hot(place);
                false
            }
            RingPlace::Cold(_) => {
                self.end_cold_turn();
                self.arrivals += 1;
                self.cold.end_turn(self.arrivals, self.hot.len() < MAX_HOT)
            }
        }
    }

    /// Notes that the announced ring that `look_at_announced` has returned had its turn, and that nothing was
    /// received from it. It is not announced any more.
    pub(crate) fn put_off_announced(&mut self) {
        self.end_cold_turn();
        self.cold.put_off();
    }

    /// Notes that an announced ring had its turn.
    #[inline]
    pub(crate) fn end_cold_turn(&mut self) {
        self.cold_turns = self.cold_turns.saturating_sub(1);
    }

    /// Notes that a hot ring had its turn, whether or not its message could be received.
    #[inline]
    pub(crate) fn end_hot_turn(&mut self) {
        self.hot_turns = self.hot_turns.saturating_sub(1);
    }

    /// Notes that a message is taken from the hot ring at this place.
    #[inline]
    fn taken_from_hot(&mut self, place: usize) {
        self.end_hot_turn();
        self.arrived(place);
        if self.cold.has_announced() {
            // The next turn is that of another hot ring.
            self.first_look += 1;
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
        self.hot_turns = 0;
        self.empty_polls += u32::from(self.hot.len() > 1);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::soft::shared::ring::RingReceiver;

    const SENDER: Gid = Gid([1; 16]);

    /// Rings, the first of which are hot, and the receivers that keep them.
    fn lists(hot: u32, cold: u32) -> (Lists, Vec<RingReceiver>) {
        let (mut lists, mut receivers) = (Lists::default(), Vec::new());
        lists.cold.make_room((hot + cold) as usize);
        for qp_index in 0..hot + cold {
            let receiver = RingReceiver::new(0, false).unwrap();
            let next = receiver.next_message();
            match qp_index < hot {
                true => lists.push_hot(next, qp_index),
                false => lists
                    .cold
                    .insert(qp_index, ColdRing::new(next, SENDER, lists.arrivals)),
            }
            receivers.push(receiver);
        }
        (lists, receivers)
    }

    #[test]
    fn a_hot_ring_and_announced_ones_take_turns_while_all_have_messages() {
        let (mut lists, receivers) = lists(1, 3);
        lists.arrivals = 1000;
        for (qp_index, receiver) in receivers.iter().enumerate() {
            receiver.commit_for_tests();
            lists.announced(&SENDER, Announcement::Ring(qp_index as u32));
        }
        let mut taken = [0; 4];
        for _ in 0..40 {
            let (place, qp_index, _) = lists.look_straight().expect("a ring has a message");
            taken[qp_index as usize] += 1;
            lists.taken(place);
        }
        assert_eq!(taken, [10; 4]);
    }

    #[test]
    fn what_others_announce_or_nobody_has_is_ignored() {
        let (mut lists, receivers) = lists(1, 1);
        receivers[1].commit_for_tests();
        for ring in [0, 2, 32_767] {
            lists.announced(&SENDER, Announcement::Ring(ring));
        }
        lists.announced(&Gid([2; 16]), Announcement::Ring(1));
        assert!(lists.look_straight().is_none());
        lists.announced(&SENDER, Announcement::Ring(1));
        assert!(matches!(
            lists.look_straight(),
            Some((RingPlace::Cold(1), 1, _))
        ));
    }

    #[test]
    fn only_an_arena_has_a_blocked_ring_looked_at() {
        let (mut lists, receivers) = lists(0, 2);
        for (qp_index, receiver) in receivers.iter().enumerate() {
            receiver.commit_for_tests();
            lists.cold.block(qp_index as u32);
            lists.announced(&SENDER, Announcement::Ring(qp_index as u32));
        }
        lists.cold.owe(&SENDER);
        lists.cold.look_at_owed();
        assert!(lists.look_at_announced().is_none());
        lists.remove_ring(0);
        lists.unblock();
        assert!(matches!(lists.look_at_announced(), Some((_, 1, _))));
        lists.put_off_announced();
        assert!(lists.look_at_announced().is_none());
    }

    /// Takes messages of announced rings in turn, each announced twice as in a burst. Returns how many were to
    /// make their ring hot.
    fn going_hot(rings: u32) -> usize {
        let (mut lists, receivers) = lists(0, rings);
        lists.arrivals = 1000;
        let mut count = 0;
        for turn in 0..4 * rings {
            let qp_index = turn % rings;
            let receiver = &receivers[qp_index as usize];
            if turn < rings {
                receiver.commit_for_tests();
            }
            lists.announced(&SENDER, Announcement::Ring(qp_index));
            lists.announced(&SENDER, Announcement::Ring(qp_index));
            let found = lists.look_straight();
            assert!(found.is_some_and(|(_, found, _)| found == qp_index));
            count += usize::from(lists.taken(RingPlace::Cold(qp_index)));
            // It is left cold, and without an announcement.
            if lists.look_at_announced().is_some() {
                lists.put_off_announced();
            }
        }
        count
    }

    #[test]
    fn rings_go_hot_if_few_take_turns() {
        // Not the first message of each.
        assert_eq!(going_hot(8), 24);
        assert_eq!(going_hot(64), 0);
    }

    /// A peer that announces without end, and sends nothing, makes no other ring older.
    #[test]
    fn announcements_without_messages_age_nobody() {
        let (mut lists, _receivers) = lists(2, 1);
        for _ in 0..1000 {
            lists.announced(&SENDER, Announcement::Ring(2));
            assert!(lists.look_at_announced().is_none());
        }
        assert!(lists.is_recent(0) && lists.is_recent(1));
    }

    /// Each hot ring has a turn in each round, whatever the numbers.
    #[test]
    fn hot_rings_advance_while_others_are_announced() {
        let (mut lists, receivers) = lists(2, 32);
        lists.arrivals = 1000;
        for (qp_index, receiver) in receivers.iter().enumerate() {
            receiver.commit_for_tests();
            lists.announced(&SENDER, Announcement::Ring(qp_index as u32));
        }
        let mut taken = [0; 34];
        for _ in 0..340 {
            let (place, qp_index) = match lists.is_turn_of_cold() {
                true => {
                    let found = lists.look_at_announced().expect("all have messages");
                    (found.0, found.1)
                }
                false => {
                    let place = lists.first_look % 2;
                    (RingPlace::Hot(place), lists.hot[place].qp_index)
                }
            };
            taken[qp_index as usize] += 1;
            lists.taken(place);
        }
        assert_eq!(taken, [10; 34]);
    }

    #[test]
    fn a_ring_that_others_outpace_goes_cold_and_a_lone_one_does_not() {
        let (mut two, _receivers) = lists(2, 0);
        for _ in 1..ARRIVALS_TO_GO_COLD {
            two.arrived(0);
        }
        assert!(two.is_recent(1));
        two.arrived(0);
        assert!(two.is_recent(0) && !two.is_recent(1));
        let (mut idle, _receivers) = lists(2, 0);
        for _ in 0..512 {
            idle.found_none();
        }
        assert!(!idle.is_recent(0));
        let (many, _receivers) = lists(MAX_HOT as u32 + 1, 0);
        assert!(!many.is_recent(0));
        let (mut lone, _receivers) = lists(1, 0);
        (0..512).for_each(|_| lone.found_none());
        assert!(lone.is_recent(0));
    }
}
