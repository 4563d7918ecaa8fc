//! [`Node`]: a poller that is stepped by hand; [`LoopbackNode`]: what one does over a loopback.

use rpc_core::for_testing;
use rpc_core::transport::{ConnectionId, RoomWanted};

use crate::loopback::{Loopback, SlotCounts};

/// A poller that serves and makes calls, and that takes a turn on request.
pub type Node<T = Loopback> = for_testing::Node<T>;

/// What a node over a [`Loopback`] shows of its transport.
pub trait LoopbackNode {
    /// Returns the state of the node's slots.
    fn slot_counts(&self) -> SlotCounts;

    /// Returns the node's open connections, oldest first.
    fn connections(&self) -> Vec<ConnectionId>;

    /// Delivers a frame that no peer has sent.
    fn inject(&self, connection: ConnectionId, frame: Vec<u8>);

    /// Asks the node for connections, behind what has arrived.
    fn ask_for_room(&self, wanted: RoomWanted);

    /// Lets the peer of a connection keep the node waiting from now on.
    fn stall(&self, connection: ConnectionId);
}

impl LoopbackNode for Node {
    fn slot_counts(&self) -> SlotCounts {
        self.with_transport(|loopback| loopback.slot_counts())
    }

    fn connections(&self) -> Vec<ConnectionId> {
        self.with_transport(|loopback| loopback.connections())
    }

    fn inject(&self, connection: ConnectionId, frame: Vec<u8>) {
        self.with_transport(|loopback| loopback.inject(connection, frame));
    }

    fn ask_for_room(&self, wanted: RoomWanted) {
        self.with_transport(|loopback| loopback.ask_for_room(wanted));
    }

    fn stall(&self, connection: ConnectionId) {
        self.with_transport(|loopback| loopback.stall(connection));
    }
}
