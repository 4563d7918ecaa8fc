//! What this process knows of another one that it talks to.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::shared_memory::Mapping;
use super::wake_file::WakeFile;
use crate::verbs::Gid;

/// Another process (or this one, seen through its own socket), by its GID.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) gid: Gid,
    gone: AtomicBool,
    memory: Mutex<Memory>,
}

/// Memory of the peer that is mapped here, and files of its contexts, by the peer's own numbers.
#[derive(Debug, Default)]
struct Memory {
    arenas: HashMap<u64, Arc<Mapping>>,
    ready_bits: HashMap<u32, Arc<Mapping>>,
    wake_files: HashMap<u32, Arc<WakeFile>>,
}

impl Peer {
    pub(super) fn new(gid: Gid) -> Self {
        Self {
            gid,
            gone: AtomicBool::new(false),
            memory: Mutex::default(),
        }
    }

    /// Its process has ended, or its link was broken off.
    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    pub(super) fn set_gone(&self) {
        self.gone.store(true, Ordering::Release);
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        // Only maps are changed under the lock, each in one step.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add_arena(&self, number: u64, mapping: Mapping) {
        self.memory().arenas.insert(number, Arc::new(mapping));
    }

    pub(super) fn remove_arena(&self, number: u64) {
        self.memory().arenas.remove(&number);
    }

    /// `None` if it has not arrived yet. Off the data path: its caller remembers the last one.
    pub(super) fn arena(&self, number: u64) -> Option<Arc<Mapping>> {
        self.memory().arenas.get(&number).cloned()
    }

    pub(super) fn add_ready_bits(&self, context: u32, mapping: Mapping) {
        self.memory().ready_bits.insert(context, Arc::new(mapping));
    }

    pub(super) fn add_wake_file(&self, context: u32, file: WakeFile) {
        self.memory().wake_files.insert(context, Arc::new(file));
    }

    /// How a context of the peer is told and woken: `None` unless both of its files have come.
    pub(super) fn doorbell(&self, context: u32) -> Option<(Arc<Mapping>, Arc<WakeFile>)> {
        let memory = self.memory();
        let bits = memory.ready_bits.get(&context)?;
        let file = memory.wake_files.get(&context)?;
        Some((Arc::clone(bits), Arc::clone(file)))
    }
}
