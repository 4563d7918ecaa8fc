//! The receiver's part of a long message: handles its frames.

use std::collections::VecDeque;
use std::time::Instant;

use super::super::call_table::LongOutcome;
use super::super::link::LinkKey;
use super::super::link_transfers::IncomingKey;
use super::super::links::Links;
use super::super::responses::Started;
use super::super::tasks::IncomingCall;
use super::super::timers::TimerKey;
use super::super::transfers::Transfers;
use super::super::{Driver, TimerTarget};
use super::arrival::{Completed, Purpose};
use super::looks::Looks;
use crate::limits::{Direction, MessageLimit};
use crate::protocol::connection::{FREE_FRAGMENTS, MAX_SEGMENTS, MAX_TRANSFERS, ProtocolError};
use crate::protocol::frame::{
    ABANDONED, FRAGMENT, Flags, FrameHeader, FrameKind, HEADER_LEN, LongBody, SEGMENTS, Segments,
    TransferId,
};
use crate::status::Status;
use crate::transport::{FetchKey, LongMessages, RemoteSegment, Transport};

/// A long message that this side receives.
#[derive(Debug)]
pub(super) struct Incoming<M> {
    pub(super) link: LinkKey,
    pub(super) id: TransferId,
    pub(super) purpose: Purpose,
    /// The header of the first frame.
    pub(super) header: FrameHeader,
    pub(super) metadata: Box<[u8]>,
    pub(super) len: u32,
    /// [`FRAGMENT`] or [`SEGMENTS`].
    pub(super) form: u16,
    /// Bytes that the sender has sent or described.
    pub(super) announced: u32,
    /// The link's `announced` after the latest piece of this message.
    pub(super) announced_on_link: u64,
    /// True if the sender sends no more: everything was announced, or it has given up.
    pub(super) is_announced: bool,
    pub(super) place: Place<M>,
    /// Segments that arrived before there was memory.
    pub(super) segments: VecDeque<RemoteSegment>,
    /// The number of segments that were announced and have not been fetched.
    pub(super) unfetched: usize,
    /// Bytes of segments whose fetch has begun.
    pub(super) fetching: u32,
    /// Bytes that have arrived.
    pub(super) received: u32,
    /// Bytes counted in the link's and the poller's `receiving`.
    pub(super) charged: u64,
    /// True if some of it can be fetched or has arrived.
    pub(super) has_begun: bool,
    /// True if it has been given memory for all of its bytes.
    pub(super) is_accepted: bool,
    pub(super) owed: Owed,
    /// The deadline of its call, if it has one and the message itself has to end the call.
    pub(super) deadline: Option<Instant>,
    /// Runs out at the deadline, at the end of a response's wait for memory, or at the next look at
    /// the progress of a message that has memory.
    pub(super) timer: Option<TimerKey>,
    /// The looks at its progress, once it has memory.
    pub(super) looks: Looks<Progress>,
}

/// How far a long message has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Its sender has to go on.
    OfSender {
        /// Grows with each piece of the message that is announced, and with each that arrives.
        own: u64,
        /// Bytes that were announced since, of the other messages that take turns with it.
        of_others: u64,
    },
    /// READs of it have to complete. The number is that of segments read on its connection.
    OfReads(u64),
}

/// Where the bytes of a long message are.
#[derive(Debug)]
pub(super) enum Place<M> {
    /// It waits for memory. The fragments that have arrived are here.
    Waiting(Vec<u8>),
    /// Fragments are copied here.
    Memory(M),
    /// Fragments of a message that never waits, because its sender sends all of it without an answer.
    Heap(Vec<u8>),
    /// Segments are fetched.
    Fetch(FetchKey),
    /// The message is no longer wanted, but the device may still write its memory.
    Cancelling(FetchKey),
    /// The message was delivered, or dropped.
    Nowhere,
}

/// The entries that the sender is to get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Owed {
    pub(super) fetched: u32,
    pub(super) is_accepted: bool,
    pub(super) is_stopped: bool,
}

