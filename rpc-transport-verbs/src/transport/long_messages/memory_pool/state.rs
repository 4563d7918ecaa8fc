//! The state of a [`MemoryPool`](super::MemoryPool) behind its lock: its chunks and its windows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use slab::Slab;
use verbline_verbs::MemoryWindow;
use verbline_verbs::for_transport::{Block, BlockRegion};

use super::super::process_memory::CountedBytes;
use super::super::registrar::Room;
use super::super::size_class::shares_chunk;

/// Ticks of the registrar for which a chunk has to be free before it is deregistered.
const IDLE_TICKS: u32 = 3;

/// Ticks between a refusal of memory and the next request for it.
pub(super) const REFUSAL_TICKS: u32 = 10;

/// The chunks, the windows, and what is wanted.
#[derive(Debug, Default)]
pub(super) struct State {
    chunks: Slab<Chunk>,
    /// The chunks with free blocks, by the length of their blocks.
    with_free: BTreeMap<usize, Vec<usize>>,
    /// The chunks by the address of their first byte.
    by_address: BTreeMap<usize, usize>,
    /// The lengths of blocks that are to be registered.
    pub(super) wanted: BTreeSet<usize>,
    /// The windows that are free.
    pub(super) windows: Vec<MemoryWindow>,
    /// The windows that exist: the free ones, and those that were taken and are not gone.
    pub(super) window_count: usize,
    pub(super) wants_windows: bool,
    /// True once the device has failed to bind a window.
    pub(super) are_windows_given_up: bool,
    /// True if the poller is to be woken when memory is given back.
    pub(super) is_awaited: bool,
    /// True if the poller is to be woken when a window is given back.
    pub(super) is_window_awaited: bool,
    /// Whether there was room when more was wanted last.
    pub(super) room: Room,
    pub(super) registered: u64,
    /// The bytes of blocks that are not free.
    pub(super) taken: u64,
    /// The ticks since the system has refused memory, until it is asked again.
    ticks_since_refusal: Option<u32>,
    /// The same for windows.
    ticks_since_windows_refused: Option<u32>,
    /// True if no window was allocated since the last refusal that was logged.
    is_refusal_known: bool,
}

/// Why no window is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum NoWindow {
    /// The device has given some, and more are being allocated.
    Soon,
    /// The device gives no more at the moment, and all are in use; or all are gone, and it is asked
    /// for others.
    Scarce,
    /// The device gives none, and all that it gave are gone.
    Over,
}

/// A region and its free blocks.
#[derive(Debug)]
pub(super) struct Chunk {
    free: Vec<Block>,
    region: Arc<BlockRegion>,
    block_len: usize,
    /// The number of blocks.
    count: usize,
    /// The bytes of all blocks.
    counted: Arc<CountedBytes>,
    /// Ticks for which all blocks have been free.
    idle_ticks: u32,
    /// The time until which it is not deregistered to make room, so that a message that waits for it
    /// can take it: otherwise, two messages of different lengths could deregister each other's chunk
    /// for ever. `None` once a message has taken a block.
    reserved_until: Option<Instant>,
}

impl Chunk {
    pub(super) fn new(
        region: Arc<BlockRegion>,
        mut blocks: Vec<Block>,
        block_len: usize,
        counted: CountedBytes,
        reserved_until: Instant,
    ) -> Self {
        let count = blocks.len();
        // The first block is taken first.
        blocks.reverse();
        Self {
            free: blocks,
            region,
            block_len,
            count,
            counted: Arc::new(counted),
            idle_ticks: 0,
            reserved_until: Some(reserved_until),
        }
    }

    /// Returns the bytes of all blocks.
    pub(super) fn len(&self) -> u64 {
        self.counted.len()
    }

    fn is_free(&self) -> bool {
        self.free.len() == self.count
    }

    fn is_reserved(&self, now: Instant) -> bool {
        self.reserved_until.is_some_and(|until| now < until)
    }
}

