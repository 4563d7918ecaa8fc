//! The sender's part of a long message: its first frame.

use std::collections::VecDeque;
use std::mem;

use bytes::Buf;

use super::super::State;
use super::super::held_memory::Encoding;
use super::super::link::LinkKey;
use super::super::link_streams::StreamKey;
use super::super::link_transfers::TransferKey;
use super::super::timers::TimerKey;
use super::Transfers;
use super::looks::Looks;
use crate::protocol::connection::{FREE_FRAGMENTS, MAX_SEGMENTS, MAX_TRANSFERS};
use crate::protocol::frame::{
    CallId, FRAGMENT, FrameHeader, HEADER_LEN, LONG_BODY_LEN, LongBody, SEGMENTS, TransferId,
};
use crate::transport::{
    Chunks, ExposeError, Exposed, ExposureKey, LongMessages, MessageMemory, RemoteSegment,
    ReserveError, Transport,
};

/// The most segments of a message that are exposed before its receiver has fetched one. The first
/// fetch shows that the receiver has memory for the message.
pub(super) const FIRST_SEGMENTS: usize = 8;

/// The most copied pieces in the first frame of a message if this side has no credit for
/// continuations.
const COPIED_WITHOUT_CREDIT: usize = 4;

/// One in this many bytes of the memory for messages: the limit up to which encoded messages and
/// exposed pieces together may grow. With [`EXPOSED_PART`], half of the memory is left for messages
/// that arrive: otherwise, two peers could each wait for memory until the other has received.
const ENCODED_PART: u64 = 4;
/// The same for exposed pieces alone. The only piece of a message whose receiver has memory is exposed
/// in any case.
const EXPOSED_PART: u64 = 4;
/// The same for pieces of messages for which the receiver may have no memory yet. They may stay
/// exposed for long, so they leave memory for messages whose receivers have theirs.
const UNACCEPTED_PART: u64 = 8;
/// The same for one connection, of all that is exposed on it: a peer that accepts nothing leaves as
/// much to others.
const UNACCEPTED_PART_OF_LINK: u64 = 16;
/// The most pieces that are exposed at a time, however short they are. Each has a memory window of its
/// own, and `soft` lets peers read the pieces of at most 1024 windows directly; other devices have
/// more. The only piece of a message whose receiver has memory is exposed in any case.
const EXPOSED_PIECES: usize = 1024;
/// The same for pieces of messages for which the receiver may have no memory yet: half, so that the
/// others have windows.
const UNACCEPTED_PIECES: usize = EXPOSED_PIECES / 2;
/// The same for one connection, of all that is exposed on it: four peers that accept nothing are
/// needed to use all of [`UNACCEPTED_PIECES`].
const UNACCEPTED_PIECES_OF_LINK: usize = UNACCEPTED_PIECES / 4;
/// Copied pieces of at most this length in bytes do not count against the most copied pieces of a
/// first frame: they are the bytes before a field that is exposed where it lies. The statistics count
/// them.
const SHORT_COPY: u32 = 4096;

/// The call or the stream that a long message belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransferOwner {
    /// The request of a call of this side.
    Request(CallId),
    /// The response to a call of the peer.
    Response,
    /// A message of a stream.
    Stream(StreamKey),
}

/// A long message that this side sends.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) link: LinkKey,
    pub(super) id: TransferId,
    pub(super) owner: TransferOwner,
    /// [`FRAGMENT`] or [`SEGMENTS`].
    pub(super) form: u16,
    /// The bytes that have not been announced.
    pub(super) message: Chunks,
    /// Bytes that have been announced.
    pub(super) announced: u32,
    /// Segments that the receiver has not released, oldest first, with their lengths.
    pub(super) exposed: VecDeque<(ExposureKey, u32)>,
    /// True if the receiver has memory for the whole message.
    pub(super) is_accepted: bool,
    /// True if the rest is not wanted. If some of it has not been announced, a frame tells the
    /// receiver that nothing follows.
    pub(super) is_abandoned: bool,
    /// True if no frame of it follows.
    pub(super) has_ended: bool,
    /// True if it is in its link's `to_send`.
    pub(super) is_queued: bool,
    /// Runs out at the next look.
    pub(super) timer: Option<TimerKey>,
    /// The looks at what its receiver has to do.
    pub(super) looks: Looks<Awaited>,
}

/// What the receiver of a message has to do before its sender can go on. The numbers grow when it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaited {
    /// Nothing: this side has to go on, or the receiver may take its time.
    Nothing,
    /// It has to release segments. The number is the bytes released so far.
    Release(u64),
    /// It has to accept the message.
    Acceptance,
    /// It has to grant credits. This is `credits_seen` of its connection.
    Credits(u64),
}

