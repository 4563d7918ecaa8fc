//! What streams need is done, once per turn.

use std::mem;
use std::ptr;
use std::sync::Arc;

use super::super::bodies::{Begun, Bodies, FirstFrame, Purpose, Receiving, SentMessage};
use super::super::link::LinkKey;
use super::super::link_streams::StreamKey;
use super::super::links::Links;
use super::super::outbox::{Class, Missing, Permit};
use super::messages::{OwnFutures, Reader, StopSending};
use super::{ServedStream, StreamPhase, Streams};
use crate::call_error::{CallError, Cause, Execution};
use crate::protocol::connection::ProtocolError;
use crate::protocol::frame::{CallId, FrameHeader, HEADER_LEN};
use crate::protocol::inline_frame::InlineFrame;
use crate::service::handler::metadata_too_long;
use crate::status::Status;
use crate::stream::end::no_memory;
use crate::transport::Transport;

/// Connections whose hosts a turn asks whether they have read enough.
const READERS_PER_TURN: usize = 16;

/// The next step for a stream, which needs code of the application.
#[derive(Debug)]
pub(in super::super) enum Next {
    Nothing,
    /// Its answer, for which a credit has been taken.
    Answer,
    /// It fails, because a message gets no memory.
    Fail(Status),
}

impl Streams {
    /// Takes the streams that have told of work, and those that get credits again. Returns the number of
    /// streams to look at: one that has more then is queued behind the others.
    pub(in super::super) fn begin_looks<T: Transport>(&mut self, links: &mut Links<T>) -> usize {
        let mut signalled = mem::take(&mut self.signalled);
        self.signals.take_streams(&mut signalled);
        for index in signalled.drain(..) {
            // The stream may have ended since.
            if let Some(key) = self.entries.key_at(index) {
                self.to_look.insert(key);
            }
        }
        self.signalled = signalled;
        self.has_more = false;
        self.resume_stalled(links);
        self.to_look.len()
    }

