//! The sender's part of a long message: the pieces after the first.
//!
//! Links take turns, and each piece takes a credit of its connection; half of the credits are left
//! for calls and streams. After a piece that had to be copied, a turn sends no other, so that calls
//! wait for one copy at most. The few pieces of a message that goes at once wait for no turn. A turn
//! that has woken the application sends no pieces: the application, which has its response, often
//! makes the next call. The messages of a link take turns after [`RUN_LEN`]
//! bytes: a message whose pieces follow each other arrives sooner, and less memory is in use at a time.

use std::mem;

use super::super::link::LinkKey;
use super::super::link_bodies::TransferKey;
use super::super::links::Links;
use super::super::outbox::{Class, Missing, PiecesOfTurn, Slot};
use super::sending::SentMessage;
use super::sending::{FIRST_SEGMENTS, Sending};
use crate::protocol::connection::{FREE_FRAGMENTS, MAX_SEGMENTS};
use crate::protocol::frame::{
    ABANDONED, CallId, FRAGMENT, FrameKind, HEADER_LEN, SEGMENTS, TransferId,
};
use crate::transport::{Chunks, ExposeError, Exposed, RemoteSegment, Transport};

/// Bytes of a message that are sent before the next message of its link has its turn.
pub(super) const RUN_LEN: u32 = 1 << 20;

/// Turns in a row in which pieces wait because the application is woken.
const MOST_TURNS_YIELDED: u32 = 4;

/// The most fragments in a piece, each of which is a frame.
const FRAGMENTS_PER_PIECE: usize = 16;

/// One in this many bytes of the memory for messages: the limit for exposed pieces. The only piece of a
/// message whose receiver has memory is exposed in any case.
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

/// The device of this side gives no memory windows for the rest of a message.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error(
    "the device gives no memory windows any more, and a long message that has begun with them \
     (transfer {:#010x}) cannot go on without: the connection is closed, and later messages are sent in \
     fragments",
    transfer.0
)]
struct NoWindows {
    transfer: TransferId,
}

/// The result of an attempt to send a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// Another piece of the message may follow at once.
    More,
    /// The receiver has to fetch or accept something first, or nothing is left.
    NoMore,
    /// There is no memory for it at the moment. Other messages may need none.
    NoMemory,
    /// There is no credit or no slot at the moment.
    NotNow,
}

/// A continuation to send.
struct Continuation<'a, S> {
    selector: u16,
    body: Slot<S>,
    /// The bytes of the message that it brings.
    len: u32,
    /// What describes them, unless they are copied into the frame.
    piece: &'a [u8],
}

impl Sending {
    /// Returns true if pieces wait in this turn, which has woken the application if it `is_woken`.
    pub(in super::super) fn yields(&mut self, is_woken: bool) -> bool {
        let yields = is_woken && self.turns_yielded < MOST_TURNS_YIELDED;
        self.turns_yielded += u32::from(yields);
        yields
    }
}

impl Sending {
    pub(in super::super) fn send_pieces<T: Transport>(
        &mut self,
        links: &mut Links<T>,
    ) -> Vec<SentMessage> {
        let copied = |links: &Links<T>| links.counters.transfers.bytes_copied.get();
        let sent = |links: &Links<T>| links.counters.transfers.bytes_sent.get();
        let sent_before = sent(links);
        let mut turn = PiecesOfTurn::begin(links.outbox.pieces.len());
        // Connections without a credit or a slot, which have no other turn now.
        let mut resting: Vec<LinkKey> = Vec::new();
        let mut ended = Vec::new();
        while resting.len() < links.outbox.pieces.groups() {
            let Some(link) = links.outbox.pieces.next_group() else {
                break;
            };
            if resting.contains(&link) {
                continue;
            }
            if !turn.take() {
                break;
            }
            let Some(transfer) = links.outbox.pieces.pop(link) else {
                break;
            };
            let copied_before = copied(links);
            let runs_before = self.outgoing[transfer].announced / RUN_LEN;
            match self.send_piece(links, link, transfer) {
                Sent::NoMemory => {
                    links.outbox.pieces.insert(link, transfer);
                }
                Sent::More => {
                    let runs = self.outgoing[transfer].announced / RUN_LEN;
                    match runs == runs_before {
                        true => links.outbox.pieces.insert_first(link, transfer),
                        false => links.outbox.pieces.insert(link, transfer),
                    };
                }
                Sent::NotNow => {
                    links.outbox.pieces.insert_first(link, transfer);
                    resting.push(link);
                }
                Sent::NoMore => ended.extend(self.end_if_done(links, transfer)),
            }
            turn.note(copied(links) != copied_before);
        }
        let any_sent = sent(links) != sent_before;
        if any_sent {
            self.turns_yielded = 0;
        }
        self.has_more = any_sent && resting.len() < links.outbox.pieces.groups();
        ended
    }

