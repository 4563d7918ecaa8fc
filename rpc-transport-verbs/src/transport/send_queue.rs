//! The sends of one connection, between the driver and the queue pair: queue entries, signals and
//! chains.
//!
//! **Entries.** A send queue has a fixed number of entries. An entry is freed only when a
//! completion that covers it has been polled. The queue pair counts the entries of posted requests;
//! this module counts the entries of requests that are about to be posted, so a frame that has
//! reserved an entry can always be posted.
//!
//! **Signals.** Only signaled requests produce a completion, and a completion covers all earlier
//! requests of its queue. A posted request cannot become signaled later, so two rules decide when
//! it is posted or queued:
//!
//! 1. One request in every interval is signaled. This bounds the number of entries that wait for a
//!    completion that no request asked for.
//! 2. The last request of a chain is signaled, so no slot is stranded when the connection falls
//!    silent. Inline requests hold no slot: a quiet connection with short frames needs no
//!    completions at all.
//!
//! **Chains.** A short frame is posted at once, inline, and rings the doorbell with the next flush.
//! Longer frames hold slots. They are collected in a chain, which is posted with one doorbell at
//! the next flush, or before the next short frame.

use verbline_verbs::{SendRequest, Slot};

/// Maximum number of requests for one doorbell. The cost of the doorbell is spread over eight
/// requests, and the first of them has not waited long.
pub(crate) const CHAIN_LEN: usize = 8;

/// The part of a connection's send queue that is tracked outside the queue pair.
#[derive(Debug)]
pub(crate) struct SendQueue {
    /// Entries in use that are not posted yet: reserved by the driver, or in the chain.
    pending: usize,
    /// The interval of rule 1.
    interval: u32,
    /// How many more requests it takes until one is signaled, from `interval` down to 1.
    until_signal: u32,
    /// Inline requests posted since the last doorbell.
    waiting: u32,
    /// Requests that hold slots and are not posted yet.
    chain: Vec<SendRequest>,
    /// Slots in the chain and in flight.
    slots: usize,
}

impl SendQueue {
    /// Creates an empty queue that signals one request in `interval`.
    pub(crate) fn new(interval: u32) -> Self {
        Self {
            pending: 0,
            interval,
            until_signal: interval,
            waiting: 0,
            chain: Vec::with_capacity(CHAIN_LEN),
            slots: 0,
        }
    }

    /// Returns the number of slots in the chain and in flight.
    #[inline]
    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    /// Records that the device has given back this many slots.
    #[inline]
    pub(crate) fn slots_returned(&mut self, count: usize) {
        self.slots -= count;
    }

    /// Reserves an entry, which is not reserved yet.
    #[inline]
    pub(crate) fn reserve(&mut self) {
        self.pending += 1;
    }

    /// Frees a reserved entry that will not be used.
    pub(crate) fn cancel(&mut self) {
        self.pending -= 1;
    }

    /// Returns true if one of the queue pair's `free` entries is not reserved.
    #[inline]
    pub(crate) fn has_entry(&self, free: usize) -> bool {
        self.pending < free
    }

    /// Appends a frame to the chain, in an entry that was reserved. Returns true if the chain is
    /// full and must be posted now.
    pub(crate) fn push(&mut self, slot: Slot, len: usize) -> bool {
        let signaled = self.count_request();
        self.slots += 1;
        self.chain.push(SendRequest {
            signaled,
            ..SendRequest::new(slot, len)
        });
        self.chain.len() >= CHAIN_LEN
    }

    /// Returns true if the chain is empty.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.chain.is_empty()
    }

    /// Returns the chain, ready to be posted. The caller drains the requests that it posts and
    /// reports their number to [`chain_posted`](Self::chain_posted).
    pub(crate) fn seal(&mut self) -> &mut Vec<SendRequest> {
        if let Some(last) = self.chain.last_mut()
            && !last.signaled
        {
            last.signaled = true;
            self.until_signal = self.interval;
        }
        &mut self.chain
    }

    /// Records that the queue pair has taken `count` requests of the chain and counts their entries
    /// from now on.
    pub(crate) fn chain_posted(&mut self, count: usize) {
        self.pending -= count;
    }

    /// Counts a request that was posted inline. Returns true if the doorbell should be rung now.
    #[inline]
    pub(crate) fn inline_posted(&mut self) -> bool {
        self.waiting += 1;
        self.waiting >= CHAIN_LEN as u32
    }

    /// Returns how many inline requests were posted since the last doorbell. The next ones wait for
    /// the next doorbell.
    #[inline]
    pub(crate) fn take_waiting(&mut self) -> u32 {
        std::mem::take(&mut self.waiting)
    }

    /// Returns the number of requests that no completion covers unless another request follows.
    pub(crate) fn uncovered(&self) -> usize {
        (self.interval - self.until_signal) as usize
    }

    /// Removes the requests that will not be posted and returns their slots.
    pub(crate) fn abandon(&mut self) -> impl Iterator<Item = Slot> {
        let count = self.chain.len();
        self.pending -= count;
        self.slots -= count;
        self.rejected(count);
        self.chain.drain(..).map(|request| request.slot)
    }

    /// Records that the last `count` inline requests that waited for the doorbell were not posted.
    pub(crate) fn waiting_rejected(&mut self, count: usize) {
        // At most as many as waited.
        self.waiting = self.waiting.saturating_sub(count as u32);
        self.rejected(count);
    }

    /// Records that the last `count` requests were not posted.
    pub(crate) fn rejected(&mut self, count: usize) {
        // If one of the requests was signaled, it is not known how many posted requests it would
        // have covered. None then counts as uncovered, so closing waits for all their completions.
        let uncovered = self.uncovered().saturating_sub(count) as u32;
        self.until_signal = self.interval - uncovered;
    }

    /// Counts a request. Returns true if rule 1 requires that it is signaled.
    #[inline]
    pub(crate) fn count_request(&mut self) -> bool {
        self.until_signal -= 1;
        if self.until_signal > 0 {
            return false;
        }
        self.until_signal = self.interval;
        true
    }

    /// Counts a one-sided request, which holds no slot. Returns true if it is to be signaled:
    /// because it must be, or by rule 1.
    pub(crate) fn count_one_sided(&mut self, must_signal: bool) -> bool {
        let signaled = self.count_request() || must_signal;
        if signaled {
            self.until_signal = self.interval;
        }
        signaled
    }
}

