//! The receiver's part of a long message: it is complete, or is stopped.

use std::mem;
use std::sync::Arc;

use super::super::link::LinkKey;
use super::super::link_bodies::IncomingKey;
use super::super::links::Links;
use super::arrival::{Ended, Outcome, Purpose};
use super::incoming::{Place, Receiving};
use crate::codec::LongMessage;
use crate::peer_memory::Charge;
use crate::protocol::connection::ProtocolError;
use crate::protocol::frame::{
    CallId, ControlEntry, ControlRequest, FrameHeader, FrameKind, SEGMENTS,
};
use crate::stats::ServedCall;
use crate::status::Status;
use crate::transport::{MessageMemory, Transport};

/// The least length of a field that shares the memory of its message.
const LEAST_SHARED: usize = 4096;

/// A field shares the memory of its message only if the message is at most this many times as long.
const SHARED_PART: usize = 16;

impl<T: Transport> Receiving<T> {
    /// Stops a message. Its sender is told when no READ of it is outstanding any more.
    pub(in super::super) fn stop_incoming(&mut self, links: &mut Links<T>, key: IncomingKey) {
        self.cancel_incoming_timer(links, key);
        links.counters.transfers.stopped.add(1);
        self.take_purpose(links, key);
        let incoming = &mut self.incoming[key];
        incoming.segments.clear();
        match mem::replace(&mut incoming.place, Place::Nowhere) {
            Place::Waiting(_) => {
                let len = incoming.len;
                self.waiting.leave(key, len);
                self.nothing_is_read(links, key);
            }
            Place::Memory(_) | Place::Heap(_) | Place::Nowhere => self.nothing_is_read(links, key),
            Place::Fetch(fetch) | Place::Cancelling(fetch) => {
                incoming.place = Place::Cancelling(fetch);
                // The call has ended. What is left is to see that READs which never complete do not
                // keep the memory.
                incoming.deadline = None;
                self.expect_progress(links, key);
                links.transport.cancel_fetch(fetch);
            }
        }
    }

    /// Frees the memory of a stopped message, of which no READ is outstanding, and queues the entry
    /// for its sender.
    pub(super) fn nothing_is_read(&mut self, links: &mut Links<T>, key: IncomingKey) {
        self.discharge(links, key);
        let incoming = &mut self.incoming[key];
        incoming.place = Place::Nowhere;
        incoming.metadata = Box::default();
        incoming.heap = Charge::default();
        incoming.registered = Charge::default();
        // If it is neither kept nor unfinished, the sender needs no entry.
        let is_kept = incoming.form == SEGMENTS && incoming.announced > 0;
        if is_kept || !incoming.is_announced {
            incoming.owed.is_stopped = true;
            self.owe_entry(links, key);
        }
        self.forget_if_done(links, key);
    }

    /// Handles that the sender of a message has given it up.
    pub(super) fn receive_abandoned(
        &mut self,
        links: &mut Links<T>,
        key: IncomingKey,
        body: &[u8],
    ) -> Result<Option<Ended>, ProtocolError> {
        let incoming = &mut self.incoming[key];
        let is_wanted = !matches!(incoming.purpose, Purpose::Nobody);
        // A server never gives up a response that its client wants.
        let is_response = incoming.header.kind == FrameKind::Response;
        if !body.is_empty() || is_response && is_wanted {
            let (transfer, len) = (incoming.id, incoming.len);
            return Err(ProtocolError::WrongPiece { transfer, len });
        }
        incoming.is_announced = true;
        let ended = incoming.ended(key, Outcome::Abandoned);
        links[ended.link].connection.end_receiving();
        if !is_wanted {
            self.forget_if_done(links, key);
            return Ok(None);
        }
        self.stop_incoming(links, key);
        Ok(Some(ended))
    }

    /// Stops the requests that have not arrived in full: their handlers would not begin. Returns their
    /// headers.
    pub(in super::super) fn stop_requests(
        &mut self,
        links: &mut Links<T>,
    ) -> Vec<(LinkKey, FrameHeader, ServedCall)> {
        let mut requests = Vec::new();
        for (key, incoming) in self.incoming.iter() {
            if let Purpose::Request(served) = incoming.purpose {
                requests.push((key, (incoming.link, incoming.header, served)));
            }
        }
        let stop = |(key, request)| {
            self.stop_incoming(links, key);
            request
        };
        requests.into_iter().map(stop).collect()
    }

    /// Ends a message that this side does not receive, because of the status.
    pub(super) fn end_refused(
        &mut self,
        links: &mut Links<T>,
        key: IncomingKey,
        status: Status,
    ) -> Ended {
        let ended = self.incoming[key].ended(key, Outcome::Refused(status));
        if !matches!(ended.purpose, Purpose::Stream(_)) {
            self.stop_incoming(links, key);
        }
        ended
    }

    /// Stops the long response to a call that has ended here.
    #[cold]
    pub(in super::super) fn stop_response(
        &mut self,
        links: &mut Links<T>,
        link: LinkKey,
        call: CallId,
    ) {
        if let Some(key) = links[link].bodies.incoming_of(call)
            && let Purpose::Response = self.incoming[key].purpose
        {
            self.stop_incoming(links, key);
        }
    }

