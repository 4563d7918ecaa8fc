//! The sender's part of a long message: its first frame.

use std::collections::VecDeque;
use std::mem;

use bytes::Buf;

use super::super::State;
use super::super::held_memory::Encoding;
use super::super::link::LinkKey;
use super::super::link_transfers::TransferKey;
use super::super::outbox::{Body, Class, Missing};
use super::looks::Looks;
use super::outgoing::{Awaited, FIRST_SEGMENTS, Outgoing, TransferOwner};
use super::pump::Sent;
use crate::protocol::connection::{FREE_FRAGMENTS, MAX_SEGMENTS, MAX_TRANSFERS};
use crate::protocol::frame::{
    FRAGMENT, FrameHeader, HEADER_LEN, LONG_BODY_LEN, LongBody, SEGMENTS, TransferId,
};
use crate::transport::{
    Chunks, ExposeError, ExposureKey, LongMessages, MessageMemory, RemoteSegment, Transport,
};

/// The most copied pieces in the first frame of a message if this side has no credit for
/// continuations.
const COPIED_WITHOUT_CREDIT: usize = 4;

/// Copied pieces of at most this length in bytes do not count against the most copied pieces of a
/// first frame: they are the bytes before a field that is exposed where it lies. The statistics count
/// them.
const SHORT_COPY: u32 = 4096;

/// The most frames of a message that are sent at once. Copies of more bytes cost more than a window and a
/// READ.
const MOST_FRAMES_AT_ONCE: usize = 8;

/// One in this many bytes of the memory for messages: the limit up to which encoded messages and
/// exposed pieces together may grow. With that of exposed pieces, half of the memory is left for messages
/// that arrive: otherwise, two peers could each wait for memory until the other has received.
const ENCODED_PART: u64 = 4;