/// A first frame that can be sent: its slot is reserved, and its piece is exposed.
pub(in super::super) struct PreparedTransfer<B> {
    link: LinkKey,
    buf: B,
    /// The whole message.
    before: Chunks,
    /// The rest of it.
    rest: Chunks,
    segments: Vec<RemoteSegment>,
    exposed: VecDeque<(ExposureKey, u32)>,
    copied: u64,
    form: u16,
    metadata_len: usize,
}

impl<T: Transport> State<T> {
    /// Makes everything ready for the first frame of a long message, with metadata of this length.
    /// Takes the message. [`send_transfer`](Self::send_transfer) or
    /// [`cancel_transfer`](Self::cancel_transfer) must follow.
    ///
    /// # Errors
    ///
    /// Returns [`ReserveError`] if it cannot be sent, at the moment or at all. Nothing was taken.
    #[cold]
    pub(in super::super) fn prepare_transfer(
        &mut self,
        key: LinkKey,
        metadata_len: usize,
        message: &mut Chunks,
    ) -> Result<PreparedTransfer<T::SendBuf>, ReserveError> {
        let Some(link) = self.links.get(key.index()) else {
            return Err(ReserveError::Closed);
        };
        if link.ended.is_some() {
            return Err(ReserveError::Closed);
        }
        if link.transfers.outgoing.len() >= MAX_TRANSFERS {
            return Err(ReserveError::NoSlot);
        }
        let head_len = HEADER_LEN + metadata_len + LONG_BODY_LEN;
        let limit = self.transport.longest_frame(link.id);
        // The connection has ended, and the next event reports it.
        if limit == 0 {
            return Err(ReserveError::Closed);
        }
        let least = head_len + RemoteSegment::ENCODED_LEN;
        if least > limit {
            return Err(ReserveError::TooLong { len: least, limit });
        }
        let mut prepared = Prepared {
            before: message.clone(),
            segments: Vec::new(),
            exposed: VecDeque::new(),
            copied: 0,
        };
        let mut form = match self.transport.long_messages(link.id) {
            LongMessages::Read => SEGMENTS,
            LongMessages::Fragments => FRAGMENT,
        };
        let id = link.id;
        let mut slot = None;
        let mut piece_len = 0;
        if form == SEGMENTS {
            let most = (limit - head_len) / RemoteSegment::ENCODED_LEN;
            let copies = match link.connection.messages_allowed() {
                0 => COPIED_WITHOUT_CREDIT,
                _ => 1,
            };
            let most = most.min(FIRST_SEGMENTS).min(MAX_SEGMENTS);
            // Without a slot, pieces would be copied and exposed in vain in each attempt.
            let longest = most * RemoteSegment::ENCODED_LEN;
            let buf = self.transport.reserve(id, head_len + longest)?;
            match self.expose_first(key, message, most, copies, &mut prepared) {
                Ok(first_form) => form = first_form,
                Err(error) => {
                    self.transport.cancel(buf);
                    return Err(error);
                }
            }
            piece_len = prepared.segments.len() * RemoteSegment::ENCODED_LEN;
            match piece_len == longest {
                true => slot = Some(buf),
                false => self.transport.cancel(buf),
            }
        }
        if form == FRAGMENT {
            // The receiver may have no memory, whatever the length of a slot.
            let longest = (limit - head_len).min(FREE_FRAGMENTS as usize);
            piece_len = longest.min(message.len());
        }
        let slot = match slot {
            Some(buf) => Ok(buf),
            None => self.transport.reserve(id, head_len + piece_len),
        };
        match slot {
            Ok(mut buf) => {
                let mut rest = mem::take(message);
                if form == FRAGMENT {
                    let piece = &mut buf.as_mut()[head_len..];
                    self.transfers.copy_out(&mut rest, piece);
                    prepared.copied += piece_len as u64;
                }
                Ok(PreparedTransfer {
                    link: key,
                    buf,
                    before: prepared.before,
                    rest,
                    segments: prepared.segments,
                    exposed: prepared.exposed,
                    copied: prepared.copied,
                    form,
                    metadata_len,
                })
            }
            Err(error) => {
                self.conceal_all(key, prepared.exposed);
                *message = prepared.before;
                Err(error)
            }
        }
    }

