//! The cold rings of one context: those that have been announced, and looks that do not depend on
//! their senders.
//!
//! The sender of a cold ring announces it after it has written a message. The announcement is lost if
//! the sender is killed between the two, or if something else writes its page. So polls also look at
//! the cold rings themselves, one poll in 64 at some of them. The number follows the time since the
//! last looks, so that all rings are looked at in [`CIRCLE`], whether a poll takes 50 ns or, with a
//! handler, 5 µs.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::provider::soft::shared::commit::Commit;
use crate::provider::soft::shared::ring::NextMessage;
use crate::types::Gid;

/// Time in which every cold ring is looked at once. A poller that polls every 5 µs makes its looks
/// every 320 µs, so that a message is found within 10 ms. A poller whose polls take longer finds it
/// later: after 128 polls at most. Looks in 600 µs made calls over 1,000
/// connections 3 to 5 % slower.
const CIRCLE: Duration = Duration::from_millis(9);
/// Polls from one that makes looks to the next.
const POLLS_PER_LOOK: u64 = 64;
/// Maximum number of looks of one poll, so that none takes long. It is reached, and
/// `CIRCLE` is not kept, with more than 7,200 cold rings if a poll takes 5 µs.
const MAX_LOOKS: usize = 256;

/// The cold rings of a context.
#[derive(Debug, Default)]
pub(crate) struct ColdRings {
    /// By the index of their queue pair.
    rings: Vec<Option<ColdRing>>,
    count: usize,
    /// The rings that may have messages, each once. Those that have waited longest are first.
    announced: VecDeque<u32>,
    /// The rings that wait for an arena, each once.
    blocked: Vec<u32>,
    /// Index of the ring that is looked at next.
    cursor: usize,
    /// The senders of announcements that were lost.
    owed: VecDeque<Owed>,
    looked_at: Option<Instant>,
    /// The number of the poll that makes the next looks.
    look_due: u64,
}

/// A search for the messages of a sender's rings. It passes all rings once from the last loss on.
#[derive(Debug)]
struct Owed {
    sender: Gid,
    /// Index of the ring that is looked at next.
    next: usize,
    /// How many rings are left to look at.
    left: usize,
}

/// A ring that is not polled.
#[derive(Debug)]
pub(crate) struct ColdRing {
    /// Where the ring's next message will appear.
    pub(super) next: NextMessage,
    /// The process that may announce the ring.
    pub(super) sender: Gid,
    /// The [`arrivals`](super::lists::Lists::arrivals) when a message was last taken from the ring.
    pub(super) seen: u64,
    wait: Wait,
    /// Few arrivals had passed it when it was announced: it is to be polled directly.
    is_recent: bool,
}

/// What a cold ring waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// An announcement.
    Announcement,
    /// Its turn: it is in the queue of announced rings.
    Turn,
    /// An arena that its next message names. Nothing else has it looked at: a peer may never send the arena.
    Arena,
}

impl ColdRing {
    pub(crate) fn new(next: NextMessage, sender: Gid, seen: u64) -> Self {
        Self {
            next,
            sender,
            seen,
            wait: Wait::Announcement,
            is_recent: false,
        }
    }
}

impl ColdRings {
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns true if the ring of this queue pair is cold.
    pub(super) fn contains(&self, qp_index: u32) -> bool {
        self.rings
            .get(qp_index as usize)
            .is_some_and(Option::is_some)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, qp_index: u32) -> Option<&mut ColdRing> {
        self.rings.get_mut(qp_index as usize)?.as_mut()
    }

    /// Returns where the next message of a cold ring will appear.
    #[inline]
    pub(super) fn next_of(&mut self, qp_index: u32) -> &mut NextMessage {
        let ring = self.rings[qp_index as usize].as_mut();
        &mut ring.expect("a look has found a message in it").next
    }

    /// Makes room for the rings of queue pairs with indices below `end`, so that a ring that goes
    /// cold, or is announced, allocates nothing.
    pub(crate) fn make_room(&mut self, end: usize) {
        if self.rings.len() < end {
            self.rings.resize_with(end, || None);
            self.announced.reserve(end - self.announced.len());
            self.blocked.reserve(end - self.blocked.len());
        }
    }

    /// Inserts a ring, for which room was made.
    pub(super) fn insert(&mut self, qp_index: u32, ring: ColdRing) {
        if self.rings[qp_index as usize].replace(ring).is_none() {
            self.count += 1;
        }
    }

    pub(super) fn remove(&mut self, qp_index: u32) -> Option<ColdRing> {
        let ring = self.rings.get_mut(qp_index as usize)?.take()?;
        self.count -= 1;
        match ring.wait {
            Wait::Announcement => {}
            Wait::Turn => self.announced.retain(|&announced| announced != qp_index),
            Wait::Arena => self.blocked.retain(|&blocked| blocked != qp_index),
        }
        Some(ring)
    }

