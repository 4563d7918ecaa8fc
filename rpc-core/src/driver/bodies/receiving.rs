//! The receiver's part of a long message: handles its frames.

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use super::super::TimerTarget;
use super::super::held_memory::PollerMemory;
use super::super::link::LinkKey;
use super::super::link_bodies::IncomingKey;
use super::super::links::Links;
use super::super::table::Table;
use super::super::timers::TimerKey;
use super::super::waiting::Waiting;
use super::admission::WaitingMessages;
use super::arrival::{Completed, Purpose};
use super::looks::Looks;
use crate::protocol::connection::{FREE_FRAGMENTS, MAX_SEGMENTS, MAX_TRANSFERS, ProtocolError};
use crate::protocol::frame::{
    ABANDONED, FRAGMENT, FrameHeader, LongBody, SEGMENTS, Segments, TransferId,
};
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

/// The frame that begins a long message.
pub(in super::super) struct FirstFrame<'a> {
    pub(in super::super) link: LinkKey,
    pub(in super::super) header: &'a FrameHeader,
    pub(in super::super) metadata: &'a [u8],
    pub(in super::super) body: LongBody<'a>,
}

/// The long messages that a poller receives.
pub(in super::super) struct Receiving<T: Transport> {
    pub(super) incoming: Table<IncomingKey, Incoming<T::Memory>>,
    /// Messages that wait for memory.
    pub(super) waiting: WaitingMessages,
    /// Messages with entries for control frames.
    pub(super) owed: Waiting<LinkKey, IncomingKey>,
    /// Messages that are being fetched, by the transport's number for them.
    pub(super) fetches: HashMap<FetchKey, IncomingKey>,
    /// Counts the bytes that the application keeps.
    pub(super) memory: Arc<PollerMemory>,
    /// Bytes of messages that have memory.
    pub(super) receiving: u64,
    /// Bytes of messages of streams that were fetched ahead of their readers.
    pub(super) read_ahead: Arc<AtomicU64>,
}

impl<T: Transport> Receiving<T> {
    pub(super) fn new(memory: Arc<PollerMemory>) -> Self {
        Self {
            incoming: Table::default(),
            waiting: WaitingMessages::default(),
            owed: Waiting::default(),
            fetches: HashMap::new(),
            memory,
            receiving: 0,
            read_ahead: Arc::default(),
        }
    }

    /// Returns the number of messages that wait for memory.
    #[inline]
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the number of messages.
    pub(super) fn len(&self) -> usize {
        self.incoming.len()
    }

    /// Returns true if a message has been received whose sender has not been told so.
    pub(in super::super) fn owes_last_entries(&self) -> bool {
        let is_received = |incoming: &Incoming<T::Memory>| matches!(incoming.place, Place::Nowhere);
        let mut incoming = self.incoming.iter();
        incoming.any(|(key, incoming)| self.owed.contains(key) && is_received(incoming))
    }

    /// Returns the number of messages of a connection about which entries wait.
    pub(in super::super) fn entries_owed(&self, link: LinkKey) -> usize {
        self.owed.len_of(link)
    }

    /// Returns the bytes of messages that are being received, and of those that the application keeps.
    pub(in super::super) fn bytes(&self) -> (u64, u64) {
        (self.receiving, self.memory.held())
    }

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
            announced_on_link: link.bodies.announced,
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
        link.bodies.incoming.insert(transfer, key);
        if let Purpose::Request(_) | Purpose::Response(_) = purpose {
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

    pub(in super::super) fn receive_continuation(
        &mut self,
        links: &mut Links<T>,
        link: LinkKey,
        header: &FrameHeader,
        body: &[u8],
    ) -> Result<Option<Completed>, ProtocolError> {
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

    /// Begins to fetch the segments that have been announced.
    pub(super) fn fetch_announced(
        &mut self,
        links: &mut Links<T>,
        key: IncomingKey,
        fetch: FetchKey,
    ) {
        let incoming = &mut self.incoming[key];
        for segment in incoming.segments.drain(..) {
            // The lengths add up to no more than the message's.
            links
                .transport
                .fetch(fetch, segment, incoming.fetching as usize);
            incoming.fetching += segment.len;
            links.counters.transfers.reads.add(1);
        }
    }

    /// Handles the arrival of a segment.
    #[cold]
    #[inline(never)]
    pub(in super::super) fn fetched(
        &mut self,
        links: &mut Links<T>,
        fetch: FetchKey,
        len: u32,
    ) -> Option<Completed> {
        // The connection may have ended.
        let key = *self.fetches.get(&fetch)?;
        let incoming = &mut self.incoming[key];
        links[incoming.link].bodies.segments_read += 1;
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
