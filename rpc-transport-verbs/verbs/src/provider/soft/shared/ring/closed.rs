//! Detects that data copied from the sender's memory is invalid.
//!
//! A descriptor names memory of the sender. The receiver copies from it while the sender leaves it
//! alone. A sender that fails wants to reuse its memory without waiting for the receiver, so it
//! first voids all its descriptors. The two sides form a sequence lock whose sequence moves only
//! once:
//!
//! ```text
//!  sender                               receiver
//!  C1 closed = 1                        D1 copy
//!  C2 fence                             D2 fence
//!  C3 write to the memory again         D3 load closed: if it is 1, the copy is void
//! ```
//!
//! If D1 reads a byte that C3 wrote, then C2 comes before D2, and D3 sees C1. Without C2, the store
//! of C1 could become visible after a store of C3. Without D2, the load of D3 could be executed
//! before D1. Either way the receiver would deliver bytes of two messages as one.

use super::super::sync::{AtomicU32, Ordering, fence};

/// The flag by which the sender voids its descriptors. The sender writes it once.
#[repr(transparent)]
#[derive(Debug)]
pub(super) struct Closed(AtomicU32);

impl Closed {
    #[cfg(all(test, loom))]
    fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Executes C1 and C2: afterwards the sender may write to the memory that its descriptors name.
    pub(super) fn close(&self) {
        self.0.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Executes D2 and D3, after a copy: returns true if the sender may have reused its memory
    /// before the copy ended.
    pub(super) fn is_closed_after_copy(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) != 0
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, Ordering};
    use loom::thread;

    use super::Closed;

    /// The sender reclaims a message of two words: a receiver that does not see `closed` set has
    /// copied both words unchanged.
    #[test]
    fn loom_copy_of_reclaimed_memory_is_found_void() {
        loom::model(|| {
            let closed = Arc::new(Closed::new());
            let memory = Arc::new([AtomicU32::new(1), AtomicU32::new(1)]);
            let sender = {
                let (closed, memory) = (Arc::clone(&closed), Arc::clone(&memory));
                thread::spawn(move || {
                    closed.close();
                    for word in &*memory {
                        word.store(2, Ordering::Relaxed);
                    }
                })
            };
            // In reverse order: a copy may read its bytes in any order.
            let second = memory[1].load(Ordering::Relaxed);
            let first = memory[0].load(Ordering::Relaxed);
            if !closed.is_closed_after_copy() {
                assert_eq!((first, second), (1, 1));
            }
            sender.join().unwrap();
        });
    }
}
