//! [`LongMessages`]: the state of a lane's long messages.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use rpc_core::transport::{Chunks, ConnectionId, MemoryByOwner};
use verbline_verbs::for_transport::{BlockRegion, Destination, Listed, MemberList};
use verbline_verbs::{CopyRule, MemoryWindow, RemoteKey, WorkRequest};

use super::keys::KeyTable;
use super::pools::Pools;
use super::read_turns::ReadTurns;
use super::registered_buf::{RegisteredBuf, WithoutBlock};
use crate::transport::connection::{Connection, FETCHING};
use crate::transport::connections::Connections;
use crate::transport::plan::ReadPlan;

/// The shortest chunk of a message that is exposed where it lies, unless it is the rest of the
/// message. Copying a shorter one costs less than its window.
const MIN_REFERENCE_LEN: usize = 4096;

/// Bytes of a cache line.
const LINE: usize = 64;

/// The long messages of a lane.
#[derive(Debug)]
pub(crate) struct LongMessages {
    pub(crate) pools: Pools,
    /// False if peers are trusted with the keys of whole regions.
    pub(super) uses_windows: bool,
    /// Bytes that are copied at a time.
    pub(super) piece_len: usize,
    /// Of these, bytes that are copied between two polls of the device.
    pub(super) step_len: usize,
    pub(super) turns: ReadTurns,
    /// READs that may be outstanding.
    pub(super) max_reading: usize,
    /// READs that are outstanding.
    pub(super) reading: usize,
    pub(super) exposures: KeyTable<Exposure>,
    pub(super) fetches: KeyTable<Fetch>,
    /// Connections with segments to fetch, in turn.
    pub(crate) ring: MemberList<FETCHING, VecDeque<u32>>,
    /// Connections with windows to invalidate. A connection may be there more than once.
    pub(super) revoking: Vec<u32>,
    /// Polls with entries in `revoking` since invalidations were last posted.
    pub(super) polls_revoking: usize,
    /// Bytes of the blocks and slices that are exposed.
    pub(super) exposed: u64,
    /// Bytes of the blocks that are fetched into.
    pub(super) fetching: u64,
    /// True if a queue pair could not be destroyed: what it has counts for ever.
    pub(crate) has_leaked: bool,
    /// A list for posting, kept to reuse its allocation.
    pub(super) requests: Vec<WorkRequest>,
}

impl LongMessages {
    pub(crate) fn new(
        pools: Pools,
        plan: &ReadPlan,
        piece_len: usize,
        (lane, lane_mask): (u32, u32),
    ) -> Self {
        Self {
            pools,
            uses_windows: plan.uses_windows,
            piece_len,
            step_len: CopyRule::of_this_machine().step_len(),
            turns: ReadTurns::new(plan),
            max_reading: plan.max_reading,
            reading: 0,
            exposures: KeyTable::new("exposed piece", lane, lane_mask),
            fetches: KeyTable::new("message that is fetched", lane, lane_mask),
            ring: MemberList::default(),
            revoking: Vec::new(),
            polls_revoking: 0,
            exposed: 0,
            fetching: 0,
            has_leaked: false,
            requests: Vec::new(),
        }
    }

    /// Returns the registered bytes by their owner.
    pub(crate) fn memory_by_owner(&self) -> MemoryByOwner {
        let (registered, taken) = self.pools.bytes();
        // Exposed slices lie in blocks that the application holds, and count as exposed only. The
        // subtraction saturates, because bytes that are exposed to several peers count several
        // times.
        let held = taken.saturating_sub(self.exposed + self.fetching);
        MemoryByOwner {
            registered,
            exposed: self.exposed,
            fetching: self.fetching,
            held,
        }
    }

    /// Returns how many look-ups have not found what must be there.
    pub(crate) fn misses(&self) -> u64 {
        self.exposures.misses() + self.fetches.misses()
    }

    /// Takes a connection that ends out of the lists.
    pub(crate) fn unlist(&mut self, index: u32, listed: &mut Listed) {
        self.ring.remove(listed, index);
        self.revoking.retain(|&other| other != index);
    }

    /// Returns the length of the next piece of a message of which `len` bytes are left. All its
    /// pieces are about as long: a short one at the end would cost as much as another.
    pub(super) fn next_piece_len(&self, len: usize) -> usize {
        let pieces = len.div_ceil(self.piece_len).max(1);
        let equal = len.div_ceil(pieces).next_multiple_of(LINE);
        equal.min(self.piece_len).min(len)
    }

