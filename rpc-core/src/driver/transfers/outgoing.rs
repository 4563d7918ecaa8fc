//! The sender's part of a long message: its first frame.

use std::collections::VecDeque;
use std::mem;

use bytes::Buf;

use super::super::State;
use super::super::link::{Link, LinkKey};
use super::super::link_streams::StreamKey;
use super::super::timers::TimerKey;
use super::{TransferKey, Transfers};
use crate::protocol::connection::{MAX_SEGMENTS, MAX_TRANSFERS};
use crate::protocol::frame::{
    CallId, FRAGMENT, FrameHeader, HEADER_LEN, LONG_BODY_LEN, LongBody, SEGMENTS, TransferId,
};
use crate::transport::{
    Chunks, ExposeError, ExposureKey, LongMessages, RemoteSegment, ReserveError, Transport,
};

/// Segments of a message that are exposed before its receiver has fetched one, which tells that it
/// has memory.
pub(super) const FIRST_SEGMENTS: usize = 8;

/// Copied pieces in the first frame of a message, if this side has no credit for others.
const COPIED_WITHOUT_CREDIT: usize = 4;

/// Copied pieces of at most this length, in bytes, are not counted: what precedes a field that is
/// exposed where it lies.
const SHORT_COPY: u32 = 4096;

/// What a long message belongs to.
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
    /// What has not been announced.
    pub(super) message: Chunks,
    /// Bytes that have been announced.
    pub(super) announced: u32,
    /// Segments that the receiver has not released, oldest first, with their lengths.
    pub(super) exposed: VecDeque<(ExposureKey, u32)>,
    /// The receiver has memory for the message.
    pub(super) is_accepted: bool,
    /// No more of it is wanted. If it has not been announced in full, the receiver is to be told.
    pub(super) is_abandoned: bool,
    /// Nothing follows.
    pub(super) has_ended: bool,
    /// In its link's `to_send`.
    pub(super) is_queued: bool,
    pub(super) timer: Option<TimerKey>,
    /// The timer has fired once since the call was over.
    pub(super) was_late: bool,
}

/// A first frame that can be sent: its slot is reserved, and its piece is exposed.
pub(in super::super) struct PreparedTransfer<B> {
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
    /// Returns true if a message is too long for a frame of the link, whose peer receives long ones.
    pub(in super::super) fn sends_long(&self, link: LinkKey) -> bool {
        let link = self.links.get(link.index());
        link.is_some_and(|link| link.connection.speaks_long_messages())
    }

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
        let form = match self.transport.long_messages(link.id) {
            LongMessages::Read => SEGMENTS,
            LongMessages::Fragments => FRAGMENT,
        };
        let id = link.id;
        let piece_len = if form == SEGMENTS {
            let most = (limit - head_len) / RemoteSegment::ENCODED_LEN;
            let copies = match link.connection.messages_allowed() {
                0 => COPIED_WITHOUT_CREDIT,
                _ => 1,
            };
            let most = most.min(FIRST_SEGMENTS).min(MAX_SEGMENTS);
            self.expose_first(key, message, most, copies, &mut prepared)?;
            prepared.segments.len() * RemoteSegment::ENCODED_LEN
        } else {
            (limit - head_len).min(message.len())
        };
        match self.transport.reserve(id, head_len + piece_len) {
            Ok(mut buf) => {
                let mut rest = mem::take(message);
                if form == FRAGMENT {
                    let piece = &mut buf.as_mut()[head_len..];
                    self.transfers.copy_out(&mut rest, piece);
                    prepared.copied += piece_len as u64;
                }
                Ok(PreparedTransfer {
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
                for (exposed, _) in prepared.exposed {
                    self.transport.conceal(exposed);
                }
                *message = prepared.before;
                Err(error)
            }
        }
    }

    /// Exposes the first pieces of a message.
    fn expose_first(
        &mut self,
        key: LinkKey,
        message: &mut Chunks,
        most: usize,
        most_copies: usize,
        prepared: &mut Prepared,
    ) -> Result<(), ReserveError> {
        let id = self.links[key.index()].id;
        let mut copies = 0;
        while prepared.segments.len() < most && copies < most_copies && message.has_remaining() {
            match self.expose(id, message) {
                Ok(exposed) => {
                    let len = exposed.segment.len;
                    copies += usize::from(exposed.was_copied && len > SHORT_COPY);
                    prepared.copied += u64::from(len) * u64::from(exposed.was_copied);
                    prepared.segments.push(exposed.segment);
                    prepared.exposed.push_back((exposed.key, len));
                }
                // The first frame may have an empty piece.
                Err(ExposeError::NotNow) => break,
                Err(ExposeError::Closed) => {
                    for (exposed, _) in prepared.exposed.drain(..) {
                        self.transport.conceal(exposed);
                    }
                    *message = mem::take(&mut prepared.before);
                    return Err(ReserveError::Closed);
                }
            }
        }
        Ok(())
    }

    /// Gives back what [`prepare_transfer`](Self::prepare_transfer) has taken. Returns the message.
    pub(in super::super) fn cancel_transfer(
        &mut self,
        prepared: PreparedTransfer<T::SendBuf>,
    ) -> Chunks {
        self.transport.cancel(prepared.buf);
        for (exposed, _) in prepared.exposed {
            self.transport.conceal(exposed);
        }
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
    ) {
        let PreparedTransfer {
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
            is_accepted: form == FRAGMENT && len <= crate::protocol::connection::FREE_FRAGMENTS,
            is_abandoned: false,
            has_ended: announced == len,
            is_queued: false,
            timer: None,
            was_late: false,
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
        self.after_progress(transfer);
        self.end_if_done(transfer);
    }

    /// Exposes the next piece of a message. Keeps the application's bytes until nothing is borrowed.
    pub(super) fn expose(
        &mut self,
        id: crate::transport::ConnectionId,
        message: &mut Chunks,
    ) -> Result<crate::transport::Exposed, ExposeError> {
        let front = message.front().cloned();
        let exposed = self.transport.expose(id, message)?;
        self.transfers.spent.extend(front);
        Ok(exposed)
    }
}

/// What the first frame of a message has taken.
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
            self.spent.push(part);
        }
    }

    /// Drops a message when nothing is borrowed.
    pub(super) fn discard(&mut self, mut message: Chunks) {
        while let Some(part) = message.take_front(usize::MAX) {
            self.spent.push(part);
        }
    }
}

impl<B> Link<B> {
    /// Returns true if another long message may be sent now.
    pub(in super::super) fn has_room_for_transfer(&self) -> bool {
        self.transfers.outgoing.len() < MAX_TRANSFERS
    }
}
