//! The outcomes of handlers leave.
//!
//! What cannot leave yet is kept in [`Responses`](super::responses::Responses).

use std::collections::HashSet;

use super::bodies::TransferOwner;
use super::connections::Connections;
use super::handlers::{Handlers, drop_of_handler};
use super::link::Link;
use super::outbox::{Class, Missing, Permit};
use super::responses::{BlockedResponse, Started, rare_flags};
use super::tasks::IncomingCall;
use crate::limits::{Direction, LengthLimit, MessageLimit};
use crate::protocol::frame::{FrameKind, HEADER_LEN};
use crate::service::handler::{EncodedResponse, Handler, HandlerKey, ResponseLengths, Served};
use crate::status::{Code, Status};
use crate::transport::Transport;

impl Handlers {
    /// Sends the outcome of a handler that has completed. `frame` holds the response if it was
    /// encoded.
    pub(super) fn respond<T: Transport>(
        &self,
        connections: &Connections<T>,
        call: &IncomingCall,
        handler: &dyn Handler,
        outcome: Served,
        frame: &mut [u8],
    ) {
        match outcome {
            Served::Encoded(len) => {
                let frame = &mut frame[..HEADER_LEN + len.total()];
                let state = &mut *connections.state.borrow_mut();
                let responses = &mut state.responses;
                responses.respond_inline(&mut state.links, call, len, frame);
            }
            Served::Long(handler_key, len) => {
                self.respond_long(connections, call, handler, handler_key, len)
            }
            Served::Failed(status) => self.respond_status(connections, call, status),
            Served::NotStarted(status) => {
                self.respond_failure(connections, call, status, Started::NOT)
            }
            // The caller parks the handler.
            Served::Pending(_) | Served::PendingUntil(..) => {}
        }
    }

    /// Sends the responses that can leave now, of each connection up to the first that finds
    /// no slot.
    #[cold]
    #[inline(never)]
    pub(super) fn retry_blocked_responses<T: Transport>(&self, connections: &Connections<T>) {
        let blocked = || connections.state.borrow().responses.blocked.len();
        let mut resting = HashSet::new();
        for _ in 0..blocked() {
            let mut borrowed = connections.state.borrow_mut();
            let waiting = &mut borrowed.responses.blocked;
            let Some(next) = waiting.pop_front() else {
                break;
            };
            let link = next.call.link;
            if resting.contains(&link) {
                waiting.push_back(next);
                continue;
            }
            // A long response also waits for other long ones. The short ones behind it do not.
            let is_long = matches!(next.response, BlockedResponse::Long { .. });
            let others = waiting.len();
            drop(borrowed);
            self.respond_blocked(connections, next.call, next.response);
            if blocked() > others && !is_long {
                resting.insert(link);
            }
        }
    }

    /// Sends a response, or blocks it again.
    pub(super) fn respond_blocked<T: Transport>(
        &self,
        connections: &Connections<T>,
        call: IncomingCall,
        response: BlockedResponse,
    ) {
        match response {
            BlockedResponse::Encoded { mut frame, len } => {
                let state = &mut *connections.state.borrow_mut();
                state
                    .responses
                    .respond_inline(&mut state.links, &call, len, &mut frame);
            }
            BlockedResponse::Kept { handler_key, len } => {
                let handler = self.methods.borrow().handler(call.served.method).cloned();
                if let Some(handler) = handler {
                    self.respond_long(connections, &call, &*handler, handler_key, len);
                }
            }
            BlockedResponse::Long { encoded, len } => {
                self.respond_chunks(connections, &call, encoded, len)
            }
            BlockedResponse::Failed(status, started) => {
                self.respond_failure(connections, &call, status, started);
            }
        }
    }

