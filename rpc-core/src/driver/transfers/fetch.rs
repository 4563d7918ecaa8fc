//! The receiver's part of a long message: reads its segments.

use super::super::Driver;
use super::super::link_transfers::IncomingKey;
use super::super::links::Links;
use super::super::transfers::Transfers;
use super::incoming::Place;
use crate::transport::{ConnectionId, FetchKey, Transport};

impl<T: Transport> Transfers<T> {
    /// Begins to fetch the segments that have been announced.
    pub(super) fn fetch_announced(
        &mut self,
        links: &mut Links<T>,
        key: IncomingKey,
        fetch: FetchKey,
    ) {
        let incoming = &mut self.incoming[key];
        for segment in incoming.segments.drain(..) {
            // The lengths add up to no more than the message's.
            links
                .transport
                .fetch(fetch, segment, incoming.fetching as usize);
            incoming.fetching += segment.len;
            links.counters.transfers.reads.add(1);
        }
    }
}

impl<T: Transport> Driver<T> {
    /// Handles the arrival of a segment.
    #[cold]
    #[inline(never)]
    pub(in super::super) fn fetched(&self, _: ConnectionId, fetch: FetchKey, len: u32) {
        self.block_on_waker.note_long();
        let mut borrowed = self.state.borrow_mut();
        let state = &mut *borrowed;
        let Some(&key) = state.transfers.fetches.get(&fetch) else {
            return;
        };
        let incoming = &mut state.transfers.incoming[key];
        let link = &mut state.links[incoming.link];
        link.transfers.segments_read += 1;
        // A fetch that was cancelled may report segments that had arrived before.
        if !matches!(incoming.place, Place::Fetch(_)) {
            return;
        }
        incoming.received += len;
        incoming.unfetched = incoming.unfetched.saturating_sub(1);
        incoming.owed.fetched += 1;
        let counters = &state.links.counters.transfers;
        counters.bytes_received.add(len.into());
        counters.bytes_fetched.add(len.into());
        state.transfers.owe_entry(&mut state.links, key);
        let completed = state.transfers.complete(&mut state.links, key);
        drop(borrowed);
        self.conclude(completed);
    }

    /// Handles the end of a fetch that was cancelled.
    #[cold]
    #[inline(never)]
    pub(in super::super) fn fetch_cancelled(&self, _: ConnectionId, fetch: FetchKey) {
        let state = &mut *self.state.borrow_mut();
        if let Some(key) = state.transfers.fetches.remove(&fetch) {
            state.transfers.cancel_incoming_timer(&mut state.links, key);
            state.transfers.nothing_is_read(&mut state.links, key);
        }
    }
}