    pub(super) fn conceal_all(
        &mut self,
        link: LinkKey,
        exposed: impl IntoIterator<Item = (ExposureKey, u32)>,
    ) {
        let of_link = &mut self.links[link.index()].transfers;
        for (key, len) in exposed {
            of_link.exposed -= u64::from(len);
            of_link.exposed_pieces -= 1;
            self.transfers.exposed -= u64::from(len);
            self.transfers.exposed_pieces -= 1;
            self.transport.conceal(key);
        }
    }

    /// Exposes the first pieces of a message. Returns its form: fragments if there is no window for the
    /// first piece, and nothing was exposed.
    fn expose_first(
        &mut self,
        key: LinkKey,
        message: &mut Chunks,
        most: usize,
        most_copies: usize,
        prepared: &mut Prepared,
    ) -> Result<u16, ReserveError> {
        let mut copies = 0;
        while prepared.segments.len() < most && copies < most_copies && message.has_remaining() {
            match self.expose(key, message, false, prepared.segments.is_empty()) {
                Ok(exposed) => {
                    let len = exposed.segment.len;
                    copies += usize::from(exposed.was_copied && len > SHORT_COPY);
                    prepared.copied += u64::from(len) * u64::from(exposed.was_copied);
                    prepared.segments.push(exposed.segment);
                    prepared.exposed.push_back((exposed.key, len));
                }
                Err(ExposeError::NoWindow { .. }) if prepared.segments.is_empty() => {
                    return Ok(FRAGMENT);
                }
                // The first frame may have an empty piece.
                Err(ExposeError::NotNow | ExposeError::NoWindow { .. }) => break,
                Err(ExposeError::Closed) => {
                    self.conceal_all(key, mem::take(&mut prepared.exposed));
                    *message = mem::take(&mut prepared.before);
                    return Err(ReserveError::Closed);
                }
            }
        }
        Ok(SEGMENTS)
    }

    /// Gives back what [`prepare_transfer`](Self::prepare_transfer) has taken. Returns the message.
    pub(in super::super) fn cancel_transfer(
        &mut self,
        prepared: PreparedTransfer<T::SendBuf>,
    ) -> Chunks {
        self.transport.cancel(prepared.buf);
        self.conceal_all(prepared.link, prepared.exposed);
        prepared.before
    }

    /// Sends the first frame of a long message. The rest follows in later turns.
    #[cold]
    pub(in super::super) fn send_transfer(
        &mut self,
        key: LinkKey,
        prepared: PreparedTransfer<T::SendBuf>,
        mut header: FrameHeader,
        metadata: &[u8],
        owner: TransferOwner,
    ) -> TransferKey {
        let PreparedTransfer {
            link: _,
            mut buf,
            before,
            rest,
            segments,
            exposed,
            copied,
            form,
            metadata_len,
        } = prepared;
        let len = before.len() as u32;
        let announced = len - rest.len() as u32;
        // The last reference to parts that were copied may be here.
        self.transfers.discard(before);
        let transfer = self.transfers.insert(Outgoing {
            link: key,
            id: TransferId(0),
            owner,
            form,
            message: rest,
            announced,
            exposed,
            is_accepted: form == FRAGMENT && len <= FREE_FRAGMENTS,
            is_abandoned: false,
            has_ended: announced == len,
            is_queued: false,
            timer: None,
            looks: Looks::begin(Awaited::Nothing),
        });
        let id = self.transfers.outgoing[transfer.index()].id;
        debug_assert_eq!(metadata.len(), metadata_len);
        // Longer metadata was rejected.
        header.metadata_len = metadata_len as u16;
        let frame = buf.as_mut();
        header.encode(frame);
        let (metadata_out, body) = frame[HEADER_LEN..].split_at_mut(metadata_len);
        metadata_out.copy_from_slice(metadata);
        LongBody::encode(id, len, form, body);
        let pieces = body[LONG_BODY_LEN..].as_chunks_mut().0.iter_mut();
        for (segment, out) in segments.into_iter().zip(pieces) {
            *out = segment.encode();
        }
        let link = &mut self.links[key.index()];
        // If the connection has ended, the next event reports it.
        let _ = self.transport.send(link.id, buf);
        self.unflushed = true;
        link.transfers.outgoing.push(transfer);
        let counters = &self.counters.transfers;
        counters.sent.add(1);
        counters.bytes_sent.add(announced.into());
        counters.bytes_copied.add(copied);
        counters
            .bytes_by_reference
            .add(u64::from(announced) - copied);
        if announced < len {
            link.connection.begin_sending();
            self.queue_piece(transfer);
        }
        self.end_if_done(transfer);
        self.watch_receiver(transfer);
        transfer
    }