    /// Has [`next_announced`](Self::next_announced) look at a ring, unless it waits for that or for an arena.
    #[inline]
    pub(super) fn announce(&mut self, qp_index: u32, is_recent: bool) {
        if let Some(ring) = self.get_mut(qp_index)
            && ring.wait == Wait::Announcement
        {
            ring.wait = Wait::Turn;
            ring.is_recent = is_recent;
            ring.next.prefetch();
            self.announced.push_back(qp_index);
        }
    }

    /// Returns the announced ring that has waited longest and has a message, and its commit.
    #[inline]
    pub(crate) fn next_announced(&mut self) -> Option<(u32, Commit)> {
        while let Some(&qp_index) = self.announced.front() {
            // A ring that is removed is removed from the queue as well.
            if let Some(ring) = self.get_mut(qp_index) {
                if let Some(commit) = ring.next.look() {
                    return Some((qp_index, commit));
                }
                ring.wait = Wait::Announcement;
            }
            self.announced.pop_front();
        }
        None
    }

    /// Returns true if rings wait for `next_announced`.
    #[inline]
    pub(crate) fn has_announced(&self) -> bool {
        !self.announced.is_empty()
    }

    pub(crate) fn count_announced(&self) -> usize {
        self.announced.len()
    }

    /// Ends the turn of the ring that `next_announced` has returned, of which one message was taken. Returns
    /// true if the ring is to be polled directly, for which there is room.
    #[inline]
    pub(super) fn end_turn(&mut self, arrivals: u64, has_room: bool) -> bool {
        let Some(qp_index) = self.announced.pop_front() else {
            return false;
        };
        let Some(ring) = self.get_mut(qp_index) else {
            return false;
        };
        ring.seen = arrivals;
        let goes_hot = ring.is_recent && has_room;
        if !goes_hot && ring.next.has_come() {
            self.announced.push_back(qp_index);
        } else {
            ring.wait = Wait::Announcement;
        }
        goes_hot
    }

    /// Takes the ring that `next_announced` has returned out of the queue.
    pub(super) fn put_off(&mut self) {
        if let Some(qp_index) = self.announced.pop_front()
            && let Some(ring) = self.get_mut(qp_index)
        {
            ring.wait = Wait::Announcement;
        }
    }

    /// Has a ring, which is not announced, wait for an arena.
    pub(crate) fn block(&mut self, qp_index: u32) {
        if let Some(ring) = self.get_mut(qp_index) {
            debug_assert_eq!(ring.wait, Wait::Announcement);
            ring.wait = Wait::Arena;
            self.blocked.push(qp_index);
        }
    }

    /// Takes one ring out of those that wait for an arena. Returns the index of its queue pair.
    pub(super) fn pop_blocked(&mut self) -> Option<u32> {
        let qp_index = self.blocked.pop()?;
        if let Some(ring) = self.get_mut(qp_index) {
            ring.wait = Wait::Announcement;
        }
        Some(qp_index)
    }

    /// Has later looks go to all rings of a sender, of which announcements were lost.
    #[cold]
    #[inline(never)]
    pub(crate) fn owe(&mut self, sender: &Gid) {
        let left = self.rings.len();
        match self.owed.iter_mut().find(|owed| owed.sender == *sender) {
            // A search that began again with each loss would never reach the last rings.
            Some(owed) => owed.left = left,
            None => self.owed.push_back(Owed {
                sender: *sender,
                next: 0,
                left,
            }),
        }
    }

    /// Makes all looks that are owed.
    pub(crate) fn look_at_owed(&mut self) {
        while !self.owed.is_empty() {
            self.look_at_some_owed(usize::MAX);
        }
    }

    /// Goes on with the looks that are owed for one sender, with at most so many rings.
    fn look_at_some_owed(&mut self, most: usize) {
        let Some(mut owed) = self.owed.pop_front() else {
            return;
        };
        let looks = owed.left.min(most);
        for _ in 0..looks {
            if owed.next >= self.rings.len() {
                owed.next = 0;
            }
            if let Some(Some(ring)) = self.rings.get(owed.next)
                && ring.sender == owed.sender
            {
                self.look_at(owed.next);
            }
            owed.next += 1;
        }
        owed.left -= looks;
        if owed.left > 0 {
            self.owed.push_back(owed);
        }
    }

    /// Returns true if the poll with this number is to look at some rings.
    #[inline(always)]
    pub(crate) fn is_look_due(&self, polls: u64) -> bool {
        polls >= self.look_due
    }

    /// Looks at as many rings as are due, and announces those that have a message. The next looks are due some
    /// polls later.
    #[cold]
    #[inline(never)]
    pub(crate) fn look(&mut self, polls: u64, now: Instant) {
        self.look_due = polls + POLLS_PER_LOOK;
        for _ in 0..self.looks_due(now) {
            if self.cursor >= self.rings.len() {
                self.cursor = 0;
            }
            self.look_at(self.cursor);
            self.cursor += 1;
        }
        self.look_at_some_owed(MAX_LOOKS);
    }

