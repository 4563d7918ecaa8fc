//! Long messages of one stream: how they are sent in their order, and received in their order.
//!
//! A long message has its position in the stream from its first frame on. At the sender, frames behind
//! it follow at once, and its own pieces go through `bodies/`. At the receiver, the stream's
//! [`Inbound`](crate::stream::inbound::Inbound) keeps its position, and what arrives behind it waits
//! there, out of its slots and within the stream's window.
//!
//! A stream reads at most two long messages ahead of its reader, as far as there is room ahead of all
//! readers (`bodies/admission.rs`), and sends at most two at a time.

use std::mem;

use super::super::bodies::{Receiving, Sending, TransferOwner};
use super::super::link::Link;
use super::super::link_bodies::{IncomingKey, TransferKey};
use super::super::link_streams::StreamKey;
use super::super::links::Links;
use super::super::outbox::{Class, Missing};
use super::messages::StopSending;
use super::{Stream, StreamPhase};
use crate::codec::LongMessage;
use crate::protocol::connection::{MAX_TRANSFERS, ProtocolError};
use crate::protocol::frame::{Flags, FrameHeader, FrameKind, ONE_MESSAGE};
use crate::status::Status;
use crate::stream::end::StreamEnd;
use crate::transport::Transport;

/// Long messages of a stream that are under way to the peer at a time.
const LONG_UNDER_WAY: usize = 2;

/// Long messages of a connection beyond which each stream has only one under way.
const MANY_UNDER_WAY: usize = MAX_TRANSFERS / 4;

/// Long messages of all streams of a connection that are under way to the peer at a time: calls have
/// room for others, however many streams wait for their readers.
const LONG_OF_STREAMS: usize = MAX_TRANSFERS - 64;

impl Stream {
    /// Sends the first frame of the stream's next message, which is long.
    #[cold]
    #[inline(never)]
    pub(super) fn send_long<T: Transport>(
        &mut self,
        key: StreamKey,
        links: &mut Links<T>,
        sending: &mut Sending,
    ) -> Result<(), StopSending> {
        let Some(call) = self.phase.call() else {
            unreachable!("a stream that is not open sends nothing");
        };
        let of_link = links[self.link].bodies.outgoing.len();
        let most = match of_link < MANY_UNDER_WAY {
            true => LONG_UNDER_WAY,
            false => 1,
        };
        if self.sending.len() >= most {
            return Err(StopSending::AwaitsTransfer);
        }
        if of_link >= LONG_OF_STREAMS {
            return Err(StopSending::Missing(Missing::Slot));
        }
        let (on, class) = (self.link, Class::Message);
        let permit = links.permit(class, on).map_err(StopSending::Missing)?;
        let taken = self.core.lock().outbound.take_long();
        // The application may have given the call up since.
        let Some((frame, mut message)) = taken else {
            return Err(StopSending::Missing(Missing::Connection));
        };
        permit.hold();
        let begin = |link: &mut Link<_>| {
            let flags = match frame.is_last {
                true => Flags::LAST,
                false => Flags::NONE,
            };
            let (kind, connection) = (FrameKind::Message, &mut link.connection);
            let mut header = connection.next_header_with(kind, flags, call, ONE_MESSAGE);
            header.time_us = self.core.lock().inbound.take_grant();
            Some((header, TransferOwner::Stream(key)))
        };
        match sending.send_long(links, on, class, &[], &mut message, begin) {
            Ok((_, transfer)) => {
                links
                    .wakers
                    .extend(self.core.lock().outbound.after_sending());
                links.counters.streams.frames_sent.add(1);
                self.note_sending(sending, transfer);
                Ok(())
            }
            Err(missing) => {
                self.core.lock().outbound.put_back(frame, message);
                Err(StopSending::Missing(missing))
            }
        }
    }

    /// Notes that a long message is under way, unless it is not any more.
    pub(super) fn note_sending(&mut self, sending: &Sending, key: TransferKey) {
        if sending.is_sending(key) {
            self.sending.push(key);
        }
    }

    /// Applies the first frame of a long message to its stream. Returns false if nobody wants the
    /// message.
    pub(super) fn begin_long<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        header: &FrameHeader,
        metadata: &[u8],
        incoming: IncomingKey,
    ) -> Result<bool, ProtocolError> {
        let call = header.call;
        if let StreamPhase::Answered { .. } = self.phase {
            return Err(ProtocolError::UnknownCall { call });
        }
        self.was_used = true;
        links.counters.streams.frames_received.add(1);
        let is_server = self.is_served();
        let mut core = self.core.lock();
        if is_server && core.inbound.has_ended() {
            return Err(ProtocolError::AfterHalfClose { call });
        }
        if header.time_us != 0 && !core.outbound.grant(header.time_us) {
            return Err(ProtocolError::GrantTooLarge { call });
        }
        if !is_server && (!metadata.is_empty() || !core.inbound.has_begun()) {
            core.inbound.begin(metadata);
        }
        let received = core.inbound.receive_long(incoming.number());
        let is_wanted = received.map_err(|exceeded| ProtocolError::StreamWindow {
            call,
            sent: exceeded.sent,
            available: exceeded.available,
        })?;
        if header.flags.contains(Flags::LAST) {
            core.inbound.end(StreamEnd::HalfClosed);
        }
        // The server has begun to answer.
        links.wakers.extend(core.inbound.reader.wake());
        Ok(is_wanted)
    }

    /// Takes a long message that is complete.
    pub(super) fn complete_long<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        incoming: IncomingKey,
        message: LongMessage,
    ) {
        let mut core = self.core.lock();
        let left = core.inbound.complete_long(incoming.number(), message);
        links.wakers.extend(core.inbound.reader.wake());
        drop(core);
        drop(left);
    }

    /// Notes that the sender of a long message sends no more of it. Nobody gets those behind it.
    pub(super) fn cut_long<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        receiving: &mut Receiving<T>,
        incoming: IncomingKey,
    ) {
        self.receiving.retain(|other| *other != incoming);
        let mut core = self.core.lock();
        core.inbound.cut(incoming.number());
        // The end may have arrived before, and nothing else wakes the reader for it.
        links.wakers.extend(core.inbound.reader.wake());
        drop(core);
        // Those before it go on.
        let core = &self.core;
        let is_kept = |key: &IncomingKey| core.lock().inbound.awaits(key.number());
        let (kept, cut) = mem::take(&mut self.receiving)
            .into_iter()
            .partition::<Vec<_>, _>(is_kept);
        self.receiving = kept;
        for key in cut {
            receiving.stop_incoming(links, key);
        }
    }

    /// Fetches the next long messages of a stream, unless its reader lags behind. One for which there
    /// is no room ahead of its reader is fetched when the reader waits for it. Returns the status with
    /// which the stream fails if one gets no memory.
    pub(super) fn fetch_ahead<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        receiving: &mut Receiving<T>,
    ) -> Option<Status> {
        loop {
            let next = self.core.lock().inbound.next_to_fetch()?;
            let mut keys = self.receiving.iter().copied();
            let incoming = keys.find(|incoming| incoming.number() == next.transfer);
            let ahead = incoming.map(|incoming| receiving.read_ahead(links, incoming));
            if let Some(None) = ahead
                && !next.is_awaited
            {
                return None;
            }
            let ahead = ahead.flatten().filter(|_| !next.is_awaited);
            let mut core = self.core.lock();
            core.inbound.begin_to_fetch(next.transfer, ahead);
            drop(core);
            let refusal = incoming.and_then(|incoming| receiving.admit_incoming(links, incoming));
            if refusal.is_some() {
                return refusal;
            }
        }
    }
}
