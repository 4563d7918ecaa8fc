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
///
/// An index is that of a [`ConnectionId`]: with the lane in its low bits. Only this table knows of
/// the place in the lane that is above them.
#[derive(Debug)]
pub(crate) struct Connections {
    entries: Vec<Entry>,
    /// Places in `entries`.
    vacant: Vec<u32>,
    fold: Fold,
}

#[derive(Debug)]
struct Entry {
    generation: u32,
    connection: Option<Connection>,
}

/// How the connections of several lanes share one range of indexes, which stays dense as the core
/// has tables by index:
///
/// ```text
///  31            bits       0
/// +------------------+------+
/// | place in lane    | lane |     one lane: no bits
/// +------------------+------+
/// ```
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fold {
    lane: u32,
    bits: u32,
}

impl Fold {
    /// For lane number `lane`, from 0, of at most `lanes`.
    pub(crate) fn new(lane: u32, lanes: usize) -> Self {
        Self {
            lane,
            bits: lanes.next_power_of_two().trailing_zeros(),
        }
    }

    fn lane_mask(self) -> u32 {
        (1 << self.bits) - 1
    }

    pub(crate) fn lane(self) -> u32 {
        self.lane
    }

    #[inline]
    fn place(self, index: u32) -> usize {
        (index >> self.bits) as usize
    }

    fn index(self, place: usize) -> u32 {
        // Places are as many as there are queue pairs, which have 24 bits; lanes are a handful.
        ((place as u32) << self.bits) | self.lane
    }
}

impl Connections {
    pub(crate) fn new(fold: Fold) -> Self {
        Self {
            entries: Vec::new(),
            vacant: Vec::new(),
            fold,
        }
    }

    /// The bits of an index that name the lane.
    pub(crate) fn lane_mask(&self) -> u32 {
        self.fold.lane_mask()
    }

    pub(crate) fn insert(&mut self, connection: Connection) -> ConnectionId {
        let place = self.vacant.pop().unwrap_or_else(|| {
            self.entries.push(Entry {
                generation: 0,
                connection: None,
            });
            (self.entries.len() - 1) as u32
        }) as usize;
        let entry = &mut self.entries[place];
        entry.connection = Some(connection);
        ConnectionId {
            index: self.fold.index(place),
            generation: entry.generation,
        }
    }

    #[inline]
    pub(crate) fn get(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        let entry = self.entries.get_mut(self.fold.place(id.index))?;
        if entry.generation != id.generation {
            return None;
        }
        entry.connection.as_mut()
    }

    /// By index alone, for what this crate itself keeps for as long as the connection lives.
    #[inline]
    pub(crate) fn at(&mut self, index: u32) -> Option<(ConnectionId, &mut Connection)> {
        let entry = self.entries.get_mut(self.fold.place(index))?;
        let id = ConnectionId {
            index,
            generation: entry.generation,
        };
        Some((id, entry.connection.as_mut()?))
    }

    pub(crate) fn remove(&mut self, index: u32) -> Option<Connection> {
        let place = self.fold.place(index);
        let entry = self.entries.get_mut(place)?;
        let connection = entry.connection.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.vacant.push(place as u32);
        Some(connection)
    }

    /// The indexes of all connections.
    pub(crate) fn indexes(&self) -> Vec<u32> {
        let taken = |(place, entry): (usize, &Entry)| {
            entry.connection.is_some().then(|| self.fold.index(place))
        };
        self.entries.iter().enumerate().filter_map(taken).collect()
    }

    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Connection> {
        self.entries.drain(..).filter_map(|entry| entry.connection)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn one_lane_has_its_places_for_indexes() {
        let fold = Fold::new(0, 1);
        assert_eq!(fold.lane_mask(), 0);
        for place in [0, 1, 77, 1 << 23] {
            assert_eq!(fold.index(place) as usize, place);
            assert_eq!(fold.place(place as u32), place);
        }
    }

    #[test]
    fn lanes_share_the_indexes_without_gaps_or_doubles() {
        for lanes in [2, 3, 4, 5, 8] {
            let mut indexes = HashSet::new();
            for lane in 0..lanes {
                let fold = Fold::new(lane, lanes as usize);
                for place in 0..100 {
                    let index = fold.index(place);
                    assert_eq!(fold.place(index), place);
                    assert_eq!(index & fold.lane_mask(), lane);
                    assert!(indexes.insert(index), "{index} is there twice");
                }
            }
            let highest = indexes.iter().max().copied().unwrap();
            assert!(highest < 100 * lanes.next_power_of_two(), "dense");
        }
    }
}