    /// Returns the number of looks that are due, which is at most the number of rings.
    fn looks_due(&mut self, now: Instant) -> usize {
        let last = self.looked_at.replace(now).unwrap_or(now);
        let elapsed = now.saturating_duration_since(last).min(CIRCLE);
        // Both casts are lossless: the time is at most CIRCLE. Rounded up, so that every call makes a look,
        // if there is a ring.
        let due = self.rings.len() as u64 * elapsed.as_nanos() as u64 / CIRCLE.as_nanos() as u64;
        (due as usize + 1).min(self.rings.len()).min(MAX_LOOKS)
    }

    fn look_at(&mut self, index: usize) {
        if let Some(Some(ring)) = self.rings.get(index)
            && ring.wait == Wait::Announcement
            && ring.next.has_come()
        {
            // The cast is lossless: it was inserted with such an index.
            self.announce(index as u32, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::soft::shared::ring::RingReceiver;

    fn cold_ring(receiver: &RingReceiver) -> ColdRing {
        ColdRing::new(receiver.next_message(), Gid::default(), 0)
    }

    /// Counts the time until a ring is found at its worst, for polls of a given length.
    fn time_to_find(rings: u32, poll: Duration) -> Duration {
        let mut cold = ColdRings::default();
        cold.make_room(rings as usize);
        // The silent rings are one, so that a test with thousands of them needs two files.
        let [receiver, silent] = [(); 2].map(|()| RingReceiver::new(0, false).unwrap());
        cold.insert(0, cold_ring(&receiver));
        for index in 1..rings {
            cold.insert(index, cold_ring(&silent));
        }
        let start = Instant::now();
        let mut now = start;
        cold.look(0, now);
        // A message comes to the ring that was just looked at.
        cold.cursor = 1;
        receiver.commit_for_tests();
        loop {
            now += poll * 64;
            cold.look(0, now);
            if cold.next_announced().is_some() {
                return now - start;
            }
        }
    }

    #[test]
    fn a_message_that_nothing_announces_is_found_within_ten_milliseconds() {
        let limit = Duration::from_millis(10);
        for (rings, poll) in [(1, 50), (200, 50), (1000, 50), (1000, 1000), (7_200, 5_000)] {
            let time = time_to_find(rings, Duration::from_nanos(poll));
            assert!(time <= limit, "{rings} rings, {poll} ns: {time:?}");
        }
    }

    #[test]
    fn looks_are_bounded_whatever_the_time() {
        let mut cold = ColdRings::default();
        let receiver = RingReceiver::new(0, false).unwrap();
        cold.make_room(30_001);
        cold.insert(30_000, cold_ring(&receiver));
        let now = Instant::now();
        assert_eq!(cold.looks_due(now), 1);
        assert_eq!(cold.looks_due(now + Duration::from_secs(9)), MAX_LOOKS);
        assert!(cold.remove(30_000).is_some() && cold.is_empty());
        assert!(cold.remove(30_000).is_none() && cold.remove(90_000).is_none());
    }

    #[test]
    fn looks_that_are_owed_go_to_all_rings_of_that_sender_and_to_no_other() {
        const RINGS: usize = MAX_LOOKS + 2;
        let receiver = RingReceiver::new(0, false).unwrap();
        receiver.commit_for_tests();
        let senders = [Gid([1; 16]), Gid([2; 16])];
        let mut cold = ColdRings::default();
        cold.make_room(RINGS);
        for index in [0, 1, RINGS - 2, RINGS - 1] {
            let ring = ColdRing::new(receiver.next_message(), senders[index % 2], 0);
            cold.insert(index as u32, ring);
        }
        cold.owe(&senders[1]);
        cold.look_at_some_owed(MAX_LOOKS);
        assert_eq!(cold.announced, [1]);
        cold.look_at_some_owed(MAX_LOOKS);
        assert_eq!(cold.announced, [1, RINGS as u32 - 1]);
        assert!(cold.owed.is_empty());
        cold.owe(&senders[0]);
        cold.look_at_owed();
        let all = [1, RINGS as u32 - 1, 0, RINGS as u32 - 2];
        assert_eq!(cold.announced, all);
    }

    #[test]
    fn looks_that_are_owed_again_and_again_reach_the_last_ring() {
        let receiver = RingReceiver::new(0, false).unwrap();
        receiver.commit_for_tests();
        let mut cold = ColdRings::default();
        cold.make_room(MAX_LOOKS + 1);
        cold.insert(MAX_LOOKS as u32, cold_ring(&receiver));
        for _ in 0..2 {
            cold.owe(&Gid::default());
            cold.look_at_some_owed(MAX_LOOKS);
        }
        assert_eq!(cold.announced, [MAX_LOOKS as u32]);
        cold.look_at_owed();
        assert!(cold.owed.is_empty());
    }
}
