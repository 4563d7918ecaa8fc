//! The cold rings of one context: those that have been announced, and looks that do not depend on
//! their senders.
//!
//! The sender of a cold ring announces it after it has written a message. The announcement is lost if
//! the sender is killed between the two, or if something else writes its page. So polls also look at
//! the cold rings themselves, one in 64 at some of them. The number
//! follows the time since the last looks, so that all rings are looked at in [`CIRCLE`], whether a
//! poll takes 50 ns or, with a handler, 5 µs.

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
    /// Index of the ring that is looked at next.
    cursor: usize,
    /// Looks that are due whatever the time, because announcements were lost.
    owed: usize,
    looked_at: Option<Instant>,
}

/// A ring that is not polled.
#[derive(Debug)]
pub(crate) struct ColdRing {
    /// Where the ring's next message will appear.
    pub(super) next: NextMessage,
    /// The process that may announce the ring.
    pub(super) sender: Gid,
    /// The [`arrivals`](super::lists::Lists::arrivals) when the ring was last announced.
    pub(super) seen: u64,
    /// Few arrivals have passed it since: it is to be polled directly.
    pub(super) is_recent: bool,
    is_announced: bool,
}

impl ColdRing {
    pub(crate) fn new(next: NextMessage, sender: Gid, seen: u64) -> Self {
        Self {
            next,
            sender,
            seen,
            is_recent: false,
            is_announced: false,
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

    /// Returns where the next message of a ring will appear, which is cold.
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
        if ring.is_announced {
            self.announced.retain(|&announced| announced != qp_index);
        }
        Some(ring)
    }

    /// Has [`next_announced`](Self::next_announced) look at a ring.
    #[inline]
    pub(super) fn announce(&mut self, qp_index: u32) {
        if let Some(ring) = self.get_mut(qp_index)
            && !ring.is_announced
        {
            ring.is_announced = true;
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
                ring.is_announced = false;
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

    pub(super) fn count_announced(&self) -> usize {
        self.announced.len()
    }

    /// Ends the turn of the ring that `next_announced` has returned, of which one message was taken. Returns
    /// true if the ring is to be polled directly.
    #[inline]
    pub(super) fn end_turn(&mut self) -> bool {
        let Some(qp_index) = self.announced.pop_front() else {
            return false;
        };
        let Some(ring) = self.get_mut(qp_index) else {
            return false;
        };
        let (has_more, is_recent) = (ring.next.has_come(), ring.is_recent);
        ring.is_announced = has_more;
        if has_more {
            self.announced.push_back(qp_index);
        }
        is_recent
    }

    /// Has the next looks go to all rings, because announcements were lost.
    #[cold]
    pub(super) fn owe_all(&mut self) {
        self.owed = self.rings.len();
    }

    /// Makes the looks that are owed, at once.
    pub(crate) fn look_at_owed(&mut self) {
        if std::mem::take(&mut self.owed) > 0 {
            for index in 0..self.rings.len() {
                self.look_at(index);
            }
        }
    }

    /// Looks at as many rings as are due, and announces those that have a message.
    pub(crate) fn look(&mut self, now: Instant) {
        let looks = self.looks_due(now);
        self.owed = self.owed.saturating_sub(looks);
        for _ in 0..looks {
            if self.cursor >= self.rings.len() {
                self.cursor = 0;
            }
            self.look_at(self.cursor);
            self.cursor += 1;
        }
    }

    /// Returns the number of looks that are due, which is at most the number of rings.
    fn looks_due(&mut self, now: Instant) -> usize {
        let last = self.looked_at.replace(now).unwrap_or(now);
        let elapsed = now.saturating_duration_since(last).min(CIRCLE);
        // Both casts are lossless: the time is at most CIRCLE. Rounded up, so that every call makes a look.
        let due = self.rings.len() as u64 * elapsed.as_nanos() as u64 / CIRCLE.as_nanos() as u64;
        (due as usize + 1).max(self.owed).min(MAX_LOOKS)
    }

    fn look_at(&mut self, index: usize) {
        if let Some(Some(ring)) = self.rings.get(index)
            && ring.next.has_come()
        {
            // The cast is lossless: it was inserted with such an index.
            self.announce(index as u32);
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
        let receivers: Vec<_> = (0..rings)
            .map(|_| RingReceiver::new(0, false).unwrap())
            .collect();
        for (index, receiver) in receivers.iter().enumerate() {
            cold.insert(index as u32, cold_ring(receiver));
        }
        let start = Instant::now();
        let mut now = start;
        cold.look(now);
        // A message comes to the ring that was just looked at.
        cold.cursor = 1;
        receivers[0].commit_for_tests();
        loop {
            now += poll * 64;
            cold.look(now);
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
}
