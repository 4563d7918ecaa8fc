//! What a stream needs is done, once per turn.

use super::super::link::LinkKey;
use super::super::links::Links;
use super::super::outbox::{Body, Class, Missing, Permit};
use super::super::{Driver, State};
use super::{Phase, Serving, StreamKey};
use crate::call_error::{CallError, Cause, Execution};
use crate::protocol::frame::{Flags, FrameKind, HEADER_LEN};
use crate::protocol::inline_frame::InlineFrame;
use crate::transport::Transport;

/// Frames that a stream sends before it is the turn of the next one, and their bytes: one long frame,
/// or a few short ones.
const FRAMES_PER_LOOK: u64 = 16;

/// The next step for a stream, which needs code of the application.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Nothing,
    /// Its answer, for which a credit has been taken.
    Answer,
}

/// What a look at a stream has found.
struct Looked {
    stop: Stop,
    /// The stream owes a grant that no message has carried.
    owes_grant: bool,
}

/// The reason that no further message of a stream is sent.
pub(super) enum Stop {
    /// All are sent.
    Drained,
    /// The peer's window does not allow the next one.
    AwaitsWindow,
    /// It is the turn of other streams.
    Turn,
    Missing(Missing),
    /// The application has given the call up.
    Cancelled,
    /// The next message is long.
    Long,
    /// As many long messages of the stream are under way as may be.
    AwaitsTransfer,
}

impl<T: Transport> Driver<T> {
    /// Looks at the streams that have work.
    #[inline(never)]
    pub(in super::super) fn look_at_streams(&self) {
        self.ready.enter();
        let mut signalled = std::mem::take(&mut self.state.borrow_mut().streams.signalled);
        self.ready.take_streams(&mut signalled);
        let mut state = self.state.borrow_mut();
        for index in signalled.drain(..) {
            // The stream may have ended since.
            if let Some(key) = state.streams.entries.key_at(index) {
                state.streams.to_look.insert(key);
            }
        }
        state.streams.signalled = signalled;
        state.streams.has_more = false;
        state.resume_stalled();
        let count = state.streams.to_look.len();
        drop(state);
        let mut memory = self.inline_frame.take();
        // Each is looked at once: a stream that has more is queued behind the others.
        for _ in 0..count {
            let mut state = self.state.borrow_mut();
            let Some(key) = state.streams.to_look.pop() else {
                break;
            };
            let next = state.look_at(key, &mut memory);
            let any_refused = !state.streams.refused.is_empty();
            drop(state);
            if next == Next::Answer {
                self.send_answer(key);
            }
            if any_refused {
                self.fail_refused();
            }
        }
        self.inline_frame.put_back(memory);
        if !self.state.borrow().links.wakers.is_empty() {
            self.wake_collected();
        }
    }
}

impl<T: Transport> State<T> {
    fn look_at(&mut self, key: StreamKey, memory: &mut InlineFrame) -> Next {
        let Some(stream) = self.streams.get_mut(key) else {
            return Next::Nothing;
        };
        stream.was_used = true;
        let link = stream.link;
        if self.links[link].ended.is_some() {
            // The event of its end ends the stream.
            return Next::Nothing;
        }
        let is_open = matches!(stream.phase, Phase::Sent { .. } | Phase::Serving(_));
        if (!is_open || !stream.receiving.is_empty()) && !self.prepare(key) {
            return Next::Nothing;
        }
        let mut owes_grant = false;
        let stop = loop {
            let looked = self.send_messages(key, memory);
            owes_grant |= looked.owes_grant;
            let Stop::Long = looked.stop else {
                break looked.stop;
            };
            if let Err(stop) = self.send_long_message(key) {
                break stop;
            }
        };
        if owes_grant {
            self.streams.grants.insert(link, key);
            self.links.owe(link);
        }
        match stop {
            Stop::Drained => return self.next_for_answer(key),
            Stop::AwaitsWindow | Stop::AwaitsTransfer | Stop::Long => {}
            Stop::Turn => {
                self.streams.has_more = true;
                self.streams.queue(key);
            }
            Stop::Cancelled => self.abandon_stream(key, None),
            Stop::Missing(missing) => match missing {
                Missing::Connection => {}
                Missing::Credit => self.stall(key),
                // The metadata does not fit in a frame of this length.
                Missing::Length { limit } => self.fail_too_long(key, limit),
                _ => self.streams.queue(key),
            },
        }
        Next::Nothing
    }

    /// Looks at the long messages that a stream receives, and opens a stream that is not open. Returns
    /// true if it is open.
    #[cold]
    #[inline(never)]
    fn prepare(&mut self, key: StreamKey) -> bool {
        let Some(stream) = self.streams.get_mut(key) else {
            return false;
        };
        if !stream.receiving.is_empty() {
            self.look_at_receiving(key);
        }
        match self.streams.get_mut(key).map(|stream| &stream.phase) {
            Some(Phase::Sent { .. } | Phase::Serving(_)) => true,
            Some(Phase::Opening(_)) => self.open(key),
            Some(Phase::Answered { .. } | Phase::Abandoned { .. }) | None => false,
        }
    }

