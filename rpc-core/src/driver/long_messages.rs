//! Long messages of calls and streams: their frames and their ends, as far as the application's code has
//! to run.

use std::thread;

use super::Driver;
use super::bodies::{Completed, FirstFrame, LongMessage, Purpose};
use super::call_table::{LongOutcome, WakeTarget};
use super::handlers::RequestParts;
use super::link::LinkKey;
use super::link_bodies::IncomingKey;
use super::link_streams::StreamKey;
use super::response::{LongResponse, Response, ResponseFrame};
use super::responses::Started;
use super::streams::Begun;
use super::tasks::IncomingCall;
use crate::call_error::{CallError, Cause, Execution};
use crate::limits::{Direction, MessageLimit};
use crate::protocol::connection::ProtocolError;
use crate::protocol::frame::{
    CallId, Flags, FrameHeader, FrameKind, HEADER_LEN, LongBody, ResponseHead,
};
use crate::service::handler::{RawRequest, Served};
use crate::stats::ServedCall;
use crate::status::Status;
use crate::transport::{FetchKey, Transport};

/// The most turns that a caller takes until its entries are sent. An entry waits while the peer has not
/// acknowledged the control frame before.
const MOST_TURNS: u32 = 20_000;
/// Of these, turns after which the caller offers its core to others before each: where there are more
/// threads than cores, the peer may need it. All turns take some ten milliseconds if nobody does.
const TURNS_WITHOUT_YIELD: u32 = 1000;

impl<T: Transport> Driver<T> {
    /// Handles a frame of a long message, whose header has been checked and accounted.
    #[cold]
    #[inline(never)]
    pub(super) fn receive_long(&self, link: LinkKey, header: &FrameHeader, buf: T::RecvBuf) {
        self.block_on_waker.note_long();
        let frame = buf.as_ref();
        let (metadata, body) = frame[HEADER_LEN..].split_at(header.metadata_len.into());
        let is_stream = header.flags.contains(Flags::STREAM);
        let is_response = header.kind == FrameKind::LongResponse && !is_stream;
        let handled = match header.kind {
            FrameKind::Continuation => {
                let state = &mut *self.state.borrow_mut();
                let receiving = &mut state.bodies.receiving;
                receiving.receive_continuation(&mut state.links, link, header, body)
            }
            _ => LongBody::parse(header.kind, body)
                .map_err(ProtocolError::from)
                .and_then(|body| {
                    let first = FirstFrame {
                        link,
                        header,
                        metadata,
                        body,
                    };
                    match header.kind {
                        FrameKind::LongRequest if !is_stream => self.receive_long_request(&first),
                        FrameKind::LongResponse if !is_stream => self.receive_long_response(&first),
                        _ => self.receive_long_of_stream(&first),
                    }
                }),
        };
        let mut borrowed = self.state.borrow_mut();
        let state = &mut *borrowed;
        let completed = match handled {
            Ok(completed) => completed,
            Err(error) => return state.links.close_for_violation(link, buf, error),
        };
        if is_response {
            // The receive that the request has promised was given back when the call was found.
            state.links.release_slot(buf);
        } else {
            state.links.release_received(link, buf);
        }
        // A server needs receives for the rest of its message: promise some, or return the credits
        // that are owed.
        let connection = &state.links[link].connection;
        if connection.wants_window() {
            state.links.open_window(link);
        } else if connection.wants_control_frame() {
            state.links.owe(link);
        }
        drop(borrowed);
        if let Some(completed) = completed {
            self.conclude(completed);
        }
    }

