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
use super::super::outbox::{Class, Missing};
use super::super::transfers::TransferOwner;
use super::StreamKey;
use super::look::Stop;
use crate::protocol::connection::MAX_TRANSFERS;
use crate::protocol::frame::{Flags, FrameKind, ONE_MESSAGE};
use crate::transport::Transport;

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
        let stream = &self.streams.entries[key];
        let Some(call) = stream.phase.call() else {
            unreachable!("a stream that is not open sends nothing");
        };
        let (link_key, core) = (stream.link, stream.core.clone());
        let of_link = self.links[link_key].transfers.outgoing.len();
        let most = match of_link < MANY_UNDER_WAY {
            true => LONG_UNDER_WAY,
            false => 1,
        };
        if stream.sending.len() >= most {
            return Err(Stop::AwaitsTransfer);
        }
        let link = &mut self.links[link_key];
        if of_link >= LONG_OF_STREAMS {
            return Err(Stop::Missing(Missing::Slot));
        }
        let permit = self
            .outbox
            .permit(Class::Message, link, &mut self.transport);
        let permit = permit.map_err(Stop::Missing)?;
        let taken = core.lock().outbound.take_long();
        // The application may have given the call up since.
        let Some((frame, mut message)) = taken else {
            return Err(Stop::Missing(Missing::Connection));
        };
        permit.hold();
        match self.prepare_transfer(link_key, 0, &mut message) {
            Ok(prepared) => {
                let flags = match frame.is_last {
                    true => Flags::LAST,
                    false => Flags::NONE,
                };
                let connection = &mut self.links[link_key].connection;
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
            Err(missing) => {
                core.lock().outbound.put_back(frame, message);
                let link = &mut self.links[link_key];
                drop(
                    self.outbox
                        .resume(Class::Message, link, &mut self.transport),
                );
                Err(Stop::Missing(missing))
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