impl State {
    /// Takes a block of this length. If memory is short, a longer one will do, and if blocks of this
    /// length have a chunk of their own, one that is up to a quarter longer.
    pub(super) fn take(&mut self, block_len: usize) -> Option<(usize, Block, Arc<CountedBytes>)> {
        let is_short = self.room == Room::None || self.was_refused();
        let longest = match (is_short, shares_chunk(block_len)) {
            (true, _) => usize::MAX,
            (false, true) => block_len,
            (false, false) => block_len + block_len / 4,
        };
        for list in self
            .with_free
            .range_mut(block_len..=longest)
            .map(|(_, list)| list)
        {
            let Some(&index) = list.last() else {
                continue;
            };
            let chunk = &mut self.chunks[index];
            let Some(block) = chunk.free.pop() else {
                continue;
            };
            chunk.idle_ticks = 0;
            chunk.reserved_until = None;
            if chunk.free.is_empty() {
                list.pop();
            }
            self.taken += chunk.block_len as u64;
            return Some((index, block, Arc::clone(&chunk.counted)));
        }
        None
    }

    /// Takes back a block. Returns true if all blocks of its chunk are free now.
    pub(super) fn give_back(&mut self, index: usize, block: Block) -> bool {
        let chunk = &mut self.chunks[index];
        debug_assert!(Arc::ptr_eq(block.region(), &chunk.region));
        if chunk.free.is_empty() {
            self.with_free
                .entry(chunk.block_len)
                .or_default()
                .push(index);
        }
        chunk.free.push(block);
        self.taken -= chunk.block_len as u64;
        chunk.is_free()
    }

    pub(super) fn add(&mut self, chunk: Chunk) {
        self.registered += chunk.len();
        let (block_len, address) = (chunk.block_len, chunk.region.address());
        let index = self.chunks.insert(chunk);
        self.with_free.entry(block_len).or_default().push(index);
        self.by_address.insert(address, index);
    }

    fn remove(&mut self, index: usize) -> Chunk {
        let chunk = self.chunks.remove(index);
        self.registered -= chunk.len();
        self.by_address.remove(&chunk.region.address());
        if let Some(list) = self.with_free.get_mut(&chunk.block_len) {
            list.retain(|other| *other != index);
        }
        chunk
    }

    /// Returns the chunks whose blocks are all free, and of a length that is not wanted.
    fn free_chunks(&self) -> impl Iterator<Item = (usize, &Chunk)> {
        let is_it = |chunk: &Chunk| chunk.is_free() && !self.wanted.contains(&chunk.block_len);
        self.chunks.iter().filter(move |(_, chunk)| is_it(chunk))
    }

    /// Returns true if no memory can be registered before some is given back. A free chunk of a length
    /// that is not wanted makes it false: the registrar deregisters such a chunk, a reserved one after
    /// [`TIME_TO_TAKE`](super::super::registrar::TIME_TO_TAKE) at most.
    pub(super) fn is_used_up(&self) -> bool {
        self.was_refused() || self.room == Room::None && self.free_chunks().next().is_none()
    }

    /// Removes a chunk whose blocks are all free, of a length that is not wanted, and not reserved.
    pub(super) fn remove_free_chunk(&mut self, now: Instant) -> Option<Chunk> {
        let mut chunks = self.free_chunks();
        let (index, _) = chunks.find(|(_, chunk)| !chunk.is_reserved(now))?;
        drop(chunks);
        // A chunk of a wanted length may fit now.
        self.room = Room::Made;
        Some(self.remove(index))
    }

    /// Returns true if a chunk is free, also if it is reserved or of a wanted length.
    pub(super) fn has_free_chunk(&self) -> bool {
        self.chunks.iter().any(|(_, chunk)| chunk.is_free())
    }

    /// Removes a chunk whose blocks have all been free for some ticks.
    pub(super) fn remove_idle_chunk(&mut self) -> Option<Chunk> {
        let is_it = |chunk: &Chunk| chunk.is_free() && chunk.idle_ticks >= IDLE_TICKS;
        let found = self.chunks.iter().find(|(_, chunk)| is_it(chunk));
        let index = found.map(|(index, _)| index)?;
        Some(self.remove(index))
    }