    pub(super) fn end_incoming(&mut self, links: &mut Links<T>, key: IncomingKey) {
        self.cancel_incoming_timer(links, key);
        self.discharge(links, key);
        self.owed.remove(key);
        let incoming = self.incoming.remove(key);
        match incoming.place {
            Place::Waiting(_) => self.waiting.leave(key, incoming.len),
            Place::Fetch(fetch) | Place::Cancelling(fetch) => {
                self.fetches.remove(&fetch);
            }
            Place::Memory(_) | Place::Heap(_) | Place::Nowhere => {}
        }
        if let Purpose::Request(served) = incoming.purpose {
            links.counters.dropped(served.method);
        }
    }

    /// Takes a message out of its memory if all of it has arrived.
    pub(in super::super) fn complete(
        &mut self,
        links: &mut Links<T>,
        key: IncomingKey,
    ) -> Option<Ended> {
        let incoming = self.incoming.get_mut(key)?;
        let is_complete = incoming.received == incoming.len;
        if !is_complete || matches!(incoming.place, Place::Cancelling(_) | Place::Nowhere) {
            return None;
        }
        let (len, link) = (incoming.len as usize, incoming.link);
        // Before the message counts as kept itself.
        let share_from = self.share_from(links, link, len);
        let incoming = &mut self.incoming[key];
        let message = match mem::replace(&mut incoming.place, Place::Nowhere) {
            Place::Memory(memory) => Box::new(memory).freeze(len),
            Place::Waiting(bytes) | Place::Heap(bytes) => bytes.into(),
            Place::Fetch(fetch) => {
                self.fetches.remove(&fetch);
                match links.transport.finish_fetch(fetch) {
                    Some(memory) => Box::new(memory).freeze(len),
                    // The connection has ended, and the next event reports it.
                    None => {
                        self.discharge(links, key);
                        return None;
                    }
                }
            }
            Place::Cancelling(_) | Place::Nowhere => return None,
        };
        self.discharge(links, key);
        self.cancel_incoming_timer(links, key);
        let incoming = &mut self.incoming[key];
        if incoming.form == SEGMENTS {
            // They have been fetched.
            incoming.heap.set(incoming.metadata.len() as u64);
        }
        let mut memory = [
            mem::take(&mut incoming.heap),
            mem::take(&mut incoming.registered),
        ];
        memory.iter_mut().for_each(Charge::arrived);
        let message = self.account_of(links, link).hold(message, memory);
        let incoming = &mut self.incoming[key];
        let message = Box::new(LongMessage {
            metadata: mem::take(&mut incoming.metadata),
            message,
            share_from,
            copied_in: Arc::clone(&links.counters.copied_in_anywhere),
        });
        let ended = incoming.ended(key, Outcome::Complete(message));
        self.take_purpose(links, key);
        self.forget_if_done(links, key);
        Some(ended)
    }

    /// Returns the length from which the fields of a message share its memory. Shorter fields are
    /// copied, so that none keeps a much longer message; and all of them while the application keeps
    /// much already, in this poller or in the process.
    fn share_from(&self, links: &Links<T>, link: LinkKey, len: usize) -> usize {
        let limits = links.transport.limits();
        let account = links[link].bodies.account.as_ref();
        let of_link = account.map_or(0, |account| account.held());
        let kept = links.transport.kept_memory().max(self.memory.held());
        let is_short = kept > limits.message_memory / 2 || of_link > limits.connection_memory / 2;
        match is_short {
            true => usize::MAX,
            false => LEAST_SHARED.max(len / SHARED_PART),
        }
    }

    /// Makes entries about the messages of a connection. Called only when a control frame may be sent.
    pub(in super::super) fn collect_entries(&mut self, link: LinkKey, links: &mut Links<T>) {
        let link_entry = &mut links[link];
        while let Some(key) = self.owed.pop(link) {
            let incoming = &mut self.incoming[key];
            let owed = mem::take(&mut incoming.owed);
            let mut push = |request| {
                let entry = ControlEntry::of_transfer(incoming.id, request);
                link_entry.entries.push(entry);
            };
            if owed.is_accepted {
                push(ControlRequest::Accepted);
            }
            if owed.is_stopped {
                // This entry releases all segments.
                push(ControlRequest::Stopped);
            } else if owed.fetched > 0 {
                push(ControlRequest::Fetched(owed.fetched));
            }
            if incoming.is_done() {
                link_entry.bodies.incoming.remove(&incoming.id);
                self.incoming.remove(key);
            }
        }
    }

    /// Stops a long request that has not arrived in full, because its client has cancelled the call.
    /// Returns its header, or `None` if there is no such request.
    pub(in super::super) fn cancel_request(
        &mut self,
        links: &mut Links<T>,
        link: LinkKey,
        call: CallId,
    ) -> Option<(FrameHeader, ServedCall)> {
        let key = links[link].bodies.incoming_of(call)?;
        let incoming = &self.incoming[key];
        let Purpose::Request(served) = incoming.purpose else {
            return None;
        };
        let header = incoming.header;
        self.stop_incoming(links, key);
        Some((header, served))
    }
}