    fn send_piece<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        link: LinkKey,
        transfer: TransferKey,
    ) -> Sent {
        let outgoing = &self.outgoing[transfer];
        if links[link].ended.is_some() || outgoing.has_ended {
            return Sent::NoMore;
        }
        if outgoing.is_abandoned {
            return self.send_abandoned(links, link, transfer);
        }
        match outgoing.form {
            FRAGMENT => {
                let most = self.fragments_of_piece(links, link);
                self.send_fragments(links, link, transfer, most)
            }
            _ => self.send_segments(links, link, transfer),
        }
    }

    fn send_segments<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        key: LinkKey,
        transfer: TransferKey,
    ) -> Sent {
        let outgoing = &self.outgoing[transfer];
        let most = match outgoing.is_accepted {
            true => MAX_SEGMENTS,
            false => FIRST_SEGMENTS,
        };
        if outgoing.exposed.len() >= most {
            return Sent::NoMore;
        }
        let (is_accepted, is_first) = (outgoing.is_accepted, outgoing.exposed.is_empty());
        if links.credits_for(Class::Piece, key) == 0 {
            return Sent::NotNow;
        }
        let id = links[key].id;
        let len = HEADER_LEN + RemoteSegment::ENCODED_LEN;
        let Ok(buf) = links.transport.reserve(id, len) else {
            return Sent::NotNow;
        };
        let mut message = mem::take(&mut self.outgoing[transfer].message);
        let exposed = self.expose(links, key, &mut message, is_accepted, is_first);
        let outgoing = &mut self.outgoing[transfer];
        outgoing.message = message;
        let exposed = match exposed {
            Ok(exposed) => exposed,
            Err(error) => {
                links.transport.cancel(buf);
                return match error {
                    ExposeError::NotNow | ExposeError::NoWindow { may_come: true } => {
                        Sent::NoMemory
                    }
                    ExposeError::NoWindow { may_come: false } => {
                        let transfer = outgoing.id;
                        links.close_failed(key, NoWindows { transfer }, "closing a connection");
                        Sent::NoMore
                    }
                    ExposeError::Closed => Sent::NoMore,
                };
            }
        };
        let len = exposed.segment.len;
        outgoing.exposed.push_back((exposed.key, len));
        let counters = &links.counters.transfers;
        match exposed.was_copied {
            true => counters.bytes_copied.add(len.into()),
            false => counters.bytes_by_reference.add(len.into()),
        };
        let (body, piece) = (Slot::Reserved(buf), exposed.segment.encode());
        let continuation = Continuation {
            selector: SEGMENTS,
            body,
            len,
            piece: &piece,
        };
        let sent = self.send_continuation(links, key, transfer, continuation);
        // The connection is open, and there was a credit.
        debug_assert!(sent.is_ok(), "{sent:?}");
        sent.unwrap_or(Sent::NotNow)
    }

    /// Returns the number of fragments of a message that may be sent in this turn.
    fn fragments_of_piece<T: Transport>(&mut self, links: &mut Links<T>, key: LinkKey) -> usize {
        let frame_len = links.transport.longest_frame(links[key].id);
        let fragment_len = frame_len.saturating_sub(HEADER_LEN).max(1);
        let most = links.transport.limits().piece_len / fragment_len;
        let most = most.clamp(1, FRAGMENTS_PER_PIECE);
        most.min(links.credits_for(Class::Piece, key))
    }

    /// Sends the next fragments of a message, `most` at most, for which there are credits.
    pub(super) fn send_fragments<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        key: LinkKey,
        transfer: TransferKey,
        most: usize,
    ) -> Sent {
        let id = links[key].id;
        // The connection has ended, and the next event reports it.
        let Some(fragment_len) = links.transport.longest_frame(id).checked_sub(HEADER_LEN) else {
            return Sent::NoMore;
        };
        let mut sent = Sent::NotNow;
        for _ in 0..most {
            let outgoing = &self.outgoing[transfer];
            let mut len = outgoing.message.len().min(fragment_len);
            if !outgoing.is_accepted {
                len = len.min((FREE_FRAGMENTS - outgoing.announced) as usize);
            }
            if len == 0 {
                return Sent::NoMore;
            }
            let body = Slot::Of(HEADER_LEN + len);
            let continuation = Continuation {
                selector: FRAGMENT,
                body,
                len: len as u32,
                piece: &[],
            };
            match self.send_continuation(links, key, transfer, continuation) {
                Ok(Sent::NoMore) => return Sent::NoMore,
                Ok(more) => sent = more,
                Err(_) => return sent,
            }
        }
        sent
    }

    /// Sends a continuation of a message.
    fn send_continuation<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        key: LinkKey,
        transfer: TransferKey,
        continuation: Continuation<'_, T::SendBuf>,
    ) -> Result<Sent, Missing> {
        let Continuation {
            selector,
            body,
            len,
            piece,
        } = continuation;
        let permit = links.permit(Class::Piece, key)?;
        let has_ended = permit.send(body, |link, frame| {
            let outgoing = &self.outgoing[transfer];
            let (kind, call) = (FrameKind::Continuation, CallId(outgoing.id.0));
            link.connection
                .next_header(kind, call, selector)
                .encode(frame);
            let out = &mut frame[HEADER_LEN..];
            match selector {
                FRAGMENT => self.copy_next(transfer, out),
                _ => out.copy_from_slice(piece),
            }
            let outgoing = &mut self.outgoing[transfer];
            outgoing.announced += len;
            outgoing.has_ended = selector == ABANDONED || outgoing.message.is_empty();
            if outgoing.has_ended {
                link.connection.end_sending();
            }
            Some(outgoing.has_ended)
        })?;
        let counters = &links.counters.transfers;
        counters.bytes_sent.add(len.into());
        if selector == FRAGMENT {
            counters.bytes_copied.add(len.into());
        }
        match has_ended {
            true => Ok(Sent::NoMore),
            false => Ok(Sent::More),
        }
    }

    /// Returns true if a message, which has nothing exposed if `is_first`, may expose another piece.
    fn may_expose<T: Transport>(
        &self,
        links: &Links<T>,
        link: LinkKey,
        is_accepted: bool,
        is_first: bool,
    ) -> bool {
        let memory = links.transport.limits().message_memory;
        let (exposed, pieces) = (self.exposed, self.exposed_pieces);
        if is_accepted {
            return is_first || exposed < memory / EXPOSED_PART && pieces < EXPOSED_PIECES;
        }
        let of_link = &links[link].bodies;
        let (on_link, pieces_on_link) = (of_link.exposed, of_link.exposed_pieces);
        exposed < memory / UNACCEPTED_PART
            && pieces < UNACCEPTED_PIECES
            && (on_link == 0 || on_link < memory / UNACCEPTED_PART_OF_LINK)
            && pieces_on_link < UNACCEPTED_PIECES_OF_LINK
    }

    /// Exposes the next piece of a message. The application's bytes are dropped later, when nothing
    /// is borrowed.
    pub(super) fn expose<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        link: LinkKey,
        message: &mut Chunks,
        is_accepted: bool,
        is_first: bool,
    ) -> Result<Exposed, ExposeError> {
        if !self.may_expose(links, link, is_accepted, is_first) {
            return Err(ExposeError::NotNow);
        }
        // A transport takes bytes of the first part, or copies a piece, which may be of many parts.
        let piece_len = links.transport.limits().piece_len;
        self.spend(message.fronts(piece_len).cloned());
        let entry = &mut links.table[link];
        let exposed = links.transport.expose(entry.id, message, is_accepted)?;
        entry.bodies.exposed += u64::from(exposed.segment.len);
        entry.bodies.exposed_pieces += 1;
        self.exposed += u64::from(exposed.segment.len);
        self.exposed_pieces += 1;
        Ok(exposed)
    }

    /// Tells the receiver that no more of a message follows.
    fn send_abandoned<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        key: LinkKey,
        transfer: TransferKey,
    ) -> Sent {
        if links.credits_for(Class::Piece, key) == 0 {
            return Sent::NotNow;
        }
        let body = Slot::Of(HEADER_LEN);
        let continuation = Continuation {
            selector: ABANDONED,
            body,
            len: 0,
            piece: &[],
        };
        let sent = self.send_continuation(links, key, transfer, continuation);
        sent.unwrap_or(Sent::NotNow)
    }
}
