//! Long messages of calls and streams: their frames and their ends, as far as the application's code has
//! to run.

use super::bodies::{Begun, Ended, FirstFrame, Outcome, Purpose};
use super::body::Body;
use super::connections::Connections;
use super::link::LinkKey;
use super::link_bodies::IncomingKey;
use super::link_streams::StreamKey;
use super::responses::Started;
use super::serving::Serving;
use crate::protocol::connection::ProtocolError;
use crate::protocol::frame::{Flags, FrameHeader, FrameKind, HEADER_LEN, LongBody};
use crate::status::Status;
use crate::stream::end::no_memory;
use crate::transport::{FetchKey, Transport};

/// Messages that waited for memory, and that get some or are refused in a turn. Much may become free at once.
const ADMITTED_PER_TURN: u32 = 128;

impl Serving {
    /// Handles a frame of a long message, whose header has been checked and accounted.
    #[cold]
    #[inline(never)]
    pub(super) fn receive_long<T: Transport>(
        &self,
        connections: &Connections<T>,
        link: LinkKey,
        header: &FrameHeader,
        buf: T::RecvBuf,
    ) {
        connections.block_on_waker.note_long();
        let frame = &buf.as_ref()[HEADER_LEN..];
        let (metadata, body) = frame.split_at(header.metadata_len.into());
        let is_response = is_unary_response(header);
        let received = match header.kind {
            FrameKind::Continuation => {
                let state = &mut *connections.state.borrow_mut();
                let receiving = &mut state.bodies.receiving;
                receiving.receive_continuation(&mut state.links, link, header, body)
            }
            kind => LongBody::parse(kind, body)
                .map_err(ProtocolError::from)
                .and_then(|body| {
                    self.receive_first(
                        connections,
                        &FirstFrame {
                            link,
                            header,
                            metadata,
                            body,
                        },
                    )
                }),
        };
        let mut borrowed = connections.state.borrow_mut();
        let state = &mut *borrowed;
        let ended = match received {
            Ok(ended) => ended,
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
        // First: what is woken may drop the very call that the message belongs to.
        if let Some(ended) = ended {
            self.conclude(connections, ended);
        }
        connections.wake_collected();
    }

    /// Handles the first frame of a long message. Returns the outcome of the message if there is one
    /// already.
    fn receive_first<T: Transport>(
        &self,
        connections: &Connections<T>,
        first: &FirstFrame<'_>,
    ) -> Result<Option<Ended>, ProtocolError> {
        let begun = match first.header.kind {
            FrameKind::Request => self.begin_long_request(connections, first)?,
            FrameKind::Response if is_unary_response(first.header) => {
                self.begin_long_response(connections, first)?
            }
            kind => {
                let state = &mut *connections.state.borrow_mut();
                let (links, bodies) = (&mut state.links, &mut state.bodies);
                let streams = &mut state.streams;
                match kind {
                    FrameKind::Response => streams.begin_long_answer(links, bodies, first)?,
                    _ => streams.begin_long_message(links, &mut bodies.receiving, first)?,
                }
            }
        };
        let state = &mut *connections.state.borrow_mut();
        let receiving = &mut state.bodies.receiving;
        receiving.take_first_piece(&mut state.links, begun, &first.body)
    }

    /// Begins a long request.
    fn begin_long_request<T: Transport>(
        &self,
        connections: &Connections<T>,
        first: &FirstFrame<'_>,
    ) -> Result<Begun, ProtocolError> {
        let (link, header) = (first.link, first.header);
        let served = connections
            .counters
            .received(header.selector, || connections.clock.now());
        let parts = self.handlers.request_parts(connections, link, header);
        // A server that stops, or that serves nothing, does not wait for the rest.
        let never_starts = self.handlers.tasks.borrow().max_parked() == 0;
        let is_rejected = parts.is_expired || parts.handler.is_none() || never_starts;
        let rejection = is_rejected.then(|| {
            self.handlers
                .rejection(header, parts.is_expired, connections.is_going_away())
        });
        let spec = self.handlers.methods.borrow().spec(header.selector);
        let state = &mut *connections.state.borrow_mut();
        let (links, receiving) = (&mut state.links, &mut state.bodies.receiving);
        let accepted = match header.flags.contains(Flags::STREAM) {
            true => state.streams.accept(links, link, header, spec).map(Some),
            false if links[link].knows_call(header.call) => {
                Err(ProtocolError::DuplicateCall { call: header.call })
            }
            false => Ok(None),
        };
        let (purpose, deadline) = (Purpose::Request(served), parts.deadline);
        let lacks_memory =
            matches!(accepted, Ok(Some(stream)) if !state.streams.has_memory(stream));
        let begun =
            accepted.and_then(|_| receiving.begin_incoming(links, first, purpose, deadline));
        // No message has begun, so the end of the connection does not count the call.
        let key = begun.inspect_err(|_| connections.counters.dropped(served.method))?;
        let of_method = spec.and_then(|spec| spec.max_request_len);
        let refusal = rejection
            .or_else(|| lacks_memory.then(no_memory))
            .or_else(|| first.refuse_length(links, of_method))
            .or_else(|| receiving.admit_incoming(links, key));
        Ok(Begun { key, refusal })
    }

    /// Begins the long response to a unary call of this side.
    fn begin_long_response<T: Transport>(
        &self,
        connections: &Connections<T>,
        first: &FirstFrame<'_>,
    ) -> Result<Begun, ProtocolError> {
        let (link, header) = (first.link, first.header);
        let state = &mut *connections.state.borrow_mut();
        let (links, receiving) = (&mut state.links, &mut state.bodies.receiving);
        let is_wanted = links[link].calls.begin_long(header.call)?;
        // The end of the connection does not give this receive back, whatever follows.
        links.budget.release(1);
        if header.flags.contains(Flags::SPENT) {
            links.open_window_for_next(link);
        }
        if !is_wanted {
            return receiving.begin_unwanted(links, first);
        }
        let key = receiving.begin_incoming(links, first, Purpose::Response, None)?;
        // The caller knows the limit of the method.
        let refusal = first.refuse_length(links, None);
        let refusal = refusal.or_else(|| receiving.admit_incoming(links, key));
        Ok(Begun { key, refusal })
    }

    /// Gives a long message that has ended to its call or stream, as the frame of a short one is
    /// given. A request begins in the next turn, with what that turn finds. Runs the application's
    /// code, so nothing may be borrowed.
    pub(super) fn conclude<T: Transport>(&self, connections: &Connections<T>, ended: Ended) {
        let (link, header) = (ended.link, &ended.header);
        match (ended.purpose, ended.outcome) {
            (Purpose::Request(served), Outcome::Complete(message)) => {
                self.queue_request(connections, link, *header, served, Body::Long(message));
            }
            (Purpose::Request(served), Outcome::Refused(status)) => {
                self.refuse(connections, link, header, served, status, Started::NOT);
            }
            (Purpose::Request(served), Outcome::Abandoned) => {
                connections.counters.cancels.before_start.add(1);
                self.refuse_cancelled(connections, link, header, served);
            }
            (Purpose::Response, outcome) => {
                let mut state = connections.state.borrow_mut();
                let caller = match outcome {
                    Outcome::Complete(message) => {
                        state.complete_call(link, header, Body::Long(message))
                    }
                    Outcome::Refused(status) => state.fail_call(link, header.call, status),
                    Outcome::Abandoned => unreachable!("a response that is wanted is not given up"),
                };
                connections.wake_caller(state, caller);
            }
            (Purpose::Stream(stream), Outcome::Complete(message)) => {
                let mut borrowed = connections.state.borrow_mut();
                let state = &mut *borrowed;
                let (links, bodies) = (&mut state.links, &mut state.bodies);
                let (streams, arrival) = (&mut state.streams, (ended.key, header));
                streams.complete_long(stream, links, bodies, arrival, message);
                drop(borrowed);
                connections.wake_collected();
            }
            (Purpose::Stream(stream), Outcome::Refused(status)) => {
                self.fail_receiving(connections, stream, status);
            }
            (Purpose::Stream(stream), Outcome::Abandoned) => {
                self.cut_long_of_stream(connections, stream, ended.key);
            }
            (Purpose::Nobody, _) => unreachable!("nobody waits for the end of the message"),
        }
    }

    /// Handles a long message of a stream whose sender sends no more of it.
    fn cut_long_of_stream<T: Transport>(
        &self,
        connections: &Connections<T>,
        stream: StreamKey,
        key: IncomingKey,
    ) {
        let mut borrowed = connections.state.borrow_mut();
        let state = &mut *borrowed;
        let (links, bodies) = (&mut state.links, &mut state.bodies);
        let is_served = state.streams.cut_long(stream, links, bodies, key);
        drop(borrowed);
        if is_served {
            // Its client has cancelled the call. The handler must not take an end that was sent
            // behind the message for the end of a complete stream.
            let status = Status::cancelled("the client cancelled the call");
            self.fail_receiving(connections, stream, status);
        }
        connections.wake_collected();
    }

    /// Sends the next pieces of long messages, gives memory to messages that wait for it, and drops the
    /// parts that have been sent.
    #[cold]
    #[inline(never)]
    pub(super) fn advance_bodies<T: Transport>(&self, connections: &Connections<T>) {
        let mut borrowed = connections.state.borrow_mut();
        let state = &mut *borrowed;
        state.links.open_windows();
        let sending = &mut state.bodies.sending;
        if !sending.yields(connections.block_on_waker.is_woken()) {
            for sent in sending.send_pieces(&mut state.links) {
                state.streams.message_sent(sent);
            }
        }
        drop(borrowed);
        let mut left = ADMITTED_PER_TURN;
        loop {
            let mut borrowed = connections.state.borrow_mut();
            let state = &mut *borrowed;
            let refused = state
                .bodies
                .receiving
                .admit_waiting(&mut state.links, &mut left);
            drop(borrowed);
            let Some(ended) = refused else { break };
            self.conclude(connections, ended);
        }
        connections.drop_spent();
    }

    /// Handles the arrival of a segment.
    #[cold]
    #[inline(never)]
    pub(super) fn fetched<T: Transport>(
        &self,
        connections: &Connections<T>,
        fetch: FetchKey,
        len: u32,
    ) {
        connections.block_on_waker.note_long();
        let mut borrowed = connections.state.borrow_mut();
        let state = &mut *borrowed;
        let receiving = &mut state.bodies.receiving;
        let ended = receiving.fetched(&mut state.links, fetch, len);
        drop(borrowed);
        if let Some(ended) = ended {
            self.conclude(connections, ended);
        }
    }
}

/// Returns true if a frame is the response to a unary call. Its receive was promised with the request.
fn is_unary_response(header: &FrameHeader) -> bool {
    header.kind == FrameKind::Response && !header.flags.contains(Flags::STREAM)
}
