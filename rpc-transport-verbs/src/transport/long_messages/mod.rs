//! Messages that are longer than a slot: their memory, the windows through which peers read it, and
//! the READs that fetch messages from peers.
//!
//! | moment | owner of the memory | until |
//! | --- | --- | --- |
//! | a message is made or was received | the application, as [`RegisteredBuf`](registered_buf::RegisteredBuf) or as `Bytes` | it is dropped, on whatever thread |
//! | a piece is exposed through a window | its exposure | the completion of its window's invalidation was polled, or the queue pair is gone |
//! | a piece is exposed without one ([`Sizing::trusted_peers`](crate::Sizing::trusted_peers)) | its exposure | the peer has released it, or the queue pair is gone |
//! | a message is fetched | its fetch, and each READ that names it | all of its READs have completed, or the queue pair is gone |
//! | none of these | the pool | the chunk is deregistered |

mod exposures;
mod fetches;
mod free_heap;
mod keys;
pub(crate) mod memory_pool;
pub(crate) mod one_sided;
mod one_sided_requests;
pub(crate) mod pools;
pub(crate) mod process_memory;
mod read_turns;
pub(crate) mod registered_buf;
mod registrar;
pub(crate) mod size_class;
pub(crate) mod state;