impl<T: Transport> Driver<T> {
    /// Handles a frame of a long message, whose header has been checked and accounted.
    #[cold]
    #[inline(never)]
    pub(in super::super) fn receive_long(
        &self,
        link: LinkKey,
        header: &FrameHeader,
        buf: T::RecvBuf,
    ) {
        self.block_on_waker.note_long();
        let frame = buf.as_ref();
        let (metadata, body) = frame[HEADER_LEN..].split_at(header.metadata_len.into());
        let handled = match header.kind {
            FrameKind::Continuation => {
                let state = &mut *self.state.borrow_mut();
                state
                    .transfers
                    .receive_continuation(&mut state.links, link, header, body)
            }
            FrameKind::LongRequest if !header.flags.contains(Flags::STREAM) => {
                self.receive_long_request(link, header, metadata, body)
            }
            FrameKind::LongResponse if !header.flags.contains(Flags::STREAM) => {
                self.receive_long_response(link, header, metadata, body)
            }
            _ => self.receive_long_of_stream(link, header, metadata, body),
        };
        let is_stream = header.flags.contains(Flags::STREAM);
        let is_response = header.kind == FrameKind::LongResponse && !is_stream;
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
        self.conclude(completed);
        self.fail_refused();
    }

    fn receive_long_request(
        &self,
        link: LinkKey,
        header: &FrameHeader,
        metadata: &[u8],
        body: &[u8],
    ) -> Result<Option<Completed>, ProtocolError> {
        let body = LongBody::parse(header.kind, body)?;
        let served = self.counters.received(header.selector, || self.clock.now());
        let parts = self.request_parts(link, header);
        let spec = self.methods.borrow().spec(header.selector);
        let of_method = spec.and_then(|spec| spec.max_request_len);
        let is_rejected = parts.is_expired || parts.handler.is_none();
        let rejection = is_rejected.then(|| self.rejection(header, parts.is_expired));
        let mut borrowed = self.state.borrow_mut();
        let state = &mut *borrowed;
        let (len, limits) = (body.len as usize, state.links.transport.limits());
        let limit = MessageLimit::of_receiver(limits).and_method(of_method);
        let too_long = || {
            let is_too_long = len > limit.bytes();
            is_too_long.then(|| Status::message_too_long(len, limit, Direction::Request))
        };
        let refusal = rejection.or_else(too_long);
        let purpose = match refusal {
            None => Purpose::Request(served),
            Some(_) => Purpose::Nobody,
        };
        let begun = state.transfers.begin_incoming(
            &mut state.links,
            link,
            header,
            metadata,
            &body,
            purpose,
            parts.deadline,
        );
        let key = match begun {
            Ok(key) => key,
            Err(error) => {
                // No message has begun, so the end of the connection does not count the call.
                self.counters.dropped(served.method);
                return Err(error);
            }
        };
        let refusal = refusal.or_else(|| state.transfers.admit_incoming(&mut state.links, key));
        if refusal.is_some() {
            state.transfers.stop_incoming(&mut state.links, key);
        }
        let taken = state
            .transfers
            .take_piece(&mut state.links, key, body.form, body.piece);
        let Some(status) = refusal else {
            return taken.map(|()| state.transfers.complete(&mut state.links, key));
        };
        if let Err(error) = taken {
            // The message is nobody's, so the end of the connection does not count the call.
            self.counters.dropped(served.method);
            return Err(error);
        }
        drop(borrowed);
        let call = IncomingCall {
            link,
            call: header.call,
            served,
            stream: None,
        };
        self.respond_failure(&call, status, Started::NOT);
        Ok(None)
    }

