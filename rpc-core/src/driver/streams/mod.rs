//! [`Streams`]: the driver's end of each stream of a poller, on both sides of a connection.
//!
//! A stream is in one table on either side. The application's end tells the driver through the ready
//! queue that there is work, and the driver looks at the stream once per turn, in order:
//!
//! | file | step |
//! | --- | --- |
//! | `stream.rs` | one stream: its phase, and what is under way |
//! | `open.rs` | client: the request that opens a stream is sent, as soon as there is a credit and room; server: a request opens a stream |
//! | `messages.rs` | messages of a stream leave and arrive |
//! | `long.rs` | the same for messages that do not fit in a frame, in their order |
//! | `look.rs` | what streams need is done: messages are sent, windows are granted, answers go out |
//! | `end.rs` | a response, a deadline, a cancel or the end of the connection ends a stream |
//!
//! What needs the code of the application, such as a handler that is dropped, is in
//! `served_streams.rs`.
//!
//! A message frame takes a credit of the connection, and is at once copied out of its slot, which
//! is promised again. So a reader that does not read stops its own stream, whose window ends, and
//! holds no receive.

mod end;
mod long;
mod look;
mod messages;
mod open;
mod stream;

use std::mem;
use std::sync::Arc;
use std::time::Instant;

pub(super) use self::end::{FailedHandler, LeftStream};
pub(super) use self::look::Next;
pub(super) use self::messages::{OwnFutures, Reader};
pub(crate) use self::open::StreamCapacity;
use self::stream::{ServedStream, Stream, StreamPhase};
use super::link::LinkKey;
use super::link_streams::StreamKey;
use super::links::Links;
use super::ready::ReadyQueue;
use super::table::Table;
use super::tasks::{IncomingCall, TaskKey};
use super::waiting::ReadySet;
use crate::call_error::{CallError, Cause, Execution};
use crate::protocol::frame::{CallId, ControlEntry, ControlRequest};
use crate::stats::ServedCall;
use crate::stream::core::StreamCore;
use crate::stream::end::StreamEnd;
use crate::stream::kept::KeptCores;
use crate::stream::turns::LocalTurns;
use crate::stream::wakers::wake_all;
use crate::transport::{CloseReason, Transport};

/// Streams whose memory a check frees if they were idle.
const TRIMMED_PER_CHECK: u32 = 256;

/// What becomes of a client's stream, now that it is the turn of its request.
pub(super) enum ToServe {
    /// Its handler begins.
    Begins(Arc<StreamCore>),
    /// It has failed before, and its answer waits to be sent.
    HasAnswer,
    /// It fails, because it has not got the memory that each needs.
    HasNoMemory,
}

/// The streams of one poller.
#[derive(Debug)]
pub(crate) struct Streams {
    entries: Table<StreamKey, Stream>,
    /// Streams to look at.
    to_look: ReadySet<StreamKey>,
    /// In the latest turn, a stream had more to send than it could in its turn.
    has_more: bool,
    /// The next stream whose memory is checked.
    next_trimmed: u32,
    /// What streams that have ended leave for the next ones.
    kept: KeptCores,
    /// How streams reach this poller on its thread, if they do.
    pub(super) poller: Option<LocalTurns>,
    /// The queue through which streams tell this poller that they have work.
    signals: Arc<ReadyQueue>,
    /// Empty, kept for its memory.
    signalled: Vec<u32>,
}

impl Streams {
    pub(super) fn new(signals: Arc<ReadyQueue>) -> Self {
        Self {
            entries: Table::default(),
            to_look: ReadySet::default(),
            has_more: false,
            next_trimmed: 0,
            kept: KeptCores::default(),
            poller: None,
            signals,
            signalled: Vec::new(),
        }
    }

    /// Creates the state of a client's stream.
    pub(super) fn new_core(&mut self) -> Arc<StreamCore> {
        StreamCore::of_local_poller(self.kept.take(), self.poller)
    }

    /// Returns the number of streams that wait for a turn.
    #[inline]
    pub(super) fn waiting(&self) -> usize {
        self.to_look.len()
    }

    /// Returns true if streams wait for a turn or a credit.
    #[inline]
    pub(super) fn wait<T: Transport>(&self, links: &Links<T>) -> bool {
        self.waiting() | links.outbox.streams.len() != 0
    }

    /// Returns true if a stream has more to send, for which nothing will wake the poller.
    pub(super) fn has_more(&self) -> bool {
        self.has_more
    }

    /// Returns the number of streams.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the streams of clients.
    pub(super) fn served_keys(&self) -> Vec<StreamKey> {
        let served = self.entries.iter().filter(|(_, stream)| stream.is_served());
        served.map(|(key, _)| key).collect()
    }

    /// Returns true if a client waits for the answer of a stream.
    pub(super) fn serves_any(&self) -> bool {
        self.entries.values().any(Stream::is_served)
    }

    /// Returns streams of a connection, at most `most` of them.
    pub(super) fn keys_of(&self, link: LinkKey, most: usize) -> Vec<StreamKey> {
        let of_link = self.entries.iter();
        let of_link = of_link.filter(|(_, stream)| stream.link == link);
        of_link.map(|(key, _)| key).take(most).collect()
    }

