//! Messages that are longer than a slot: their memory, the windows through which peers read it, and
//! the READs that fetch that of peers.

pub(crate) mod memory_pool;
pub(crate) mod message_buf;
pub(crate) mod process_memory;
mod registrar;
mod size_class;
