//! How a receiver finds out that what it has copied from the sender's memory is worth nothing.
//!
//! A descriptor names memory of the sender's, which the receiver copies from while the sender leaves it
//! alone. A sender that fails wants its memory back without waiting for anybody, so it voids all its
//! descriptors first. The two are the halves of a sequence lock whose sequence only ever moves once:
//!
//! ```text
//!  sender                               receiver
//!  C1 closed = 1                        D1 copy
//!  C2 fence                             D2 fence
//!  C3 write to the memory again         D3 look at closed: if it is 1, the copy is void
//! ```
//!
//! If a byte of D1 is one that C3 wrote, then C2 comes before D2, and D3 sees C1. Without C2 the store of
//! C1 might become visible after one of C3, and without D2 the look of D3 might be taken before D1: either
//! way the receiver would deliver bytes of two messages as one.

use super::super::sync::{AtomicU32, Ordering, fence};

/// Written by the sender, once.
#[repr(transparent)]
#[derive(Debug)]
pub(super) struct Closed(AtomicU32);

impl Closed {
    #[cfg(all(test, loom))]
    fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// C1 and C2: after this, the sender may write to what its descriptors name.
    pub(super) fn close(&self) {
        self.0.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// D2 and D3, after copying: whether the sender may have had its memory back before the copy ended.
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

    /// Two words of a message, which the sender takes back: a receiver that does not find the note has
    /// copied both as they were.
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
            // In either order: a copy goes as it likes.
            let second = memory[1].load(Ordering::Relaxed);
            let first = memory[0].load(Ordering::Relaxed);
            if !closed.is_closed_after_copy() {
                assert_eq!((first, second), (1, 1));
            }
            sender.join().unwrap();
        });
    }
}
