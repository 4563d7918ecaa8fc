//! [`MemoryPool`]: registered memory for messages, of one poller on one device.
//!
//! The pool has *chunks*, each of which is a region, divided into *blocks* of one length. A message
//! takes a block. Chunks are registered and deregistered by the [`registrar`],
//! never on the path of a call: a pool that has no block of the wanted length asks for one, and the
//! poller is woken when there is one.
//!
//! All methods may be called from any thread. The lock is never held across a system call.

mod state;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use rpc_core::transport::AllocateError;
use verbline_verbs::for_transport::hooks;
use verbline_verbs::for_transport::{Block, BlockRegion};
use verbline_verbs::{MemoryWindow, ProtectionDomain, VerbsError, WindowType};

pub(super) use self::state::NoWindow;
use self::state::{Chunk, State};
use super::process_memory::{Full, ProcessMemory, Purpose};
use super::registered_buf::{Place, RegisteredBuf, TakesBack};
use super::registrar::{self, Growth, RegisteringPool, Room, TIME_TO_TAKE};
use super::size_class::{block_len, blocks_per_chunk};
use crate::transport::wakeup::Wakeup;

/// Windows that are allocated at a time.
const WINDOW_BATCH: usize = 32;

/// The settings of a pool.
#[derive(Clone, Debug)]
pub(crate) struct PoolConfig {
    pub(crate) domain: ProtectionDomain,
    /// Notified when the poller waits for memory and some may be free.
    pub(crate) wakeup: Arc<Wakeup>,
    pub(crate) process_memory: Arc<ProcessMemory>,
    /// Bytes that the process may register.
    pub(crate) limit: u64,
    /// Bytes that the device can register as one region.
    pub(crate) max_region_len: usize,
    /// True if peers that know the key of a chunk may read all of it
    /// ([`Sizing::trusted_peers`](crate::Sizing::trusted_peers)).
    pub(crate) is_readable: bool,
}

/// Registered memory for messages.
#[derive(Debug)]
pub(crate) struct MemoryPool {
    config: PoolConfig,
    purpose: Purpose,
    /// Bytes that the process may register for this purpose.
    share: u64,
    state: Mutex<State>,
    this: Weak<Self>,
    #[cfg(feature = "test-util")]
    is_simulated: bool,
}

