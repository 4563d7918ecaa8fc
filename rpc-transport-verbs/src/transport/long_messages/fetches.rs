//! Fetches messages by READs of the senders' memory.
//!
//! Connections take turns: each poll posts a few READs, one of each connection that has segments to
//! fetch. The number of outstanding READs is limited for each connection and for the lane.

use std::collections::VecDeque;

use rpc_core::transport::{ConnectionId, Event, FetchKey, RemoteSegment};
use verbline_verbs::for_transport::Destination;
use verbline_verbs::{RemoteKey, RemoteMemory, WorkRequest};

use super::one_sided::Request;
use super::registered_buf::RegisteredBuf;
use super::state::{Fetch, Segment};
use crate::transport::lane::Lane;
use crate::transport::pending::Pending;

impl Lane {
    /// Begins to fetch a message into `memory`. Returns the memory if the connection is not open or
    /// does not use READs, if the memory is not this lane's memory for received messages, or if too
    /// many messages are being fetched.
    pub(crate) fn begin_fetch(
        &mut self,
        id: ConnectionId,
        memory: RegisteredBuf,
    ) -> Result<FetchKey, RegisteredBuf> {
        let connection = self.connections.get(id);
        let has_reads = connection.is_some_and(|it| it.is_open() && it.one_sided.has_reads());
        // The device writes only memory that is registered with it.
        if !has_reads || !self.long_messages.pools.receives_into(&memory) {
            return Err(memory);
        }
        let (block, memory) = memory.take_block()?;
        let bytes = block.len() as u64;
        let fetch = Fetch {
            connection: id,
            destination: Destination::new(block),
            memory,
            bytes,
            segments: VecDeque::new(),
            reading: 0,
            is_cancelled: false,
        };
        match self.long_messages.fetches.insert(fetch) {
            Ok(key) => {
                self.long_messages.fetching += bytes;
                if let Some(connection) = self.connections.get(id) {
                    connection.one_sided.fetches += 1;
                }
                Ok(FetchKey(key))
            }
            Err(fetch) => match fetch.into_memory() {
                Some(memory) => Err(memory),
                None => unreachable!("no READ names the memory"),
            },
        }
    }

    /// Queues a segment to be read to `at` in the memory of a fetch, and posts READs if they are
    /// allowed now.
    ///
    /// # Panics
    ///
    /// Panics if the segment does not fit there: the caller checks what peers announce.
    pub(crate) fn fetch(&mut self, key: FetchKey, segment: RemoteSegment, at: usize) {
        let Some(fetch) = self.long_messages.fetches.get_mut(key.0) else {
            return;
        };
        let len = segment.len as usize;
        assert!(
            at <= fetch.memory.len() && len <= fetch.memory.len() - at,
            "a segment of {len} bytes at {at} is outside of a message of {} bytes",
            fetch.memory.len()
        );
        if fetch.is_cancelled {
            return;
        }
        fetch.segments.push_back(Segment {
            address: segment.address,
            key: RemoteKey(segment.key),
            left: len,
            at,
            len: segment.len,
        });
        if fetch.segments.len() > 1 {
            // The connection's `to_fetch` has it already.
            return;
        }
        let id = fetch.connection;
        if let Some(connection) = self.connections.get(id)
            && connection.is_open()
        {
            connection.one_sided.to_fetch.push_back(key.0);
            self.take_turns_with(id.index);
            self.post_reads();
        }
    }

    /// Ends a fetch, and returns its memory. Returns `None` if READs of it are outstanding or to be
    /// posted, or if it was cancelled.
    pub(crate) fn finish_fetch(&mut self, key: FetchKey) -> Option<RegisteredBuf> {
        let fetch = self.long_messages.fetches.get(key.0)?;
        if fetch.reading > 0 || !fetch.segments.is_empty() || fetch.is_cancelled {
            return None;
        }
        self.end_fetch(key.0)
    }

    /// Cancels a fetch whose message is no longer wanted.
    pub(crate) fn cancel_fetch(&mut self, key: FetchKey) {
        let Some(fetch) = self.long_messages.fetches.get_mut(key.0) else {
            return;
        };
        if std::mem::replace(&mut fetch.is_cancelled, true) {
            return;
        }
        let (id, is_listed) = (fetch.connection, !fetch.segments.is_empty());
        // The last READ of a segment is signaled, and those before it may have no completion of
        // their own. So a segment that was begun ends with a READ of one byte: its completion
        // covers them.
        let begun = fetch.segments.front().copied();
        let begun = begun.filter(|segment| fetch.reading > 0 && segment.is_begun());
        fetch.segments.clear();
        if let Some(segment) = begun {
            fetch.segments.push_back(Segment { left: 1, ..segment });
        } else if is_listed && let Some(connection) = self.connections.get(id) {
            connection
                .one_sided
                .to_fetch
                .retain(|other| *other != key.0);
        }
        self.end_if_cancelled(key.0);
    }

    /// Ends a cancelled fetch, if none of its READs is outstanding.
    fn end_if_cancelled(&mut self, key: u32) {
        let Some(fetch) = self.long_messages.fetches.at(key) else {
            return;
        };
        if !fetch.is_cancelled || fetch.reading > 0 {
            return;
        }
        let connection = fetch.connection;
        drop(self.end_fetch(key));
        if self
            .connections
            .get(connection)
            .is_some_and(|it| it.is_open())
        {
            let fetch = FetchKey(key);
            self.queue_event(Event::FetchCancelled { connection, fetch });
        }
    }

