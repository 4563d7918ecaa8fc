#![doc = include_str!("../README.md")]

mod lock;
mod membarrier;
mod sync;
mod thread_id;

pub use lock::{BiasedGuard, BiasedLock};