    fn receive_long_request(
        &self,
        first: &FirstFrame<'_>,
    ) -> Result<Option<Completed>, ProtocolError> {
        let (link, header, body) = (first.link, first.header, &first.body);
        let served = self.counters.received(header.selector, || self.clock.now());
        let parts = self.request_parts(link, header);
        let spec = self.methods.borrow().spec(header.selector);
        let of_method = spec.and_then(|spec| spec.max_request_len);
        let is_rejected = parts.is_expired || parts.handler.is_none();
        let rejection = is_rejected.then(|| self.rejection(header, parts.is_expired));
        let mut borrowed = self.state.borrow_mut();
        let state = &mut *borrowed;
        let (links, receiving) = (&mut state.links, &mut state.bodies.receiving);
        let limit = MessageLimit::of_receiver(links.transport.limits()).and_method(of_method);
        let refusal = rejection.or_else(|| too_long(body.len, limit, Direction::Request));
        let purpose = match refusal {
            None => Purpose::Request(served),
            Some(_) => Purpose::Nobody,
        };
        let begun = receiving.begin_incoming(links, first, purpose, parts.deadline);
        // No message has begun, so the end of the connection does not count the call.
        let key = begun.inspect_err(|_| self.counters.dropped(served.method))?;
        let refusal = refusal.or_else(|| receiving.admit_incoming(links, key));
        if refusal.is_some() {
            receiving.stop_incoming(links, key);
        }
        let taken = receiving.take_piece(links, key, body.form, body.piece);
        let Some(status) = refusal else {
            return taken.map(|()| receiving.complete(links, key));
        };
        // The message is nobody's, so the end of the connection does not count the call.
        taken.inspect_err(|_| self.counters.dropped(served.method))?;
        let (call, stream) = (header.call, None);
        let call = IncomingCall {
            link,
            call,
            served,
            stream,
        };
        Ok(Some(Completed::NotStarted { call, status }))
    }

    fn receive_long_response(
        &self,
        first: &FirstFrame<'_>,
    ) -> Result<Option<Completed>, ProtocolError> {
        let (link, call, body) = (first.link, first.header.call, &first.body);
        let state = &mut *self.state.borrow_mut();
        let (links, receiving) = (&mut state.links, &mut state.bodies.receiving);
        let outcome = links[link].calls.begin_long(call);
        let purpose = match outcome {
            LongOutcome::Wanted => Purpose::Response(call),
            LongOutcome::Abandoned => Purpose::Nobody,
            LongOutcome::UnknownCall => return Err(ProtocolError::UnknownCall { call }),
        };
        // The end of the connection does not give this receive back, whatever follows.
        links.budget.release(1);
        let key = receiving.begin_incoming(links, first, purpose, None)?;
        if first.header.flags.contains(Flags::SPENT) {
            links.open_window_for_next(link);
        }
        let limit = MessageLimit::of_receiver(links.transport.limits());
        let is_wanted = outcome == LongOutcome::Wanted;
        let refusal = match is_wanted {
            true => too_long(body.len, limit, Direction::Response)
                .or_else(|| receiving.admit_incoming(links, key)),
            false => None,
        };
        if refusal.is_some() || !is_wanted {
            receiving.stop_incoming(links, key);
        }
        receiving.take_piece(links, key, body.form, body.piece)?;
        Ok(match refusal {
            Some(status) => Some(Completed::Refused { link, call, status }),
            None => receiving.complete(links, key),
        })
    }

    /// Handles the first frame of a long message of a stream.
    fn receive_long_of_stream(
        &self,
        first: &FirstFrame<'_>,
    ) -> Result<Option<Completed>, ProtocolError> {
        let header = first.header;
        let begun = match header.kind {
            FrameKind::LongRequest => self.receive_long_opening(first)?,
            kind => {
                let state = &mut *self.state.borrow_mut();
                let (links, bodies) = (&mut state.links, &mut state.bodies);
                match kind {
                    FrameKind::LongResponse => {
                        state.streams.receive_long_answer(links, bodies, first)?
                    }
                    _ => state.streams.receive_long_message(links, bodies, first)?,
                }
            }
        };
        let mut borrowed = self.state.borrow_mut();
        let state = &mut *borrowed;
        let (links, receiving) = (&mut state.links, &mut state.bodies.receiving);
        let (key, body) = (begun.incoming, &first.body);
        receiving.take_piece(links, key, body.form, body.piece)?;
        let completed = receiving.complete(links, key);
        drop(borrowed);
        if let Some((key, status)) = begun.refusal {
            self.fail_receiving(key, status);
        }
        self.wake_collected();
        Ok(completed)
    }