/// A first frame that can be sent: its slot is reserved, and its piece is exposed.
pub(in super::super) struct PreparedTransfer<B> {
    link: LinkKey,
    buf: B,
    /// The whole message, if some of it is exposed.
    before: Chunks,
    /// What has not been exposed.
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
    /// Returns [`Missing`] if it cannot be sent, at the moment or at all. Nothing was taken.
    #[cold]
    pub(in super::super) fn prepare_transfer(
        &mut self,
        key: LinkKey,
        metadata_len: usize,
        message: &mut Chunks,
    ) -> Result<PreparedTransfer<T::SendBuf>, Missing> {
        let Some(link) = self.links.get(key) else {
            return Err(Missing::Connection);
        };
        if link.ended.is_some() {
            return Err(Missing::Connection);
        }
        if link.transfers.outgoing.len() >= MAX_TRANSFERS {
            return Err(Missing::Slot);
        }
        let head_len = HEADER_LEN + metadata_len + LONG_BODY_LEN;
        let limit = self.transport.longest_frame(link.id);
        // The connection has ended, and the next event reports it.
        if limit == 0 {
            return Err(Missing::Connection);
        }
        let least = head_len + RemoteSegment::ENCODED_LEN;
        if least > limit {
            return Err(Missing::Length { limit });
        }
        let mut prepared = Prepared {
            before: Chunks::default(),
            segments: Vec::new(),
            exposed: VecDeque::new(),
            copied: 0,
        };
        let mut form = match self.transport.long_messages(link.id) {
            LongMessages::Fragments => FRAGMENT,
            LongMessages::Read => {
                match self.continuations_at_once(key, metadata_len, message.len()) {
                    Some(_) => FRAGMENT,
                    None => SEGMENTS,
                }
            }
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
            prepared.before = message.clone();
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
            Ok(buf) => Ok(PreparedTransfer {
                link: key,
                buf,
                before: prepared.before,
                rest: mem::take(message),
                segments: prepared.segments,
                exposed: prepared.exposed,
                copied: prepared.copied,
                form,
                metadata_len,
            }),
            Err(error) => {
                self.conceal_all(key, prepared.exposed);
                if form == SEGMENTS {
                    *message = prepared.before;
                }
                Err(error.into())
            }
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
    ) -> Result<u16, Missing> {
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
                    return Err(Missing::Connection);
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
        match prepared.form {
            FRAGMENT => prepared.rest,
            _ => prepared.before,
        }
    }

    /// Sends the first frame of a long message, and all others if they are few. Otherwise they follow in
    /// later turns.
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
            mut rest,
            segments,
            exposed,
            mut copied,
            form,
            metadata_len,
        } = prepared;
        let mut len = before.len() as u32;
        if form == FRAGMENT {
            len = rest.len() as u32;
            let piece = &mut buf.as_mut()[HEADER_LEN + metadata_len + LONG_BODY_LEN..];
            copied += piece.len() as u64;
            self.transfers.copy_out(&mut rest, piece);
        }
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
            timer: None,
            looks: Looks::begin(Awaited::Nothing),
        });
        let id = self.transfers.outgoing[transfer].id;
        debug_assert_eq!(metadata.len(), metadata_len);
        // Longer metadata was rejected.
        header.metadata_len = metadata_len as u16;
        let few = self.few_continuations(key, metadata_len, len as usize);
        let connection = &mut self.links[key].connection;
        // With more credits, it would not have to be read.
        if form == SEGMENTS && few.is_some_and(|few| few > connection.messages_allowed() as usize) {
            header.flags |= connection.lack_credits();
        }
        let link = &mut self.links[key];
        link.transfers.outgoing.push(transfer);
        // Its caller has taken what a frame of its class needs.
        let permit = self
            .outbox
            .resume(Class::Response, link, &mut self.transport);
        let sent = permit.send(Body::Reserved(buf), |_, frame| {
            header.encode(frame);
            let (metadata_out, body) = frame[HEADER_LEN..].split_at_mut(metadata_len);
            metadata_out.copy_from_slice(metadata);
            LongBody::encode(id, len, form, body);
            let pieces = body[LONG_BODY_LEN..].as_chunks_mut().0.iter_mut();
            for (segment, out) in segments.into_iter().zip(pieces) {
                *out = segment.encode();
            }
            Some(())
        });
        debug_assert_eq!(sent, Ok(()), "a reserved frame lacks nothing");
        let counters = &self.counters.transfers;
        counters.sent.add(1);
        counters.bytes_sent.add(announced.into());
        counters.bytes_copied.add(copied);
        counters
            .bytes_by_reference
            .add(u64::from(announced) - copied);
        if announced < len {
            self.links[key].connection.begin_sending();
            // The frames of a message that goes at once share a doorbell.
            let continuations = match form {
                FRAGMENT => self.continuations_at_once(key, metadata_len, len as usize),
                _ => None,
            };
            if self.send_fragments(key, transfer, continuations.unwrap_or(0)) != Sent::NoMore {
                self.queue_piece(transfer);
            }
        }
        self.end_if_done(transfer);
        self.watch_receiver(transfer);
        transfer
    }

    /// Returns the number of continuations of a message in fragments, if it has so few frames that they are
    /// sent at once: a window and a READ would cost more than copying it does.
    pub(super) fn few_continuations(
        &self,
        key: LinkKey,
        metadata_len: usize,
        len: usize,
    ) -> Option<usize> {
        let limit = self.transport.longest_frame(self.links[key].id);
        let in_first = limit.saturating_sub(HEADER_LEN + metadata_len + LONG_BODY_LEN);
        let in_each = limit.saturating_sub(HEADER_LEN).max(1);
        let continuations = len.saturating_sub(in_first).div_ceil(in_each);
        let are_few = len <= FREE_FRAGMENTS as usize && continuations < MOST_FRAMES_AT_ONCE;
        are_few.then_some(continuations)
    }

    /// Returns that number if these continuations may be sent now: there is a credit for each, and nothing
    /// else of the connection waits for credits.
    pub(super) fn continuations_at_once(
        &self,
        key: LinkKey,
        metadata_len: usize,
        len: usize,
    ) -> Option<usize> {
        let continuations = self.few_continuations(key, metadata_len, len)?;
        let link = &self.links[key];
        let may_be_sent = continuations <= link.connection.messages_allowed() as usize
            && !self.others_wait_for_credits(key)
            && self.transfers.to_send.len_of(key) == 0;
        may_be_sent.then_some(continuations)
    }

    /// Returns registered memory for encoding a message that a peer will read.
    #[cold]
    pub(in super::super) fn memory_to_encode(
        &mut self,
        link: LinkKey,
        len: usize,
    ) -> Option<Box<dyn MessageMemory>> {
        let id = self.links.get(link)?.id;
        if self.continuations_at_once(link, 0, len).is_some() {
            return None;
        }
        let in_use = self.transfers.exposed + self.transfers.memory.encoding();
        let is_short = in_use + len as u64 > self.transport.limits().message_memory / ENCODED_PART;
        if is_short || self.transport.long_messages(id) != LongMessages::Read {
            return None;
        }
        let memory = self.transport.allocate(len).ok()?;
        Some(Box::new(Encoding::new(memory, &self.transfers.memory)))
    }
}

/// The message, the segments and the exposed pieces of a first frame that is being prepared.
struct Prepared {
    before: Chunks,
    segments: Vec<RemoteSegment>,
    exposed: VecDeque<(ExposureKey, u32)>,
    copied: u64,
}
