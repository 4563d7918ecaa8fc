//! The send queue of a queue pair.

use std::collections::VecDeque;

use super::general_send::{GeneralSend, InlineBytes};
use crate::provider::work::SendWork;
use crate::types::{CompletionStatus, WrId};

/// A send queue. Requests are numbered from 0 and pass four counters in order.
///
/// ```text
///   freed ≤ acked ≤ started ≤ posted
///     │        │        │        └ next request to be posted
///     │        │        └ next request to be written to the ring
///     │        └ oldest request that the receiver has not acknowledged
///     └ oldest request whose entry of the queue is taken
/// ```
///
/// An entry becomes free only when a completion that covers it has been *polled*. Unsignaled sends
/// that succeed complete nothing, so a queue filled with them is stuck, as on a NIC. This is
/// intended: the mistake then shows on a laptop.
#[derive(Debug)]
pub(crate) struct SendQueue {
    /// As many as were needed so far, a power of two: an idle connection has none.
    entries: Box<[Option<Entry>]>,
    /// How many requests `entries` has room for: at most the capacity.
    room: usize,
    capacity: usize,
    pub(crate) posted: u64,
    pub(crate) started: u64,
    pub(crate) acked: u64,
    freed: u64,
    /// Requests in `acked..posted` that complete even if they succeed.
    pub(crate) signaled: usize,
    /// The requests in `started..posted` of a reliable queue pair with a ring, in order. Over TCP all are
    /// in `general`.
    unwritten: VecDeque<Unwritten>,
    /// Details of the requests other than plain messages of one element, in order; over TCP, of all.
    pub(crate) general: VecDeque<GeneralSend>,
    /// Set if the request at `started` failed locally; it completes after all earlier requests.
    pub(crate) local_failure: Option<CompletionStatus>,
    /// Memory of inline requests that have completed, for the next ones.
    spare_inline: Vec<InlineBytes>,
}

/// Maximum number of inline requests whose memory is kept.
const MAX_SPARE_INLINE: usize = 8;

/// Entries that the first request allocates. They double until all requests find one that are posted before
/// a completion is polled; after that nothing is allocated.
const FIRST_ENTRIES: usize = 16;

/// What the completion of a request needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) wr_id: WrId,
    pub(crate) signaled: bool,
}

/// A request that has not been written to the ring, or only in part.
#[derive(Debug)]
pub(crate) enum Unwritten {
    /// A message of one element, which belongs to the device.
    Plain(SendWork),
    /// An inline message: a copy of its bytes.
    Inline { bytes: Box<[u8]>, solicited: bool },
    /// Any other request: the next one of `SendQueue::general` that has not been written.
    General,
}

/// How far a carrier has come with what it counts requests by: see [`initiator`](super::initiator).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Units {
    /// The first unit that the peer has not acknowledged.
    pub(crate) acked: u64,
    /// The next unit to be taken.
    pub(crate) next: u64,
}

