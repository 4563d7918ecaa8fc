//! What this process knows of another one that it talks to.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::provider::soft::shared::memory::Mapping;
use crate::provider::soft::shared::ring::ContextBell;
use crate::verbs::types::Gid;

/// Another process (or this one, seen through its own socket), by its GID.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) gid: Gid,
    gone: AtomicBool,
    memory: Mutex<Memory>,
}

/// Memory of the peer that is mapped here, by the peer's own numbers.
#[derive(Debug, Default)]
struct Memory {
    arenas: HashMap<u64, Arc<Mapping>>,
    /// Of its contexts, each for as long as there is a ring to it.
    bells: HashMap<u32, Weak<ContextBell>>,
}

impl Peer {
    pub(crate) fn new(gid: Gid) -> Self {
        Self {
            gid,
            gone: AtomicBool::new(false),
            memory: Mutex::default(),
        }
    }

    /// Its process has ended, or its link was broken off.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    pub(crate) fn set_gone(&self) {
        self.gone.store(true, Ordering::Release);
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        // Only maps are changed under the lock, each in one step.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add_arena(&self, number: u64, mapping: Mapping) {
        self.memory().arenas.insert(number, Arc::new(mapping));
    }

    pub(crate) fn remove_arena(&self, number: u64) {
        self.memory().arenas.remove(&number);
    }

    /// `None` if it has not arrived yet. Off the data path: its caller remembers the last one.
    pub(crate) fn arena(&self, number: u64) -> Option<Arc<Mapping>> {
        self.memory().arenas.get(&number).cloned()
    }

    /// How one of its contexts is told and woken: as it is known, or else as `make` has it.
    pub(crate) fn bell(
        &self,
        context: u32,
        make: impl FnOnce() -> io::Result<ContextBell>,
    ) -> io::Result<Arc<ContextBell>> {
        let mut memory = self.memory();
        if let Some(bell) = memory.bells.get(&context).and_then(Weak::upgrade) {
            return Ok(bell);
        }
        let bell = Arc::new(make()?);
        memory.bells.retain(|_, bell| bell.strong_count() > 0);
        memory.bells.insert(context, Arc::downgrade(&bell));
        Ok(bell)
    }
}
