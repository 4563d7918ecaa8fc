//! The requests in flight on one send queue, oldest first.

use std::collections::VecDeque;

use super::slot::Slot;
use super::types::wr_id::{QueueTag, WorkKind, WrId};
use super::work_request::WorkRequest;

/// A ring with one entry per send queue entry in use. An entry holds the memory slot of its
/// request, or nothing if the request was inline. Entries that are not in use hold nothing, so an
/// inline request is recorded by counting it.
///
/// An entry becomes free only once a completion of its request *or a later one* has been polled and
/// is completed here. This count keeps a send queue from overrunning on devices that reclaim
/// entries late, and exposes a missing signal on devices that reclaim them early.
#[derive(Debug)]
pub(super) struct InFlight {
    /// Allocated when a request has a slot for the first time: a connection that is idle, or whose
    /// messages are all inline, does without.
    entries: Box<[Option<Slot>]>,
    /// Requests other than plain sends, by number. Stored beside the ring to keep entries small.
    requests: VecDeque<(u64, WorkRequest)>,
    /// Requests in flight that hold a slot or are in `requests`: those that are to be released.
    held: usize,
    queue: QueueTag,
    /// The id of request 0.
    first_id: WrId,
    /// Number of the next request, counted from 0 since the queue pair was created.
    head: u64,
    /// Number of the first request that does not fit: all entries are in use when `head` reaches
    /// it.
    end: u64,
    /// Number of the oldest request in flight.
    tail: u64,
}

impl InFlight {
    pub(super) fn new(queue: QueueTag, capacity: usize) -> Self {
        Self {
            entries: Box::default(),
            requests: VecDeque::new(),
            held: 0,
            queue,
            first_id: WrId::new(WorkKind::Send, queue, 0),
            head: 0,
            end: capacity as u64,
            tail: 0,
        }
    }

    pub(super) fn capacity(&self) -> usize {
        (self.end - self.tail) as usize
    }

    #[inline]
    pub(super) fn free(&self) -> usize {
        // The difference is at most the capacity.
        (self.end - self.head) as usize
    }

    /// Returns the number of the oldest request in flight.
    pub(super) fn oldest(&self) -> u64 {
        self.tail
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.head == self.end
    }

    fn index_of(&self, number: u64) -> usize {
        // The number of entries is a power of two. Before they are allocated there is none at any index.
        number as usize & self.entries.len().wrapping_sub(1)
    }

    /// Returns the id that the request `ahead` positions after the next one will have.
    #[inline]
    pub(super) fn id_of_next(&self, ahead: usize) -> WrId {
        // The lower 32 bits, which identify a request uniquely for a long time.
        self.first_id.with_number((self.head + ahead as u64) as u32)
    }

    /// Records an inline request. The caller has checked that an entry is free.
    #[inline]
    pub(super) fn push_inline(&mut self) {
        let entry = self.entries.get(self.index_of(self.head));
        debug_assert!(entry.is_none_or(Option::is_none));
        self.head += 1;
    }

    /// Removes the `count` requests recorded last: inline requests that the device rejected when
    /// the doorbell was rung.
    #[cold]
    pub(super) fn remove_last_inline(&mut self, count: usize) {
        self.head -= count as u64;
    }

    /// Fills the next entry. The caller has checked that one is free.
    #[inline]
    pub(super) fn push(&mut self, slot: Slot) {
        let index = self.index_of(self.head);
        match self.entries.get_mut(index) {
            Some(entry) => *entry = Some(slot),
            None => self.push_first(slot),
        }
        self.held += 1;
        self.head += 1;
    }

    /// Allocates the entries, and fills the next one.
    #[cold]
    #[inline(never)]
    fn push_first(&mut self, slot: Slot) {
        let entries = self.capacity().next_power_of_two();
        self.entries = (0..entries).map(|_| None).collect();
        let index = self.index_of(self.head);
        self.entries[index] = Some(slot);
    }

    /// Fills the next entry with a request of any kind.
    pub(super) fn push_request(&mut self, request: WorkRequest) {
        self.requests.push_back((self.head, request));
        self.held += 1;
        self.head += 1;
    }