impl SendQueue {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            entries: Box::default(),
            room: 0,
            capacity,
            posted: 0,
            started: 0,
            acked: 0,
            freed: 0,
            signaled: 0,
            unwritten: VecDeque::new(),
            general: VecDeque::new(),
            local_failure: None,
            spare_inline: Vec::new(),
        }
    }

    /// Returns memory for the bytes of an inline request.
    pub(crate) fn inline_bytes(&mut self) -> InlineBytes {
        self.spare_inline.pop().unwrap_or_else(InlineBytes::new)
    }

    /// Returns true if the request with this number completes even if it succeeds.
    pub(crate) fn is_signaled(&self, number: u64) -> bool {
        self.entries[self.index_of(number)].is_some_and(|entry| entry.signaled)
    }

    /// Returns the details of the request with this number, if it has any.
    pub(crate) fn general_at(&self, number: u64) -> Option<&GeneralSend> {
        self.general.get(self.general_index(number)?)
    }

    /// As [`general_at`](Self::general_at), to change them.
    #[inline]
    pub(crate) fn general_at_mut(&mut self, number: u64) -> Option<&mut GeneralSend> {
        let index = self.general_index(number)?;
        self.general.get_mut(index)
    }

    #[inline]
    fn general_index(&self, number: u64) -> Option<usize> {
        let distance = number.checked_sub(self.general.front()?.number)? as usize;
        // Over TCP every request has details, so there are no gaps.
        match self.general.get(distance) {
            Some(send) if send.number == number => Some(distance),
            _ => self.search_general(number),
        }
    }

    #[cold]
    #[inline(never)]
    fn search_general(&self, number: u64) -> Option<usize> {
        let numbered = |send: &GeneralSend| send.number.cmp(&number);
        self.general.binary_search_by(numbered).ok()
    }

    /// Returns the details of the next request to begin, if it has any: of one over TCP, a part may have
    /// been written.
    pub(crate) fn next_general(&self) -> Option<&GeneralSend> {
        self.general_at(self.started)
    }

    /// Drops the details of the request with this number, which has completed.
    #[inline]
    pub(crate) fn forget_general(&mut self, number: u64) {
        if self
            .general
            .front()
            .is_some_and(|send| send.number == number)
        {
            let send = self.general.pop_front();
            if let Some(bytes) = send.and_then(|send| send.inline)
                && self.spare_inline.len() < MAX_SPARE_INLINE
            {
                self.spare_inline.push(bytes);
            }
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    #[inline]
    fn index_of(&self, number: u64) -> usize {
        number as usize & (self.entries.len() - 1)
    }

    /// Makes sure that there is an entry for the next request. Returns false if the queue is full.
    #[inline]
    pub(crate) fn make_room(&mut self) -> bool {
        self.posted - self.freed < self.room as u64 || self.grow()
    }

    /// Doubles the number of entries. Returns false if the capacity is reached.
    #[cold]
    #[inline(never)]
    fn grow(&mut self) -> bool {
        if self.room == self.capacity {
            return false;
        }
        let old = std::mem::take(&mut self.entries);
        let len = (2 * old.len()).max(FIRST_ENTRIES);
        self.entries = vec![None; len.min(self.capacity.next_power_of_two())].into();
        self.room = self.entries.len().min(self.capacity);
        for number in self.freed..self.posted {
            let index = self.index_of(number);
            // The number of entries is a power of two.
            self.entries[index] = old[number as usize & (old.len() - 1)];
        }
        true
    }

    /// Adds a request, for which there is a free entry. The caller writes it at once and increments
    /// `started`, or adds it to the unwritten requests as well.
    #[inline]
    pub(crate) fn add(&mut self, wr_id: WrId, signaled: bool) {
        let index = self.index_of(self.posted);
        self.signaled += usize::from(signaled);
        self.entries[index] = Some(Entry { wr_id, signaled });
        self.posted += 1;
    }

    /// Returns true if every request has been written to the ring; over TCP always.
    #[inline]
    pub(crate) fn is_written(&self) -> bool {
        self.unwritten.is_empty()
    }

    /// Returns how many requests wait to be written to the ring.
    pub(super) fn unwritten_count(&self) -> usize {
        self.unwritten.len()
    }

    /// Returns the number of the oldest request whose entry is taken.
    pub(super) fn freed(&self) -> u64 {
        self.freed
    }

    pub(crate) fn push_unwritten(&mut self, request: Unwritten) {
        self.unwritten.push_back(request);
    }

    /// Returns the oldest request that has not been written.
    pub(crate) fn next_unwritten(&self) -> Option<&Unwritten> {
        self.unwritten.front()
    }

    /// Records that the oldest unwritten request has been written.
    pub(crate) fn set_written(&mut self) {
        self.unwritten.pop_front();
        self.started += 1;
    }

    /// Removes the oldest unacknowledged request, for its completion.
    #[inline]
    pub(crate) fn retire(&mut self) -> Option<(u64, Entry)> {
        if self.acked == self.posted {
            return None;
        }
        let number = self.acked;
        let entry = self.entries[self.index_of(number)]?;
        self.acked += 1;
        if self.started < self.acked {
            self.unwritten.pop_front();
            self.started = self.acked;
        }
        self.signaled -= usize::from(entry.signaled);
        Some((number, entry))
    }

    /// Frees the entries up to this request, whose completion was polled.
    #[inline]
    pub(crate) fn free_through(&mut self, number: u64) {
        // The bounds make completions from before a reset have no effect.
        self.freed = self.freed.max(number + 1).min(self.acked);
    }

    /// Discards everything that was posted.
    pub(crate) fn reset(&mut self) {
        (self.started, self.acked, self.freed) = (self.posted, self.posted, self.posted);
        self.signaled = 0;
        self.unwritten.clear();
        self.general.clear();
        self.local_failure = None;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Post(bool),
        Retire,
        Free,
    }

    proptest! {
        /// However far the oldest request has come when the entries become more, each request is found, and
        /// as many fit as the capacity says.
        #[test]
        fn entries_become_more_around_the_requests_in_them(
            capacity in 0..100_usize,
            steps in prop::collection::vec(
                prop_oneof![
                    6 => any::<bool>().prop_map(Step::Post),
                    2 => Just(Step::Retire),
                    1 => Just(Step::Free),
                ],
                0..600,
            ),
        ) {
            let mut queue = SendQueue::new(capacity);
            prop_assert_eq!(queue.entries.len(), 0);
            // Whether each request that was ever posted is signaled, and how many are free again.
            let (mut posted, mut retired, mut freed) = (Vec::new(), 0, 0);
            for step in steps {
                match step {
                    Step::Post(signaled) => {
                        let is_full = posted.len() - freed == capacity;
                        prop_assert_eq!(!queue.make_room(), is_full);
                        if !is_full {
                            queue.add(WrId::from_raw(posted.len() as u64), signaled);
                            queue.started += 1;
                            posted.push(signaled);
                        }
                    }
                    Step::Retire => {
                        let found = queue.retire();
                        let found = found.map(|(_, entry)| (entry.wr_id, entry.signaled));
                        let expected = posted.get(retired);
                        let expected = expected.map(|&is| (WrId::from_raw(retired as u64), is));
                        prop_assert_eq!(found, expected);
                        retired += usize::from(found.is_some());
                    }
                    Step::Free if retired > 0 => {
                        queue.free_through(retired as u64 - 1);
                        freed = retired;
                    }
                    Step::Free => {}
                }
            }
            for (number, &signaled) in posted.iter().enumerate().skip(retired) {
                prop_assert_eq!(queue.is_signaled(number as u64), signaled);
            }
        }
    }
}