impl SendQueue {
    /// Asserts the sums of the queue, whose queue pair has `free` entries and others `in_flight`.
    pub(crate) fn assert_sums(&self, free: usize, in_flight: usize) {
        let chain = self.chain.len();
        assert!(chain < CHAIN_LEN, "a chain of {chain} is not posted");
        assert!(
            chain <= self.pending && self.pending <= free,
            "{free} free: {self:?}"
        );
        let posted = self.slots.checked_sub(chain);
        let all_fit = posted.is_some_and(|posted| posted <= in_flight);
        assert!(all_fit, "{in_flight} requests have the slots of {self:?}");
        assert!(
            self.uncovered() <= in_flight + chain,
            "{in_flight} in flight: {self:?}"
        );
    }

    /// Returns the number of entries that the driver has reserved.
    pub(crate) fn reserved(&self) -> usize {
        self.pending - self.chain.len()
    }

    /// Returns true if something waits for the next flush.
    pub(crate) fn awaits_flush(&self) -> bool {
        self.waiting > 0 || !self.chain.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use verbline_verbs::{Access, Context};

    use super::*;

    fn slots(count: usize) -> Vec<Slot> {
        let domain = Context::open("soft").unwrap().alloc_pd().unwrap();
        let region = domain.register(count * 64, Access::LOCAL_WRITE).unwrap();
        // The region may be longer than requested.
        region
            .into_slots(64)
            .unwrap()
            .into_iter()
            .take(count)
            .collect()
    }

    #[test]
    fn a_silent_tail_of_inline_requests_needs_no_signal() {
        let mut queue = SendQueue::new(16);
        for _ in 0..4 {
            assert!(!queue.count_request());
        }
        assert!(queue.seal().is_empty());
        assert_eq!(queue.uncovered(), 4);
    }

    #[test]
    fn the_last_request_of_a_chain_is_signaled() {
        let mut queue = SendQueue::new(16);
        for slot in slots(4) {
            queue.reserve();
            queue.push(slot, 10);
        }
        let signaled: Vec<_> = queue
            .seal()
            .iter()
            .map(|request| request.signaled)
            .collect();
        assert_eq!(signaled, [false, false, false, true]);
        assert_eq!(queue.uncovered(), 0);
    }

    #[test]
    fn rejected_requests_are_not_uncovered() {
        let mut queue = SendQueue::new(16);
        for _ in 0..3 {
            queue.count_request();
        }
        queue.rejected(1);
        assert_eq!(queue.uncovered(), 2);
        queue.rejected(5);
        assert_eq!(queue.uncovered(), 0);
    }

    #[test]
    fn a_doorbell_is_rung_for_a_chain_of_inline_requests() {
        let mut queue = SendQueue::new(16);
        let rings: Vec<_> = (0..CHAIN_LEN).map(|_| queue.inline_posted()).collect();
        assert_eq!(rings.iter().position(|&rings| rings), Some(CHAIN_LEN - 1));
        assert_eq!(queue.take_waiting() as usize, CHAIN_LEN);
        assert_eq!(queue.take_waiting(), 0);
    }

    #[test]
    fn entries_are_refused_when_all_are_reserved() {
        let mut queue = SendQueue::new(16);
        for _ in 0..2 {
            assert!(queue.has_entry(2));
            queue.reserve();
        }
        assert!(!queue.has_entry(2));
        queue.cancel();
        assert!(queue.has_entry(2));
    }

    proptest! {
        /// For any sequence of frames and flushes: at most one interval passes without a signal, and
        /// after each post no request that holds a slot depends on the signal of a later request.
        #[test]
        fn no_slot_is_stranded(
            interval in 1u32..40,
            frames in prop::collection::vec((any::<bool>(), any::<bool>()), 0..200),
        ) {
            let mut queue = SendQueue::new(interval);
            let mut slots = slots(CHAIN_LEN);
            let mut since_signal = 0;
            for (inline, flush) in frames {
                if !inline {
                    queue.reserve();
                }
                // In the order of the lane: a chain is posted before an inline request.
                let full = !inline && queue.push(slots.pop().unwrap(), 10);
                prop_assert!(!full || slots.is_empty(), "a chain has {CHAIN_LEN} at most");
                if inline || flush || full {
                    let chain = queue.seal();
                    let count = chain.len();
                    let mut holds_slot = false;
                    for request in chain.drain(..) {
                        since_signal += 1;
                        prop_assert!(since_signal <= interval);
                        holds_slot = !request.signaled;
                        if request.signaled {
                            since_signal = 0;
                        }
                        slots.push(request.slot);
                    }
                    prop_assert!(!holds_slot, "a slot waits for a signal that may never come");
                    queue.chain_posted(count);
                    if !inline {
                        prop_assert_eq!(queue.uncovered(), since_signal as usize);
                    }
                }
                if inline {
                    let signaled = queue.count_request();
                    since_signal = if signaled { 0 } else { since_signal + 1 };
                    prop_assert!(since_signal < interval);
                    prop_assert_eq!(queue.uncovered(), since_signal as usize);
                }
            }
        }
    }
}