    /// Counts a tick. Returns true if the poller is to be woken.
    pub(super) fn tick(&mut self) -> bool {
        for (_, chunk) in &mut self.chunks {
            chunk.idle_ticks = match chunk.is_free() {
                true => chunk.idle_ticks + 1,
                false => 0,
            };
        }
        if self.wanted.is_empty() {
            // Nobody looks for room any more, so nothing else would end the shortage.
            self.room = Room::Made;
        }
        let may_ask_memory = ends_refusal(&mut self.ticks_since_refusal);
        let may_ask_windows = ends_refusal(&mut self.ticks_since_windows_refused);
        may_ask_memory && std::mem::take(&mut self.is_awaited)
            || may_ask_windows && std::mem::take(&mut self.is_window_awaited)
    }

    /// Records that the device or the system refused memory.
    pub(super) fn refuse(&mut self) {
        self.wanted.clear();
        self.ticks_since_refusal = Some(0);
    }

    pub(super) fn was_refused(&self) -> bool {
        self.ticks_since_refusal.is_some()
    }

    /// Records that the device or the system refused windows. Returns true if that is news: no refusal
    /// was recorded since it last gave some.
    pub(super) fn refuse_windows(&mut self) -> bool {
        self.ticks_since_windows_refused = Some(0);
        !std::mem::replace(&mut self.is_refusal_known, true)
    }

    /// Adds windows that the device has given.
    pub(super) fn add_windows(&mut self, mut windows: Vec<MemoryWindow>) {
        self.window_count += windows.len();
        self.windows.append(&mut windows);
        self.is_refusal_known = false;
    }

    pub(super) fn forget_window(&mut self) {
        self.window_count -= 1;
        self.ticks_since_windows_refused = None;
    }

    /// Returns the state of windows of which none is free.
    pub(super) fn no_window(&self) -> NoWindow {
        match (self.were_windows_refused(), self.window_count) {
            (true, 0) => NoWindow::Over,
            (false, 1..) => NoWindow::Soon,
            _ => NoWindow::Scarce,
        }
    }

    pub(super) fn were_windows_refused(&self) -> bool {
        self.ticks_since_windows_refused.is_some()
    }

    pub(super) fn is_wanting(&self) -> bool {
        !self.wanted.is_empty() || self.wants_windows
    }

    /// Forgets the wanted lengths of which a block is free: it was given back in the meantime. Until a
    /// message takes it, its chunk may make room for another length, so that a queue of messages of
    /// one length does not keep all memory. Returns true if there were some.
    pub(super) fn forget_free_lengths(&mut self) -> bool {
        let Self {
            wanted, with_free, ..
        } = self;
        let before = wanted.len();
        wanted.retain(|block_len| with_free.get(block_len).is_none_or(Vec::is_empty));
        wanted.len() < before
    }

    /// Returns the length of the longest message that can get memory: `longest`, or the length of
    /// the longest block while no memory can be registered.
    pub(super) fn longest_message(&self, longest: usize) -> usize {
        if !self.was_refused() {
            return longest;
        }
        let lengths = self.chunks.iter().map(|(_, chunk)| chunk.block_len);
        lengths.max().unwrap_or(0)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Returns the region that contains these bytes.
    pub(super) fn region_of(&self, address: usize, len: usize) -> Option<Arc<BlockRegion>> {
        let (_, &index) = self.by_address.range(..=address).next_back()?;
        let region = &self.chunks[index].region;
        let offset = address - region.address();
        (offset < region.len() && len <= region.len() - offset).then(|| Arc::clone(region))
    }
}

/// Counts a tick since a refusal. Returns true if the refusal has ended with it.
fn ends_refusal(ticks_since: &mut Option<u32>) -> bool {
    let Some(ticks) = ticks_since else {
        return false;
    };
    *ticks += 1;
    let has_ended = *ticks >= REFUSAL_TICKS;
    if has_ended {
        *ticks_since = None;
    }
    has_ended
}