impl MemoryPool {
    pub(super) fn new(config: PoolConfig, purpose: Purpose, share: u64) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            config,
            purpose,
            share,
            state: Mutex::default(),
            this: this.clone(),
            #[cfg(feature = "test-util")]
            is_simulated: hooks::is_simulated(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A poisoned lock is usable: no method panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the most bytes that a block may have.
    fn longest_block(&self) -> usize {
        let limit = usize::try_from(self.share).unwrap_or(usize::MAX);
        limit.min(self.config.max_region_len)
    }

    /// Takes a block for a message of `len` bytes. Never waits: if none is free, the registrar is
    /// asked for one, and the poller is woken when there may be one.
    ///
    /// # Errors
    ///
    /// [`AllocateError::NotNow`] while memory is being registered, or while a free chunk may make room
    /// soon; [`AllocateError::InUse`] if no more can be registered; [`AllocateError::TooLong`] if there
    /// can never be a block of this length, or if the system has refused memory and no block is as
    /// long.
    pub(crate) fn allocate(&self, len: usize) -> Result<RegisteredBuf, AllocateError> {
        let longest = self.longest_block();
        let block_len = block_len(len).min(longest);
        let mut state = self.lock();
        let limit = state.longest_message(longest);
        if len > limit {
            return Err(AllocateError::TooLong { len, limit });
        }
        if let Some((chunk, block, counted)) = state.take(block_len) {
            // If others of this length wait, the next of them asks again.
            state.wanted.remove(&block_len);
            drop(state);
            let pool = self.this.clone() as Weak<dyn TakesBack>;
            let place = Place {
                pool,
                chunk,
                counted: Some(counted),
            };
            return Ok(RegisteredBuf::new(block, len, place));
        }
        state.is_awaited = true;
        let is_new = !state.was_refused() && state.wanted.insert(block_len);
        if is_new {
            // What the registrar has found for another length says nothing of this one.
            state.room = Room::Made;
        }
        let is_in_use = state.is_used_up();
        let asks = is_new || state.room == Room::Soon && self.has_no_registrar();
        drop(state);
        if asks {
            registrar::request(&self.this);
        }
        Err(match is_in_use {
            true => AllocateError::InUse,
            false => AllocateError::NotNow,
        })
    }

    /// Returns true in a simulation: no registrar looks again after [`TIME_TO_TAKE`] there.
    fn has_no_registrar(&self) -> bool {
        #[cfg(feature = "test-util")]
        return self.is_simulated;
        #[cfg(not(feature = "test-util"))]
        false
    }

    /// Returns true if no block is taken. Otherwise, the poller is woken when one is given back.
    pub(super) fn is_untouched(&self) -> bool {
        let mut state = self.lock();
        let is_untouched = state.taken == 0;
        state.is_awaited |= !is_untouched;
        is_untouched
    }

    /// Takes a window that is not bound. Unless `is_accepted`, the last one is left: a message that its
    /// receiver has accepted always goes on, even if all that wait for their receivers hold windows.
    ///
    /// # Errors
    ///
    /// [`NoWindow`] if none is free. More are allocated, unless the device has just refused them, and
    /// the poller is woken when there are, or when one is given back.
    pub(super) fn take_window(&self, is_accepted: bool) -> Result<MemoryWindow, NoWindow> {
        let mut state = self.lock();
        if state.are_windows_given_up {
            return Err(NoWindow::Over);
        }
        if (is_accepted || state.windows.len() > 1)
            && let Some(window) = state.windows.pop()
        {
            return Ok(window);
        }
        state.is_window_awaited = true;
        let is_new =
            !state.were_windows_refused() && !std::mem::replace(&mut state.wants_windows, true);
        let none = state.no_window();
        drop(state);
        if is_new {
            registrar::request(&self.this);
        }
        Err(none)
    }

    /// Has [`take_window`](Self::take_window) find none any more. Returns true the first time.
    pub(super) fn give_windows_up(&self) -> bool {
        let mut state = self.lock();
        let is_first = !std::mem::replace(&mut state.are_windows_given_up, true);
        let is_awaited = std::mem::take(&mut state.is_window_awaited);
        drop(state);
        if is_awaited {
            self.config.wakeup.notify();
        }
        is_first
    }

    /// Notes that a window which was taken has been deallocated. The device may give another in its
    /// place, so an earlier refusal says nothing any more.
    pub(super) fn forget_window(&self) {
        self.lock().forget_window();
    }

    /// Puts back a window that was taken and not bound. Nobody is woken: it was there all the time, and
    /// the poller itself puts one back whenever it finds no memory for its piece.
    pub(super) fn put_window_back(&self, window: MemoryWindow) {
        self.lock().windows.push(window);
    }

    /// Takes back a window whose invalidation has completed. Whoever waits for memory is not woken.
    pub(super) fn give_back_window(&self, window: MemoryWindow) {
        window.note_invalidated();
        let mut state = self.lock();
        state.windows.push(window);
        let is_awaited = std::mem::take(&mut state.is_window_awaited);
        drop(state);
        if is_awaited {
            self.config.wakeup.notify();
        }
    }

    /// Returns the region in which `bytes` lie, if it is one of this pool.
    pub(super) fn region_of(&self, bytes: &Bytes) -> Option<Arc<BlockRegion>> {
        self.lock().region_of(bytes.as_ptr().addr(), bytes.len())
    }

    /// Returns the registered bytes, and those of them that are taken.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let state = self.lock();
        (state.registered, state.taken)
    }

    /// Records that the device or the system refused memory: until the registrar tries again,
    /// messages get only blocks that exist.
    fn refused(&self, block_len: usize, error: &VerbsError) {
        let mut state = self.lock();
        state.refuse();
        let registered = state.registered;
        drop(state);
        tracing::warn!(%error, block_len, registered, "cannot register more memory for long messages: they share what is registered, and registering is tried again in some seconds");
    }

    /// Allocates some windows when the lane is opened, so that its first long message finds some if the
    /// device has any. If it has none now, the registrar counts the ticks until it is asked again.
    pub(super) fn allocate_first_windows(&self) {
        self.allocate_windows();
        if self.lock().were_windows_refused() {
            registrar::request(&self.this);
        }
    }

    /// Allocates some windows.
    fn allocate_windows(&self) {
        let mut windows = Vec::with_capacity(WINDOW_BATCH);
        let mut refusal = None;
        while windows.len() < WINDOW_BATCH && refusal.is_none() {
            match self.config.domain.alloc_mw(WindowType::Type2) {
                Ok(window) => windows.push(window),
                Err(error) => refusal = Some(error),
            }
        }
        let mut state = self.lock();
        state.wants_windows = false;
        if let Some(error) = refusal.filter(|_| windows.is_empty()) {
            let is_news = state.refuse_windows();
            let windows = state.window_count;
            // Whoever waits for a window that exists is not woken: it would ask again at once. It is
            // when a window is given back, and after some ticks.
            let is_over = windows == 0 && std::mem::take(&mut state.is_window_awaited);
            drop(state);
            if is_news {
                tracing::warn!(%error, windows, "the device gives no more memory windows: long messages that find none free travel in fragments, and windows are asked for again in some seconds");
            }
            if is_over {
                self.config.wakeup.notify();
            }
            return;
        }
        state.add_windows(windows);
        let is_awaited = std::mem::take(&mut state.is_window_awaited);
        drop(state);
        if is_awaited {
            self.config.wakeup.notify();
        }
    }

