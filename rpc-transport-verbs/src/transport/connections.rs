//! The table of a lane's connections.

use rpc_core::transport::ConnectionId;
use verbline_verbs::for_transport::KeyHistory;

use crate::transport::connection::Connection;

/// Connections by index, with a generation for each index, so an id that outlives its connection
/// refers to nothing.
///
/// The lanes of a transport share one range of indexes. The range stays dense, because the core
/// keeps tables by index: the lane's number is in the low bits, as many as the number of lanes
/// requires.
///
/// ```text
///  31                     0
/// +------------------+------+
/// |                  | lane |     one lane: no bits
/// +------------------+------+
/// ```
///
/// This table also has entries for the indexes of other lanes, which stay empty. Leaving them out
/// would cost a shift on every lookup.
#[derive(Debug)]
pub(crate) struct Connections {
    entries: Vec<Entry>,
    /// Indexes of this lane that are free for reuse.
    vacant: Vec<u32>,
    /// Indexes whose connections the driver has just seen closed. It may not have handled that
    /// event yet, so they are not reused before the next poll.
    closed: Vec<u32>,
    /// This lane's number.
    lane: u32,
    count: usize,
    history: KeyHistory,
    /// The index before that of [`next_in_turn`](Self::next_in_turn).
    turn: usize,
    /// The distance between two consecutive indexes of this lane: a power of two.
    stride: u32,
}

#[derive(Debug, Default)]
struct Entry {
    generation: u32,
    connection: Option<Connection>,
}

impl Connections {
    /// Creates the table of lane number `lane`, counted from 0, of at most `lanes` lanes.
    pub(crate) fn for_lane(lane: u32, lanes: usize) -> Self {
        Self {
            entries: Vec::new(),
            vacant: Vec::new(),
            closed: Vec::new(),
            lane,
            count: 0,
            history: KeyHistory::new("connection"),
            turn: 0,
            // Fits: there is one lane for each device of a machine, so only a few.
            stride: lanes.next_power_of_two() as u32,
        }
    }

    /// Returns the bits of an index that contain the lane's number.
    pub(crate) fn lane_mask(&self) -> u32 {
        self.stride - 1
    }

    #[track_caller]
    pub(crate) fn insert(&mut self, connection: Connection) -> ConnectionId {
        let index = self.vacant.pop().unwrap_or_else(|| self.grow());
        let entry = &mut self.entries[index as usize];
        entry.connection = Some(connection);
        self.count += 1;
        self.history.added(index, entry.generation);
        ConnectionId {
            index,
            generation: entry.generation,
        }
    }

    /// Adds an index of this lane that was never used.
    fn grow(&mut self) -> u32 {
        let used = self.entries.len();
        self.entries
            .resize_with(used + self.stride as usize, Entry::default);
        // Fits: each lane has at most as many connections as queue pairs, whose numbers have 24
        // bits.
        used as u32 + self.lane
    }

    /// Looks up a connection that may have ended: the driver has its id for longer.
    #[inline]
    pub(crate) fn get(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        let entry = self.entries.get_mut(id.index as usize)?;
        if entry.generation != id.generation {
            return None;
        }
        entry.connection.as_mut()
    }

    /// Looks up a connection that may have ended, for reading.
    pub(crate) fn get_ref(&self, id: ConnectionId) -> Option<&Connection> {
        let entry = self.entries.get(id.index as usize)?;
        if entry.generation != id.generation {
            return None;
        }
        entry.connection.as_ref()
    }

    /// Looks up a connection that must be there, by index alone: in all tables and lists of indexes, a
    /// connection is as long as here.
    ///
    /// # Panics
    ///
    /// Panics under test if it is not there, with what has become of the index.
    #[inline]
    #[track_caller]
    pub(crate) fn at(&mut self, index: u32) -> Option<(ConnectionId, &mut Connection)> {
        if let Some(entry) = self.entries.get_mut(index as usize)
            && let Some(connection) = &mut entry.connection
        {
            let id = ConnectionId {
                index,
                generation: entry.generation,
            };
            return Some((id, connection));
        }
        self.history.missed(index);
        None
    }

