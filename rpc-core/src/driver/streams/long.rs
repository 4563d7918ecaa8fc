//! Long messages of streams: how they are sent in their order, and received in their order.
//!
//! A long message has its position in the stream from its first frame on. At the sender, frames behind
//! it follow at once, and its own pieces go through `transfers/`. At the receiver, the stream's
//! [`Inbound`](crate::stream::inbound::Inbound) keeps its position, and what arrives behind it waits
//! there, out of its slots and within the stream's window.
//!
//! A stream reads at most two long messages ahead of its reader, as far as there is room ahead of all
//! readers (`transfers/admission.rs`), and sends at most two at a time.

use super::super::State;
use super::super::link_transfers::TransferKey;
use super::super::transfers::TransferOwner;
use super::StreamKey;
use super::look::Stop;
use crate::protocol::connection::MAX_TRANSFERS;
use crate::protocol::frame::{Flags, FrameKind, ONE_MESSAGE};
use crate::transport::{ReserveError, Transport};

/// Long messages of a stream that are under way to the peer at a time.
const LONG_UNDER_WAY: usize = 2;

/// Long messages of a connection beyond which each stream has only one under way.
const MANY_UNDER_WAY: usize = MAX_TRANSFERS / 4;

/// Long messages of all streams of a connection that are under way to the peer at a time: calls have
/// room for others, however many streams wait for their readers.
const LONG_OF_STREAMS: usize = MAX_TRANSFERS - 64;

impl<T: Transport> State<T> {
    /// Sends the first frame of the stream's next message, which is long.
    #[cold]
    #[inline(never)]
    pub(super) fn send_long_message(&mut self, key: StreamKey) -> Result<(), Stop> {
        let stream = self.streams.get_mut(key).ok_or(Stop::Closed)?;
        let call = stream.phase.call().ok_or(Stop::Closed)?;
        let (link_key, core) = (stream.link, stream.core.clone());
        let of_link = self.links[link_key.index()].transfers.outgoing.len();
        let most = match of_link < MANY_UNDER_WAY {
            true => LONG_UNDER_WAY,
            false => 1,
        };
        if stream.sending.len() >= most {
            return Err(Stop::AwaitsTransfer);
        }
        let link = &mut self.links[link_key.index()];
        if of_link >= LONG_OF_STREAMS {
            return Err(Stop::NoSlot);
        }
        if !link.connection.take_message() {
            return Err(Stop::NoCredit);
        }
        link.transfers.credits_seen += 1;
        let taken = core.lock().outbound.take_long();
        let Some((frame, mut message)) = taken else {
            link.connection.return_message_credit();
            return Err(Stop::Closed);
        };
        match self.prepare_transfer(link_key, 0, &mut message) {
            Ok(prepared) => {
                let flags = match frame.is_last {
                    true => Flags::LAST,
                    false => Flags::NONE,
                };
                let connection = &mut self.links[link_key.index()].connection;
                let kind = FrameKind::LongMessage;
                let mut header = connection.next_header_with(kind, flags, call, ONE_MESSAGE);
                let mut state = core.lock();
                header.time_us = state.inbound.take_grant();
                self.wakers.extend(state.outbound.wake_sender());
                drop(state);
                let owner = TransferOwner::Stream(key);
                let transfer = self.send_transfer(link_key, prepared, header, &[], owner);
                self.counters.streams.frames_sent.add(1);
                self.sends_for(key, transfer);
                Ok(())
            }
            Err(error) => {
                core.lock().outbound.put_back(frame, message);
                let connection = &mut self.links[link_key.index()].connection;
                connection.return_message_credit();
                Err(match error {
                    ReserveError::NoSlot => Stop::NoSlot,
                    ReserveError::Closed => Stop::Closed,
                    ReserveError::TooLong { limit, .. } => Stop::TooLong { limit },
                })
            }
        }
    }

    /// Notes that a long message of a stream is under way, unless it is not any more.
    pub(super) fn sends_for(&mut self, key: StreamKey, transfer: TransferKey) {
        if let Some(stream) = self.streams.get_mut(key)
            && self.transfers.is_sending(transfer)
        {
            stream.sending.push(transfer);
        }
    }

    /// Notes that nothing of a long message is under way any more. The stream may send the next one.
    pub(in super::super) fn long_message_sent(&mut self, key: StreamKey, transfer: TransferKey) {
        if let Some(stream) = self.streams.get_mut(key) {
            stream.sending.retain(|sending| *sending != transfer);
            self.streams.queue(key);
        }
    }
}
