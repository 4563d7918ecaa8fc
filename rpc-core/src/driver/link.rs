//! [`Link`] is one connection of a poller, with its calls.

use std::time::Instant;

use super::call_table::CallTable;
use super::waiters::Waiters;
use crate::protocol::connection::Connection;
use crate::transport::{CloseReason, ConnectionId, Permit};

/// Names a connection in the driver, for as long as anybody holds a channel to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkKey(pub(crate) u32);

/// What may be done with a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkStanding {
    /// It takes calls.
    Up,
    /// Calls under way finish; it takes no new ones.
    GoingAway,
    /// It has ended, and its calls have or are about to.
    Ended,
}

/// A connection with its calls.
pub(crate) struct Link<B> {
    pub(crate) id: ConnectionId,
    pub(crate) connection: Connection,
    pub(crate) calls: CallTable<B>,
    pub(crate) waiters: Waiters,
    /// Channels that name this link; the server's side has none.
    pub(crate) handles: u32,
    /// The client's side: the server has said that it shuts down. No call is begun any more.
    pub(crate) going_away: bool,
    /// Since when no call was begun, as far as [`Driver::on_idle`](super::Driver::on_idle) has
    /// noticed.
    pub(crate) idle_since: Option<Instant>,
    /// Set when this side has decided to end it, and for good when the transport has.
    pub(crate) ended: Option<CloseReason>,
    pub(super) closed: bool,
    /// It is among those that owe credits.
    pub(crate) owes: bool,
    pub(super) permit: Option<Permit>,
}

impl<B> Link<B> {
    /// Only the server's side holds a place that the admission gave.
    pub(crate) fn is_server(&self) -> bool {
        self.permit.is_some()
    }
}

#[cfg(feature = "test-util")]
impl<B> Link<B> {
    /// Receives promised to the peer while no call is under way.
    pub(super) fn promised(&self) -> u32 {
        if self.closed {
            0
        } else {
            self.connection.window_len() + 1
        }
    }
}

impl LinkKey {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }

    #[cfg(test)]
    pub(crate) fn test(index: u32) -> Self {
        Self(index)
    }
}
