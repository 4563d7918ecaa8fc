//! One connection of a poller, and the table of all of them.

use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use rpc_core::transport::{Admitted, ConnectionId};

use crate::close::Closing;
use crate::mailbox::LineKey;
use crate::queue_pairs::{Place, Ready};
use crate::send_queue::SendQueue;
use crate::verbs::QueuePair;

/// A queue pair with what belongs to it.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) queue_pair: QueuePair,
    pub(crate) sends: SendQueue,
    /// The longest frame that both sides take.
    pub(crate) frame_limit: usize,
    /// Whether it waits in the list of those with something to flush.
    pub(crate) is_dirty: bool,
    pub(crate) phase: Phase,
    pub(crate) key: LineKey,
    line: Arc<TcpStream>,
    _place: Place,
}

/// Where a connection is in its life.
#[derive(Debug)]
pub(crate) enum Phase {
    /// This side is ready, and whether the client is, is not known yet. The driver has not heard
    /// of it.
    Prepared(Box<Admitted>),
    /// Frames go both ways.
    Open,
    /// On its way to its end.
    Closing(Box<Closing>),
}

impl Connection {
    pub(crate) fn new(
        ready: Ready,
        line: Arc<TcpStream>,
        key: LineKey,
        frame_limit: usize,
        signal_interval: u32,
        phase: Phase,
    ) -> Self {
        Self {
            queue_pair: ready.queue_pair,
            sends: SendQueue::new(signal_interval),
            frame_limit,
            is_dirty: false,
            phase,
            key,
            line,
            _place: ready.place,
        }
    }

    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    /// Send-queue places that wait for a completion.
    pub(crate) fn in_flight(&self) -> usize {
        self.queue_pair.capabilities().max_send_wr - self.queue_pair.send_slots_free()
    }

    /// Ends the TCP connection, for the peer to see and for the control thread to take it out.
    pub(crate) fn hang_up(&self) {
        // An error means that it has ended already.
        let _ = self.line.shutdown(Shutdown::Both);
    }
}

/// Connections by index, with a generation for each index, so that an id that outlives its
/// connection names nothing.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    entries: Vec<Entry>,
    vacant: Vec<u32>,
}

#[derive(Debug)]
struct Entry {
    generation: u32,
    connection: Option<Connection>,
}

impl Connections {
    pub(crate) fn insert(&mut self, connection: Connection) -> ConnectionId {
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.entries.push(Entry {
                generation: 0,
                connection: None,
            });
            // As many as there are queue pairs, which have 24 bits.
            (self.entries.len() - 1) as u32
        });
        let entry = &mut self.entries[index as usize];
        entry.connection = Some(connection);
        ConnectionId {
            index,
            generation: entry.generation,
        }
    }

    #[inline]
    pub(crate) fn get(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        let entry = self.entries.get_mut(id.index as usize)?;
        if entry.generation != id.generation {
            return None;
        }
        entry.connection.as_mut()
    }

    /// By index alone, for what this crate itself keeps for as long as the connection lives.
    #[inline]
    pub(crate) fn at(&mut self, index: u32) -> Option<(ConnectionId, &mut Connection)> {
        let entry = self.entries.get_mut(index as usize)?;
        let id = ConnectionId {
            index,
            generation: entry.generation,
        };
        Some((id, entry.connection.as_mut()?))
    }

    pub(crate) fn remove(&mut self, index: u32) -> Option<Connection> {
        let entry = self.entries.get_mut(index as usize)?;
        let connection = entry.connection.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.vacant.push(index);
        Some(connection)
    }

    /// The indexes of all connections.
    pub(crate) fn indexes(&self) -> Vec<u32> {
        let taken =
            |(index, entry): (usize, &Entry)| entry.connection.is_some().then_some(index as u32);
        self.entries.iter().enumerate().filter_map(taken).collect()
    }

    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Connection> {
        self.entries.drain(..).filter_map(|entry| entry.connection)
    }
}