    /// Returns the stream of a call that a peer names.
    #[inline]
    pub(super) fn stream_of<T: Transport>(
        &self,
        links: &mut Links<T>,
        link: LinkKey,
        call: CallId,
    ) -> Option<StreamKey> {
        let link = &mut links[link];
        match link.is_server() {
            true => link.streams.served_stream(call),
            false => link.calls.stream_of(call),
        }
    }

    /// Returns the call of a stream that has been counted.
    pub(super) fn served_of(&mut self, key: StreamKey) -> Option<IncomingCall> {
        let stream = &mut self.entries[key];
        let link = stream.link;
        let serving = stream.serving()?;
        Some(IncomingCall {
            link,
            call: serving.call,
            served: serving.served?,
            stream: Some(key),
        })
    }

    /// Notes that the request of a stream has been counted. Returns what becomes of it if its turn has come.
    pub(super) fn set_served(&mut self, key: StreamKey, served: ServedCall) -> ToServe {
        let stream = &mut self.entries[key];
        let Some(serving) = stream.serving() else {
            unreachable!("a client's request has opened it");
        };
        serving.served = Some(served);
        if serving.answer.is_some() {
            // It has failed while its request waited.
            self.to_look.insert(key);
            return ToServe::HasAnswer;
        }
        match stream.has_memory {
            true => ToServe::Begins(Arc::clone(&stream.core)),
            false => ToServe::HasNoMemory,
        }
    }

    /// Returns true if a client's stream has got the memory that each needs.
    pub(super) fn has_memory(&self, key: StreamKey) -> bool {
        self.entries[key].has_memory
    }

    /// Notes the handler of a stream, which awaits.
    pub(super) fn set_task(&mut self, key: StreamKey, task: TaskKey) {
        if let Some(serving) = self.entries[key].serving() {
            serving.task = Some(task);
        }
    }

    /// Starts the timer of a stream.
    pub(super) fn set_deadline<T: Transport>(
        &mut self,
        key: StreamKey,
        links: &mut Links<T>,
        deadline: Option<Instant>,
    ) {
        let timer = deadline.map(|deadline| links.time_stream(key, deadline));
        self.entries[key].timer = timer;
    }

    /// Ends a stream at `limit`, which is earlier than its deadline.
    #[cold]
    pub(super) fn limit_deadline<T: Transport>(
        &mut self,
        key: StreamKey,
        links: &mut Links<T>,
        limit: Instant,
    ) {
        if let Some(timer) = self.entries[key].timer.take() {
            links.timers.cancel(timer);
        }
        self.set_deadline(key, links, Some(limit));
    }

    /// Takes the handler of a stream, which is then dropped.
    pub(super) fn take_task(&mut self, key: StreamKey) -> Option<TaskKey> {
        self.entries[key].serving()?.task.take()
    }

    /// Frees the memory of some streams that were idle since they were last checked.
    pub(super) fn trim(&mut self) {
        let indices = self.entries.indices();
        let end = (self.next_trimmed + TRIMMED_PER_CHECK).min(indices);
        for index in self.next_trimmed..end {
            let key = self.entries.key_at(index);
            if let Some(stream) = key.map(|key| &mut self.entries[key])
                && !mem::take(&mut stream.was_used)
            {
                stream.core.lock().trim();
            }
        }
        self.next_trimmed = if end < indices { end } else { 0 };
    }

    /// Makes entries of the grants that the streams of a connection owe, unless a message has carried
    /// them. Called only when a control frame may be sent.
    pub(super) fn collect_grants<T: Transport>(&mut self, link: LinkKey, links: &mut Links<T>) {
        while let Some(key) = links.outbox.grants.pop(link) {
            let stream = &mut self.entries[key];
            let granted = stream.core.lock().inbound.take_due_grant();
            if let (Some(call), Some(bytes)) = (stream.phase.call(), granted) {
                let request = ControlRequest::Grant(bytes);
                links[link].entries.push(ControlEntry { call, request });
            }
        }
    }
}

#[cfg(debug_assertions)]
impl Streams {
    /// Checks that the streams of each connection are as many as it counts, and that those which wait
    /// are there.
    pub(super) fn assert_sums<T: Transport>(&self, links: &Links<T>) {
        for (key, link) in links.table.iter() {
            let streams = self.entries.values();
            let of_link = streams.filter(|stream| stream.link == key).count();
            assert_eq!(link.streams.open as usize, of_link, "streams of {key:?}");
        }
        let (to_look, outbox) = (self.to_look.keys(), &links.outbox);
        let waiting = to_look
            .chain(outbox.streams.keys())
            .chain(outbox.awaiting_room.keys())
            .chain(outbox.awaiting_reader.keys());
        for key in waiting.chain(outbox.grants.keys()) {
            assert!(self.entries.contains(key), "{key:?} is gone, and waits");
        }
    }
}

impl Drop for Streams {
    /// Ends the streams of a poller that is dropped: their other ends may be on other threads.
    fn drop(&mut self) {
        for stream in self.entries.values() {
            let execution = match &stream.phase {
                StreamPhase::Opening(_) => Execution::NeverSent,
                _ => Execution::MayHaveRun,
            };
            let error = CallError::new(Cause::Disconnected(CloseReason::Local), execution);
            let wakers = stream.core.lock().end(StreamEnd::Failed(error));
            wake_all(wakers.into_iter().flatten());
        }
    }
}