    /// Sends a response that is too long for an inline frame: encodes it into its slot.
    fn respond_long<T: Transport>(
        &self,
        connections: &Connections<T>,
        call: &IncomingCall,
        handler: &dyn Handler,
        handler_key: HandlerKey,
        len: ResponseLengths,
    ) {
        let frame_len = HEADER_LEN + len.total();
        let spec = self.methods.borrow().spec(call.served.method);
        let of_method = spec.and_then(|spec| spec.max_response_len);
        let reserved = match of_method.map(|limit| limit as usize) {
            Some(limit) if len.message as usize > limit => {
                handler.discard(handler_key);
                let limit = MessageLimit::new(limit, LengthLimit::Method);
                let status =
                    Status::message_too_long(len.message as usize, limit, Direction::Response);
                return self.respond_status(connections, call, status);
            }
            _ => {
                let state = &mut *connections.state.borrow_mut();
                let (links, message_len) = (&mut state.links, len.message as usize);
                let responses = &mut state.responses;
                responses.reserve_response(links, call.link, frame_len, message_len)
            }
        };
        match reserved {
            Ok(mut buf) => {
                let encoded = handler.encode_response(handler_key, &mut buf.as_mut()[HEADER_LEN..]);
                let state = &mut *connections.state.borrow_mut();
                let (links, responses) = (&mut state.links, &mut state.responses);
                match encoded {
                    Ok(()) => {
                        let code = Code::Ok.number();
                        responses.send_response(links, call, code, Started::Maybe, len, buf);
                    }
                    Err(status) => {
                        links.transport.cancel(buf);
                        responses.respond_status_or_block(links, call, &status, Started::Maybe);
                    }
                }
            }
            Err(Missing::Connection) => {
                connections.counters.dropped(call.served.method);
                handler.discard(handler_key);
            }
            Err(Missing::Length { limit }) => {
                self.respond_very_long(connections, call, handler, handler_key, len, limit);
            }
            Err(_) => {
                let response = BlockedResponse::Kept { handler_key, len };
                let state = &mut *connections.state.borrow_mut();
                state.responses.block(&mut state.links, call, response);
            }
        }
    }

    /// Answers a call whose handler may have started with a status.
    pub(super) fn respond_status<T: Transport>(
        &self,
        connections: &Connections<T>,
        call: &IncomingCall,
        status: Status,
    ) {
        self.respond_failure(connections, call, status, Started::Maybe);
    }

    #[cold]
    pub(super) fn respond_failure<T: Transport>(
        &self,
        connections: &Connections<T>,
        call: &IncomingCall,
        status: Status,
        started: Started,
    ) {
        let mut borrowed = connections.state.borrow_mut();
        let state = &mut *borrowed;
        let responses = &mut state.responses;
        responses.respond_status_or_block(&mut state.links, call, &status, started);
        drop(borrowed);
        drop_of_handler(status);
    }

    /// Sends a response whose message does not fit a frame, if the client receives such messages.
    #[cold]
    #[inline(never)]
    pub(super) fn respond_very_long<T: Transport>(
        &self,
        connections: &Connections<T>,
        call: &IncomingCall,
        handler: &dyn Handler,
        handler_key: HandlerKey,
        len: ResponseLengths,
        limit: usize,
    ) {
        let state = connections.state.borrow();
        let link = state.links.table.get(call.link);
        let message_len = len.message as usize;
        let is_long = link.is_some_and(|link| message_len <= link.longest_message.bytes());
        if !is_long {
            let status = state
                .responses
                .too_long(&state.links, call.link, len, limit);
            drop(state);
            handler.discard(handler_key);
            return self.respond_status(connections, call, status);
        }
        drop(state);
        let link = call.link;
        let allocate = &mut |len| connections.allocate_for(link, len);
        match handler.encode_chunks(handler_key, len, allocate) {
            Ok(encoded) => self.respond_chunks(connections, call, Box::new(encoded), len),
            Err(status) => self.respond_status(connections, call, status),
        }
    }

    /// Sends the first frame of a long response, or blocks it.
    #[cold]
    pub(super) fn respond_chunks<T: Transport>(
        &self,
        connections: &Connections<T>,
        call: &IncomingCall,
        mut encoded: Box<EncodedResponse>,
        len: ResponseLengths,
    ) {
        let mut borrowed = connections.state.borrow_mut();
        let state = &mut *borrowed;
        let (on, code, flags) = (call.link, Code::Ok.number(), rare_flags(call, len));
        let EncodedResponse { metadata, message } = &mut *encoded;
        let begin = |link: &mut Link<_>| {
            let (kind, connection) = (FrameKind::Response, &mut link.connection);
            let header = connection.next_header_with(kind, flags, call.call, code);
            // Before the client can have the response.
            connections.counters.responded(call.served, code);
            Some((header, TransferOwner::Response))
        };
        let class = Class::Response;
        let sent = match state.links.permit(class, on).map(Permit::hold) {
            Ok(()) => {
                let (links, sending) = (&mut state.links, &mut state.bodies.sending);
                sending.send_long(links, on, class, metadata, message, begin)
            }
            Err(missing) => Err(missing),
        };
        match sent {
            Ok(_) => {}
            Err(Missing::Connection) => connections.counters.dropped(call.served.method),
            Err(Missing::Length { limit }) => {
                let status = state
                    .responses
                    .too_long(&state.links, call.link, len, limit);
                state.responses.respond_status_or_block(
                    &mut state.links,
                    call,
                    &status,
                    Started::Maybe,
                );
            }
            Err(_) => state.responses.block(
                &mut state.links,
                call,
                BlockedResponse::Long { encoded, len },
            ),
        }
        drop(borrowed);
        connections.drop_spent();
    }
}
