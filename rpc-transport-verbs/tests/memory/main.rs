//! Tests of the memory for long messages. Its limit is that of the process, so these tests are a
//! program of their own, and run one at a time.

#[path = "../transport_harness/mod.rs"]
mod transport_harness;

mod hostile_transfers;
mod transport_long_messages;
mod transport_short_memory;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Keeps the other tests waiting until the returned guard is dropped.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