    fn receive_long_response(
        &self,
        link: LinkKey,
        header: &FrameHeader,
        metadata: &[u8],
        body: &[u8],
    ) -> Result<Option<Completed>, ProtocolError> {
        let body = LongBody::parse(header.kind, body)?;
        let state = &mut *self.state.borrow_mut();
        let call = header.call;
        let outcome = state.links[link].calls.begin_long(call);
        let purpose = match outcome {
            LongOutcome::Wanted => Purpose::Response(call),
            LongOutcome::Abandoned => Purpose::Nobody,
            LongOutcome::UnknownCall => return Err(ProtocolError::UnknownCall { call }),
        };
        // The end of the connection does not give this receive back, whatever follows.
        state.links.budget.release(1);
        let key = state.transfers.begin_incoming(
            &mut state.links,
            link,
            header,
            metadata,
            &body,
            purpose,
            None,
        )?;
        state
            .transfers
            .open_window_for_next(&mut state.links, link, header);
        let limit = MessageLimit::of_receiver(state.links.transport.limits());
        let refusal = if outcome == LongOutcome::Abandoned {
            state.transfers.stop_incoming(&mut state.links, key);
            None
        } else if body.len as usize > limit.bytes() {
            Some(Status::message_too_long(
                body.len as usize,
                limit,
                Direction::Response,
            ))
        } else {
            state.transfers.admit_incoming(&mut state.links, key)
        };
        if refusal.is_some() {
            state.transfers.stop_incoming(&mut state.links, key);
        }
        state
            .transfers
            .take_piece(&mut state.links, key, body.form, body.piece)?;
        match refusal {
            Some(status) => Ok(Some(Completed::Refused { link, call, status })),
            None => Ok(state.transfers.complete(&mut state.links, key)),
        }
    }
}

impl<T: Transport> Transfers<T> {
    /// Adds a long message whose first frame has arrived.
    pub(in super::super) fn begin_incoming(
        &mut self,
        links: &mut Links<T>,
        link_key: LinkKey,
        header: &FrameHeader,
        metadata: &[u8],
        body: &LongBody<'_>,
        purpose: Purpose,
        deadline: Option<Instant>,
    ) -> Result<IncomingKey, ProtocolError> {
        let link = &mut links.table[link_key];
        let transfer = body.transfer;
        if link.transfers.incoming.contains_key(&transfer) {
            return Err(ProtocolError::DuplicateTransfer { transfer });
        }
        if link.transfers.incoming.len() >= MAX_TRANSFERS {
            let limit = MAX_TRANSFERS as u32;
            return Err(ProtocolError::TooManyTransfers { limit });
        }
        let reads = links.transport.long_messages(link.id) == LongMessages::Read;
        if body.form == SEGMENTS && !reads {
            let len = body.len;
            return Err(ProtocolError::WrongPiece { transfer, len });
        }
        let key = self.incoming.insert(Incoming {
            link: link_key,
            id: transfer,
            purpose,
            header: *header,
            metadata: metadata.into(),
            len: body.len,
            form: body.form,
            announced: 0,
            announced_on_link: link.transfers.announced,
            is_announced: false,
            place: Place::Waiting(Vec::new()),
            segments: VecDeque::new(),
            unfetched: 0,
            fetching: 0,
            received: 0,
            charged: 0,
            has_begun: body.form == FRAGMENT || !body.piece.is_empty(),
            is_accepted: false,
            owed: Owed::default(),
            deadline,
            timer: None,
            looks: Looks::begin(Progress::OfSender {
                own: 0,
                of_others: 0,
            }),
        });
        link.transfers.incoming.insert(transfer, key);
        if let Purpose::Request(_) | Purpose::Response(_) = purpose {
            link.transfers.by_call.insert(header.call.0, key);
        }
        link.connection.begin_receiving();
        if let Some(deadline) = deadline {
            let timer = links.timers.insert(deadline, TimerTarget::Incoming(key));
            self.incoming[key].timer = Some(timer);
        }
        links.counters.transfers.received.add(1);
        Ok(key)
    }

    /// Promises receives, or more of them, to a server that had too few credits to send its response at
    /// once. The next frame grants them. Half of the receives are left for calls: without credits, a
    /// response is read.
    fn open_window_for_next(
        &mut self,
        links: &mut Links<T>,
        link: LinkKey,
        response: &FrameHeader,
    ) {
        let is_asked = response.flags.contains(Flags::SPENT);
        if is_asked && links.free_for_growth() > links.budget.capacity() / 2 {
            match links[link].connection.window_len() {
                0 => links.open_window(link),
                _ => links.grow_window(link),
            }
        }
    }

