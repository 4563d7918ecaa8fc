//! The receiver's part of a long message: handles its frames.

use std::collections::VecDeque;
use std::mem;
use std::time::Instant;

use super::super::TimerTarget;
use super::super::link::LinkKey;
use super::super::link_bodies::IncomingKey;
use super::super::links::Links;
use super::arrival::{Ended, Purpose};
use super::incoming::{Incoming, Owed, Place, Progress, Receiving};
use super::looks::Looks;
use crate::limits::{Direction, MessageLimit};
use crate::peer_memory::Charge;
use crate::protocol::connection::{FREE_FRAGMENTS, MAX_SEGMENTS, MAX_TRANSFERS, ProtocolError};
use crate::protocol::frame::{
    ABANDONED, FRAGMENT, FrameHeader, LongBody, SEGMENTS, Segments, TransferId,
};
use crate::status::Status;
use crate::transport::{FetchKey, LongMessages, RemoteSegment, Transport};

/// The frame that begins a long message.
pub(in super::super) struct FirstFrame<'a> {
    pub(in super::super) link: LinkKey,
    pub(in super::super) header: &'a FrameHeader,
    pub(in super::super) metadata: &'a [u8],
    pub(in super::super) body: LongBody<'a>,
}

impl FirstFrame<'_> {
    /// Returns the status of a message that is longer than this side receives, or than its method
    /// allows.
    pub(in super::super) fn refuse_length<T: Transport>(
        &self,
        links: &Links<T>,
        of_method: Option<u32>,
    ) -> Option<Status> {
        let limit = MessageLimit::of_receiver(links.transport.limits()).and_method(of_method);
        let direction = match links[self.link].is_server() {
            true => Direction::Request,
            false => Direction::Response,
        };
        let len = self.body.len as usize;
        (len > limit.bytes()).then(|| Status::message_too_long(len, limit, direction))
    }
}

/// A long message that has begun.
pub(in super::super) struct Begun {
    pub(in super::super) key: IncomingKey,
    /// The reason that this side does not receive the message.
    pub(in super::super) refusal: Option<Status>,
}

impl<T: Transport> Receiving<T> {
    /// Ends the messages of a connection that the transport has closed.
    pub(super) fn end_all_of(&mut self, links: &mut Links<T>, link: LinkKey) {
        links[link].bodies.by_call.clear();
        for (_, key) in mem::take(&mut links[link].bodies.incoming) {
            self.end_incoming(links, key);
        }
    }

    /// Adds a long message whose first frame has arrived.
    pub(in super::super) fn begin_incoming(
        &mut self,
        links: &mut Links<T>,
        first: &FirstFrame<'_>,
        purpose: Purpose,
        deadline: Option<Instant>,
    ) -> Result<IncomingKey, ProtocolError> {
        let FirstFrame { header, body, .. } = first;
        let link = &mut links.table[first.link];
        let transfer = body.transfer;
        if link.bodies.incoming.contains_key(&transfer) {
            return Err(ProtocolError::DuplicateTransfer { transfer });
        }
        if link.bodies.incoming.len() >= MAX_TRANSFERS {
            let limit = MAX_TRANSFERS as u32;
            return Err(ProtocolError::TooManyTransfers { limit });
        }
        let reads = links.transport.long_messages(link.id) == LongMessages::Read;
        if body.form == SEGMENTS && !reads {
            let len = body.len;
            return Err(ProtocolError::WrongPiece { transfer, len });
        }
        let key = self.incoming.insert(Incoming {
            link: first.link,
            id: transfer,
            purpose,
            header: **header,
            metadata: first.metadata.into(),
            len: body.len,
            form: body.form,
            announced: 0,
            arrived_on_link: link.bodies.arrived,
            announced_on_link: link.bodies.announced,
            is_announced: false,
            place: Place::Waiting(Vec::new()),
            segments: VecDeque::new(),
            unfetched: 0,
            fetching: 0,
            received: 0,
            heap: Charge::default(),
            registered: Charge::default(),
            charged: 0,
            has_begun: body.form == FRAGMENT || !body.piece.is_empty(),
            is_accepted: false,
            owed: Owed::default(),
            deadline,
            timer: None,
            looks: Looks::begin(Progress::NONE),
        });
        link.bodies.incoming.insert(transfer, key);
        if let Purpose::Request(_) | Purpose::Response = purpose {
            link.bodies.by_call.insert(header.call.0, key);
        }
        link.connection.begin_receiving();
        if let Some(deadline) = deadline {
            let timer = links.timers.insert(deadline, TimerTarget::Incoming(key));
            self.incoming[key].timer = Some(timer);
        }
        links.counters.transfers.received.add(1);
        Ok(key)
    }

