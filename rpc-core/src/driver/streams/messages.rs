//! The messages of one stream that fit in frames: they leave, and arrive.

use std::task::Waker;

use super::super::block_on_waker::BlockOnWaker;
use super::super::link::Link;
use super::super::links::Links;
use super::super::outbox::{Class, FRAMES_OF_STREAM, Missing, Slot};
use super::super::tasks::{TaskKey, Tasks};
use super::{ServedStream, Stream, StreamPhase};
use crate::protocol::connection::ProtocolError;
use crate::protocol::frame::{Flags, FrameHeader, FrameKind, HEADER_LEN};
use crate::protocol::inline_frame::InlineFrame;
use crate::stream::batch::MessageForm;
use crate::stream::end::StreamEnd;
use crate::stream::reader::ReaderWake;
use crate::transport::Transport;

/// What a look at a stream has found.
pub(super) struct Looked {
    pub(super) stop: StopSending,
    /// The stream owes a grant that no message has carried.
    pub(super) owes_grant: bool,
    /// Its sender waits to make another long message until others are read.
    pub(super) awaits_reader: bool,
}

/// The reason that no further message of a stream is sent.
pub(super) enum StopSending {
    /// All are sent.
    Drained,
    /// The peer's window does not allow the next one.
    AwaitsWindow,
    /// It is the turn of other streams.
    Turn,
    Missing(Missing),
    /// The application has given the call up.
    Cancelled,
    /// A message that has arrived got no memory.
    NoMemory,
    /// The next message is long.
    Long,
    /// As many long messages of the stream are under way as may be.
    AwaitsTransfer,
}

/// The futures that a poller polls itself.
pub(in super::super) struct OwnFutures<'a> {
    pub(in super::super) block_on: &'a BlockOnWaker,
    pub(in super::super) tasks: &'a Tasks,
}

/// Who has to be woken, now that messages have arrived.
#[derive(Debug)]
pub(in super::super) enum Reader {
    Nobody,
    /// The future that `block_on` runs.
    BlockOn,
    /// A handler.
    Handler(TaskKey),
    Other(Waker),
}

/// What messages that have arrived leave to do.
pub(super) struct Delivered {
    pub(super) reader: Reader,
    /// The stream has to be looked at.
    pub(super) has_work: bool,
}

