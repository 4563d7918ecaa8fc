//! What arrives for streams: messages, grants and cancels.

use std::task::Waker;

use super::super::State;
use super::super::block_on_waker::BlockOnWaker;
use super::super::link::LinkKey;
use super::super::tasks::{TaskKey, Tasks};
use super::{Phase, Serving, StreamKey};
use crate::protocol::connection::ProtocolError;
use crate::protocol::frame::{CallId, Flags, FrameHeader, HEADER_LEN};
use crate::stream::batch::MessageForm;
use crate::stream::inbound::StreamEnd;
use crate::stream::reader::ReaderWake;
use crate::transport::Transport;

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

impl<T: Transport> State<T> {
    /// Handles the messages in `buf`, whose header has been checked. Returns who has to be woken for
    /// their reader.
    #[inline(never)]
    pub(in super::super) fn receive_messages(
        &mut self,
        link: LinkKey,
        header: FrameHeader,
        buf: T::RecvBuf,
        own: &OwnFutures<'_>,
    ) -> Reader {
        let outcome = match self.stream_of(link, header.call) {
            Some(key) => self.deliver(key, &header, &buf.as_ref()[HEADER_LEN..], own),
            // The server has answered the call meanwhile.
            None if self.links[link].is_server() => Ok(Reader::Nobody),
            None => Err(ProtocolError::UnknownCall { call: header.call }),
        };
        match outcome {
            Ok(reader) => {
                self.links.release_received(link, buf);
                reader
            }
            Err(error) => {
                self.links.close_for_violation(link, buf, error);
                Reader::Nobody
            }
        }
    }

    fn deliver(
        &mut self,
        key: StreamKey,
        header: &FrameHeader,
        body: &[u8],
        own: &OwnFutures<'_>,
    ) -> Result<Reader, ProtocolError> {
        let call = header.call;
        let Some(stream) = self.streams.get_mut(key) else {
            return Ok(Reader::Nobody);
        };
        if let Phase::Answered { .. } = stream.phase {
            return Err(ProtocolError::UnknownCall { call });
        }
        stream.was_used = true;
        stream.core.note_arrival();
        self.links.counters.streams.frames_received.add(1);
        // The header was parsed: the metadata is within the frame.
        let (metadata, messages) = body.split_at(header.metadata_len.into());
        // Other selectors were refused.
        let form = MessageForm::from_selector(header.selector).unwrap_or(MessageForm::None);
        if form == MessageForm::None && !messages.is_empty() {
            let len = messages.len();
            return Err(ProtocolError::NoMessages { len });
        }
        let mut state = stream.core.lock();
        let (is_server, task) = match &stream.phase {
            Phase::Serving(Serving { task, .. }) => (true, *task),
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
        has_work |= state.inbound.owes_grant();
        drop(state);
        if has_work {
            self.streams.queue(key);
        }
        Ok(reader)
    }

    /// Returns the stream of a call that a peer names.
    #[inline]
    pub(super) fn stream_of(&mut self, link: LinkKey, call: CallId) -> Option<StreamKey> {
        let link = self.links.table.get_mut(link)?;
        if link.is_server() {
            link.streams.served_stream(call)
        } else {
            link.calls.stream_of(call)
        }
    }

    pub(in super::super) fn receive_grant(
        &mut self,
        link: LinkKey,
        call: CallId,
        bytes: u32,
    ) -> Result<(), ProtocolError> {
        // The call may have ended meanwhile.
        let Some(key) = self.stream_of(link, call) else {
            return Ok(());
        };
        let Some(stream) = self.streams.get_mut(key) else {
            return Ok(());
        };
        let mut state = stream.core.lock();
        if !state.outbound.grant(bytes) {
            return Err(ProtocolError::GrantTooLarge { call });
        }
        let has_work = state.outbound.next_frame().is_some();
        drop(state);
        if has_work {
            self.streams.queue(key);
        }
        Ok(())
    }
}
