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
use super::super::link_transfers::TransferKey;
use super::super::{Driver, State};
use super::Transfers;
use super::outgoing::{FIRST_SEGMENTS, Outgoing};
use crate::protocol::connection::{FREE_FRAGMENTS, MAX_SEGMENTS};
use crate::protocol::frame::{
    ABANDONED, CallId, FRAGMENT, FrameKind, HEADER_LEN, SEGMENTS, TransferId,
};
use crate::transport::{Chunks, ExposeError, Exposed, ExposureKey, RemoteSegment, Transport};

/// The most attempts of a turn to send a piece, of all messages. A copied piece is the last of its
/// turn.
const PIECES_PER_TURN: usize = 16;

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

impl<T: Transport> Driver<T> {
    /// Sends the next pieces of long messages, gives memory to messages that wait for it, and drops the
    /// parts that have been sent.
    #[cold]
    #[inline(never)]
    pub(in super::super) fn advance_transfers(&self) {
        let mut state = self.state.borrow_mut();
        state.open_windows();
        if !state.transfers.yields(self.block_on_waker.is_woken()) {
            state.send_pieces();
        }
        let waits = state.transfers.waiting.len() != 0;
        drop(state);
        if waits {
            self.admit_waiting();
        }
        self.drop_spent();
        self.state.borrow_mut().transfers.note_what_is_left();
    }

    /// Drops the parts of messages that have been sent, while nothing is borrowed.
    pub(in super::super) fn drop_spent(&self) {
        let mut spent = mem::take(&mut self.state.borrow_mut().transfers.spent);
        spent.clear();
        let mut state = self.state.borrow_mut();
        if state.transfers.spent.is_empty() {
            state.transfers.spent = spent;
        }
    }
}

impl<M> Transfers<M> {
    /// Returns true if pieces wait in this turn, which has woken the application if it `is_woken`.
    fn yields(&mut self, is_woken: bool) -> bool {
        let yields = is_woken && self.turns_yielded < MOST_TURNS_YIELDED;
        self.turns_yielded += u32::from(yields);
        yields
    }
}

impl<T: Transport> State<T> {
    /// Promises receives to a server that has messages or their rest to send and holds none. If none
    /// are free, a later turn tries again.
    #[cold]
    pub(in super::super) fn open_window(&mut self, link: LinkKey) {
        if self.has_window_for_streams(link) {
            self.owe(link);
        } else if !self.transfers.awaiting_window.contains(&link) {
            self.transfers.awaiting_window.push(link);
        }
    }

    fn open_windows(&mut self) {
        for link in mem::take(&mut self.transfers.awaiting_window) {
            let entry = self.links.get(link.index());
            if entry.is_some_and(|entry| entry.ended.is_none() && entry.connection.wants_window()) {
                self.open_window(link);
            }
        }
    }

    /// Queues a message of which a piece may be sent.
    pub(super) fn queue_piece(&mut self, key: TransferKey) {
        let outgoing = &mut self.transfers.outgoing[key.index()];
        if mem::replace(&mut outgoing.is_queued, true) {
            return;
        }
        let link_key = outgoing.link;
        let link = &mut self.links[link_key.index()].transfers;
        link.to_send.push_back(key);
        self.transfers.pieces_waiting += 1;
        self.transfers.note_work();
        if !mem::replace(&mut link.is_queued, true) {
            self.transfers.to_send.push_back(link_key);
        }
    }