impl Stream {
    /// Sends the messages of a stream, as far as its turn, credits and slots allow.
    pub(super) fn send_messages<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        memory: &mut InlineFrame,
    ) -> Looked {
        let Some(call) = self.phase.call() else {
            unreachable!("a stream that is not open sends nothing");
        };
        let Links {
            table,
            transport,
            outbox,
            wakers,
            longest_inline,
            counters,
            ..
        } = links;
        let link = &mut table[self.link];
        let mut core = self.core.lock();
        core.begin_look();
        let slot_len = transport.limits().slot_len;
        let (mut frames, mut sent) = (0, 0);
        let is_client = matches!(self.phase, StreamPhase::Sent { .. });
        let stop = loop {
            if is_client && core.is_cancelled() {
                break StopSending::Cancelled;
            }
            if core.inbound.take_lack_of_memory() {
                break StopSending::NoMemory;
            }
            let Some(next) = core.outbound.next_frame() else {
                break match core.outbound.is_empty() {
                    true => StopSending::Drained,
                    false => StopSending::AwaitsWindow,
                };
            };
            if frames == FRAMES_OF_STREAM || sent >= slot_len {
                break StopSending::Turn;
            }
            if next.is_long {
                break StopSending::Long;
            }
            let len = HEADER_LEN + next.metadata_len + next.message_len;
            let permit = match outbox.permit(Class::Message, link, transport) {
                Ok(permit) => permit,
                Err(missing) => break StopSending::Missing(missing),
            };
            let write = |link: &mut Link<_>, frame: &mut [u8]| {
                let flags = match next.is_last {
                    true => Flags::LAST,
                    false => Flags::NONE,
                };
                let (kind, selector) = (FrameKind::Message, next.form.selector());
                let connection = &mut link.connection;
                let mut header = connection.next_header_with(kind, flags, call, selector);
                // Longer metadata was refused.
                header.metadata_len = next.metadata_len as u16;
                header.time_us = core.inbound.take_grant();
                core.outbound.write_frame(&next, &mut frame[HEADER_LEN..]);
                header.encode(frame);
                Some(())
            };
            let outcome = match len <= *longest_inline {
                true => permit.send_inline(memory.frame_mut(len - HEADER_LEN), write),
                false => permit.send(Slot::Of(len), write),
            };
            if let Err(missing) = outcome {
                break StopSending::Missing(missing);
            }
            frames += 1;
            sent += len;
        };
        core.outbound.note_under_way(!self.sending.is_empty());
        wakers.extend(core.outbound.after_sending());
        let owes_grant = core.inbound.owes_grant();
        let awaits_reader = core.outbound.awaits_reader();
        drop(core);
        counters.streams.frames_sent.add(frames);
        Looked {
            stop,
            owes_grant,
            awaits_reader,
        }
    }

    /// Sends the message in `frame`, if nothing of its stream waits and everything is there that it
    /// needs. Returns true if it was sent. If not, nothing has changed.
    // Always inlined, for the same reason as `deliver`.
    #[inline(always)]
    pub(super) fn send_alone<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        frame: &mut [u8],
    ) -> bool {
        let call = match self.phase {
            StreamPhase::Sent { call, .. }
            | StreamPhase::Serving(ServedStream {
                call, answer: None, ..
            }) => call,
            _ => return false,
        };
        let len = frame.len() - HEADER_LEN;
        let core = self.core.lock();
        if core.is_cancelled() || !core.outbound.may_pass(len) {
            return false;
        }
        let permit = links.permit(Class::Message, self.link);
        let sent = permit.and_then(|permit| {
            permit.send_inline(frame, |link, frame| {
                let mut core = core;
                core.outbound.pass(len);
                let (kind, selector) = (FrameKind::Message, MessageForm::One.selector());
                let mut header = link.connection.next_header(kind, call, selector);
                header.time_us = core.inbound.take_grant();
                header.encode(frame);
                Some(())
            })
        });
        let is_sent = sent.is_ok();
        self.was_used |= is_sent;
        links.counters.streams.frames_sent.add(is_sent.into());
        is_sent
    }

    /// Takes the messages of a frame whose header has been checked.
    // Always inlined: each message pays for it, and its caller is the only one.
    #[inline(always)]
    pub(super) fn deliver(
        &mut self,
        header: &FrameHeader,
        body: &[u8],
        own: &OwnFutures<'_>,
    ) -> Result<Delivered, ProtocolError> {
        let call = header.call;
        if let StreamPhase::Answered { .. } = self.phase {
            return Err(ProtocolError::UnknownCall { call });
        }
        self.was_used = true;
        self.core.note_arrival();
        // The header was parsed: the metadata is within the frame.
        let (metadata, messages) = body.split_at(header.metadata_len.into());
        // Other selectors were refused.
        let form = MessageForm::from_selector(header.selector).unwrap_or(MessageForm::None);
        if form == MessageForm::None && !messages.is_empty() {
            let len = messages.len();
            return Err(ProtocolError::NoMessages { len });
        }
        let mut state = self.core.lock();
        let (is_server, task) = match &self.phase {
            StreamPhase::Serving(ServedStream { task, .. }) => (true, *task),
            _ => (false, None),
        };
        if is_server && state.inbound.has_ended() {
            return Err(ProtocolError::AfterHalfClose { call });
        }
        let mut has_work = false;
        if header.time_us != 0 {
            if !state.outbound.grant(header.time_us) {
                return Err(ProtocolError::GrantTooLarge { call });
            }
            has_work = state.outbound.next_frame().is_some();
        }
        if !is_server && (header.metadata_len != 0 || !state.inbound.has_begun()) {
            state.inbound.begin(metadata);
        }
        state
            .inbound
            .receive(form, messages)
            .map_err(|exceeded| ProtocolError::StreamWindow {
                call,
                sent: exceeded.sent,
                available: exceeded.available,
            })?;
        if header.flags.contains(Flags::LAST) {
            state.inbound.end(StreamEnd::HalfClosed);
        }
        let is_news = form != MessageForm::None || !is_server || state.inbound.has_ended();
        let mut reader = Reader::Nobody;
        if is_news {
            let own_waker = match is_server {
                true => task.and_then(|task| own.tasks.waker(task)),
                false => Some(own.block_on.waker()),
            };
            reader = match (state.inbound.reader.wake_by(own_waker), task) {
                (None, _) => Reader::Nobody,
                (Some(ReaderWake::Other(waker)), _) => Reader::Other(waker),
                (Some(ReaderWake::Own), None) => Reader::BlockOn,
                (Some(ReaderWake::Own), Some(task)) => Reader::Handler(task),
            };
        }
        // A stream whose reader has gone owes a grant at once.
        has_work |= state.inbound.owes_grant() | state.inbound.lacks_memory();
        Ok(Delivered { reader, has_work })
    }

    /// Takes a grant of the peer. Returns true if the stream has to be looked at.
    pub(super) fn receive_grant(&mut self, bytes: u32) -> Option<bool> {
        let mut state = self.core.lock();
        let is_granted = state.outbound.grant(bytes);
        is_granted.then(|| state.outbound.next_frame().is_some())
    }
}
