//! Mutual exclusion for a context: one word, acquired for a bounded batch of work.
//!
//! `.ci/loom` runs the loom models of this module, `commit`, `wake`, `sequence_lock` and
//! `ring::closed`.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

use crate::provider::soft::shared::sync::{AtomicU32, Ordering, yield_now};

const FREE: u32 = 0;
const TAKEN: u32 = 1;

/// The owner word. It has its own cache line because it is the one word that every verb writes.
#[repr(align(64))]
#[derive(Debug)]
pub(crate) struct OwnerWord(AtomicU32);

impl OwnerWord {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(FREE))
    }

    /// Acquires the word if it is free.
    #[inline]
    pub(crate) fn try_acquire(&self) -> bool {
        // Acquire: pairs with `release`, so that this owner sees everything the previous one wrote.
        self.0
            .compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    #[inline]
    pub(crate) fn release(&self) {
        self.0.store(FREE, Ordering::Release);
    }
}

/// A value that only the holder of its owner word can access.
#[derive(Debug)]
pub(crate) struct Owned<T> {
    word: OwnerWord,
    value: UnsafeCell<T>,
}

// SAFETY: the value is accessed only through `OwnerGuard`, and the owner word allows only one
// `OwnerGuard` at a time, so sharing an `Owned` only ever sends its value from thread to thread.
unsafe impl<T: Send> Sync for Owned<T> {}

impl<T> Owned<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            word: OwnerWord::new(),
            value: UnsafeCell::new(value),
        }
    }

    #[inline]
    pub(crate) fn try_enter(&self) -> Option<OwnerGuard<'_, T>> {
        // `then_some` would be wrong here: if the word is taken, it would still construct an
        // `OwnerGuard` and drop it, and the drop would release a word that this thread has not
        // acquired.
        self.word.try_acquire().then(|| OwnerGuard { owned: self })
    }

    /// Enters, and yields the core while another thread is inside. No thread stays inside for long,
    /// but an owner that was preempted needs a core to leave.
    #[inline]
    pub(crate) fn enter(&self) -> OwnerGuard<'_, T> {
        match self.try_enter() {
            Some(guard) => guard,
            None => self.enter_later(),
        }
    }

    #[cold]
    #[inline(never)]
    fn enter_later(&self) -> OwnerGuard<'_, T> {
        loop {
            yield_now();
            if let Some(guard) = self.try_enter() {
                return guard;
            }
        }
    }
}

/// The right to access the value; released when dropped.
pub(crate) struct OwnerGuard<'a, T> {
    owned: &'a Owned<T>,
}

impl<T> Deref for OwnerGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: an `OwnerGuard` exists only between `try_acquire` and `release` of its word, so
        // no other thread accesses the value.
        unsafe { &*self.owned.value.get() }
    }
}

impl<T> DerefMut for OwnerGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: no other thread has access, as in `deref`, and `&mut self` makes this the only
        // borrow.
        unsafe { &mut *self.owned.value.get() }
    }
}

impl<T> Drop for OwnerGuard<'_, T> {
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

    /// Two threads each add one while they are inside, and one of them first tries without waiting.
    /// Loom's cell fails the model if both are ever inside, or if one does not see the other's
    /// write. Whether or not the try succeeds, it does not affect the other thread's ownership.
    #[test]
    fn loom_owner_word_excludes_and_publishes() {
        loom::model(|| {
            let shared = Arc::new(Owned::new(UnsafeCell::new(0)));
            // SAFETY: this thread is inside, so it has exclusive access; loom checks this.
            let add = |value: &UnsafeCell<u32>| value.with_mut(|value| unsafe { *value += 1 });
            let other = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || add(&shared.enter()))
            };
            let tried = shared.try_enter().map(|guard| add(&guard)).is_some();
            add(&shared.enter());
            other.join().unwrap();
            // SAFETY: this thread is inside, as above; loom checks this.
            let sum = shared.enter().with(|value| unsafe { *value });
            assert_eq!(sum, 2 + u32::from(tried));
        });
    }
}
