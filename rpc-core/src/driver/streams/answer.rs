//! The answer to a stream: the outcome of its handler, sent after all of its messages.
//!
//! An answer takes a credit of the connection, so that idle streams cost their clients no receives.

use super::super::link::LinkKey;
use super::super::outbox::Class;
use super::super::responses::{Blocked, BlockedResponse, Started};
use super::super::tasks::IncomingCall;
use super::super::{Driver, State};
use super::{Phase, StreamKey};
use crate::protocol::frame::{FrameHeader, HEADER_LEN};
use crate::service::handler::Served;
use crate::stats::ServedCall;
use crate::status::Status;
use crate::stream::wakers::wake_all;
use crate::transport::Transport;

impl<T: Transport> Driver<T> {
    /// Answers a stream whose handler has completed, if all of its messages are sent. Otherwise keeps the
    /// outcome until they are. `frame` holds the response if it was encoded. Returns true if the stream
    /// has been answered.
    pub(in super::super) fn answer_stream(
        &self,
        key: StreamKey,
        outcome: Served,
        frame: &mut [u8],
    ) -> bool {
        let answer = match outcome {
            Served::Encoded(len) => {
                let frame = &mut frame[..HEADER_LEN + len.total()];
                let state = &mut *self.state.borrow_mut();
                if let Some(call) = state.take_answered(key) {
                    state.respond_inline(&call, len, frame);
                    return true;
                }
                BlockedResponse::Encoded {
                    frame: (&*frame).into(),
                    len,
                }
            }
            Served::Long(handler_key, len) => BlockedResponse::Kept { handler_key, len },
            Served::Failed(status) => BlockedResponse::Failed(status, Started::Maybe),
            Served::Undecodable(status) => BlockedResponse::Failed(status, Started::NOT),
            // The caller parks the handler.
            Served::Pending(_) => return false,
        };
        let state = &mut *self.state.borrow_mut();
        if let Some(stream) = state.streams.get_mut(key)
            && let Phase::Serving(serving) = &mut stream.phase
        {
            serving.task = None;
            serving.answer = Some(answer);
        }
        state.streams.queue(key);
        false
    }

    /// Answers a stream, and discards the messages that have not been sent.
    pub(in super::super) fn answer_unsent(&self, key: StreamKey, answer: BlockedResponse) {
        let mut borrowed = self.state.borrow_mut();
        let state = &mut *borrowed;
        let mut replaced = None;
        let mut sender = None;
        let mut left = Vec::new();
        if let Some(stream) = state.streams.get_mut(key)
            && let Phase::Serving(serving) = &mut stream.phase
        {
            serving.task = None;
            replaced = serving.answer.replace(answer);
            let mut core = stream.core.lock();
            sender = core.stop_sending();
            left = core.outbound.take_left();
        }
        state.abandon_sending(key);
        state.stop_receiving(key);
        state.streams.queue(key);
        let served = state.served_of(key);
        drop(borrowed);
        drop(left);
        if let (Some(BlockedResponse::Kept { handler_key, .. }), Some(call)) = (replaced, served) {
            self.discard_handler(call.served.method, handler_key);
        }
        wake_all(sender);
        self.wake_collected();
    }

    /// Answers a stream with a status, and discards the messages that have not been sent.
    pub(in super::super) fn fail_stream(&self, key: StreamKey, status: Status, started: Started) {
        self.answer_unsent(key, BlockedResponse::Failed(status, started));
    }

    /// Answers a stream whose handler does not begin. Its request has waited for its turn.
    #[cold]
    pub(in super::super) fn refuse_stream(
        &self,
        link: LinkKey,
        header: &FrameHeader,
        served: ServedCall,
        status: Status,
        started: Started,
    ) {
        let mut state = self.state.borrow_mut();
        let Some(key) = state.stream_of(link, header.call) else {
            return;
        };
        state.set_served(key, served);
        drop(state);
        self.fail_stream(key, status, started);
    }

    /// Sends the answer of a stream that has taken a credit for it.
    pub(super) fn send_answer(&self, key: StreamKey) {
        let taken = self.state.borrow_mut().take_answer(key);
        let Some(Blocked { call, response }) = taken else {
            return;
        };
        self.respond_blocked(call, response);
    }
}

impl<T: Transport> State<T> {
    pub(super) fn set_served(&mut self, key: StreamKey, served: ServedCall) {
        if let Some(stream) = self.streams.get_mut(key)
            && let Phase::Serving(serving) = &mut stream.phase
        {
            serving.served = Some(served);
        }
    }

    /// Returns the call of a stream that has been counted.
    pub(super) fn served_of(&mut self, key: StreamKey) -> Option<IncomingCall> {
        let stream = self.streams.get_mut(key)?;
        let Phase::Serving(serving) = &stream.phase else {
            return None;
        };
        Some(IncomingCall {
            link: stream.link,
            call: serving.call,
            served: serving.served?,
            stream: Some(key),
        })
    }

    /// Removes a stream, and takes a credit for its answer, if it can be answered at once: nothing of it
    /// is under way, and no other stream waits.
    fn take_answered(&mut self, key: StreamKey) -> Option<IncomingCall> {
        let call = self.served_of(key)?;
        let stream = self.streams.entries.get(key)?;
        let is_idle = stream.receiving.is_empty() && stream.core.lock().outbound.is_empty();
        if !is_idle || self.streams_wait() {
            return None;
        }
        // The response takes it along.
        let permit = self.links.permit(Class::Message, call.link);
        permit.ok()?.hold();
        self.remove_stream(key);
        Some(call)
    }

    /// Removes a stream whose answer is sent now, and returns the answer.
    fn take_answer(&mut self, key: StreamKey) -> Option<Blocked> {
        let call = self.served_of(key)?;
        let stream = self.streams.get_mut(key)?;
        let Phase::Serving(serving) = &mut stream.phase else {
            return None;
        };
        let response = serving.answer.take()?;
        self.remove_stream(key);
        Some(Blocked { call, response })
    }
}
