//! Messages that are longer than a slot: their memory, the windows through which peers read it, and
//! the READs that fetch that of peers.
//!
//! | moment | owner of the memory | until |
//! | --- | --- | --- |
//! | a message is made or was received | the application, as [`MessageBuf`] or as `Bytes` | it is dropped, on whatever thread |
//! | a piece is exposed | its exposure | the completion of its window's invalidation was polled, or the queue pair is gone |
//! | a message is fetched | its fetch, and each READ that names it | all of its READs have completed, or the queue pair is gone |
//! | none of these | the pool | the chunk is deregistered |

mod exposures;
mod fetches;
mod keys;
pub(crate) mod memory_pool;
pub(crate) mod message_buf;
pub(crate) mod one_sided;
pub(crate) mod process_memory;
mod registrar;
mod size_class;

use std::collections::VecDeque;
use std::sync::Arc;

use rpc_core::transport::{ConnectionId, LongMessages as Travel, MemoryByOwner, SendError};

use self::exposures::Exposure;
use self::fetches::Fetch;
use self::keys::KeyTable;
use self::memory_pool::MemoryPool;
use self::one_sided::Request;
use crate::transport::lane::Lane;
use crate::transport::pending::Pending;
use crate::transport::plan::ReadPlan;
use crate::verbs::WorkRequest;

/// The long messages of a lane.
#[derive(Debug)]
pub(crate) struct LongMessages {
    pub(crate) pool: Arc<MemoryPool>,
    /// False if peers are trusted with the keys of whole regions.
    uses_windows: bool,
    /// Bytes that are copied at a time.
    piece_len: usize,
    /// Bytes of a READ.
    max_read_len: usize,
    /// READs that may be posted between two polls.
    reads_per_poll: usize,
    /// READs that may still be posted before the next poll.
    reads_left: usize,
    /// READs that may be outstanding.
    max_reading: usize,
    /// READs that are outstanding.
    reading: usize,
    exposures: KeyTable<Exposure>,
    fetches: KeyTable<Fetch>,
    /// Connections with segments to fetch, in turn.
    ring: VecDeque<u32>,
    /// Connections with windows to invalidate. A connection may be there more than once.
    revoking: Vec<u32>,
    /// Polls since a connection was added to `revoking`.
    polls_revoking: usize,
    /// Bytes of the blocks and slices that are exposed.
    exposed: u64,
    /// Bytes of the blocks that are fetched into.
    fetching: u64,
    /// A list for posting, kept to reuse its allocation.
    requests: Vec<WorkRequest>,
}

impl LongMessages {
    pub(crate) fn new(
        pool: Arc<MemoryPool>,
        plan: &ReadPlan,
        piece_len: usize,
        (lane, lane_mask): (u32, u32),
    ) -> Self {
        Self {
            pool,
            uses_windows: plan.uses_windows,
            piece_len,
            max_read_len: plan.max_read_len,
            reads_per_poll: plan.reads_per_poll,
            reads_left: plan.reads_per_poll,
            max_reading: plan.max_reading,
            reading: 0,
            exposures: KeyTable::new(lane, lane_mask),
            fetches: KeyTable::new(lane, lane_mask),
            ring: VecDeque::new(),
            revoking: Vec::new(),
            polls_revoking: 0,
            exposed: 0,
            fetching: 0,
            requests: Vec::new(),
        }
    }

    /// Returns the registered bytes by their owner.
    pub(crate) fn memory_by_owner(&self) -> MemoryByOwner {
        let (registered, taken) = self.pool.bytes();
        // Slices that are exposed lie in blocks of messages, and are counted once. A message that
        // is exposed to several peers would be subtracted several times.
        let held = taken.saturating_sub(self.exposed + self.fetching);
        MemoryByOwner {
            registered,
            exposed: self.exposed,
            fetching: self.fetching,
            held,
        }
    }
}