    /// Removes a fetch. Returns its memory, if no READ names it. Otherwise, the queue pair could not
    /// be destroyed: it keeps the memory, which counts as being fetched into.
    fn end_fetch(&mut self, key: u32) -> Option<RegisteredBuf> {
        let fetch = self.long_messages.fetches.remove(key)?;
        if let Some(connection) = self.connections.get(fetch.connection) {
            connection.one_sided.fetches -= 1;
            // The READ that was to cover the others of a cancelled fetch: they have completed.
            if !fetch.segments.is_empty() {
                connection.one_sided.to_fetch.retain(|other| *other != key);
            }
        }
        let bytes = fetch.bytes;
        let memory = fetch.into_memory();
        if memory.is_some() {
            self.long_messages.fetching -= bytes;
        }
        memory
    }

    /// Ends the fetches of a connection whose queue pair is gone.
    pub(super) fn end_fetches_of(&mut self, id: ConnectionId) {
        for key in self
            .long_messages
            .fetches
            .keys_of(|fetch| fetch.connection == id)
        {
            if let Some(fetch) = self.long_messages.fetches.at(key) {
                self.long_messages.reading -= fetch.reading;
            }
            drop(self.end_fetch(key));
        }
    }

    /// Puts a connection with segments to fetch into the ring of those that take turns.
    pub(super) fn take_turns_with(&mut self, index: u32) {
        let Some((_, connection)) = self.connections.at(index) else {
            return;
        };
        let ring = &mut self.long_messages.ring;
        if !connection.one_sided.to_fetch.is_empty() && ring.insert(&mut connection.listed, index) {
            self.pending.set(Pending::LONG_MESSAGES);
        }
    }

    /// Posts READs of the connections in turn, as many as may be posted before the next poll.
    pub(super) fn post_reads(&mut self) {
        while self.long_messages.turns.may_read()
            && self.long_messages.reading < self.long_messages.max_reading
            && let Some(index) = self.long_messages.ring.pop()
        {
            let Some((_, connection)) = self.connections.at(index) else {
                continue;
            };
            self.long_messages.ring.taken(&mut connection.listed);
            let free = connection.queue_pair.send_slots_free();
            // A connection that may not post now returns to the ring with its next completion.
            if connection.is_open()
                && connection.one_sided.may_read()
                && connection.sends.has_entry(free)
                && let Some(&key) = connection.one_sided.to_fetch.front()
            {
                self.post_read(index, key);
                self.take_turns_with(index);
            }
        }
    }

    /// Posts the next READ of a fetch.
    fn post_read(&mut self, index: u32, key: u32) {
        let Some((_, connection)) = self.connections.at(index) else {
            return;
        };
        let max_len = match connection.is_read_by_peer {
            true => self.long_messages.turns.take_of_peer(),
            false => self.long_messages.turns.take(),
        };
        let Some(fetch) = self.long_messages.fetches.at(key) else {
            connection.one_sided.to_fetch.pop_front();
            return;
        };
        let Some(segment) = fetch.segments.front_mut() else {
            connection.one_sided.to_fetch.pop_front();
            return;
        };
        let len = segment.left.min(max_len);
        let Some(element) = fetch.destination.element(segment.at..segment.at + len) else {
            unreachable!("`fetch` has checked that the segment fits");
        };
        let from = RemoteMemory {
            addr: segment.address,
            key: segment.key,
        };
        segment.address = segment.address.wrapping_add(len as u64);
        segment.at += len;
        segment.left -= len;
        let ends_segment = (segment.left == 0).then_some(segment.len);
        if ends_segment.is_some() {
            fetch.segments.pop_front();
            if fetch.segments.is_empty() {
                connection.one_sided.to_fetch.pop_front();
            }
        }
        fetch.reading += 1;
        connection.one_sided.reading += 1;
        self.long_messages.reading += 1;
        let request = (
            Request::Read(key, ends_segment),
            WorkRequest::read(element, from),
        );
        // The last READ that may be outstanding is signaled, since its completion lets others
        // follow.
        let is_last = !connection.one_sided.may_read()
            || self.long_messages.reading >= self.long_messages.max_reading;
        // If it is rejected, the connection ends, and its fetches with it.
        let _ = self.post_one_sided(index, [request], ends_segment.is_some() || is_last);
    }

    /// Handles the completion of a READ.
    pub(super) fn complete_read(&mut self, index: u32, key: u32, ends_segment: Option<u32>) {
        if let Some((_, connection)) = self.connections.at(index) {
            connection.one_sided.reading -= 1;
        }
        self.long_messages.reading -= 1;
        let Some(fetch) = self.long_messages.fetches.at(key) else {
            return;
        };
        fetch.reading -= 1;
        let connection = fetch.connection;
        if fetch.is_cancelled {
            return self.end_if_cancelled(key);
        }
        if let Some(len) = ends_segment
            && self
                .connections
                .get(connection)
                .is_some_and(|it| it.is_open())
        {
            let fetch = FetchKey(key);
            self.queue_event(Event::Fetched {
                connection,
                fetch,
                len,
            });
        }
    }
}
