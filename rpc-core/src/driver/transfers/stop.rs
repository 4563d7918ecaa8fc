//! The receiver's part of a long message: stops one that is no longer wanted.

use super::super::Driver;
use super::super::link::LinkKey;
use super::super::link_transfers::IncomingKey;
use super::super::links::Links;
use super::super::responses::Started;
use super::super::tasks::IncomingCall;
use super::super::transfers::Transfers;
use super::admission::NoMemory;
use super::arrival::{Completed, Purpose};
use super::incoming::Place;
use crate::protocol::connection::ProtocolError;
use crate::protocol::frame::{CallId, FrameKind, SEGMENTS};
use crate::stats::ServedCall;
use crate::status::Status;
use crate::transport::Transport;

impl<T: Transport> Transfers<T> {
    /// Stops a message. Its sender is told when no READ of it is outstanding any more.
    pub(in super::super) fn stop_incoming(&mut self, links: &mut Links<T>, key: IncomingKey) {
        self.cancel_incoming_timer(links, key);
        links.counters.transfers.stopped.add(1);
        self.take_purpose(links, key);
        let incoming = &mut self.incoming[key];
        incoming.segments.clear();
        match std::mem::replace(&mut incoming.place, Place::Nowhere) {
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
    ) -> Result<Option<Completed>, ProtocolError> {
        let incoming = &mut self.incoming[key];
        let (transfer, len) = (incoming.id, incoming.len);
        let purpose = incoming.purpose;
        // A server never gives up a response that its client wants.
        let is_response = incoming.header.kind == FrameKind::LongResponse;
        let is_wanted = !matches!(purpose, Purpose::Nobody);
        if !body.is_empty() || is_response && is_wanted {
            return Err(ProtocolError::WrongPiece { transfer, len });
        }
        let (link, call) = (incoming.link, incoming.header.call);
        incoming.is_announced = true;
        links[link].connection.end_receiving();
        match purpose {
            Purpose::Nobody => self.forget_if_done(links, key),
            _ => self.stop_incoming(links, key),
        }
        if let Purpose::Stream(stream) = purpose {
            return Ok(Some(Completed::Abandoned { key, stream }));
        }
        let Purpose::Request(served) = purpose else {
            return Ok(None);
        };
        links.counters.cancels.before_start.add(1);
        Ok(Some(Completed::NotStarted {
            call: unary(link, call, served),
            status: cancelled(),
        }))
    }

    /// Takes the purpose of a message, which is then nobody's.
    pub(super) fn take_purpose(&mut self, links: &mut Links<T>, key: IncomingKey) -> Purpose {
        let incoming = &mut self.incoming[key];
        let purpose = std::mem::replace(&mut incoming.purpose, Purpose::Nobody);
        let call = incoming.header.call.0;
        let by_call = &mut links[incoming.link].transfers.by_call;
        // A message of a stream is not there, but another message may have the number of its call.
        if by_call.get(&call) == Some(&key) {
            by_call.remove(&call);
        }
        purpose
    }

    /// Takes a request that its client has cancelled, if it is long and not complete.
    fn take_long_request(
        &mut self,
        links: &mut Links<T>,
        link: LinkKey,
        call: CallId,
    ) -> Option<ServedCall> {
        let key = links[link].transfers.incoming_of(call)?;
        let Purpose::Request(served) = self.incoming[key].purpose else {
            return None;
        };
        self.stop_incoming(links, key);
        Some(served)
    }

    /// Stops the long response to a call that has ended here.
    #[cold]
    pub(in super::super) fn stop_response(
        &mut self,
        links: &mut Links<T>,
        link: LinkKey,
        call: CallId,
    ) {
        let entry = links.table.get(link);
        if let Some(key) = entry.and_then(|entry| entry.transfers.incoming_of(call))
            && let Purpose::Response(_) = self.incoming[key].purpose
        {
            self.stop_incoming(links, key);
        }
    }
}

impl<T: Transport> Driver<T> {
    /// Ends a call whose long request has not arrived in full, because its client has cancelled it.
    /// Returns false if there is no such call.
    #[cold]
    pub(in super::super) fn cancel_long_request(&self, link: LinkKey, call: CallId) -> bool {
        let mut borrowed = self.state.borrow_mut();
        let state = &mut *borrowed;
        if state.transfers.is_empty() {
            return false;
        }
        let served = state
            .transfers
            .take_long_request(&mut state.links, link, call);
        drop(borrowed);
        let Some(served) = served else {
            return false;
        };
        self.counters.cancels.before_start.add(1);
        self.respond_failure(&unary(link, call, served), cancelled(), Started::NOT);
        true
    }

    /// Ends a call whose deadline has passed before its request was complete, or whose response has
    /// waited for memory for too long. Looks at the progress of a message that has memory.
    #[cold]
    pub(in super::super) fn expire_incoming(&self, key: IncomingKey) {
        let mut borrowed = self.state.borrow_mut();
        let state = &mut *borrowed;
        let Some(incoming) = state.transfers.incoming.get_mut(key) else {
            return;
        };
        incoming.timer = None;
        let now = self.clock.now();
        if incoming.is_accepted && incoming.deadline.is_none_or(|deadline| deadline > now) {
            return state.transfers.check_progress(&mut state.links, key);
        }
        let (link, call) = (incoming.link, incoming.header.call);
        match incoming.purpose {
            Purpose::Request(served) => {
                let status = match incoming.is_accepted {
                    true => Status::deadline_exceeded(
                        "the deadline passed before the request had arrived in full; the call did not run",
                    ),
                    false => state.transfers.waited_until_deadline(&state.links, key),
                };
                state.transfers.stop_incoming(&mut state.links, key);
                drop(borrowed);
                self.counters.handlers.expired.add(1);
                self.respond_failure(&unary(link, call, served), status, Started::NOT);
            }
            Purpose::Response(_) | Purpose::Stream(_) => {
                drop(borrowed);
                self.refuse_waiting(key, NoMemory::OfPoller);
            }
            Purpose::Nobody => {}
        }
    }

    /// Ends the call or the stream of a message that has waited for memory and gets none.
    #[cold]
    pub(super) fn refuse_waiting(&self, key: IncomingKey, reason: NoMemory) {
        let mut borrowed = self.state.borrow_mut();
        let state = &mut *borrowed;
        // An earlier one that was refused may have ended it.
        let Some(incoming) = state.transfers.incoming.get(key) else {
            return;
        };
        let (link, call) = (incoming.link, incoming.header.call);
        let (purpose, status) = (
            incoming.purpose,
            state.transfers.no_memory(&state.links, key, reason),
        );
        state.links.counters.transfers.refused.add(1);
        match purpose {
            Purpose::Request(served) => {
                state.transfers.stop_incoming(&mut state.links, key);
                drop(borrowed);
                self.respond_failure(&unary(link, call, served), status, Started::NOT);
            }
            Purpose::Response(call) => {
                state.transfers.stop_incoming(&mut state.links, key);
                drop(borrowed);
                self.conclude(Some(Completed::Refused { link, call, status }));
            }
            Purpose::Stream(stream) => {
                drop(borrowed);
                self.fail_receiving(stream, status);
            }
            Purpose::Nobody => {}
        }
    }
}

fn unary(link: LinkKey, call: CallId, served: ServedCall) -> IncomingCall {
    IncomingCall {
        link,
        call,
        served,
        stream: None,
    }
}

fn cancelled() -> Status {
    Status::cancelled("the client cancelled the call; it did not run")
}