impl Lane {
    /// Returns how long messages travel on a connection.
    pub(crate) fn long_messages(&self, id: ConnectionId) -> Travel {
        match self.connections.get_ref(id) {
            Some(connection) if connection.one_sided.has_reads() => Travel::Read,
            _ => Travel::Fragments,
        }
    }

    /// Posts one-sided requests, behind everything that was sent before. If `signals`, the last of
    /// them is signaled.
    fn post_one_sided(
        &mut self,
        index: u32,
        requests: impl IntoIterator<Item = (Request, WorkRequest)>,
        signals: bool,
    ) -> Result<(), SendError> {
        self.post_chain(index);
        let Some((_, connection)) = self.connections.at(index) else {
            return Err(SendError);
        };
        if !connection.is_open() {
            return Err(SendError);
        }
        let mut chain = std::mem::take(&mut self.long_messages.requests);
        let first = connection.queue_pair.next_wr_id(0).number();
        let mut requests = requests.into_iter().peekable();
        let mut signaled_count = 0;
        while let Some((kind, request)) = requests.next() {
            let is_last = requests.peek().is_none();
            let one_sided = &mut connection.one_sided;
            let must_signal = signals && is_last || one_sided.needs_signal();
            let signaled = connection.sends.count_one_sided(must_signal);
            let number = first.wrapping_add(chain.len() as u32);
            one_sided.push(number, kind, signaled);
            signaled_count += u64::from(signaled);
            chain.push(match signaled {
                true => request.signaled(),
                false => request,
            });
        }
        let count = chain.len();
        let posted = match count {
            0 => Ok(()),
            // The requests have no slots.
            _ => connection.queue_pair.post(&mut chain, &mut drop),
        };
        if !chain.is_empty() {
            connection.sends.rejected(chain.len());
            chain.clear();
        }
        self.long_messages.requests = chain;
        self.counters.signaled.add(signaled_count);
        self.counters.count_doorbell(count);
        posted.map_err(|error| {
            self.post_failed(index, error);
            SendError
        })
    }

    /// Does what waits for long messages. Called by polls.
    #[cold]
    #[inline(never)]
    pub(crate) fn advance_long_messages(&mut self) {
        self.long_messages.reads_left = self.long_messages.reads_per_poll;
        self.post_invalidations_if_due();
        self.post_reads();
        let long_messages = &self.long_messages;
        let may_read = long_messages.reading < long_messages.max_reading;
        // What is not in the ring waits for a completion. `reads_left` is reset once more after the
        // last READ.
        if long_messages.revoking.is_empty()
            && (long_messages.ring.is_empty() || !may_read)
            && long_messages.reads_left == long_messages.reads_per_poll
        {
            self.pending.clear(Pending::LONG_MESSAGES);
        }
    }

    /// Handles what a successful completion of request `number` covers.
    #[cold]
    #[inline(never)]
    pub(crate) fn complete_one_sided(&mut self, index: u32, number: u32) {
        while let Some((_, connection)) = self.connections.at(index)
            && let Some(request) = connection.one_sided.take_completed(number)
        {
            match request {
                Request::Bind => {}
                Request::Invalidate(key) => self.end_exposure(key),
                Request::Read(key, ends_segment) => self.complete_read(index, key, ends_segment),
            }
        }
        self.take_turns_with(index);
        if let Some((_, connection)) = self.connections.at(index)
            && !connection.one_sided.to_invalidate.is_empty()
        {
            self.long_messages.revoking.push(index);
            self.pending.set(Pending::LONG_MESSAGES);
        }
        if !self.long_messages.ring.is_empty() {
            self.pending.set(Pending::LONG_MESSAGES);
        }
    }

    /// Frees the memory of a connection whose queue pair is gone.
    pub(crate) fn end_long_messages_of(&mut self, id: ConnectionId) {
        self.end_exposures_of(id);
        self.end_fetches_of(id);
        // READs of other connections may have waited for those of this one.
        if !self.long_messages.ring.is_empty() {
            self.pending.set(Pending::LONG_MESSAGES);
        }
    }
}
