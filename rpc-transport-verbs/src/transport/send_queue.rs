//! One connection's sends between the driver and its queue pair: places, signals, chains.
//!
//! **Places.** A send queue has a fixed number of places, and a place comes back only when a
//! completion that covers it has been polled. The queue pair counts the places of what was posted;
//! here is counted what is about to be posted, so that a frame for which a place was reserved always
//! finds it.
//!
//! **Signals.** Only signaled requests complete, and a completion covers all earlier requests of its
//! queue. A posted request cannot become signaled later, so two rules decide beforehand:
//!
//! 1. one request in every interval is signaled, which bounds the places that wait for a completion
//!    that nobody asked for;
//! 2. the last request of a chain is signaled if any request since the last signal holds a slot of
//!    the pool, so that no slot is stranded when the connection falls silent. Inline requests hold
//!    none: a quiet connection with short frames needs no completions at all.
//!
//! **Chains.** Requests are collected and given to the device together, with one doorbell.

use crate::verbs::{SendRequest, Slot};

/// Requests in one chain at most: the doorbell's cost is spread over eight, and the first of them
/// has not waited long.
pub(crate) const CHAIN_LEN: usize = 8;

/// What of a connection's send queue is this side's to keep.
#[derive(Debug)]
pub(crate) struct SendQueue {
    /// Places that are spoken for: reserved by the driver, or in the chain.
    pending: usize,
    /// Rule 1.
    interval: u32,
    /// Requests since the last signaled one, those in the chain included.
    since_signal: u32,
    /// How many of these hold a slot.
    tail_slots: u32,
    /// Signaled requests in the chain.
    signals: u32,
    /// Not yet given to the device.
    chain: Vec<SendRequest>,
}

impl SendQueue {
    /// A queue with nothing in it; one request in `interval` will be signaled.
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

    /// Takes a place, of the `free` ones that the queue pair has left; `false` if all are spoken
    /// for.
    #[inline]
    pub(crate) fn reserve(&mut self, free: usize) -> bool {
        let fits = self.pending < free;
        self.pending += usize::from(fits);
        fits
    }

    /// Gives a place back that nothing will be sent in.
    pub(crate) fn cancel(&mut self) {
        self.pending -= 1;
    }

    /// Appends a frame to the chain, in a place that was reserved. `true`: the chain is full, and
    /// is to be given to the device now.
    #[inline]
    pub(crate) fn push(&mut self, slot: Slot, len: usize, inline: bool) -> bool {
        self.since_signal += 1;
        self.tail_slots += u32::from(!inline);
        let signaled = self.since_signal >= self.interval;
        if signaled {
            self.covered();
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

    /// Whether there is something to give to the device.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.chain.is_empty()
    }

    /// The chain, ready to be posted. What is posted is drained from it, and then reported to
    /// [`posted`](Self::posted).
    #[inline]
    pub(crate) fn seal(&mut self) -> &mut Vec<SendRequest> {
        if self.tail_slots > 0
            && let Some(last) = self.chain.last_mut()
        {
            last.signaled = true;
            self.covered();
        }
        &mut self.chain
    }

    /// `count` requests of the chain are the queue pair's now, which counts their places. Gives how
    /// many of the chain were signaled.
    #[inline]
    pub(crate) fn posted(&mut self, count: usize) -> u32 {
        self.pending -= count;
        std::mem::take(&mut self.signals)
    }

    /// Requests that no completion will cover unless another one follows.
    pub(crate) fn uncovered(&self) -> usize {
        self.since_signal as usize
    }

    /// Takes back what will not be posted any more.
    pub(crate) fn abandon(&mut self) -> impl Iterator<Item = Slot> {
        let count = self.chain.len();
        self.pending -= count;
        // If one of them was signaled, how many posted ones it would have covered is not known: none,
        // so that their completions are waited for.
        self.since_signal = self
            .since_signal
            .saturating_sub(u32::try_from(count).unwrap_or(u32::MAX));
        self.chain.drain(..).map(|request| request.slot)
    }

    fn covered(&mut self) {
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
        // The region may be longer than was asked for.
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
    fn places_are_refused_when_all_are_spoken_for() {
        let mut queue = SendQueue::new(16);
        assert!(queue.reserve(2));
        assert!(queue.reserve(2));
        assert!(!queue.reserve(2));
        queue.cancel();
        assert!(queue.reserve(2));
    }

    proptest! {
        /// Whatever is sent, in whatever chains: no more than an interval goes by without a signal,
        /// and after each doorbell no request that holds a slot waits for a later one's signal.
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