    /// Adds a long message whose first frame has arrived, and that nobody wants.
    pub(in super::super) fn begin_unwanted(
        &mut self,
        links: &mut Links<T>,
        first: &FirstFrame<'_>,
    ) -> Result<Begun, ProtocolError> {
        let key = self.begin_incoming(links, first, Purpose::Nobody, None)?;
        self.stop_incoming(links, key);
        Ok(Begun { key, refusal: None })
    }

    /// Takes the first piece of a message that has begun.
    pub(in super::super) fn take_first_piece(
        &mut self,
        links: &mut Links<T>,
        begun: Begun,
        body: &LongBody<'_>,
    ) -> Result<Option<Ended>, ProtocolError> {
        let refusal = begun.refusal;
        let refusal = refusal.or_else(|| self.charge_heap(links, begun.key));
        self.take_piece(links, begun.key, body.form, body.piece)?;
        Ok(match refusal {
            Some(status) => Some(self.end_refused(links, begun.key, status)),
            None => self.complete(links, begun.key),
        })
    }

    pub(in super::super) fn receive_continuation(
        &mut self,
        links: &mut Links<T>,
        link: LinkKey,
        header: &FrameHeader,
        body: &[u8],
    ) -> Result<Option<Ended>, ProtocolError> {
        let transfer = TransferId(header.call.0);
        let known = &links[link].bodies.incoming;
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
    fn take_piece(
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
        link.bodies.announced += announced;
        incoming.announced_on_link = link.bodies.announced;
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
        links[incoming.link].bodies.arrived += piece.len() as u64;
        let at = incoming.received as usize;
        match &mut incoming.place {
            // A plain copy, which leaves the bytes in the cache: this side reads them next.
            Place::Memory(memory) => memory.as_mut()[at..][..piece.len()].copy_from_slice(piece),
            Place::Waiting(bytes) | Place::Heap(bytes) => {
                // As much as is charged.
                let most = incoming.len.min(FREE_FRAGMENTS) as usize;
                bytes.reserve_exact(most.saturating_sub(bytes.len()));
                bytes.extend_from_slice(piece);
            }
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

    /// Handles the arrival of a segment.
    #[cold]
    #[inline(never)]
    pub(in super::super) fn fetched(
        &mut self,
        links: &mut Links<T>,
        fetch: FetchKey,
        len: u32,
    ) -> Option<Ended> {
        // The connection may have ended.
        let key = *self.fetches.get(&fetch)?;
        let incoming = &mut self.incoming[key];
        let link = &mut links[incoming.link].bodies;
        link.segments_read += 1;
        link.arrived += u64::from(len);
        // A fetch that was cancelled may report segments that had arrived before.
        if !matches!(incoming.place, Place::Fetch(_)) {
            return None;
        }
        incoming.received += len;
        incoming.unfetched = incoming.unfetched.saturating_sub(1);
        incoming.owed.fetched += 1;
        let counters = &links.counters.transfers;
        counters.bytes_received.add(len.into());
        counters.bytes_fetched.add(len.into());
        self.owe_entry(links, key);
        self.complete(links, key)
    }

    /// Handles the end of a fetch that was cancelled.
    #[cold]
    #[inline(never)]
    pub(in super::super) fn fetch_cancelled(&mut self, links: &mut Links<T>, fetch: FetchKey) {
        if let Some(key) = self.fetches.remove(&fetch) {
            self.cancel_incoming_timer(links, key);
            self.nothing_is_read(links, key);
        }
    }
}
