//! Long messages of streams: how they are sent in their order, and received in their order.
//!
//! A long message has its position in the stream from its first frame on. At the sender, frames behind
//! it follow at once, and its own pieces go through `bodies/`. At the receiver, the stream's
//! [`Inbound`](crate::stream::inbound::Inbound) keeps its position, and what arrives behind it waits
//! there, out of its slots and within the stream's window.
//!
//! A stream reads at most two long messages ahead of its reader, as far as there is room ahead of all
//! readers (`bodies/admission.rs`), and sends at most two at a time.

use super::super::State;
use super::super::bodies::{SentMessage, TransferOwner};
use super::super::link::Link;
use super::super::link_bodies::TransferKey;
use super::super::outbox::{Class, Missing};
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
        let (on, core) = (stream.link, stream.core.clone());
        let of_link = self.links[on].bodies.outgoing.len();
        let most = match of_link < MANY_UNDER_WAY {
            true => LONG_UNDER_WAY,
            false => 1,
        };
        if stream.sending.len() >= most {
            return Err(Stop::AwaitsTransfer);
        }
        if of_link >= LONG_OF_STREAMS {
            return Err(Stop::Missing(Missing::Slot));
        }
        let permit = self.links.permit(Class::Message, on);
        let permit = permit.map_err(Stop::Missing)?;
        let taken = core.lock().outbound.take_long();
        // The application may have given the call up since.
        let Some((frame, mut message)) = taken else {
            return Err(Stop::Missing(Missing::Connection));
        };
        permit.hold();
        let begin = |link: &mut Link<_>| {
            let flags = match frame.is_last {
                true => Flags::LAST,
                false => Flags::NONE,
            };
            let kind = FrameKind::LongMessage;
            let mut header = link
                .connection
                .next_header_with(kind, flags, call, ONE_MESSAGE);
            header.time_us = core.lock().inbound.take_grant();
            Some((header, TransferOwner::Stream(key)))
        };
        let links = &mut self.links;
        let sent =
            self.bodies
                .sending
                .send_long(links, on, Class::Message, &[], &mut message, begin);
        match sent {
            Ok((_, transfer)) => {
                let sender = core.lock().outbound.wake_sender();
                self.links.wakers.extend(sender);
                self.links.counters.streams.frames_sent.add(1);
                self.sends_for(key, transfer);
                Ok(())
            }
            Err(missing) => {
                core.lock().outbound.put_back(frame, message);
                Err(Stop::Missing(missing))
            }
        }
    }

    /// Notes that a long message of a stream is under way, unless it is not any more.
    pub(super) fn sends_for(&mut self, key: StreamKey, transfer: TransferKey) {
        if let Some(stream) = self.streams.get_mut(key)
            && self.bodies.sending.is_sending(transfer)
        {
            stream.sending.push(transfer);
        }
    }

    /// Notes that nothing of a long message is under way any more. Its stream may send the next one.
    #[cold]
    pub(in super::super) fn message_sent(&mut self, sent: SentMessage) {
        // It may have ended meanwhile.
        if let Some(stream) = self.streams.get_mut(sent.stream) {
            stream.sending.retain(|sending| *sending != sent.key);
            self.streams.queue(sent.stream);
        }
    }
}