    /// Looks at the next stream. Returns `None` if there is none.
    pub(in super::super) fn look<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        bodies: &mut Bodies<T>,
        memory: &mut InlineFrame,
    ) -> Option<(StreamKey, Next)> {
        let key = self.to_look.pop()?;
        Some((key, self.look_at(key, links, bodies, memory)))
    }

    fn look_at<T: Transport>(
        &mut self,
        key: StreamKey,
        links: &mut Links<T>,
        bodies: &mut Bodies<T>,
        memory: &mut InlineFrame,
    ) -> Next {
        let stream = &mut self.entries[key];
        stream.was_used = true;
        let link = stream.link;
        if links[link].ended.is_some() {
            // The event of its end ends the stream.
            return Next::Nothing;
        }
        if !stream.receiving.is_empty() {
            if let Some(status) = self.look_at_receiving(key, links, bodies) {
                return Next::Fail(status);
            }
            if !self.entries.contains(key) {
                return Next::Nothing;
            }
        }
        let is_open = match &self.entries[key].phase {
            StreamPhase::Sent { .. } | StreamPhase::Serving(_) => true,
            StreamPhase::Answered { .. } | StreamPhase::Abandoned { .. } => false,
            StreamPhase::Opening(_) => self.open(key, links, bodies),
        };
        if !is_open {
            return Next::Nothing;
        }
        let stream = &mut self.entries[key];
        let mut owes_grant = false;
        let mut awaits_reader;
        let stop = loop {
            let looked = stream.send_messages(links, memory);
            owes_grant |= looked.owes_grant;
            awaits_reader = looked.awaits_reader;
            let StopSending::Long = looked.stop else {
                break looked.stop;
            };
            if let Err(stop) = stream.send_long(key, links, &mut bodies.sending) {
                break stop;
            }
        };
        if awaits_reader {
            links.outbox.awaiting_reader.insert(link, key);
            links.outbox.note_any();
        } else {
            links.outbox.awaiting_reader.remove(key);
        }
        if owes_grant {
            links.outbox.grants.insert(link, key);
            links.owe(link);
        }
        match stop {
            StopSending::Drained => return self.next_for_answer(key, links),
            StopSending::AwaitsWindow | StopSending::AwaitsTransfer | StopSending::Long => {}
            StopSending::Turn => {
                self.has_more = true;
                self.to_look.insert(key);
            }
            StopSending::NoMemory => return Next::Fail(no_memory()),
            StopSending::Cancelled => self.abandon(key, links, bodies, None),
            StopSending::Missing(missing) => match missing {
                Missing::Connection => {}
                Missing::Credit => links.stall(link, key),
                Missing::Length { limit } => return Next::Fail(metadata_too_long(limit, limit)),
                _ => {
                    self.to_look.insert(key);
                }
            },
        }
        Next::Nothing
    }

    /// Looks at the long messages that a stream receives: fetches the next, or stops all of them if
    /// nobody reads. Returns the status with which the stream fails if one gets no memory.
    #[cold]
    #[inline(never)]
    fn look_at_receiving<T: Transport>(
        &mut self,
        key: StreamKey,
        links: &mut Links<T>,
        bodies: &mut Bodies<T>,
    ) -> Option<Status> {
        let stream = &mut self.entries[key];
        let mut core = stream.core.lock();
        core.begin_look();
        let is_answered = matches!(stream.phase, StreamPhase::Answered { .. });
        let is_cancelled = is_answered && core.is_cancelled();
        let is_discarded = core.inbound.is_discarded();
        drop(core);
        if is_cancelled {
            self.abandon(key, links, bodies, None);
            None
        } else if is_discarded && stream.is_served() {
            // A handler that has begun has its request.
            stream.stop_receiving(links, &mut bodies.receiving);
            None
        } else {
            stream.fetch_ahead(links, &mut bodies.receiving)
        }
    }

    /// Sends the request of a stream that is not open, unless its application has given it up. Returns
    /// true if the stream is open.
    #[cold]
    #[inline(never)]
    fn open<T: Transport>(
        &mut self,
        key: StreamKey,
        links: &mut Links<T>,
        bodies: &mut Bodies<T>,
    ) -> bool {
        let stream = &mut self.entries[key];
        let mut core = stream.core.lock();
        core.begin_look();
        let is_cancelled = core.is_cancelled();
        drop(core);
        if is_cancelled {
            self.abandon(key, links, bodies, None);
            return false;
        }
        if let Some(reason) = links[stream.link].announced_end() {
            let error = CallError::new(Cause::Disconnected(reason), Execution::NeverSent);
            self.abandon(key, links, bodies, Some(error));
            return false;
        }
        self.send_opening(key, links, bodies)
    }

    /// Takes a credit for a stream's answer, if there is one.
    fn next_for_answer<T: Transport>(&mut self, key: StreamKey, links: &mut Links<T>) -> Next {
        let stream = &self.entries[key];
        // A request that waits for its turn is answered when it has been counted.
        let StreamPhase::Serving(ServedStream {
            answer: Some(_),
            served: Some(_),
            ..
        }) = &stream.phase
        else {
            return Next::Nothing;
        };
        // The response takes it along.
        let permit = links.permit(Class::Message, stream.link);
        if permit.map(Permit::hold).is_ok() {
            return Next::Answer;
        }
        let link = stream.link;
        links.stall(link, key);
        // It does not take the credit of its request along, so another frame has to.
        links.owe(link);
        Next::Nothing
    }

    /// Queues the stalled streams of connections that have credits again.
    fn resume_stalled<T: Transport>(&mut self, links: &mut Links<T>) {
        for _ in 0..links.outbox.streams.groups() {
            let Some(link) = links.outbox.streams.next_group() else {
                break;
            };
            for _ in 0..links[link].connection.messages_allowed() {
                let Some(key) = links.outbox.streams.pop(link) else {
                    break;
                };
                self.to_look.insert(key);
            }
        }
    }

    /// Looks again at streams that wait to make long messages, of hosts that have read enough. Their senders go
    /// on then.
    #[cold]
    pub(in super::super) fn resume_awaiting_reader<T: Transport>(&mut self, links: &mut Links<T>) {
        let waiting = links.outbox.awaiting_reader.groups();
        for _ in 0..waiting.min(READERS_PER_TURN) {
            let Some(link) = links.outbox.awaiting_reader.next_group() else {
                break;
            };
            if !links[link].memory.has_much_unread()
                && let Some(key) = links.outbox.awaiting_reader.pop(link)
            {
                self.to_look.insert(key);
            }
        }
    }

    /// Looks again at the streams of a link that wait for something that does not come any more.
    #[cold]
    pub(in super::super) fn resume_all<T: Transport>(
        &mut self,
        link: LinkKey,
        links: &mut Links<T>,
    ) {
        let stalled = links.outbox.streams.take(link);
        let awaiting_room = links.outbox.awaiting_room.take(link);
        for key in stalled.into_iter().chain(awaiting_room) {
            self.to_look.insert(key);
        }
    }

    /// Queues a stream to be looked at.
    pub(in super::super) fn queue(&mut self, key: StreamKey) {
        debug_assert!(self.entries.contains(key), "{key:?} is gone");
        self.to_look.insert(key);
    }

    /// Sends the message in `frame`, if nothing of its stream waits, and no other stream
    /// waits for its turn or for a credit.
    // Always inlined: each message that is alone pays for it, and its caller is the only one.
    #[inline(always)]
    pub(in super::super) fn send_alone<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        index: u32,
        core: *const (),
        frame: &mut [u8],
    ) -> bool {
        if self.wait(links) {
            return false;
        }
        // The number of a stream that has ended may be another one's.
        let Some(key) = self.entries.key_at(index) else {
            return false;
        };
        let stream = &mut self.entries[key];
        ptr::addr_eq(Arc::as_ptr(&stream.core), core) && stream.send_alone(links, frame)
    }

    /// Handles the messages in `buf`, whose header has been checked. Returns who has to be woken for
    /// their reader.
    #[inline(never)]
    pub(in super::super) fn receive_messages<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        link: LinkKey,
        header: FrameHeader,
        buf: T::RecvBuf,
        own: &OwnFutures<'_>,
    ) -> Reader {
        let delivered = match self.stream_of(links, link, header.call) {
            Some(key) => {
                links.counters.streams.frames_received.add(1);
                let body = &buf.as_ref()[HEADER_LEN..];
                let delivered = self.entries[key].deliver(&header, body, own);
                delivered.map(|delivered| {
                    if delivered.has_work {
                        self.to_look.insert(key);
                    }
                    delivered.reader
                })
            }
            // The server has answered the call meanwhile.
            None if links[link].is_server() => Ok(Reader::Nobody),
            None => Err(ProtocolError::UnknownCall { call: header.call }),
        };
        match delivered {
            Ok(reader) => {
                links.release_received(link, buf);
                reader
            }
            Err(error) => {
                links.close_for_violation(link, buf, error);
                Reader::Nobody
            }
        }
    }

    /// Handles a grant of the peer.
    pub(in super::super) fn receive_grant<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        link: LinkKey,
        call: CallId,
        bytes: u32,
    ) -> Result<(), ProtocolError> {
        // The call may have ended meanwhile.
        let Some(key) = self.stream_of(links, link, call) else {
            return Ok(());
        };
        match self.entries[key].receive_grant(bytes) {
            None => return Err(ProtocolError::GrantTooLarge { call }),
            Some(true) => self.queue(key),
            Some(false) => {}
        }
        Ok(())
    }

    /// Notes that nothing of a long message is under way any more. Its stream may send the next one.
    #[cold]
    pub(in super::super) fn message_sent(&mut self, sent: SentMessage) {
        // The stream may have ended before its last message was sent.
        if let Some(stream) = self.entries.get_mut(sent.stream) {
            stream.sending.retain(|sending| *sending != sent.key);
            self.to_look.insert(sent.stream);
        }
    }

    /// Begins a long message of an open stream.
    pub(in super::super) fn begin_long_message<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        receiving: &mut Receiving<T>,
        first: &FirstFrame<'_>,
    ) -> Result<Begun, ProtocolError> {
        let call = first.header.call;
        let Some(key) = self.stream_of(links, first.link, call) else {
            return match links[first.link].is_server() {
                // The server has answered the call meanwhile.
                true => receiving.begin_unwanted(links, first),
                false => Err(ProtocolError::UnknownCall { call }),
            };
        };
        let incoming = receiving.begin_incoming(links, first, Purpose::Stream(key), None)?;
        let stream = &mut self.entries[key];
        let is_wanted = stream.begin_long(links, first.header, first.metadata, incoming)?;
        // Its window may have been granted, and a stream whose reader has gone owes a grant.
        self.to_look.insert(key);
        let mut refusal = None;
        if is_wanted {
            stream.receiving.push(incoming);
            refusal = first
                .refuse_length(links, stream.longest)
                .or_else(|| stream.fetch_ahead(links, receiving));
        } else {
            receiving.stop_incoming(links, incoming);
            stream.core.lock().inbound.cut(incoming.number());
        }
        let key = incoming;
        Ok(Begun { key, refusal })
    }
}
