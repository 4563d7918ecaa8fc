//! Who is inside a context: one word, taken for a bounded batch of work.
//!
//! The models of this module, and of `commit` and `wake`, are run by
//! `RUSTFLAGS="--cfg loom" cargo test -p rpc-transport-verbs --release --lib loom`.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

use crate::provider::soft::shared::sync::{AtomicU32, Ordering, yield_now};

const FREE: u32 = 0;
const TAKEN: u32 = 1;

/// The owner word. On a cache line of its own: it is the one word that every verb writes.
#[repr(align(64))]
#[derive(Debug)]
pub(crate) struct OwnerWord(AtomicU32);

impl OwnerWord {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(FREE))
    }

    /// Takes the word if nobody has it.
    #[inline]
    pub(crate) fn try_acquire(&self) -> bool {
        // Acquire: pairs with `release`, so that this owner sees all that the last one wrote.
        self.0
            .compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    #[inline]
    pub(crate) fn release(&self) {
        self.0.store(FREE, Ordering::Release);
    }
}

/// A value that belongs to whoever holds its owner word.
#[derive(Debug)]
pub(crate) struct Owned<T> {
    word: OwnerWord,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through `Inside`, of which the owner word lets one exist at a
// time, so sharing an `Owned` is only ever sending its value from thread to thread.
unsafe impl<T: Send> Sync for Owned<T> {}

impl<T> Owned<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            word: OwnerWord::new(),
            value: UnsafeCell::new(value),
        }
    }

    #[inline]
    pub(crate) fn try_enter(&self) -> Option<Inside<'_, T>> {
        // Not `then_some`: its argument would be made, and dropped, when the word is another's, and
        // its drop would release what was never taken.
        self.word.try_acquire().then(|| Inside { owned: self })
    }

    /// Enters, giving the core away while somebody else is inside: nobody stays for long, but an
    /// owner that lost its core needs one to leave.
    #[inline]
    pub(crate) fn enter(&self) -> Inside<'_, T> {
        loop {
            if let Some(inside) = self.try_enter() {
                return inside;
            }
            yield_now();
        }
    }
}

/// The right to the value, until dropped.
pub(crate) struct Inside<'a, T> {
    owned: &'a Owned<T>,
}

impl<T> Deref for Inside<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: an `Inside` exists only between `try_acquire` and `release` of its word.
        unsafe { &*self.owned.value.get() }
    }
}

impl<T> DerefMut for Inside<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and `&mut self` makes this the only borrow.
        unsafe { &mut *self.owned.value.get() }
    }
}

impl<T> Drop for Inside<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.owned.word.release();
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::Owned;

    /// Two threads that each add one while they are inside, and one of them first tries without
    /// waiting: loom's cell fails the model if both are ever inside, or if one does not see what the
    /// other wrote. Whether or not the try succeeds, it leaves the other's right alone.
    #[test]
    fn loom_owner_word_excludes_and_publishes() {
        loom::model(|| {
            let shared = Arc::new(Owned::new(UnsafeCell::new(0)));
            // SAFETY: this thread is inside; loom checks that this is true.
            let add = |value: &UnsafeCell<u32>| value.with_mut(|value| unsafe { *value += 1 });
            let other = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || add(&shared.enter()))
            };
            let tried = shared.try_enter().map(|inside| add(&inside)).is_some();
            add(&shared.enter());
            other.join().unwrap();
            // SAFETY: as above.
            let sum = shared.enter().with(|value| unsafe { *value });
            assert_eq!(sum, 2 + u32::from(tried));
        });
    }
}
