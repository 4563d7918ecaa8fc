//! The receiver's part of a long message: stops one that is no longer wanted.

use super::super::link::LinkKey;
use super::super::link_transfers::IncomingKey;
use super::super::responses::Started;
use super::super::tasks::IncomingCall;
use super::super::{Driver, State};
use super::admission::NoMemory;
use super::arrival::{Completed, Purpose};
use super::incoming::Place;
use crate::protocol::connection::ProtocolError;
use crate::protocol::frame::{CallId, FrameKind, SEGMENTS};
use crate::stats::ServedCall;
use crate::status::Status;
use crate::transport::Transport;

impl<T: Transport> State<T> {
    /// Stops a message. Its sender is told when no READ of it is outstanding any more.
    pub(in super::super) fn stop_incoming(&mut self, key: IncomingKey) {
        self.cancel_incoming_timer(key);
        self.counters.transfers.stopped.add(1);
        self.take_purpose(key);
        let incoming = &mut self.transfers.incoming[key];
        incoming.segments.clear();
        match std::mem::replace(&mut incoming.place, Place::Nowhere) {
            Place::Waiting(_) => {
                let len = incoming.len;
                self.transfers.waiting.leave(key, len);
                self.nothing_is_read(key);
            }
            Place::Memory(_) | Place::Heap(_) | Place::Nowhere => self.nothing_is_read(key),
            Place::Fetch(fetch) | Place::Cancelling(fetch) => {
                incoming.place = Place::Cancelling(fetch);
                // The call has ended. What is left is to see that READs which never complete do not
                // keep the memory.
                incoming.deadline = None;
                self.expect_progress(key);
                self.transport.cancel_fetch(fetch);
            }
        }
    }

    /// Frees the memory of a stopped message, of which no READ is outstanding, and queues the entry
    /// for its sender.
    pub(super) fn nothing_is_read(&mut self, key: IncomingKey) {
        self.discharge(key);
        let incoming = &mut self.transfers.incoming[key];
        incoming.place = Place::Nowhere;
        // If it is neither kept nor unfinished, the sender needs no entry.
        let is_kept = incoming.form == SEGMENTS && incoming.announced > 0;
        if is_kept || !incoming.is_announced {
            incoming.owed.is_stopped = true;
            self.owe_entry(key);
        }
        self.forget_if_done(key);
    }

    /// Handles that the sender of a message has given it up.
    pub(super) fn receive_abandoned(
        &mut self,
        key: IncomingKey,
        body: &[u8],
    ) -> Result<Option<Completed>, ProtocolError> {
        let incoming = &mut self.transfers.incoming[key];
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
        self.links[link].connection.end_receiving();
        match purpose {
            Purpose::Nobody => self.forget_if_done(key),
            _ => self.stop_incoming(key),
        }
        if let Purpose::Stream(stream) = purpose {
            return Ok(Some(Completed::Abandoned { key, stream }));
        }
        let Purpose::Request(served) = purpose else {
            return Ok(None);
        };
        self.counters.cancels.before_start.add(1);
        Ok(Some(Completed::NotStarted {
            call: unary(link, call, served),
            status: cancelled(),
        }))
    }

    /// Takes the purpose of a message, which is then nobody's.
    pub(super) fn take_purpose(&mut self, key: IncomingKey) -> Purpose {
        let incoming = &mut self.transfers.incoming[key];
        let purpose = std::mem::replace(&mut incoming.purpose, Purpose::Nobody);
        let call = incoming.header.call.0;
        let by_call = &mut self.links[incoming.link].transfers.by_call;
        // A message of a stream is not there, but another message may have the number of its call.
        if by_call.get(&call) == Some(&key) {
            by_call.remove(&call);
        }
        purpose
    }

    /// Takes a request that its client has cancelled, if it is long and not complete.
    fn take_long_request(&mut self, link: LinkKey, call: CallId) -> Option<ServedCall> {
        let key = self.links[link].transfers.incoming_of(call)?;
        let Purpose::Request(served) = self.transfers.incoming[key].purpose else {
            return None;
        };
        self.stop_incoming(key);
        Some(served)
    }

    /// Stops the long response to a call that has ended here.
    #[cold]
    pub(in super::super) fn stop_response(&mut self, link: LinkKey, call: CallId) {
        let entry = self.links.get(link);
        if let Some(key) = entry.and_then(|entry| entry.transfers.incoming_of(call))
            && let Purpose::Response(_) = self.transfers.incoming[key].purpose
        {
            self.stop_incoming(key);
        }
    }
}

impl<T: Transport> Driver<T> {
    /// Ends a call whose long request has not arrived in full, because its client has cancelled it.
    /// Returns false if there is no such call.
    #[cold]
    pub(in super::super) fn cancel_long_request(&self, link: LinkKey, call: CallId) -> bool {
        if self.state.borrow().transfers.is_empty() {
            return false;
        }
        let served = self.state.borrow_mut().take_long_request(link, call);
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
        let mut state = self.state.borrow_mut();
        let Some(incoming) = state.transfers.incoming.get_mut(key) else {
            return;
        };
        incoming.timer = None;
        let now = self.clock.now();
        if incoming.is_accepted && incoming.deadline.is_none_or(|deadline| deadline > now) {
            return state.check_progress(key);
        }
        let (link, call) = (incoming.link, incoming.header.call);
        match incoming.purpose {
            Purpose::Request(served) => {
                let status = match incoming.is_accepted {
                    true => Status::deadline_exceeded(
                        "the deadline passed before the request had arrived in full; the call did not run",
                    ),
                    false => state.waited_until_deadline(key),
                };
                state.stop_incoming(key);
                drop(state);
                self.counters.handlers.expired.add(1);
                self.respond_failure(&unary(link, call, served), status, Started::NOT);
            }
            Purpose::Response(_) | Purpose::Stream(_) => {
                drop(state);
                self.refuse_waiting(key, NoMemory::OfPoller);
            }
            Purpose::Nobody => {}
        }
    }

    /// Ends the call or the stream of a message that has waited for memory and gets none.
    #[cold]
    pub(super) fn refuse_waiting(&self, key: IncomingKey, reason: NoMemory) {
        let mut state = self.state.borrow_mut();
        // An earlier one that was refused may have ended it.
        let Some(incoming) = state.transfers.incoming.get(key) else {
            return;
        };
        let (link, call) = (incoming.link, incoming.header.call);
        let (purpose, status) = (incoming.purpose, state.no_memory(key, reason));
        state.counters.transfers.refused.add(1);
        match purpose {
            Purpose::Request(served) => {
                state.stop_incoming(key);
                drop(state);
                self.respond_failure(&unary(link, call, served), status, Started::NOT);
            }
            Purpose::Response(call) => {
                state.stop_incoming(key);
                drop(state);
                self.conclude(Some(Completed::Refused { link, call, status }));
            }
            Purpose::Stream(stream) => {
                drop(state);
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
