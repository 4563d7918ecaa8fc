//! [`Link`]: one connection of a poller, with its calls.

use std::collections::VecDeque;
use std::time::Instant;

use super::age::{Ageing, Lifetime};
use super::call_table::CallTable;
use super::entries::Entries;
use super::link_bodies::LinkBodies;
use super::link_streams::LinkStreams;
use super::request_queue::RequestQueue;
use super::table::table_key;
use super::waiters::Waiters;
use crate::limits::MessageLimit;
use crate::peer::LendablePeer;
use crate::peer_memory::HoldOfHost;
use crate::protocol::connection::Connection;
#[cfg(any(debug_assertions, feature = "test-util"))]
use crate::protocol::credit::UNCREDITED_RECEIVES;
use crate::protocol::frame::CallId;
use crate::transport::{CloseReason, ConnectionId, ConnectionQuota};

table_key! {
    /// Identifies a connection in the driver for as long as a channel to it exists.
    LinkKey
}

/// The state of a link, which determines the operations that it allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkState {
    /// It accepts calls.
    Up,
    /// Calls in flight continue; it accepts no new ones.
    GoingAway,
    /// It has ended, and its calls have ended or are about to.
    Ended,
}

/// A connection with its calls.
pub(crate) struct Link<B> {
    pub(crate) id: ConnectionId,
    pub(crate) connection: Connection,
    pub(crate) calls: CallTable<B>,
    pub(crate) waiters: Waiters,
    /// Requests that have been received and not begun. Only on the server's side.
    pub(super) requests: RequestQueue<B>,
    /// What the next control frames say.
    pub(super) entries: Entries,
    pub(super) streams: LinkStreams,
    pub(super) bodies: LinkBodies,
    /// What its host uses.
    pub(super) memory: HoldOfHost,
    /// The limit of the messages that are sent: the lower one of this side's and the peer's.
    pub(super) longest_message: MessageLimit,
    /// Number of channels that use this link. Zero on the server's side.
    pub(crate) handles: u32,
    /// Client: the server has announced the end of the connection, so no more calls are started.
    pub(crate) going_away: bool,
    /// It ends it for a new client.
    pub(super) is_evicted: bool,
    /// Client: a call had got its response when the connection ended.
    pub(super) has_served: bool,
    /// The time since which no call was begun, according to the checks by
    /// [`DriverState::on_idle`](super::DriverState::on_idle).
    pub(crate) idle_since: Option<Instant>,
    /// The time since which the peer has sent no request and no message, and no call was in flight,
    /// according to [`note_use`](Self::note_use). Only on the server's side.
    pub(super) unused_since: Option<Instant>,
    /// How many requests for connections have found it so in the meantime.
    pub(super) unused_looks: u32,
    /// Set when this side has decided to close the connection, or when the transport has closed it.
    pub(crate) ended: Option<CloseReason>,
    pub(super) closed: bool,
    /// Server: calls that the client has cancelled, and that still have to end.
    pub(super) cancelled: VecDeque<CallId>,
    /// Some of its calls and streams are ended in the next turn.
    pub(super) is_ending: bool,
    /// True if a turn has ended since the peer's latest control frame, and no frame acknowledged it.
    pub(super) ack_is_due: bool,
    pub(super) quota: Option<ConnectionQuota>,
    /// When the client was accepted, on the server's side.
    pub(super) accepted_at: Option<Instant>,
    /// How far it has come to its end, if the server limits the age of connections.
    pub(super) lifetime: Option<Lifetime>,
    /// The client's process, on the server's side, if the transport knows it.
    pub(super) peer: Option<LendablePeer>,
}

impl<B> Link<B> {
    /// Creates the state of a connection that has been established.
    pub(super) fn new(
        id: ConnectionId,
        connection: Connection,
        streams: LinkStreams,
        longest_message: MessageLimit,
        memory: HoldOfHost,
    ) -> Self {
        Self {
            id,
            connection,
            calls: CallTable::default(),
            waiters: Waiters::default(),
            requests: RequestQueue::default(),
            entries: Entries::default(),
            streams,
            bodies: LinkBodies::default(),
            memory,
            longest_message,
            handles: 0,
            going_away: false,
            is_evicted: false,
            has_served: false,
            idle_since: None,
            unused_since: None,
            unused_looks: 0,
            ended: None,
            closed: false,
            cancelled: VecDeque::new(),
            is_ending: false,
            ack_is_due: false,
            quota: None,
            accepted_at: None,
            lifetime: None,
            peer: None,
        }
    }

    /// Records the credit of a frame as owed. Returns true if the peer uses all of its window.
    #[inline]
    pub(super) fn owe_credit(&mut self) -> bool {
        self.connection.release_receive();
        self.connection.has_used_all_credits()
    }

    /// Returns true if no call may be started on this link any more.
    #[inline]
    pub(super) fn takes_no_calls(&self) -> bool {
        self.ended.is_some() | self.going_away
    }

    /// Returns the reason for which the connection has ended, or which the server has announced.
    pub(crate) fn end(&self) -> Option<CloseReason> {
        self.ended.clone().or_else(|| self.announced_end())
    }

    /// Returns the reason for which the server has announced the end of the connection.
    pub(super) fn announced_end(&self) -> Option<CloseReason> {
        self.going_away.then_some(match self.is_evicted {
            true => CloseReason::Evicted,
            false => CloseReason::GoingAway,
        })
    }

    /// Server: returns true if a call is a stream, or its long request is arriving.
    pub(super) fn knows_call(&self, call: CallId) -> bool {
        self.streams.served.contains_key(&call) || self.bodies.incoming_of(call).is_some()
    }

    /// Returns true if the client can send nothing more and has all that it waits for. Pieces of long
    /// messages that were announced are still here until it has read them.
    pub(super) fn is_finished(&self) -> bool {
        self.connection.is_finished() && self.bodies.outgoing.is_empty()
    }

    /// Looks at the age of the connection. If it is old, its end is announced; if it is to be closed, it
    /// has ended on this side.
    pub(super) fn grow_old(&mut self, now: Instant) -> Ageing {
        let is_finished = self.is_finished();
        let lifetime = self.lifetime.as_mut().filter(|_| self.ended.is_none());
        let ageing = lifetime.map_or(Ageing::Nothing, |it| it.look(now, is_finished));
        match ageing {
            Ageing::Nothing => {}
            Ageing::GoAway => {
                tracing::debug!(connection = %self.id, "a connection is old: its client has to connect again");
                self.connection.go_away();
            }
            Ageing::Close => self.ended = Some(CloseReason::Local),
        }
        ageing
    }

    /// Looks whether the client has used the connection since the last look.
    pub(super) fn note_use(&mut self, now: Instant) {
        if self.connection.take_was_called() || !self.connection.is_at_rest() {
            self.unused_since = None;
            self.unused_looks = 0;
        } else {
            self.unused_since.get_or_insert(now);
        }
    }

    /// Returns true if this is the server's side. Only that side holds a connection quota.
    pub(crate) fn is_server(&self) -> bool {
        self.quota.is_some()
    }
}

#[cfg(any(debug_assertions, feature = "test-util"))]
impl<B> Link<B> {
    /// Returns the number of receives promised to the peer while no call is in flight.
    pub(super) fn promised(&self) -> u32 {
        match self.closed {
            true => 0,
            false => self.connection.window_len() + UNCREDITED_RECEIVES,
        }
    }
}

impl<B> Link<B> {
    /// Returns the number of calls in the call table that are not streams.
    pub(super) fn unary_calls(&self) -> u32 {
        (self.calls.len() as u32).saturating_sub(self.connection.streams())
    }
}
