//! A message that is alone goes straight to a frame.
//!
//! On the thread of the poller, a message is encoded into the frame and sent while it is handed over, by a
//! client or by a handler. No other message waits, and there are a credit, room in the window and room to
//! send. What lacks one of these goes the way of many messages (`look.rs`).

use std::ptr;
use std::sync::Arc;

use super::super::outbox::{Body, Class};
use super::super::{Driver, State};
use super::{Phase, Serving};
use crate::protocol::frame::{FrameKind, HEADER_LEN};
use crate::stream::batch::MessageForm;
use crate::stream::turns::LoneMessage;
use crate::transport::Transport;

impl<T: Transport> Driver<T> {
    /// Sends a message at once, if nothing of its stream waits and everything is there that it needs.
    /// Returns true if it was sent. If not, nothing has changed.
    pub(in super::super) fn send_alone(&self, message: &mut LoneMessage<'_>) -> bool {
        let len = message.len;
        if HEADER_LEN + len > self.longest_inline {
            return false;
        }
        let mut memory = self.lone_frame.take();
        let frame = memory.frame_mut(len);
        // The message's own code runs here.
        let is_encoded = (message.encode)(&mut frame[HEADER_LEN..]);
        let is_sent = is_encoded && {
            self.state
                .borrow_mut()
                .send_encoded(message.index, message.core, frame)
        };
        self.lone_frame.put_back(memory);
        is_sent
    }
}

impl<T: Transport> State<T> {
    /// Sends the message in `frame`, if nothing of its stream waits, and no other stream
    /// waits for its turn or for a credit.
    fn send_encoded(&mut self, index: u32, core: *const (), frame: &mut [u8]) -> bool {
        if self.streams_wait() {
            return false;
        }
        // The number of a stream that has ended may be another one's.
        let Some(key) = self.streams.entries.key_at(index) else {
            return false;
        };
        let stream = &mut self.streams.entries[key];
        let call = match stream.phase {
            Phase::Sent { call, .. }
            | Phase::Serving(Serving {
                call, answer: None, ..
            }) => call,
            _ => return false,
        };
        let on = stream.link;
        if !ptr::addr_eq(Arc::as_ptr(&stream.core), core) {
            return false;
        }
        let len = frame.len() - HEADER_LEN;
        let core = stream.core.lock();
        if core.is_cancelled() || !core.outbound.may_pass(len) {
            return false;
        }
        let permit = self.links.permit(Class::Message, on);
        let sent = permit.and_then(|permit| {
            permit.send(Body::Inline(frame), |link, frame| {
                let mut core = core;
                core.outbound.pass(len);
                let (kind, selector) = (FrameKind::Message, MessageForm::One.selector());
                let mut header = link.connection.next_header(kind, call, selector);
                header.time_us = core.inbound.take_grant();
                header.encode(frame);
                Some(())
            })
        });
        let is_sent = sent.is_ok();
        stream.was_used |= is_sent;
        self.links.counters.streams.frames_sent.add(is_sent.into());
        is_sent
    }
}
