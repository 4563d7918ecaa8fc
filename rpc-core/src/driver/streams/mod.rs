//! [`Streams`]: the driver's end of each stream of a poller, on both sides of a connection.
//!
//! A stream is in one table on either side. The application's end tells the driver through the ready
//! queue that there is work, and the driver looks at the stream once per turn, in order:
//!
//! | file | step |
//! | --- | --- |
//! | `open.rs` | client: the request that opens a stream is sent, as soon as there is a credit and room |
//! | `accept.rs` | server: a request opens a stream, and its handler begins |
//! | `receive.rs` | messages arrive, and grants of the peer |
//! | `long.rs`, `long_receive.rs` | messages that do not fit in a frame, in their order |
//! | `look.rs` | what a stream needs is done: messages are sent, its window is granted, its answer goes out |
//! | `alone.rs` | a message that is alone goes straight to a frame |
//! | `answer.rs` | server: the outcome of a handler waits until all of its messages have been sent |
//! | `control.rs` | grants and cancels of many streams and calls share a control frame |
//! | `end.rs` | a response, a deadline, a cancel or the end of the connection ends a stream |
//!
//! A message frame takes a credit of the connection, and is at once copied out of its slot, which
//! is promised again. So a reader that does not read stops its own stream, whose window ends, and
//! holds no receive.

mod accept;
mod alone;
mod answer;
mod cancel;
mod control;
mod end;
mod long;
mod long_receive;
mod look;
mod open;
mod receive;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

pub(crate) use self::open::StreamCapacity;
pub(super) use self::receive::{OwnFutures, Reader};
pub(crate) use super::handle::StreamRequest;
use super::link::LinkKey;
use super::link_bodies::{IncomingKey, TransferKey};
use super::link_streams::StreamKey;
use super::responses::BlockedResponse;
use super::table::Table;
use super::tasks::TaskKey;
use super::timers::TimerKey;
use super::waiting::{ReadySet, Waiting};
use crate::protocol::frame::CallId;
use crate::stats::{CalledStream, ServedCall};
use crate::status::Status;
use crate::stream::core::StreamCore;
use crate::stream::kept::KeptCores;
use crate::stream::turns::LocalTurns;

/// Streams whose memory a check frees if they were idle.
const TRIMMED_PER_CHECK: u32 = 256;

/// The streams of one poller.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    entries: Table<StreamKey, Stream>,
    /// Streams to look at.
    to_look: ReadySet<StreamKey>,
    /// In the latest turn, a stream had more to send than it could in its turn.
    has_more: bool,
    /// Client: streams that wait until another one of their connection has ended.
    awaiting_room: Waiting<LinkKey, StreamKey>,
    /// Streams that owe a grant.
    grants: Waiting<LinkKey, StreamKey>,
    /// The next stream whose memory is checked.
    next_trimmed: u32,
    /// Empty, kept for its memory.
    signalled: Vec<u32>,
    /// What streams that have ended leave for the next ones.
    kept: KeptCores,
    /// How streams reach this poller on its thread, if they do.
    pub(super) poller: Option<LocalTurns>,
    /// Streams with long messages that get no memory.
    refused: VecDeque<(StreamKey, Status)>,
}

/// The driver's end of a stream.
struct Stream {
    core: Arc<StreamCore>,
    link: LinkKey,
    phase: Phase,
    /// The most bytes of a message that this side receives, if the method has a limit.
    longest: Option<u32>,
    timer: Option<TimerKey>,
    /// Since the latest check of its memory.
    was_used: bool,
    /// Long messages that are under way to the peer.
    sending: Vec<TransferKey>,
    /// Long messages that are under way from the peer, by the numbers that its `core` has for them.
    receiving: Vec<IncomingKey>,
}

