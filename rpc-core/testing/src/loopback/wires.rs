//! The connections of a network, and the frames on them.

use std::sync::Arc;

use rpc_core::transport::{Admission, CloseReason, ConnectionId, Event};

use super::{SlotCounts, Wire, Wires};

impl Wires {
    /// Lets long messages be read from now on.
    pub(crate) fn use_reads(&mut self) {
        self.reads = true;
    }

    pub(crate) fn refuse_fetches(&mut self, refuses: bool) {
        self.refuses_fetches = refuses;
    }

    pub(crate) fn refuse_windows(&mut self, may_come: Option<bool>) {
        self.no_window = may_come;
    }

    /// Holds all READs after this many more.
    pub(crate) fn hold_reads_after(&mut self, count: usize) {
        self.reads_left = Some(count);
    }

    pub(crate) fn listen(&mut self, address: &str, endpoint: usize, admission: Arc<dyn Admission>) {
        self.listeners
            .insert(address.to_owned(), (endpoint, admission));
    }

    pub(crate) fn slot_counts(&self, endpoint: usize) -> SlotCounts {
        let endpoint = &self.endpoints[endpoint];
        let (exposed, fetching, message_bytes) = endpoint.reads.counts();
        SlotCounts {
            posted: endpoint.posted,
            held: endpoint.held,
            sending: endpoint.sending,
            rnr: endpoint.counters.rnr.get(),
            exposed,
            fetching,
            message_bytes,
        }
    }

    /// Returns true if no event or frame is in flight to any endpoint.
    pub(crate) fn is_quiet(&self) -> bool {
        self.endpoints.iter().all(|endpoint| {
            endpoint.incoming.is_empty()
                && (endpoint.reads.is_quiet() || self.reads_left == Some(0))
                && endpoint
                    .connections
                    .iter()
                    .all(|wire| wire.unflushed.is_empty())
        })
    }

    /// Delivers a frame to a node as if its peer on this connection had sent it.
    pub(crate) fn inject(&mut self, endpoint: usize, connection: ConnectionId, frame: Vec<u8>) {
        self.endpoints[endpoint].arrive(Event::Received {
            connection,
            buf: frame,
        });
    }

    /// Delivers a frame to the peer of a connection, whatever its send queue holds.
    pub(crate) fn deliver(&mut self, endpoint: usize, connection: ConnectionId, frame: Vec<u8>) {
        let peer = self.endpoints[endpoint].connections[connection.index as usize].peer;
        if let Some((peer, connection)) = peer {
            self.inject(peer, connection, frame);
        }
    }

    /// Returns the open connections of a node.
    pub(crate) fn connections(&self, endpoint: usize) -> Vec<ConnectionId> {
        (0..)
            .zip(&self.endpoints[endpoint].connections)
            .filter(|(_, wire)| wire.peer.is_some())
            .map(|(index, _)| ConnectionId {
                index,
                generation: 0,
            })
            .collect()
    }

    pub(super) fn add_wire(&mut self, endpoint: usize) -> ConnectionId {
        let connections = &mut self.endpoints[endpoint].connections;
        connections.push(Wire {
            peer: None,
            unflushed: Vec::new(),
            in_queue: 0,
        });
        // Indices are not reused here, so the generation never changes.
        ConnectionId {
            index: (connections.len() - 1) as u32,
            generation: 0,
        }
    }

    pub(super) fn close(
        &mut self,
        endpoint: usize,
        connection: ConnectionId,
        reason: &CloseReason,
        peer_reason: &CloseReason,
    ) {
        self.flush(endpoint, connection);
        let wire = &mut self.endpoints[endpoint].connections[connection.index as usize];
        let Some((peer, peer_connection)) = wire.peer.take() else {
            return;
        };
        let closed = |connection, reason: &CloseReason| Event::Closed {
            connection,
            reason: reason.clone(),
        };
        self.endpoints[endpoint].reads.end(connection);
        self.endpoints[peer].reads.end(peer_connection);
        self.endpoints[endpoint]
            .incoming
            .push_back(closed(connection, reason));
        self.endpoints[peer].connections[peer_connection.index as usize].peer = None;
        self.endpoints[peer]
            .incoming
            .push_back(closed(peer_connection, peer_reason));
    }

    /// Frees an entry in the sender's queue, because a frame has been polled. (An injected frame
    /// occupied no entry.)
    pub(super) fn acknowledge(&mut self, endpoint: usize, connection: ConnectionId) {
        let peer = self.endpoints[endpoint].connections[connection.index as usize].peer;
        if let Some((peer, connection)) = peer {
            let wire = &mut self.endpoints[peer].connections[connection.index as usize];
            wire.in_queue = wire.in_queue.saturating_sub(1);
        }
    }

    pub(super) fn flush(&mut self, endpoint: usize, connection: ConnectionId) {
        let endpoint = &mut self.endpoints[endpoint];
        let wire = &mut endpoint.connections[connection.index as usize];
        let frames = std::mem::take(&mut wire.unflushed);
        if frames.is_empty() {
            return;
        }
        let peer = wire.peer;
        endpoint.sending -= frames.len() as u32;
        endpoint.counters.sends.add(frames.len() as u64);
        endpoint.counters.doorbells.add(1);
        if let Some((peer, connection)) = peer {
            for buf in frames {
                self.endpoints[peer].arrive(Event::Received { connection, buf });
            }
        }
    }
}
