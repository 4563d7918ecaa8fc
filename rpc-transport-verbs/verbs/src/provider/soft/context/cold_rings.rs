//! The cold rings of one context, and looks at them that do not depend on their senders.
//!
//! The message of a cold ring is announced by a ready bit, which its sender sets. The announcement
//! is lost if the sender is killed between the message and the bit, or if something else clears the
//! bit. So polls also look at the cold rings themselves, at some of them between two rounds of
//! looks at ready bits. The number follows the time since the last looks, so that all rings are
//! looked at in [`CIRCLE`], whether a poll takes 50 ns or, with a handler, 5 µs.

use std::time::{Duration, Instant};

use crate::provider::soft::shared::ring::NextMessage;

/// Time in which every cold ring is looked at once. A poller that polls every 5 µs makes its looks
/// every 320 µs, so that a message is found within 1 ms. A poller whose polls take longer finds it
/// later: after as many polls as two rounds have, at most 128.
const CIRCLE: Duration = Duration::from_micros(600);
/// Maximum number of looks between two rounds, so that no poll takes long. It is reached, and
/// `CIRCLE` is not kept, with more than 480 cold rings if a poll takes 5 µs, and with more than 2400
/// if it takes 1 µs.
const MAX_LOOKS: usize = 256;

/// The cold rings of a context.
#[derive(Debug, Default)]
pub(crate) struct ColdRings {
    /// Where the next message of each ring will appear, by the index of its queue pair.
    rings: Vec<Option<NextMessage>>,
    count: usize,
    /// Index of the ring that is looked at next.
    cursor: usize,
    looked_at: Option<Instant>,
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

    /// Makes room for the rings of queue pairs with indices below `end`, so that a ring that goes
    /// cold allocates nothing.
    pub(crate) fn make_room(&mut self, end: usize) {
        if self.rings.len() < end {
            self.rings.resize_with(end, || None);
        }
    }

    /// Inserts a ring, for which room was made.
    pub(crate) fn insert(&mut self, qp_index: u32, next: NextMessage) {
        if self.rings[qp_index as usize].replace(next).is_none() {
            self.count += 1;
        }
    }

    pub(crate) fn remove(&mut self, qp_index: u32) -> Option<NextMessage> {
        let next = self.rings.get_mut(qp_index as usize)?.take()?;
        self.count -= 1;
        Some(next)
    }

    /// Returns the number of looks that are due.
    pub(crate) fn looks_due(&mut self, now: Instant) -> usize {
        let last = self.looked_at.replace(now).unwrap_or(now);
        let elapsed = now.saturating_duration_since(last).min(CIRCLE).as_nanos();
        // At most the number of rings; rounded up, so that every call makes one look.
        let due = self.rings.len() as u128 * elapsed / CIRCLE.as_nanos();
        (due as usize + 1).min(MAX_LOOKS)
    }

    /// Makes looks until a ring with a message is found, and counts them down. Returns the index of
    /// its queue pair.
    pub(crate) fn find(&mut self, looks: &mut usize) -> Option<u32> {
        while *looks > 0 && !self.rings.is_empty() {
            *looks -= 1;
            let index = self.cursor % self.rings.len();
            self.cursor = index + 1;
            if let Some(next) = &self.rings[index]
                && next.has_come()
            {
                // The cast is lossless: it was inserted with such an index.
                return Some(index as u32);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::soft::shared::ring::RingReceiver;

    /// Counts the time until a ring is found at its worst, for polls of a given length.
    fn time_to_find(rings: u32, poll: Duration) -> Duration {
        let mut cold = ColdRings::default();
        cold.make_room(rings as usize);
        let receivers: Vec<_> = (0..rings)
            .map(|_| RingReceiver::new(0, false).unwrap())
            .collect();
        for (index, receiver) in receivers.iter().enumerate() {
            cold.insert(index as u32, receiver.next_message());
        }
        let start = Instant::now();
        let mut now = start;
        cold.looks_due(now);
        // A message comes to the ring that was just looked at.
        cold.cursor = 1;
        receivers[0].commit_for_tests();
        loop {
            now += poll * 64;
            let mut looks = cold.looks_due(now);
            if cold.find(&mut looks).is_some() {
                return now - start;
            }
        }
    }

    #[test]
    fn a_message_that_nothing_announces_is_found_within_a_millisecond() {
        let limit = Duration::from_millis(1);
        for (rings, poll) in [(1, 50), (200, 50), (1000, 50), (1000, 1000), (480, 5_000)] {
            let time = time_to_find(rings, Duration::from_nanos(poll));
            assert!(time <= limit, "{rings} rings, {poll} ns: {time:?}");
        }
    }

    #[test]
    fn looks_are_bounded_whatever_the_time() {
        let mut cold = ColdRings::default();
        let receiver = RingReceiver::new(0, false).unwrap();
        cold.make_room(30_001);
        cold.insert(30_000, receiver.next_message());
        let now = Instant::now();
        assert_eq!(cold.looks_due(now), 1);
        assert_eq!(cold.looks_due(now + Duration::from_secs(9)), MAX_LOOKS);
        assert!(cold.remove(30_000).is_some() && cold.is_empty());
        assert!(cold.remove(30_000).is_none() && cold.remove(90_000).is_none());
    }
}