    fn send_pieces(&mut self) {
        let copied = |state: &Self| state.counters.transfers.bytes_copied.get();
        let copied_before = copied(self);
        let sent = |state: &Self| state.counters.transfers.bytes_sent.get();
        let sent_before = sent(self);
        // No more attempts than there are messages, so that the loop ends if none can send.
        let mut left = self.transfers.pieces_waiting.min(PIECES_PER_TURN);
        let mut resting = Vec::new();
        while left > 0 && copied(self) == copied_before {
            let Some(key) = self.transfers.to_send.pop_front() else {
                break;
            };
            left -= 1;
            let link = &mut self.links[key.index()].transfers;
            let Some(transfer) = link.to_send.pop_front() else {
                link.is_queued = false;
                continue;
            };
            let runs = |state: &Self| {
                let outgoing = state.transfers.outgoing.get(transfer.index());
                outgoing.map_or(0, |outgoing| outgoing.announced / RUN_LEN)
            };
            let runs_before = runs(self);
            match self.send_piece(key, transfer) {
                Sent::NoMemory => {
                    self.links[key.index()]
                        .transfers
                        .to_send
                        .push_back(transfer);
                    self.transfers.to_send.push_back(key);
                }
                Sent::More => {
                    let ends_run = runs(self) != runs_before;
                    let link = &mut self.links[key.index()].transfers;
                    match ends_run {
                        true => link.to_send.push_back(transfer),
                        false => link.to_send.push_front(transfer),
                    }
                    self.transfers.to_send.push_back(key);
                }
                Sent::NotNow => {
                    self.links[key.index()]
                        .transfers
                        .to_send
                        .push_front(transfer);
                    resting.push(key);
                }
                Sent::NoMore => {
                    if let Some(outgoing) = self.transfers.outgoing.get_mut(transfer.index()) {
                        outgoing.is_queued = false;
                    }
                    self.transfers.pieces_waiting -= 1;
                    let link = &mut self.links[key.index()].transfers;
                    if link.to_send.is_empty() {
                        link.is_queued = false;
                    } else {
                        self.transfers.to_send.push_back(key);
                    }
                    self.end_if_done(transfer);
                }
            }
        }
        let any_sent = sent(self) != sent_before;
        if any_sent {
            self.transfers.turns_yielded = 0;
        }
        self.transfers.has_more = any_sent && !self.transfers.to_send.is_empty();
        self.transfers.to_send.extend(resting);
    }

    fn send_piece(&mut self, link: LinkKey, transfer: TransferKey) -> Sent {
        let outgoing = &self.transfers.outgoing[transfer.index()];
        if self.links[link.index()].ended.is_some() || outgoing.has_ended {
            return Sent::NoMore;
        }
        if outgoing.is_abandoned {
            return self.send_abandoned(link, transfer);
        }
        match outgoing.form {
            FRAGMENT => {
                let most = self.fragments_of_piece(link);
                self.send_fragments(link, transfer, most)
            }
            _ => self.send_segments(link, transfer),
        }
    }

    /// Returns the number of credits that long messages of a link may take in this turn.
    fn credits_for_pieces(&mut self, key: LinkKey) -> usize {
        let link = &mut self.links[key.index()];
        let available = link.connection.messages_allowed() as usize;
        link.transfers.credits_seen += available as u64;
        if available != 1 {
            return available.div_ceil(2);
        }
        let others_wait = link.others_wait_for_credits();
        // The last credit goes to these and to long messages alternately.
        let takes = !others_wait || !link.transfers.took_last_credit;
        link.transfers.took_last_credit = takes;
        usize::from(takes)
    }

    fn send_segments(&mut self, key: LinkKey, transfer: TransferKey) -> Sent {
        let outgoing = &self.transfers.outgoing[transfer.index()];
        let most = match outgoing.is_accepted {
            true => MAX_SEGMENTS,
            false => FIRST_SEGMENTS,
        };
        if outgoing.exposed.len() >= most {
            return Sent::NoMore;
        }
        let (is_accepted, is_first) = (outgoing.is_accepted, outgoing.exposed.is_empty());
        if self.credits_for_pieces(key) == 0 {
            return Sent::NotNow;
        }
        let id = self.links[key.index()].id;
        let len = HEADER_LEN + RemoteSegment::ENCODED_LEN;
        let Ok(mut buf) = self.transport.reserve(id, len) else {
            return Sent::NotNow;
        };
        let mut message = mem::take(&mut self.transfers.outgoing[transfer.index()].message);
        let exposed = self.expose(key, &mut message, is_accepted, is_first);
        let outgoing = &mut self.transfers.outgoing[transfer.index()];
        outgoing.message = message;
        let exposed = match exposed {
            Ok(exposed) => exposed,
            Err(error) => {
                self.transport.cancel(buf);
                return match error {
                    ExposeError::NotNow | ExposeError::NoWindow { may_come: true } => {
                        Sent::NoMemory
                    }
                    ExposeError::NoWindow { may_come: false } => {
                        let transfer = outgoing.id;
                        self.close_failed(key, NoWindows { transfer }, "closing a connection");
                        Sent::NoMore
                    }
                    ExposeError::Closed => Sent::NoMore,
                };
            }
        };
        let len = exposed.segment.len;
        outgoing.exposed.push_back((exposed.key, len));
        buf.as_mut()[HEADER_LEN..].copy_from_slice(&exposed.segment.encode());
        let copied = u64::from(len) * u64::from(exposed.was_copied);
        self.send_continuation(key, transfer, SEGMENTS, buf, len, copied)
    }