    /// Adds the stream that a long request opens.
    fn receive_long_opening(&self, first: &FirstFrame<'_>) -> Result<Begun, ProtocolError> {
        let (link, header) = (first.link, first.header);
        let served = self.counters.received(header.selector, || self.clock.now());
        let parts = self.request_parts(link, header);
        let is_rejected = parts.is_expired || parts.handler.is_none();
        let rejection = is_rejected.then(|| self.rejection(header, parts.is_expired));
        let spec = self.methods.borrow().spec(header.selector);
        let state = &mut *self.state.borrow_mut();
        let (links, bodies) = (&mut state.links, &mut state.bodies);
        let accepted = state.streams.accept(links, link, header, spec);
        let key = accepted.inspect_err(|_| self.counters.dropped(served.method))?;
        state.streams.set_served(key, served);
        let (streams, deadline) = (&mut state.streams, parts.deadline);
        streams.receive_long_opening(key, links, bodies, first, deadline, rejection)
    }

    /// Delivers an outcome. Runs the application's code, so nothing may be borrowed.
    pub(super) fn conclude(&self, completed: Completed) {
        match completed {
            Completed::Message {
                link,
                key,
                purpose,
                message,
            } => match purpose {
                Purpose::Request(served) => self.serve_long(link, served, message),
                Purpose::Response(call) => self.end_long_call(link, call, Ok(message)),
                Purpose::Stream(stream) => {
                    self.complete_long_of_stream(stream, key, link, message);
                }
                Purpose::Nobody => {}
            },
            Completed::Abandoned { key, stream } => self.cut_long_of_stream(stream, key),
            Completed::StreamRefused { stream, status } => self.fail_receiving(stream, status),
            Completed::Refused { link, call, status } => {
                let error = CallError::new(Cause::NotReceived(status), Execution::Answered);
                self.end_long_call(link, call, Err(error));
            }
            Completed::NotStarted { call, status } => {
                self.respond_failure(&call, status, Started::NOT);
            }
        }
    }

    /// Delivers a long message of a stream, which is complete.
    fn complete_long_of_stream(
        &self,
        stream: StreamKey,
        key: IncomingKey,
        link: LinkKey,
        long: LongMessage,
    ) {
        let mut borrowed = self.state.borrow_mut();
        let state = &mut *borrowed;
        let (links, bodies) = (&mut state.links, &mut state.bodies);
        let streams = &mut state.streams;
        let request = streams.complete_long(stream, links, bodies, key, long);
        drop(borrowed);
        if let Some(request) = request {
            self.serve_long_stream(stream, link, request);
        }
        self.wake_collected();
    }

    /// Handles a long message of a stream whose sender sends no more of it.
    fn cut_long_of_stream(&self, stream: StreamKey, key: IncomingKey) {
        let mut borrowed = self.state.borrow_mut();
        let state = &mut *borrowed;
        let (links, bodies) = (&mut state.links, &mut state.bodies);
        let is_served = state.streams.cut_long(stream, links, bodies, key);
        drop(borrowed);
        if is_served {
            // Its client has cancelled the call. The handler must not take an end that was sent
            // behind the message for the end of a complete stream.
            let status = Status::cancelled("the client cancelled the call");
            self.fail_receiving(stream, status);
        }
        self.wake_collected();
    }

    /// Ends a call of this side whose long response has arrived or failed, and wakes its waiter.
    fn end_long_call(&self, link: LinkKey, call: CallId, outcome: Result<LongMessage, CallError>) {
        let response = outcome.map(|long| Response {
            head: ResponseHead::of(&long.header),
            frame: ResponseFrame::Long(Box::new(LongResponse {
                metadata: long.metadata,
                message: long.message,
                share_from: long.share_from,
            })),
        });
        let mut state = self.state.borrow_mut();
        let (waiting, timer) = state.links[link].calls.end_long(call, response);
        if let Some(timer) = timer {
            state.links.timers.cancel(timer);
        }
        match waiting {
            WakeTarget::BlockOn => self.block_on_waker.wake(),
            WakeTarget::Permit(permit) => state.links.settled.push(permit),
            WakeTarget::None | WakeTarget::Stream(_) => {}
            WakeTarget::Task(waker) => {
                drop(state);
                waker.wake();
            }
        }
    }