/// How far a stream has got.
enum Phase {
    /// Client: the request waits to be sent.
    Opening(Box<StreamRequest>),
    /// Client: the server has the request.
    Sent {
        call: CallId,
        counters: CalledStream,
    },
    /// Client: the server has responded, and long messages are under way that precede the end.
    Answered {
        call: CallId,
        counters: CalledStream,
        /// The status code.
        code: u16,
    },
    /// Client: the call has ended here. Its response is still to come.
    Abandoned { call: CallId },
    /// Server.
    Serving(Serving),
}

/// The server's part of a stream.
#[derive(Debug)]
struct Serving {
    call: CallId,
    /// Known once the request has been counted.
    served: Option<ServedCall>,
    /// The handler, while it awaits.
    task: Option<TaskKey>,
    /// The outcome of the handler, which follows its messages.
    answer: Option<BlockedResponse>,
}

impl Stream {
    fn new(core: Arc<StreamCore>, link: LinkKey, phase: Phase, longest: Option<u32>) -> Self {
        Self {
            core,
            link,
            phase,
            longest,
            timer: None,
            was_used: true,
            sending: Vec::new(),
            receiving: Vec::new(),
        }
    }
}

impl Phase {
    fn is_client(&self) -> bool {
        !matches!(self, Self::Serving(_))
    }

    /// Returns the id of a call that the peer knows.
    fn call(&self) -> Option<CallId> {
        match self {
            Self::Opening(_) => None,
            Self::Sent { call, .. } | Self::Answered { call, .. } | Self::Abandoned { call } => {
                Some(*call)
            }
            Self::Serving(serving) => Some(serving.call),
        }
    }
}

impl Streams {
    /// Fails a stream with a long message that gets no memory, as soon as nothing is borrowed.
    pub(super) fn refuse(&mut self, key: StreamKey, status: Status) {
        self.refused.push_back((key, status));
    }

    fn get_mut(&mut self, key: StreamKey) -> Option<&mut Stream> {
        self.entries.get_mut(key)
    }

    /// Creates the state of a client's stream.
    pub(super) fn new_core(&mut self) -> Arc<StreamCore> {
        StreamCore::of_local_poller(self.kept.take(), self.poller)
    }

    /// Queues a stream to be looked at, if it still exists.
    pub(super) fn queue(&mut self, key: StreamKey) {
        if self.entries.contains(key) {
            self.to_look.insert(key);
        }
    }

    /// Returns the number of grants that streams of a connection owe.
    pub(super) fn grants_of(&self, link: LinkKey) -> usize {
        self.grants.len_of(link)
    }

    /// Returns the number of streams that wait for a turn.
    #[inline]
    pub(super) fn waiting(&self) -> usize {
        self.to_look.len()
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
        let is_served = |(_, stream): &(_, &Stream)| matches!(stream.phase, Phase::Serving(_));
        let served = self.entries.iter().filter(is_served);
        served.map(|(key, _)| key).collect()
    }

    /// Returns true if a client waits for the answer of a stream.
    pub(super) fn serves_any(&self) -> bool {
        let is_served = |stream: &Stream| matches!(stream.phase, Phase::Serving(_));
        self.entries.values().any(is_served)
    }

    fn keys_of(&self, link: LinkKey) -> Vec<StreamKey> {
        let of_link = |(_, stream): &(_, &Stream)| stream.link == link;
        let entries = self.entries.iter().filter(of_link);
        entries.map(|(key, _)| key).collect()
    }

    /// Frees the memory of some streams that were idle since they were last checked.
    pub(super) fn trim(&mut self) {
        let indices = self.entries.indices();
        let end = (self.next_trimmed + TRIMMED_PER_CHECK).min(indices);
        let keys = (self.next_trimmed..end).map(|index| self.entries.key_at(index));
        for key in keys.flatten().collect::<Vec<_>>() {
            let stream = &mut self.entries[key];
            if !std::mem::take(&mut stream.was_used) {
                stream.core.lock().trim();
            }
        }
        self.next_trimmed = if end < indices { end } else { 0 };
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream of {:?}", self.link)
    }
}
