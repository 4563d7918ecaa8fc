//! The sender's part of a long message: its first frame.

use std::collections::VecDeque;
use std::mem;

use bytes::Buf;

use super::super::held_memory::Encoding;
use super::super::link::{Link, LinkKey};
use super::super::link_bodies::TransferKey;
use super::super::links::Links;
use super::super::outbox::{Class, Missing, Slot};
use super::looks::Looks;
use super::pieces::Sent;
use super::sending::{Awaited, FIRST_SEGMENTS, Outgoing, Sending, TransferOwner};
use crate::protocol::connection::{FREE_FRAGMENTS, MAX_SEGMENTS, MAX_TRANSFERS};
use crate::protocol::frame::{
    CallId, FRAGMENT, Flags, FrameHeader, HEADER_LEN, LONG_BODY_LEN, LongBody, SEGMENTS, TransferId,
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

/// A first frame that can be sent.
struct Prepared<B> {
    buf: B,
    first: FirstPiece,
}

/// The first piece of a message.
struct FirstPiece {
    /// The whole message, if some of it is exposed.
    before: Chunks,
    segments: Vec<RemoteSegment>,
    exposed: VecDeque<(ExposureKey, u32)>,
    copied: u64,
    form: u16,
}

impl Sending {
    /// Sends a frame whose body is long: its first piece, and all others if they are few. Otherwise
    /// they follow in later turns. Takes the message. What frames of this class need was taken, and
    /// held. `begin` returns the header, with the number of its call. It returns `None` if there is no
    /// number.
    ///
    /// # Errors
    ///
    /// Returns what is missing. The message, and what was taken for the frame, were given back.
    #[cold]
    pub(in super::super) fn send_long<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        on: LinkKey,
        class: Class,
        metadata: &[u8],
        message: &mut Chunks,
        begin: impl FnOnce(&mut Link<T::RecvBuf>) -> Option<(FrameHeader, TransferOwner)>,
    ) -> Result<(CallId, TransferKey), Missing> {
        let prepared = self.prepare(links, on, metadata.len(), message);
        let permit = links.resume(class, on);
        let Prepared { buf, mut first } = prepared?;
        let Some((header, owner)) = begin(permit.link) else {
            drop(permit);
            links.transport.cancel(buf);
            self.conceal_all(links, on, first.exposed);
            if first.form == SEGMENTS {
                *message = first.before;
            }
            return Err(Missing::CallId);
        };
        permit.hold();
        let key = self.send_first(
            links,
            on,
            (buf, &mut first),
            (header, owner),
            metadata,
            message,
        );
        Ok((header.call, key))
    }

    /// Makes everything ready for the first frame of a long message, with metadata of this length.
    /// What was exposed is taken out of the message.
    ///
    /// # Errors
    ///
    /// Returns what is missing. Nothing was taken.
    fn prepare<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        key: LinkKey,
        metadata_len: usize,
        message: &mut Chunks,
    ) -> Result<Prepared<T::SendBuf>, Missing> {
        let link = &links[key];
        if link.bodies.outgoing.len() >= MAX_TRANSFERS {
            return Err(Missing::Slot);
        }
        let head_len = HEADER_LEN + metadata_len + LONG_BODY_LEN;
        let limit = links.transport.longest_frame(link.id);
        // The connection has ended, and the next event reports it.
        if limit == 0 {
            return Err(Missing::Connection);
        }
        let least = head_len + RemoteSegment::ENCODED_LEN;
        if least > limit {
            return Err(Missing::Length { limit });
        }
        let mut first = FirstPiece {
            before: Chunks::default(),
            segments: Vec::new(),
            exposed: VecDeque::new(),
            copied: 0,
            form: FRAGMENT,
        };
        let (id, messages_allowed) = (link.id, link.connection.messages_allowed());
        let at_once = self.continuations_at_once(links, key, metadata_len, message.len());
        let is_read = links.transport.long_messages(id) == LongMessages::Read;
        let mut slot = None;
        let mut piece_len = 0;
        if is_read && at_once.is_none() {
            let most = (limit - head_len) / RemoteSegment::ENCODED_LEN;
            let copies = match messages_allowed {
                0 => COPIED_WITHOUT_CREDIT,
                _ => 1,
            };
            let most = most.min(FIRST_SEGMENTS).min(MAX_SEGMENTS);
            // Without a slot, pieces would be copied and exposed in vain in each attempt.
            let longest = most * RemoteSegment::ENCODED_LEN;
            let buf = links.transport.reserve(id, head_len + longest)?;
            first.before = message.clone();
            if let Err(error) = self.expose_first(links, key, message, (most, copies), &mut first) {
                links.transport.cancel(buf);
                return Err(error);
            }
            piece_len = first.segments.len() * RemoteSegment::ENCODED_LEN;
            match piece_len == longest {
                true => slot = Some(buf),
                false => links.transport.cancel(buf),
            }
        }
        if first.form == FRAGMENT {
            // The receiver may have no memory, whatever the length of a slot.
            let longest = (limit - head_len).min(FREE_FRAGMENTS as usize);
            piece_len = longest.min(message.len());
        }
        let slot = match slot {
            Some(buf) => Ok(buf),
            None => links.transport.reserve(id, head_len + piece_len),
        };
        match slot {
            Ok(buf) => Ok(Prepared { buf, first }),
            Err(error) => {
                self.conceal_all(links, key, first.exposed);
                if first.form == SEGMENTS {
                    *message = first.before;
                }
                Err(error.into())
            }
        }
    }

    /// Exposes the first pieces of a message, unless there is no window for the first one. `most` are
    /// the most pieces, and the most that are copied.
    fn expose_first<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        key: LinkKey,
        message: &mut Chunks,
        (most, most_copies): (usize, usize),
        first: &mut FirstPiece,
    ) -> Result<(), Missing> {
        let mut copies = 0;
        while first.segments.len() < most && copies < most_copies && message.has_remaining() {
            let is_first = first.segments.is_empty();
            match self.expose(links, key, message, false, is_first) {
                Ok(exposed) => {
                    let len = exposed.segment.len;
                    copies += usize::from(exposed.was_copied && len > SHORT_COPY);
                    first.copied += u64::from(len) * u64::from(exposed.was_copied);
                    first.segments.push(exposed.segment);
                    first.exposed.push_back((exposed.key, len));
                }
                // Its form stays fragments.
                Err(ExposeError::NoWindow { .. }) if is_first => return Ok(()),
                // The first frame may have an empty piece.
                Err(ExposeError::NotNow | ExposeError::NoWindow { .. }) => break,
                Err(ExposeError::Closed) => {
                    self.conceal_all(links, key, mem::take(&mut first.exposed));
                    *message = mem::take(&mut first.before);
                    return Err(Missing::Connection);
                }
            }
        }
        first.form = SEGMENTS;
        Ok(())
    }

    fn send_first<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        on: LinkKey,
        (buf, first): (T::SendBuf, &mut FirstPiece),
        (mut header, owner): (FrameHeader, TransferOwner),
        metadata: &[u8],
        message: &mut Chunks,
    ) -> TransferKey {
        let form = first.form;
        let len = match form {
            FRAGMENT => message.len() as u32,
            _ => first.before.len() as u32,
        };
        // The last reference to parts that were copied may be here.
        self.discard(mem::take(&mut first.before));
        let unread = Self::count_unread(links, on, owner, len);
        let transfer = self.insert(Outgoing {
            link: on,
            id: TransferId(0),
            owner,
            form,
            message: mem::take(message),
            announced: 0,
            exposed: mem::take(&mut first.exposed),
            is_accepted: form == FRAGMENT && len <= FREE_FRAGMENTS,
            is_abandoned: false,
            has_ended: false,
            _unread: unread,
            timer: None,
            looks: Looks::begin(Awaited::Nothing),
        });
        let id = self.outgoing[transfer].id;
        // Longer metadata was rejected.
        header.metadata_len = metadata.len() as u16;
        header.flags |= Flags::LONG;
        let few = self.few_continuations(links, on, metadata.len(), len as usize);
        let link = &mut links[on];
        link.bodies.outgoing.push(transfer);
        let connection = &mut link.connection;
        // With more credits, it would not have to be read.
        if form == SEGMENTS && few.is_some_and(|few| few > connection.messages_allowed() as usize) {
            header.flags |= connection.lack_credits();
        }
        let permit = links.resume(Class::Response, on);
        let sent = permit.send(Slot::Reserved(buf), |_, frame| {
            header.encode(frame);
            let (metadata_out, body) = frame[HEADER_LEN..].split_at_mut(metadata.len());
            metadata_out.copy_from_slice(metadata);
            LongBody::encode(id, len, form, body);
            let piece = &mut body[LONG_BODY_LEN..];
            if form == FRAGMENT {
                first.copied += piece.len() as u64;
                self.copy_next(transfer, piece);
            }
            let pieces = piece.as_chunks_mut().0.iter_mut();
            for (segment, out) in first.segments.iter().zip(pieces) {
                *out = segment.encode();
            }
            Some(())
        });
        debug_assert_eq!(sent, Ok(()), "a reserved frame lacks nothing");
        let outgoing = &mut self.outgoing[transfer];
        let announced = len - outgoing.message.len() as u32;
        outgoing.announced = announced;
        outgoing.has_ended = announced == len;
        let counters = &links.counters.transfers;
        counters.sent.add(1);
        counters.bytes_sent.add(announced.into());
        counters.bytes_copied.add(first.copied);
        counters
            .bytes_by_reference
            .add(u64::from(announced) - first.copied);
        if announced < len {
            links[on].connection.begin_sending();
            // The frames of a message that goes at once share a doorbell.
            let continuations = match form {
                FRAGMENT => self.continuations_at_once(links, on, metadata.len(), len as usize),
                _ => None,
            };
            let continuations = continuations.unwrap_or(0);
            if self.send_fragments(links, on, transfer, continuations) != Sent::NoMore {
                self.queue_piece(links, transfer);
            }
        }
        // Its stream, if it has one, has not been told that it is under way.
        let _ = self.end_if_done(links, transfer);
        self.watch_receiver(links, transfer);
        transfer
    }

    /// Returns the number of continuations of a message in fragments, if it has so few frames that they are
    /// sent at once: a window and a READ would cost more than copying it does.
    pub(super) fn few_continuations<T: Transport>(
        &self,
        links: &Links<T>,
        key: LinkKey,
        metadata_len: usize,
        len: usize,
    ) -> Option<usize> {
        let limit = links.transport.longest_frame(links[key].id);
        let in_first = limit.saturating_sub(HEADER_LEN + metadata_len + LONG_BODY_LEN);
        let in_each = limit.saturating_sub(HEADER_LEN).max(1);
        let continuations = len.saturating_sub(in_first).div_ceil(in_each);
        let are_few = len <= FREE_FRAGMENTS as usize && continuations < MOST_FRAMES_AT_ONCE;
        are_few.then_some(continuations)
    }

    /// Returns that number if these continuations may be sent now: there is a credit for each, and nothing
    /// else of the connection waits for credits.
    pub(super) fn continuations_at_once<T: Transport>(
        &self,
        links: &Links<T>,
        key: LinkKey,
        metadata_len: usize,
        len: usize,
    ) -> Option<usize> {
        let continuations = self.few_continuations(links, key, metadata_len, len)?;
        let link = &links[key];
        let may_be_sent = continuations <= link.connection.messages_allowed() as usize
            && !links.others_wait_for_credits(key)
            && links.outbox.pieces.len_of(key) == 0;
        may_be_sent.then_some(continuations)
    }

    /// Returns registered memory for encoding a message that a peer will read.
    #[cold]
    pub(in super::super) fn memory_to_encode<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        link: LinkKey,
        len: usize,
    ) -> Option<Box<dyn MessageMemory>> {
        let id = links[link].id;
        if self.continuations_at_once(links, link, 0, len).is_some() {
            return None;
        }
        let in_use = self.exposed + self.memory.encoding();
        let is_short = in_use + len as u64 > links.transport.limits().message_memory / ENCODED_PART;
        if is_short || links.transport.long_messages(id) != LongMessages::Read {
            return None;
        }
        let memory = links.transport.allocate(len).ok()?;
        Some(Box::new(Encoding::new(memory, &self.memory)))
    }
}