    /// Serves a long request that has arrived in full, or rejects it.
    #[cold]
    fn serve_long(&self, link: LinkKey, served: ServedCall, message: LongMessage) {
        let header = &message.header;
        let RequestParts {
            deadline,
            is_expired,
            handler,
            may_start,
            peer,
        } = self.request_parts(link, header);
        let call = IncomingCall {
            link,
            call: header.call,
            served,
            stream: None,
        };
        let Some(handler) = handler.filter(|_| may_start) else {
            let status = self.rejection(header, is_expired);
            return self.respond_failure(&call, status, Started::NOT);
        };
        let long = message.received(&self.counters);
        let request = RawRequest {
            metadata: &message.metadata,
            message: &long.message,
            long: Some(&long),
            deadline,
            stream: None,
            peer: &peer,
        };
        let (key, waker) = self.lend_task();
        let mut frame = self.inline_frame.take();
        let outcome = self.poll_handler(header.selector, &waker, &mut frame, |cx, out| {
            handler.serve(request, cx, out)
        });
        // The handler has its own slices of it.
        drop((long, message.message));
        match outcome {
            Served::Undecodable(status) => {
                self.lent_task.set(Some((key, waker)));
                self.respond_failure(&call, status, Started::NOT);
            }
            Served::Encoded(_) => {
                self.lent_task.set(Some((key, waker)));
                self.counters.started(served.method);
                self.respond(&call, &*handler, outcome, frame.bytes_mut());
            }
            outcome => {
                self.counters.started(served.method);
                self.after_first_poll(&call, &*handler, outcome, deadline, (key, waker));
            }
        }
        self.inline_frame.put_back(frame);
    }

    /// Takes turns until each sender knows that its message was received. Messages that are still
    /// arriving are released in later turns, so that a stream does not hold up the caller.
    #[cold]
    pub(super) fn send_releases(&self) {
        for turn in 0..MOST_TURNS {
            if !self.state.borrow().bodies.receiving.owes_last_entries() {
                return;
            }
            if turn >= TURNS_WITHOUT_YIELD {
                thread::yield_now();
            }
            self.turn();
        }
    }

    /// Sends the next pieces of long messages, gives memory to messages that wait for it, and drops the
    /// parts that have been sent.
    #[cold]
    #[inline(never)]
    pub(super) fn advance_bodies(&self) {
        let mut borrowed = self.state.borrow_mut();
        let state = &mut *borrowed;
        state.links.open_windows();
        let is_woken = self.block_on_waker.is_woken();
        let advanced = state.bodies.advance(&mut state.links, is_woken);
        for sent in advanced.sent {
            state.streams.message_sent(sent);
        }
        drop(borrowed);
        for completed in advanced.completed {
            self.conclude(completed);
        }
        self.drop_spent();
    }

    /// Handles the arrival of a segment.
    #[cold]
    #[inline(never)]
    pub(super) fn fetched(&self, fetch: FetchKey, len: u32) {
        self.block_on_waker.note_long();
        let mut borrowed = self.state.borrow_mut();
        let state = &mut *borrowed;
        let receiving = &mut state.bodies.receiving;
        let completed = receiving.fetched(&mut state.links, fetch, len);
        drop(borrowed);
        if let Some(completed) = completed {
            self.conclude(completed);
        }
    }
}

/// Returns the status of a call whose message is longer than this side receives.
fn too_long(len: u32, limit: MessageLimit, direction: Direction) -> Option<Status> {
    let len = len as usize;
    (len > limit.bytes()).then(|| Status::message_too_long(len, limit, direction))
}
