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
//! it is queued:
//!
//! 1. One request in every interval is signaled. This bounds the number of entries that wait for a
//!    completion that no request asked for.
//! 2. The last request of a chain is signaled if any request since the last signal holds a slot of
//!    the pool, so no slot is stranded when the connection falls silent. Inline requests hold no
//!    slot: a quiet connection with short frames needs no completions at all.
//!
//! **Chains.** Requests are collected and posted to the device together, with one doorbell.

use crate::verbs::{SendRequest, Slot};

/// Maximum number of requests in a chain. The cost of the doorbell is spread over eight requests,
/// and the first of them has not waited long.
pub(crate) const CHAIN_LEN: usize = 8;

/// The part of a connection's send queue that is tracked outside the queue pair.
#[derive(Debug)]
pub(crate) struct SendQueue {
    /// Entries in use that are not posted yet: reserved by the driver, or in the chain.
    pending: usize,
    /// The interval of rule 1.
    interval: u32,
    /// Requests since the last signaled one, including requests in the chain.
    since_signal: u32,
    /// How many of these requests hold a slot.
    tail_slots: u32,
    /// Signaled requests in the chain.
    signals: u32,
    /// Requests that are not posted yet.
    chain: Vec<SendRequest>,
}

impl SendQueue {
    /// Creates an empty queue that signals one request in `interval`.
    pub(crate) fn new(interval: u32) -> Self {
        Self {
            pending: 0,
            interval,
            since_signal: 0,
            tail_slots: 0,
            signals: 0,
            chain: Vec::with_capacity(CHAIN_LEN),
        }
    }

    /// Reserves one of the queue pair's `free` entries. Returns false if all of them are reserved.
    #[inline]
    pub(crate) fn reserve(&mut self, free: usize) -> bool {
        let fits = self.pending < free;
        self.pending += usize::from(fits);
        fits
    }

    /// Frees a reserved entry that will not be used.
    pub(crate) fn cancel(&mut self) {
        self.pending -= 1;
    }

    /// Appends a frame to the chain, in an entry that was reserved. Returns true if the chain is
    /// full and must be posted now.
    #[inline]
    pub(crate) fn push(&mut self, slot: Slot, len: usize, inline: bool) -> bool {
        self.since_signal += 1;
        self.tail_slots += u32::from(!inline);
        let signaled = self.since_signal >= self.interval;
        if signaled {
            self.reset_signal_count();
        }
        self.chain.push(SendRequest {
            slot,
            len,
            signaled,
            inline,
            solicited: false,
        });
        self.chain.len() >= CHAIN_LEN
    }

    /// Returns true if there is nothing to post.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.chain.is_empty()
    }

    /// Returns the chain, ready to be posted. The caller drains the requests that it posts and
    /// reports their number to [`posted`](Self::posted).
    #[inline]
    pub(crate) fn seal(&mut self) -> &mut Vec<SendRequest> {
        if self.tail_slots > 0
            && let Some(last) = self.chain.last_mut()
        {
            last.signaled = true;
            self.reset_signal_count();
        }
        &mut self.chain
    }

    /// Records that the queue pair has taken `count` requests of the chain and counts their entries
    /// from now on. Returns the number of signaled requests in the chain.
    #[inline]
    pub(crate) fn posted(&mut self, count: usize) -> u32 {
        self.pending -= count;
        std::mem::take(&mut self.signals)
    }

    /// Returns the number of requests that no completion covers unless another request follows.
    pub(crate) fn uncovered(&self) -> usize {
        self.since_signal as usize
    }

    /// Removes the requests that will not be posted and returns their slots.
    pub(crate) fn abandon(&mut self) -> impl Iterator<Item = Slot> {
        let count = self.chain.len();
        self.pending -= count;
        // If one of the removed requests was signaled, it is not known how many posted requests it
        // would have covered. The count then becomes zero, so closing waits for all their
        // completions.
        self.since_signal = self
            .since_signal
            .saturating_sub(u32::try_from(count).unwrap_or(u32::MAX));
        self.chain.drain(..).map(|request| request.slot)
    }

    fn reset_signal_count(&mut self) {
        self.since_signal = 0;
        self.tail_slots = 0;
        self.signals += 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::verbs::{Access, Context};

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
        for slot in slots(4) {
            assert!(queue.reserve(100));
            assert!(!queue.push(slot, 10, true));
        }
        assert!(queue.seal().iter().all(|request| !request.signaled));
        assert_eq!(queue.uncovered(), 4);
    }

    #[test]
    fn one_request_that_holds_a_slot_signals_the_end_of_its_chain() {
        let mut queue = SendQueue::new(16);
        for (number, slot) in slots(4).into_iter().enumerate() {
            assert!(queue.reserve(100));
            queue.push(slot, 10, number != 1);
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
    fn entries_are_refused_when_all_are_reserved() {
        let mut queue = SendQueue::new(16);
        assert!(queue.reserve(2));
        assert!(queue.reserve(2));
        assert!(!queue.reserve(2));
        queue.cancel();
        assert!(queue.reserve(2));
    }

    proptest! {
        /// For any sequence of frames and chains: at most one interval passes without a signal, and
        /// after each post no request that holds a slot depends on the signal of a later request.
        #[test]
        fn no_slot_is_stranded(
            interval in 1u32..40,
            frames in prop::collection::vec((any::<bool>(), any::<bool>()), 0..200),
        ) {
            let mut queue = SendQueue::new(interval);
            let mut slots = slots(CHAIN_LEN);
            let (mut since_signal, mut held) = (0, 0);
            for (inline, flush) in frames {
                prop_assert!(queue.reserve(usize::MAX));
                let full = queue.push(slots.pop().unwrap(), 10, inline);
                prop_assert!(!full || slots.is_empty(), "a chain has {CHAIN_LEN} at most");
                if flush || full {
                    let chain = queue.seal();
                    let count = chain.len();
                    for request in chain.drain(..) {
                        held += u32::from(!request.inline);
                        since_signal += 1;
                        prop_assert!(since_signal <= interval);
                        if request.signaled {
                            (since_signal, held) = (0, 0);
                        }
                        slots.push(request.slot);
                    }
                    prop_assert_eq!(held, 0, "a slot waits for a signal that may never come");
                    queue.posted(count);
                    prop_assert_eq!(queue.uncovered(), since_signal as usize);
                }
            }
        }
    }
}