    fn remove_idle_chunk(&self) -> Option<Chunk> {
        self.lock().remove_idle_chunk()
    }
}

impl TakesBack for MemoryPool {
    fn give_back(&self, chunk: usize, block: Block) {
        let mut state = self.lock();
        let is_chunk_free = state.give_back(chunk, block);
        let is_awaited = std::mem::take(&mut state.is_awaited);
        drop(state);
        if is_awaited {
            self.config.wakeup.notify();
        }
        if is_chunk_free && self.config.process_memory.is_short() {
            registrar::request(&self.this);
        }
    }
}

impl RegisteringPool for MemoryPool {
    fn grow(&self) -> Growth {
        if self.lock().wants_windows {
            self.allocate_windows();
            return Growth::Settled;
        }
        let (purpose, share, limit) = (self.purpose, self.share, self.config.limit);
        let mut state = self.lock();
        if state.forget_free_lengths() {
            drop(state);
            self.config.wakeup.notify();
            return Growth::Settled;
        }
        let Some(&block_len) = state.wanted.first() else {
            return Growth::Unneeded;
        };
        drop(state);
        let most = self.config.max_region_len / block_len;
        let count = blocks_per_chunk(block_len, limit).min(most).max(1);
        let reserve = |count: usize| {
            let len = (block_len * count) as u64;
            let memory = &self.config.process_memory;
            Ok((count, memory.reserve(purpose, len, (share, limit))?))
        };
        // If a whole chunk does not fit, one block may.
        let (count, counted) = match reserve(count).or_else(|_: Full| reserve(1)) {
            Ok(reserved) => reserved,
            Err(full) => {
                let needed = block_len as u64;
                return Growth::Short { needed, full };
            }
        };
        let is_readable = self.config.is_readable;
        let registered = self
            .config
            .domain
            .register_blocks(block_len, count, is_readable);
        match registered {
            Ok((region, blocks)) => {
                let mut state = self.lock();
                let until = hooks::now() + TIME_TO_TAKE;
                state.add(Chunk::new(region, blocks, block_len, counted, until));
                state.is_awaited = false;
                state.room = Room::Made;
                state.wanted.remove(&block_len);
            }
            Err(error) => self.refused(block_len, &error),
        }
        self.config.wakeup.notify();
        Growth::Settled
    }

    fn note_room(&self, room: Room) {
        self.lock().room = room;
        if room == Room::None {
            self.config.wakeup.notify();
        }
    }

    fn shed(&self, needed: u64) -> (u64, bool) {
        let now = hooks::now();
        let mut freed = 0;
        while freed < needed {
            let Some(chunk) = self.lock().remove_free_chunk(now) else {
                break;
            };
            // Dropped here, outside of the lock: that deregisters it.
            freed += chunk.len();
        }
        (freed, self.lock().has_free_chunk())
    }

    fn tick(&self) -> bool {
        // Each chunk is dropped outside of the lock, which deregisters it.
        while let Some(_chunk) = self.remove_idle_chunk() {}
        let mut state = self.lock();
        let is_awaited = state.tick();
        // Windows are deallocated after the last chunk. A batch stays: the device may not give them
        // again, and a message that has begun with windows cannot go on without.
        let kept = WINDOW_BATCH.min(state.windows.len());
        let windows = match state.is_empty() {
            true => state.windows.split_off(kept),
            false => Vec::new(),
        };
        state.window_count -= windows.len();
        let is_used = !state.is_empty()
            || state.is_wanting()
            || state.was_refused()
            || state.were_windows_refused();
        drop(state);
        drop(windows);
        if is_awaited {
            self.config.wakeup.notify();
        }
        is_used
    }

    fn process_memory(&self) -> &Arc<ProcessMemory> {
        &self.config.process_memory
    }

    fn purpose(&self) -> Purpose {
        self.purpose
    }

    #[cfg(feature = "test-util")]
    fn is_simulated(&self) -> bool {
        self.is_simulated
    }
}

#[cfg(test)]
mod tests;