    fn receive_continuation(
        &mut self,
        links: &mut Links<T>,
        link: LinkKey,
        header: &FrameHeader,
        body: &[u8],
    ) -> Result<Option<Completed>, ProtocolError> {
        let transfer = TransferId(header.call.0);
        let known = &links[link].transfers.incoming;
        let Some(&key) = known.get(&transfer) else {
            return Err(ProtocolError::UnknownTransfer { transfer });
        };
        if self.incoming[key].is_announced {
            return Err(ProtocolError::UnknownTransfer { transfer });
        }
        if header.selector == ABANDONED {
            return self.receive_abandoned(links, key, body);
        }
        if body.is_empty() {
            let len = self.incoming[key].len;
            return Err(ProtocolError::WrongPiece { transfer, len });
        }
        self.incoming[key].has_begun = true;
        self.take_piece(links, key, header.selector, body)?;
        Ok(self.complete(links, key))
    }

    /// Checks the next piece of a message, and takes its bytes or segments.
    pub(in super::super) fn take_piece(
        &mut self,
        links: &mut Links<T>,
        key: IncomingKey,
        form: u16,
        piece: &[u8],
    ) -> Result<(), ProtocolError> {
        let incoming = &mut self.incoming[key];
        let (transfer, len) = (incoming.id, incoming.len);
        let wrong = ProtocolError::WrongPiece { transfer, len };
        let is_whole = form == FRAGMENT || piece.len().is_multiple_of(RemoteSegment::ENCODED_LEN);
        if form != incoming.form || !is_whole {
            return Err(wrong);
        }
        let announced = match form {
            FRAGMENT => piece.len() as u64,
            _ => Segments::of(piece)
                .map(|segment| u64::from(segment.len))
                .sum(),
        };
        let total = u64::from(incoming.announced) + announced;
        if total > len.into()
            || (form == SEGMENTS && Segments::of(piece).any(|segment| segment.len == 0))
        {
            return Err(wrong);
        }
        incoming.announced = total as u32;
        let link = &mut links[incoming.link];
        link.transfers.announced += announced;
        incoming.announced_on_link = link.transfers.announced;
        let is_announced = total == len.into();
        if is_announced {
            incoming.is_announced = true;
            if form == FRAGMENT {
                // The sender has sent everything and forgotten the message, so there is nothing left
                // to accept or to stop.
                incoming.owed = Owed::default();
                self.owed.remove(key);
            }
            link.connection.end_receiving();
        }
        match form {
            FRAGMENT => self.take_fragment(links, key, piece)?,
            _ => self.take_segments(links, key, piece)?,
        }
        self.forget_if_done(links, key);
        Ok(())
    }

    fn take_fragment(
        &mut self,
        links: &mut Links<T>,
        key: IncomingKey,
        piece: &[u8],
    ) -> Result<(), ProtocolError> {
        let incoming = &mut self.incoming[key];
        let at = incoming.received as usize;
        match &mut incoming.place {
            // A plain copy, which leaves the bytes in the cache: this side reads them next.
            Place::Memory(memory) => memory.as_mut()[at..][..piece.len()].copy_from_slice(piece),
            Place::Waiting(bytes) | Place::Heap(bytes) => bytes.extend_from_slice(piece),
            Place::Fetch(_) | Place::Cancelling(_) | Place::Nowhere => {}
        }
        incoming.received += piece.len() as u32;
        if !incoming.is_accepted && incoming.announced > FREE_FRAGMENTS {
            let (transfer, sent) = (incoming.id, incoming.announced);
            return Err(ProtocolError::NotAccepted { transfer, sent });
        }
        if !matches!(incoming.place, Place::Nowhere) {
            let counters = &links.counters.transfers;
            counters.bytes_received.add(piece.len() as u64);
            counters.bytes_in_fragments.add(piece.len() as u64);
        }
        Ok(())
    }

    fn take_segments(
        &mut self,
        links: &mut Links<T>,
        key: IncomingKey,
        piece: &[u8],
    ) -> Result<(), ProtocolError> {
        let incoming = &mut self.incoming[key];
        for segment in Segments::of(piece) {
            incoming.unfetched += 1;
            if incoming.unfetched > MAX_SEGMENTS {
                let (transfer, len) = (incoming.id, incoming.len);
                return Err(ProtocolError::WrongPiece { transfer, len });
            }
            incoming.segments.push_back(segment);
        }
        match incoming.place {
            Place::Fetch(fetch) => self.fetch_announced(links, key, fetch),
            Place::Waiting(_) => {}
            _ => self.incoming[key].segments.clear(),
        }
        Ok(())
    }
}
