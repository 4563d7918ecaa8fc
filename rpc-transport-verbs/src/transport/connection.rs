//! One connection of a poller, and the table of all of them.

use std::time::{Duration, Instant};

use rpc_core::transport::{Admitted, CloseReason, ConnectionId};

use crate::hooks;
use crate::transport::lifeline::Lifeline;
use crate::transport::mailbox::LineKey;
use crate::transport::queue_pairs::{Place, Ready};
use crate::transport::send_queue::SendQueue;
use crate::verbs::QueuePair;

/// How long a step may take. Far longer than a completion needs, unless the peer is stopped.
pub(super) const STEP_LIMIT: Duration = Duration::from_secs(1);

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
    /// Whether its queue pair, in error, has said that it takes no more receives.
    pub(crate) has_taken_last_receive: bool,
    pub(crate) key: LineKey,
    line: Lifeline,
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

/// A connection that ends.
#[derive(Debug)]
pub(crate) struct Closing {
    pub(super) step: Step,
    /// When the next step is taken, whatever was reached.
    pub(super) deadline: Instant,
    /// What the driver is told; `None` if it has never heard of the connection.
    pub(super) reason: Option<CloseReason>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Delivering,
    Draining { quiet_polls: u32 },
    Flushing { quiet_polls: u32 },
}

impl Step {
    /// At its beginning.
    pub(super) const FLUSHING: Self = Self::Flushing { quiet_polls: 0 };

    pub(super) fn is_flushing(self) -> bool {
        matches!(self, Self::Flushing { .. })
    }
}

impl Closing {
    pub(super) fn new(step: Step, reason: Option<CloseReason>) -> Self {
        Self {
            step,
            deadline: hooks::now() + STEP_LIMIT,
            reason,
        }
    }

    /// Whether frames that arrive now are for the driver: those that a peer had sent before its end.
    pub(crate) fn wants_frames(&self) -> bool {
        matches!(self.step, Step::Draining { .. })
    }
}

impl Connection {
    pub(crate) fn new(
        ready: Ready,
        line: Lifeline,
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
            has_taken_last_receive: false,
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

    /// Ends the TCP connection.
    pub(crate) fn hang_up(&self) {
        self.line.hang_up();
    }
}

/// Connections by index, with a generation for each index, so that an id that outlives its
/// connection names nothing.
///
/// The lanes of a transport share one range of indexes, which stays dense as the core has tables by
/// index: the lane's number is in the low bits, as many as the lanes need.
///
/// ```text
///  31                     0
/// +------------------+------+
/// |                  | lane |     one lane: no bits
/// +------------------+------+
/// ```
///
/// This table has entries for the other lanes' indexes too, which stay empty: to leave them out
/// would cost a shift whenever a connection is looked up.
#[derive(Debug)]
pub(crate) struct Connections {
    entries: Vec<Entry>,
    /// Indexes of this lane that were used before.
    vacant: Vec<u32>,
    /// This lane's number.
    lane: u32,
    /// From one index of this lane to the next: a power of two.
    stride: u32,
}

#[derive(Debug, Default)]
struct Entry {
    generation: u32,
    connection: Option<Connection>,
}

impl Connections {
    /// Those of lane number `lane`, from 0, of at most `lanes`.
    pub(crate) fn of_lane(lane: u32, lanes: usize) -> Self {
        Self {
            entries: Vec::new(),
            vacant: Vec::new(),
            lane,
            // A lane for each device of a machine: a handful.
            stride: lanes.next_power_of_two() as u32,
        }
    }

    /// The bits of an index that name the lane.
    pub(crate) fn lane_mask(&self) -> u32 {
        self.stride - 1
    }

    pub(crate) fn insert(&mut self, connection: Connection) -> ConnectionId {
        let index = self.vacant.pop().unwrap_or_else(|| self.grow());
        let entry = &mut self.entries[index as usize];
        entry.connection = Some(connection);
        ConnectionId {
            index,
            generation: entry.generation,
        }
    }

    /// An index of this lane that was never used.
    fn grow(&mut self) -> u32 {
        let used = self.entries.len();
        self.entries
            .resize_with(used + self.stride as usize, Entry::default);
        // As many as there are queue pairs, which have 24 bits, for each lane.
        used as u32 + self.lane
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_lane_has_all_indexes() {
        let mut connections = Connections::of_lane(0, 1);
        assert_eq!(connections.lane_mask(), 0);
        let indexes: Vec<_> = (0..100).map(|_| connections.grow()).collect();
        assert!(indexes.into_iter().eq(0..100));
    }

    #[test]
    fn lanes_share_the_indexes_without_gaps_or_doubles() {
        for lanes in 2..=8u32 {
            let mut indexes = Vec::new();
            for lane in 0..lanes {
                let mut connections = Connections::of_lane(lane, lanes as usize);
                for _ in 0..100 {
                    let index = connections.grow();
                    assert_eq!(index & connections.lane_mask(), lane);
                    assert!(connections.at(index).is_none(), "it is there, and empty");
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