    /// Returns the id of the connection with this index if it is open.
    #[inline]
    pub(crate) fn open_at(&self, index: u32) -> Option<ConnectionId> {
        let entry = self.entries.get(index as usize)?;
        match &entry.connection {
            Some(connection) if connection.is_open() => Some(ConnectionId {
                index,
                generation: entry.generation,
            }),
            _ => None,
        }
    }

    /// Removes a connection that must be there. Its index is not reused before [`free`](Self::free).
    ///
    /// # Panics
    ///
    /// As [`at`](Self::at) does.
    #[track_caller]
    pub(crate) fn remove(&mut self, index: u32) -> Option<(ConnectionId, Connection)> {
        let (id, _) = self.at(index)?;
        let entry = &mut self.entries[index as usize];
        entry.generation = id.generation.wrapping_add(1);
        self.count -= 1;
        self.history.removed(index, id.generation);
        Some((id, entry.connection.take()?))
    }

    /// Makes the index of a removed connection available. For a connection that the driver has
    /// never seen.
    pub(crate) fn free(&mut self, index: u32) {
        self.vacant.push(index);
    }

    /// Makes the index of a removed connection available from the next poll on. Called when the
    /// driver is given the event that the connection is closed.
    pub(crate) fn free_at_next_poll(&mut self, index: u32) {
        self.closed.push(index);
    }

    /// Frees the indexes of the connections that earlier polls have reported as closed.
    pub(crate) fn begin_poll(&mut self) {
        self.vacant.append(&mut self.closed);
    }

    /// Returns true if [`begin_poll`](Self::begin_poll) has indexes to free.
    pub(crate) fn has_closed(&self) -> bool {
        !self.closed.is_empty()
    }

    /// Returns the number of connections.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Returns all connections.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ConnectionId, &Connection)> {
        (0..).zip(&self.entries).filter_map(|(index, entry)| {
            let generation = entry.generation;
            let id = ConnectionId { index, generation };
            Some((id, entry.connection.as_ref()?))
        })
    }

    /// Returns a connection, if there is one: another one at each call.
    pub(crate) fn next_in_turn(&mut self) -> Option<ConnectionId> {
        let len = self.entries.len();
        let mut indexes = (self.turn..len).chain(0..self.turn.min(len));
        let index = indexes.find(|&index| self.entries[index].connection.is_some())?;
        self.turn = index + 1;
        Some(ConnectionId {
            index: index as u32,
            generation: self.entries[index].generation,
        })
    }

    /// Returns how many look-ups have not found what must be there.
    pub(crate) fn misses(&self) -> u64 {
        self.history.misses()
    }

    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Connection> {
        self.count = 0;
        self.entries.drain(..).filter_map(|entry| entry.connection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_lane_has_all_indexes() {
        let mut connections = Connections::for_lane(0, 1);
        assert_eq!(connections.lane_mask(), 0);
        let indexes: Vec<_> = (0..100).map(|_| connections.grow()).collect();
        assert!(indexes.into_iter().eq(0..100));
    }

    #[test]
    fn lanes_share_the_indexes_without_gaps_or_doubles() {
        for lanes in 2..=8u32 {
            let mut indexes = Vec::new();
            for lane in 0..lanes {
                let mut connections = Connections::for_lane(lane, lanes as usize);
                for _ in 0..100 {
                    let index = connections.grow();
                    assert_eq!(index & connections.lane_mask(), lane);
                    let entry = &connections.entries[index as usize];
                    assert!(entry.connection.is_none(), "it is there, and empty");
                    indexes.push(index);
                }
            }
            indexes.sort_unstable();
            indexes.dedup();
            assert_eq!(indexes.len(), 100 * lanes as usize, "one is there twice");
            let highest = indexes.last().copied().unwrap();
            assert!(highest < 100 * lanes.next_power_of_two(), "dense");
        }
    }
}