    /// Returns the number of fragments of a message that may be sent in this turn.
    fn fragments_of_piece(&mut self, key: LinkKey) -> usize {
        let frame_len = self.transport.longest_frame(self.links[key.index()].id);
        let fragment_len = frame_len.saturating_sub(HEADER_LEN).max(1);
        let most = self.transport.limits().piece_len / fragment_len;
        let most = most.clamp(1, FRAGMENTS_PER_PIECE);
        most.min(self.credits_for_pieces(key))
    }

    /// Sends the next fragments of a message, `most` at most, for which there are credits.
    pub(super) fn send_fragments(
        &mut self,
        key: LinkKey,
        transfer: TransferKey,
        most: usize,
    ) -> Sent {
        let id = self.links[key.index()].id;
        // The connection has ended, and the next event reports it.
        let Some(fragment_len) = self.transport.longest_frame(id).checked_sub(HEADER_LEN) else {
            return Sent::NoMore;
        };
        let mut sent = Sent::NotNow;
        for _ in 0..most {
            let outgoing = &self.transfers.outgoing[transfer.index()];
            let mut len = outgoing.message.len().min(fragment_len);
            if !outgoing.is_accepted {
                len = len.min((FREE_FRAGMENTS - outgoing.announced) as usize);
            }
            if len == 0 {
                return Sent::NoMore;
            }
            let Ok(mut buf) = self.transport.reserve(id, HEADER_LEN + len) else {
                return sent;
            };
            let mut message = mem::take(&mut self.transfers.outgoing[transfer.index()].message);
            let out = &mut buf.as_mut()[HEADER_LEN..];
            self.transfers.copy_out(&mut message, out);
            self.transfers.outgoing[transfer.index()].message = message;
            sent = self.send_continuation(key, transfer, FRAGMENT, buf, len as u32, len as u64);
            if sent == Sent::NoMore {
                break;
            }
        }
        sent
    }

    /// Sends a continuation with the next `len` bytes of a message, for which there is a credit.
    pub(super) fn send_continuation(
        &mut self,
        key: LinkKey,
        transfer: TransferKey,
        selector: u16,
        mut buf: T::SendBuf,
        len: u32,
        copied: u64,
    ) -> Sent {
        let link = &mut self.links[key.index()];
        let outgoing: &mut Outgoing = &mut self.transfers.outgoing[transfer.index()];
        let taken = link.connection.take_message();
        debug_assert!(taken, "a piece was made without a credit");
        let call = CallId(outgoing.id.0);
        let header = link
            .connection
            .next_header(FrameKind::Continuation, call, selector);
        header.encode(buf.as_mut());
        // If the connection has ended, the next event reports it.
        let _ = self.transport.send(link.id, buf);
        self.unflushed = true;
        outgoing.announced += len;
        let counters = &self.counters.transfers;
        counters.bytes_sent.add(len.into());
        counters.bytes_copied.add(copied);
        counters.bytes_by_reference.add(u64::from(len) - copied);
        let has_ended = selector == ABANDONED || outgoing.message.is_empty();
        if has_ended {
            outgoing.has_ended = true;
            link.connection.end_sending();
        }
        match has_ended {
            true => Sent::NoMore,
            false => Sent::More,
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

    /// Tells the receiver that no more of a message follows.
    fn send_abandoned(&mut self, key: LinkKey, transfer: TransferKey) -> Sent {
        if self.credits_for_pieces(key) == 0 {
            return Sent::NotNow;
        }
        let id = self.links[key.index()].id;
        match self.transport.reserve(id, HEADER_LEN) {
            Ok(buf) => self.send_continuation(key, transfer, ABANDONED, buf, 0, 0),
            Err(_) => Sent::NotNow,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_wait_for_the_application_but_not_for_ever() {
        let mut transfers = Transfers::<()>::default();
        assert!(!transfers.yields(false));
        for _ in 0..MOST_TURNS_YIELDED {
            assert!(transfers.yields(true));
            assert!(!transfers.yields(false), "the application is not woken");
        }
        // Until a piece has been sent, for which there may be no credit in this turn.
        for _ in 0..3 {
            assert!(!transfers.yields(true), "they have waited long enough");
        }
        transfers.turns_yielded = 0;
        assert!(transfers.yields(true));
    }
}