    /// Sends the request of a stream that is not open, unless its application has given it up. Returns
    /// true if the stream is open.
    #[cold]
    fn open(&mut self, key: StreamKey) -> bool {
        let Some(stream) = self.streams.get_mut(key) else {
            return false;
        };
        let link = stream.link;
        let mut core = stream.core.lock();
        core.begin_look();
        let is_cancelled = core.is_cancelled();
        drop(core);
        if is_cancelled {
            self.abandon_stream(key, None);
            return false;
        }
        if let Some(reason) = self.links[link].announced_end() {
            self.fail_going_away(key, reason);
            return false;
        }
        self.send_opening(key)
    }

    /// Sends the messages of a stream, as far as its turn, credits and slots allow.
    fn send_messages(&mut self, key: StreamKey, memory: &mut InlineFrame) -> Looked {
        let Self { streams, links, .. } = self;
        let Links {
            table,
            transport,
            outbox,
            wakers,
            longest_inline,
            counters,
            ..
        } = links;
        let nothing = Looked {
            stop: Stop::Missing(Missing::Connection),
            owes_grant: false,
        };
        let Some(stream) = streams.entries.get_mut(key) else {
            return nothing;
        };
        let Some(call) = stream.phase.call() else {
            return nothing;
        };
        let link = &mut table[stream.link];
        let mut core = stream.core.lock();
        core.begin_look();
        let slot_len = transport.limits().slot_len;
        let (mut frames, mut sent) = (0, 0);
        let is_client = matches!(stream.phase, Phase::Sent { .. });
        let stop = loop {
            if is_client && core.is_cancelled() {
                break Stop::Cancelled;
            }
            let Some(next) = core.outbound.next_frame() else {
                break match core.outbound.is_empty() {
                    true => Stop::Drained,
                    false => Stop::AwaitsWindow,
                };
            };
            if frames == FRAMES_PER_LOOK || sent >= slot_len {
                break Stop::Turn;
            }
            if next.is_long {
                break Stop::Long;
            }
            let len = HEADER_LEN + next.metadata_len + next.message_len;
            let permit = match outbox.permit(Class::Message, link, transport) {
                Ok(permit) => permit,
                Err(missing) => break Stop::Missing(missing),
            };
            let body = match len <= *longest_inline {
                true => Body::Inline(memory.frame_mut(len - HEADER_LEN)),
                false => Body::Slot(len),
            };
            let outcome = permit.send(body, |link, frame| {
                let flags = match next.is_last {
                    true => Flags::LAST,
                    false => Flags::NONE,
                };
                let (kind, selector) = (FrameKind::Message, next.form.selector());
                let mut header = link
                    .connection
                    .next_header_with(kind, flags, call, selector);
                // Longer metadata was refused.
                header.metadata_len = next.metadata_len as u16;
                header.time_us = core.inbound.take_grant();
                core.outbound.write_frame(&next, &mut frame[HEADER_LEN..]);
                header.encode(frame);
                Some(())
            });
            if let Err(missing) = outcome {
                break Stop::Missing(missing);
            }
            frames += 1;
            sent += len;
        };
        wakers.extend(core.outbound.wake_sender());
        let owes_grant = core.inbound.owes_grant();
        drop(core);
        if frames > 0 {
            counters.streams.frames_sent.add(frames);
        }
        Looked { stop, owes_grant }
    }

    /// Takes a credit for a stream's answer, if there is one.
    fn next_for_answer(&mut self, key: StreamKey) -> Next {
        let Some(stream) = self.streams.get_mut(key) else {
            return Next::Nothing;
        };
        // A request that waits for its turn is answered when it has been counted.
        let Phase::Serving(Serving {
            answer: Some(_),
            served: Some(_),
            ..
        }) = &stream.phase
        else {
            return Next::Nothing;
        };
        let permit = self.links.permit(Class::Message, stream.link);
        // The response takes it along.
        if permit.map(Permit::hold).is_ok() {
            return Next::Answer;
        }
        self.stall(key);
        Next::Nothing
    }

    /// Lets a stream wait for a credit, or for room among the streams of its connection.
    pub(super) fn stall(&mut self, key: StreamKey) {
        let link = self.streams.entries[key].link;
        let is_new = self.links.outbox.streams.insert(link, key);
        self.links.counters.streams.stalled.add(is_new.into());
    }

    /// Queues the stalled streams of connections that have credits again.
    fn resume_stalled(&mut self) {
        for _ in 0..self.links.outbox.streams.groups() {
            let Some(link) = self.links.outbox.streams.next_group() else {
                break;
            };
            for _ in 0..self.links[link].connection.messages_allowed() {
                let Some(key) = self.links.outbox.streams.pop(link) else {
                    break;
                };
                self.streams.queue(key);
            }
        }
    }

    /// Looks again at the streams of a link that wait for something that does not come any more.
    #[cold]
    pub(in super::super) fn resume_all(&mut self, link: LinkKey) {
        let stalled = self.links.outbox.streams.take(link);
        let awaiting_room = self.streams.awaiting_room.take(link);
        for key in stalled.into_iter().chain(awaiting_room) {
            self.streams.queue(key);
        }
    }

    /// Ends a stream whose initial metadata fits in no frame.
    #[cold]
    fn fail_too_long(&mut self, key: StreamKey, limit: usize) {
        let cause = Cause::metadata_too_long(limit, limit);
        let error = CallError::new(cause, Execution::MayHaveRun);
        self.abandon_stream(key, Some(error));
    }
}