    /// Frees every entry up to the one that `id` names. Returns false if `id` names no request in
    /// flight.
    pub(super) fn complete(&mut self, id: WrId, release: &mut impl FnMut(Slot)) -> bool {
        if !id.belongs_to(WorkKind::Send, self.queue) {
            return false;
        }
        // Both are the lower bits of numbers that are far less than 2³² apart.
        let offset = id.number().wrapping_sub(self.tail as u32);
        if u64::from(offset) >= self.head - self.tail {
            return false;
        }
        if self.held == 0 {
            self.advance_tail(u64::from(offset) + 1);
        } else {
            for _ in 0..=offset {
                self.release_oldest(release);
            }
        }
        true
    }

    /// Frees all entries. The device must have released the queue.
    pub(super) fn drain(&mut self, release: &mut impl FnMut(Slot)) {
        while self.tail != self.head {
            self.release_oldest(release);
        }
    }

    fn advance_tail(&mut self, count: u64) {
        self.tail += count;
        self.end += count;
    }

    fn release_oldest(&mut self, release: &mut impl FnMut(Slot)) {
        let (index, number) = (self.index_of(self.tail), self.tail);
        // Advanced first: if `release` panics, the entry is already free.
        self.advance_tail(1);
        if let Some(slot) = self.entries.get_mut(index).and_then(Option::take) {
            self.held -= 1;
            release(slot);
        } else if !self.requests.is_empty() {
            self.release_request(number, release);
        }
    }

    #[cold]
    fn release_request(&mut self, number: u64, release: &mut impl FnMut(Slot)) {
        let is_it = |(of, _): &(u64, WorkRequest)| *of == number;
        if self.requests.front().is_some_and(is_it)
            && let Some((_, request)) = self.requests.pop_front()
        {
            self.held -= 1;
            request.release(release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(capacity: usize) -> InFlight {
        InFlight::new(QueueTag::allocate("test").unwrap(), capacity)
    }

    #[test]
    fn a_completion_frees_its_own_request_and_all_before() {
        let mut ring = ring(3);
        let ids: Vec<_> = (0..3)
            .map(|_| {
                let id = ring.id_of_next(0);
                ring.push_inline();
                id
            })
            .collect();
        assert_eq!(ring.free(), 0);
        assert!(ring.complete(ids[1], &mut drop));
        assert_eq!(ring.free(), 2);
        assert!(!ring.complete(ids[0], &mut drop), "it is gone already");
        assert!(!ring.complete(ids[1], &mut drop));
        assert!(ring.complete(ids[2], &mut drop));
        assert_eq!(ring.free(), 3);
    }

    #[test]
    fn a_removed_request_frees_its_entry_and_its_id_is_used_again() {
        let mut ring = ring(2);
        ring.push_inline();
        let id = ring.id_of_next(0);
        ring.push_inline();
        ring.remove_last_inline(1);
        assert_eq!(ring.free(), 1);
        assert!(!ring.complete(id, &mut drop), "it is not in flight");
        assert_eq!(ring.id_of_next(0), id);
    }

    #[test]
    fn an_id_of_an_earlier_round_is_stale() {
        let mut ring = ring(2);
        let old = ring.id_of_next(0);
        for _ in 0..3 {
            let id = ring.id_of_next(0);
            ring.push_inline();
            assert!(ring.complete(id, &mut drop));
        }
        ring.push_inline();
        assert!(!ring.complete(old, &mut drop));
        assert_eq!(ring.free(), 1);
    }

    #[test]
    fn a_completion_that_was_kept_for_long_is_stale() {
        let mut ring = ring(2);
        let kept = ring.id_of_next(0);
        for _ in 0..100_000 {
            let id = ring.id_of_next(0);
            ring.push_inline();
            assert!(id == kept || !ring.complete(kept, &mut drop));
            assert!(ring.complete(id, &mut drop));
        }
    }

    #[test]
    fn ids_stay_right_when_their_numbers_come_round() {
        let mut ring = ring(2);
        let start = (1_u64 << 32) - 1;
        (ring.head, ring.tail, ring.end) = (start, start, start + 2);
        for _ in 0..4 {
            let id = ring.id_of_next(0);
            ring.push_inline();
            assert!(ring.complete(id, &mut drop));
        }
    }
}
