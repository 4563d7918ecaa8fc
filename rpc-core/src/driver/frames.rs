//! Frames that need nothing but the state: the responses of calls, flags, and control frames.

use super::DriverState;
use super::body::{Body, Response};
use super::call_table::{ResponseOutcome, TakeOutcome, WakeTarget};
use super::link::LinkKey;
use super::outbox::{Controlled, Missing};
use crate::call_error::{CallError, Cause, Execution};
use crate::protocol::connection::ProtocolError;
use crate::protocol::frame::{
    CallId, ControlEntries, ControlEntry, ControlRequest, EVICTED, Flags, FrameHeader, FrameKind,
    HEADER_LEN, ResponseHead, TransferId,
};
use crate::status::Status;
use crate::transport::Transport;

impl<T: Transport> DriverState<T> {
    /// Handles a control frame whose header has been validated. Returns the calls that the client
    /// has cancelled.
    #[cold]
    pub(super) fn handle_control(
        &mut self,
        key: LinkKey,
        header: &FrameHeader,
        buf: T::RecvBuf,
    ) -> Vec<CallId> {
        self.links.release_freed(key);
        // The header was parsed, so the frame has one.
        let received = match header.control_entries(&buf.as_ref()[HEADER_LEN..]) {
            Ok(entries) => self.receive_control(key, entries),
            Err(error) => Err(error.into()),
        };
        match received {
            Ok(cancelled) => {
                self.links.release_slot(buf);
                self.links.control_frame_received(key);
                cancelled
            }
            Err(error) => {
                self.links.close_for_violation(key, buf, error);
                Vec::new()
            }
        }
    }

    /// Returns the number of entries that wait for a control frame.
    pub(super) fn entries_owed(&self, link: LinkKey) -> usize {
        let made = self.links[link].entries.len();
        made + self.links.outbox.grants.len_of(link) + self.bodies.receiving.entries_owed(link)
    }

    /// Sends the credits, entries and acknowledgements that no other frame has carried.
    pub(super) fn send_control_frames(&mut self) {
        // Each is tried once: a link whose peer receives nothing must not hold up the others.
        for _ in 0..self.links.outbox.control.len() {
            let Some(key) = self.links.outbox.control.pop() else {
                break;
            };
            if self.links[key].connection.may_send_control_frame() {
                self.streams.collect_grants(key, &mut self.links);
                self.bodies.receiving.collect_entries(key, &mut self.links);
            }
            let sent = self.links.send_control(key);
            let is_sent = sent == Ok(Controlled::Sent);
            let counters = &self.links.counters.credits;
            counters.frames_sent.add(is_sent.into());
            let needs_another = match sent {
                Ok(Controlled::Later) => true,
                Ok(_) => self.entries_owed(key) > 0,
                Err(missing) => missing == Missing::Slot,
            };
            if needs_another {
                self.links.outbox.control.insert(key);
            }
        }
    }

    /// Handles the entries of a control frame. Returns the calls that the client has cancelled.
    pub(super) fn receive_control(
        &mut self,
        link: LinkKey,
        entries: ControlEntries<'_>,
    ) -> Result<Vec<CallId>, ProtocolError> {
        let mut cancelled = Vec::new();
        let is_server = self.links[link].is_server();
        for ControlEntry { call, request } in entries {
            match request {
                ControlRequest::Grant(bytes) => {
                    self.streams
                        .receive_grant(&mut self.links, link, call, bytes)?
                }
                ControlRequest::Cancel if is_server => cancelled.push(call),
                ControlRequest::Cancel => return Err(ProtocolError::CancelFromServer { call }),
                ControlRequest::Fetched(_) | ControlRequest::Accepted | ControlRequest::Stopped => {
                    let (links, id) = (&mut self.links, TransferId(call.0));
                    let sent = self
                        .bodies
                        .sending
                        .receive_transfer_entry(links, link, id, request)?;
                    if let Some(sent) = sent {
                        self.streams.message_sent(sent);
                    }
                }
            }
        }
        Ok(cancelled)
    }

    /// Ends the call that a response belongs to. Returns the target to wake.
    #[inline(always)]
    pub(super) fn complete_call(
        &mut self,
        key: LinkKey,
        header: &FrameHeader,
        body: Body<T::RecvBuf>,
    ) -> WakeTarget {
        let head = ResponseHead::of(header);
        let calls = &mut self.links[key].calls;
        match calls.complete(header.call, head, body) {
            ResponseOutcome::Completed { waiting, timer } => {
                if let Some(timer) = timer {
                    self.links.timers.cancel(timer);
                }
                if let WakeTarget::Stream(_) = waiting {
                    self.refuse_response(key, header.call);
                }
                return waiting;
            }
            ResponseOutcome::Abandoned(body) => {
                let response = Response { head, body };
                self.links.discard_response(response);
            }
            ResponseOutcome::UnknownCall(body) => self.refuse_body(key, header.call, body),
        }
        WakeTarget::None
    }

    /// Fails a call whose long response this side does not receive. Returns the target to wake.
    #[cold]
    pub(super) fn fail_call(&mut self, key: LinkKey, call: CallId, status: Status) -> WakeTarget {
        let error = CallError::new(Cause::NotReceived(status), Execution::Answered);
        let (waiting, timer) = self.links[key].calls.fail(call, error);
        if let Some(timer) = timer {
            self.links.timers.cancel(timer);
        }
        waiting
    }

    /// Closes the connection of a server that answered a stream as if it were a unary call.
    #[cold]
    fn refuse_response(&mut self, key: LinkKey, call: CallId) {
        if let TakeOutcome::Responded(response) = self.links[key].calls.take(call) {
            self.refuse_body(key, call, response.body);
        }
    }

    /// Closes the connection of a server that answered what is no unary call in flight.
    #[cold]
    fn refuse_body(&mut self, key: LinkKey, call: CallId, body: Body<T::RecvBuf>) {
        let Body::Slot(buf) = body else {
            unreachable!("a long response is checked with its first frame");
        };
        let error = ProtocolError::UnknownCall { call };
        self.links.close_for_violation(key, buf, error);
    }

    /// Handles the flags of a frame that few frames have. The fields of its header are passed one by one:
    /// a reference to the header would keep all headers in memory.
    #[cold]
    pub(super) fn handle_rare_flags(
        &mut self,
        key: LinkKey,
        flags: Flags,
        kind: FrameKind,
        selector: u16,
    ) {
        let is_evicted = (kind, selector) == (FrameKind::Control, EVICTED);
        if flags.contains(Flags::GOING_AWAY) && self.links.end_is_announced(key, is_evicted) {
            // Those that have not been opened fail.
            self.streams.resume_all(key, &mut self.links);
        }
        // The shutdown and the end of a stream leave credits to return. An acknowledgement permits
        // the next control frame.
        if self.links[key].connection.wants_control_frame() || self.entries_owed(key) > 0 {
            self.links.owe(key);
        }
    }
}