    /// Returns the region in which the message's first chunk lies, if it is to be exposed there.
    pub(super) fn region_of_front(&self, message: &Chunks) -> Option<Arc<BlockRegion>> {
        let front = message.front()?;
        if front.len() < MIN_REFERENCE_LEN && front.len() < message.len() {
            return None;
        }
        self.pools.region_of(front)
    }
}

impl LongMessages {
    /// Returns the number of exposed pieces and of messages that are fetched.
    pub(crate) fn count(&self) -> usize {
        self.exposures.len() + self.fetches.len()
    }

    /// Returns true if a poll has something to post.
    pub(crate) fn has_task(&self) -> bool {
        let may_read = self.reading < self.max_reading;
        !self.revoking.is_empty() || (may_read && !self.ring.is_empty())
    }

    /// Asserts the sums of the pieces, the fetches, and the READs.
    pub(crate) fn assert_sums(&self, connections: &Connections) {
        let of_fetches: usize = self.fetches.values().map(|fetch| fetch.reading).sum();
        let reading = |(_, it): (_, &Connection)| usize::from(it.one_sided.reading);
        let of_connections: usize = connections.iter().map(reading).sum();
        let sums = (of_fetches, of_connections);
        assert_eq!(sums, (self.reading, self.reading), "READs");
        let exposed: u64 = self.exposures.values().map(|it| it.memory.bytes()).sum();
        let fetching: u64 = self.fetches.values().map(|fetch| fetch.bytes).sum();
        if !self.has_leaked {
            let counted = (self.exposed, self.fetching);
            assert_eq!(
                (exposed, fetching),
                counted,
                "bytes exposed and fetched into"
            );
        }
        for (id, connection) in connections.iter() {
            let fetches = self.fetches.values().filter(|it| it.connection == id);
            let one_sided = &connection.one_sided;
            assert_eq!(
                one_sided.fetches,
                fetches.clone().count(),
                "fetches of {id}"
            );
            if connection.is_open() {
                let with_segments = fetches.filter(|it| !it.segments.is_empty());
                let to_fetch = &one_sided.to_fetch;
                assert_eq!(
                    to_fetch.len(),
                    with_segments.count(),
                    "{to_fetch:?} of {id}"
                );
            }
        }
    }
}

/// A piece of a message that the connection's peer may read.
#[derive(Debug)]
pub(super) struct Exposure {
    pub(super) connection: ConnectionId,
    pub(super) memory: Memory,
    /// The window and its key. `None` if peers are trusted with the key of the whole region.
    pub(super) window: Option<(MemoryWindow, RemoteKey)>,
    pub(super) is_concealed: bool,
}

/// The memory of a piece, which is kept while the piece is exposed.
#[derive(Debug)]
pub(super) enum Memory {
    Copied(RegisteredBuf),
    Shared(Bytes),
    /// Bytes of the application that are registered for this piece alone. Its window keeps them.
    Lent,
}

impl Memory {
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Copied(buf) => buf.block_len() as u64,
            Self::Shared(bytes) => bytes.len() as u64,
            // They are not of the memory for messages.
            Self::Lent => 0,
        }
    }
}

/// A message that is being fetched.
#[derive(Debug)]
pub(super) struct Fetch {
    pub(super) connection: ConnectionId,
    /// The memory, which this process cannot access before the READs have ended.
    pub(super) destination: Destination,
    pub(super) memory: WithoutBlock,
    /// Bytes of its block.
    pub(super) bytes: u64,
    /// The segments that are not entirely posted.
    pub(super) segments: VecDeque<Segment>,
    /// READs that are outstanding.
    pub(super) reading: usize,
    pub(super) is_cancelled: bool,
}

/// The part of a segment for which no READ was posted yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) address: u64,
    pub(super) key: RemoteKey,
    /// Bytes left.
    pub(super) left: usize,
    /// Offset of the first of them in the message.
    pub(super) at: usize,
    /// Bytes of the whole segment.
    pub(super) len: u32,
}

impl Segment {
    /// Returns true if a READ of some of it was posted, but not of all.
    pub(super) fn is_begun(&self) -> bool {
        self.left < self.len as usize
    }
}

impl Fetch {
    /// Returns the memory, if no READ names it.
    pub(super) fn into_memory(self) -> Option<RegisteredBuf> {
        let block = self.destination.into_block().ok()?;
        Some(self.memory.with_block(block))
    }
}
