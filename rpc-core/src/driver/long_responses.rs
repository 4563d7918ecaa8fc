//! Responses whose message does not fit a frame.

use super::Driver;
use super::bodies::TransferOwner;
use super::link::Link;
use super::outbox::{Class, Missing, Permit};
use super::responses::{BlockedResponse, Started, rare_flags};
use super::tasks::IncomingCall;
use crate::protocol::frame::FrameKind;
use crate::service::handler::{EncodedResponse, Handler, HandlerKey, ResponseLengths};
use crate::status::Code;
use crate::transport::Transport;

impl<T: Transport> Driver<T> {
    /// Sends a response whose message does not fit a frame, if the client receives such messages.
    #[cold]
    #[inline(never)]
    pub(super) fn respond_very_long(
        &self,
        call: &IncomingCall,
        handler: &dyn Handler,
        handler_key: HandlerKey,
        len: ResponseLengths,
        limit: usize,
    ) {
        let state = self.state.borrow();
        let link = state.links.table.get(call.link);
        let message_len = len.message as usize;
        let is_long = link.is_some_and(|link| message_len <= link.longest_message.bytes());
        if !is_long {
            let status = state.too_long(call.link, len, limit);
            drop(state);
            handler.discard(handler_key);
            return self.respond_status(call, status);
        }
        drop(state);
        let link = call.link;
        let allocate = &mut |len| self.allocate_for(link, len);
        match handler.encode_chunks(handler_key, len, allocate) {
            Ok(encoded) => self.respond_chunks(call, Box::new(encoded), len),
            Err(status) => self.respond_status(call, status),
        }
    }

    /// Sends the first frame of a long response, or blocks it.
    #[cold]
    pub(super) fn respond_chunks(
        &self,
        call: &IncomingCall,
        mut encoded: Box<EncodedResponse>,
        len: ResponseLengths,
    ) {
        let mut borrowed = self.state.borrow_mut();
        let state = &mut *borrowed;
        let (on, code, flags) = (call.link, Code::Ok.number(), rare_flags(call, len));
        let EncodedResponse { metadata, message } = &mut *encoded;
        let begin = |link: &mut Link<_>| {
            let (kind, connection) = (FrameKind::LongResponse, &mut link.connection);
            let header = connection.next_header_with(kind, flags, call.call, code);
            // Before the client can have the response.
            self.counters.responded(call.served, code);
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
            Err(Missing::Connection) => self.counters.dropped(call.served.method),
            Err(Missing::Length { limit }) => {
                let status = state.too_long(call.link, len, limit);
                state.respond_status_or_block(call, &status, Started::Maybe);
            }
            Err(_) => state.block(call, BlockedResponse::Long { encoded, len }),
        }
        drop(borrowed);
        self.drop_spent();
    }
}
