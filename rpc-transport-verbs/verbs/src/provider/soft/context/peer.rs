//! The state that this process keeps about a process that it communicates with.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::provider::soft::shared::memory::Mapping;
use crate::provider::soft::shared::ring::ContextNotifier;
use crate::provider::soft::shared::wake_socket::EngineCaller;
use crate::types::Gid;

/// Another process, or this one seen through its own socket, identified by its GID.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) gid: Gid,
    gone: AtomicBool,
    /// Wakes the peer's engine; the link to the peer has to be set.
    pub(crate) engine: EngineCaller,
    memory: Mutex<Memory>,
}

/// Memory of the peer that is mapped here, by the peer's own numbers.
#[derive(Debug, Default)]
struct Memory {
    arenas: HashMap<u64, Arc<Mapping>>,
    /// Bytes of the arenas.
    arena_bytes: u64,
    /// The [`ContextNotifier`]s of the contexts that the peer has announced.
    contexts: HashMap<u32, Arc<ContextNotifier>>,
}

impl Peer {
    pub(crate) fn new(gid: Gid) -> Self {
        Self {
            gid,
            gone: AtomicBool::new(false),
            engine: EngineCaller::default(),
            memory: Mutex::default(),
        }
    }

    /// Returns true if the peer's process has ended or its link was closed.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    pub(crate) fn set_gone(&self) {
        self.gone.store(true, Ordering::Release);
        self.engine.clear();
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        // Under the lock only the maps change, each in one step, so they are always consistent.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an arena. Returns false if there is one with this number.
    pub(crate) fn add_arena(&self, number: u64, mapping: Mapping) -> bool {
        let mut memory = self.memory();
        if memory.arenas.contains_key(&number) {
            return false;
        }
        memory.arena_bytes += mapping.len() as u64;
        memory.arenas.insert(number, Arc::new(mapping));
        true
    }

    pub(crate) fn remove_arena(&self, number: u64) {
        let mut memory = self.memory();
        if let Some(mapping) = memory.arenas.remove(&number) {
            memory.arena_bytes -= mapping.len() as u64;
        }
    }

    /// Returns the number of arenas and their bytes.
    pub(crate) fn arena_usage(&self) -> (usize, u64) {
        let memory = self.memory();
        (memory.arenas.len(), memory.arena_bytes)
    }

    /// Returns the arena; `None` if it has not arrived yet. Not on the data path: the caller caches
    /// the last arena.
    pub(crate) fn arena(&self, number: u64) -> Option<Arc<Mapping>> {
        self.memory().arenas.get(&number).cloned()
    }

    /// Records how one of the peer's contexts is notified.
    pub(crate) fn add_context(&self, number: u32, notifier: ContextNotifier) {
        self.memory().contexts.insert(number, Arc::new(notifier));
    }

    pub(crate) fn context_count(&self) -> usize {
        self.memory().contexts.len()
    }

    pub(crate) fn remove_context(&self, number: u32) {
        self.memory().contexts.remove(&number);
    }

    /// Returns the [`ContextNotifier`] of one of the peer's contexts; `None` if the peer has not
    /// announced it.
    pub(crate) fn context(&self, number: u32) -> Option<Arc<ContextNotifier>> {
        self.memory().contexts.get(&number).cloned()
    }
}
