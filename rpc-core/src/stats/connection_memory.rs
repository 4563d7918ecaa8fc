//! [`ConnectionMemory`]: the memory of the long messages of one connection.

use crate::transport::ConnectionId;

/// The memory of the long messages of one connection, in bytes of messages.
/// [`Memory`](super::Memory) has the sums of all connections of a poller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionMemory {
    /// The connection, as log records name it.
    pub connection: ConnectionId,
    /// Of messages that are being received, for all of which there is memory.
    pub posted: u64,
    /// That the peer may read.
    pub in_flight: u64,
    /// In fields that the application keeps.
    pub held: u64,
    /// That are kept only because the peer does not take them: the call has ended, or the peer has
    /// done nothing for 15 seconds. Includes bytes that have not been sent.
    pub pinned: u64,
}

impl ConnectionMemory {
    pub(crate) fn is_any(&self) -> bool {
        self.posted + self.in_flight + self.held + self.pinned > 0
    }
}