    /// Returns registered memory for encoding a message that a peer will read.
    #[cold]
    pub(in super::super) fn memory_to_encode(
        &mut self,
        link: LinkKey,
        len: usize,
    ) -> Option<Box<dyn MessageMemory>> {
        let id = self.links.get(link.index())?.id;
        let in_use = self.transfers.exposed + self.transfers.memory.encoding();
        let is_short = in_use + len as u64 > self.transport.limits().message_memory / ENCODED_PART;
        if is_short || self.transport.long_messages(id) != LongMessages::Read {
            return None;
        }
        let memory = self.transport.allocate(len).ok()?;
        Some(Box::new(Encoding::new(memory, &self.transfers.memory)))
    }

    /// Returns true if a message, which has nothing exposed if `is_first`, may expose another piece.
    fn may_expose(&self, link: LinkKey, is_accepted: bool, is_first: bool) -> bool {
        let memory = self.transport.limits().message_memory;
        let (exposed, pieces) = (self.transfers.exposed, self.transfers.exposed_pieces);
        if is_accepted {
            return is_first || exposed < memory / EXPOSED_PART && pieces < EXPOSED_PIECES;
        }
        let of_link = &self.links[link.index()].transfers;
        let (on_link, pieces_on_link) = (of_link.exposed, of_link.exposed_pieces);
        exposed < memory / UNACCEPTED_PART
            && pieces < UNACCEPTED_PIECES
            && (on_link == 0 || on_link < memory / UNACCEPTED_PART_OF_LINK)
            && pieces_on_link < UNACCEPTED_PIECES_OF_LINK
    }

    /// Exposes the next piece of a message. The application's bytes are dropped later, when nothing
    /// is borrowed.
    pub(super) fn expose(
        &mut self,
        link: LinkKey,
        message: &mut Chunks,
        is_accepted: bool,
        is_first: bool,
    ) -> Result<Exposed, ExposeError> {
        if !self.may_expose(link, is_accepted, is_first) {
            return Err(ExposeError::NotNow);
        }
        // A transport takes bytes of the first part, or copies a piece, which may be of many parts.
        let piece_len = self.transport.limits().piece_len;
        self.transfers.spend(message.fronts(piece_len).cloned());
        let entry = &mut self.links[link.index()];
        let exposed = self.transport.expose(entry.id, message, is_accepted)?;
        entry.transfers.exposed += u64::from(exposed.segment.len);
        entry.transfers.exposed_pieces += 1;
        self.transfers.exposed += u64::from(exposed.segment.len);
        self.transfers.exposed_pieces += 1;
        Ok(exposed)
    }
}

/// The message, the segments and the exposed pieces of a first frame that is being prepared.
struct Prepared {
    before: Chunks,
    segments: Vec<RemoteSegment>,
    exposed: VecDeque<(ExposureKey, u32)>,
    copied: u64,
}

impl<M> Transfers<M> {
    /// Adds a message that this side sends, and numbers it.
    fn insert(&mut self, outgoing: Outgoing) -> TransferKey {
        self.begun = self.begun.wrapping_add(1);
        let generation = self.begun;
        // At most `MAX_TRANSFERS` for each connection.
        let index = self.outgoing.insert(outgoing) as u32;
        self.outgoing[index as usize].id = TransferId(CallId::new(index, generation).0);
        TransferKey(index)
    }

    /// Returns true if a message that has just begun is still under way.
    pub(in super::super) fn is_sending(&self, key: TransferKey) -> bool {
        self.outgoing.contains(key.index())
    }

    /// Returns a message of this side that a peer names.
    pub(super) fn outgoing_of(&self, link: LinkKey, id: TransferId) -> Option<TransferKey> {
        let index = CallId(id.0).index();
        let outgoing = self.outgoing.get(index)?;
        (outgoing.id == id && outgoing.link == link).then_some(TransferKey(index as u32))
    }

    /// Copies the next bytes of a message.
    pub(super) fn copy_out(&mut self, message: &mut Chunks, mut out: &mut [u8]) {
        while !out.is_empty() {
            let Some(part) = message.take_front(out.len()) else {
                return;
            };
            let (to, rest) = out.split_at_mut(part.len());
            to.copy_from_slice(&part);
            out = rest;
            self.spend([part]);
        }
    }

    /// Drops a message later, when nothing is borrowed.
    pub(in super::super) fn discard(&mut self, mut message: Chunks) {
        while let Some(part) = message.take_front(usize::MAX) {
            self.spend([part]);
        }
    }
}
