//! [`BiasedLock`].
//!
//! ```text
//!  favourite                         another thread
//!  word = {me, free}?                word: {favourite, free} → {favourite, taken}
//!  my flag = inside                  heavy fence
//!  light fence                       favourite's flag = outside? else wait
//!  word = {me, free}? else back       … inside …
//!   … inside …                       word = {nobody, free}
//!  my flag = outside
//! ```
//!
//! The fences order each thread's store before its load, so at least one of the two sees the other's store.
//! The favourite looks at the word twice: what it saw first may have ended before its flag said anything.
//!
//! A flag belongs to one thread for as long as the lock lives, because a thread that has lost the favour may
//! still be about to set and clear it. There are two flags, so two threads of a lock's life may be
//! favourites: the one that sets it up, and the one that uses it.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use super::membarrier;
use super::sync::{AtomicU64, Ordering, UnsafeCell, pause};
use super::thread_id::ThreadId;

/// How many entries in a row make a thread the favourite: they cost as much as the `membarrier(2)` with which
/// the next thread ends the favour.
const ENTRIES_FOR_FAVOUR: u32 = if cfg!(loom) { 1 } else { 64 };

/// The word says who is the favourite ([`ThreadId`], or `NOBODY`), which flag it has, and whether a thread is
/// inside that did not enter as the favourite.
const NOBODY: u64 = 0;
const TAKEN: u64 = 1;
/// The bit is worth the length of a flag: then it is the place of the favourite's flag among the two.
const SECOND_FLAG: u64 = 8;
const _: () =
    assert!(TAKEN + SECOND_FLAG < ThreadId::ALIGN && SECOND_FLAG == size_of::<u64>() as u64);

const OUTSIDE: u64 = 0;
const INSIDE: u64 = 1;

/// A value that one thread at a time can use, and that costs the thread which uses it most no locked
/// instruction. The module's text says how.
///
/// A panic inside does not poison it.
// Lines of its own: the word and the flags are what each entry reads and writes.
#[repr(align(64))]
pub struct BiasedLock<T: ?Sized> {
    word: AtomicU64,
    flags: [AtomicU64; 2],
    /// Only the thread inside uses it, unless it is the favourite.
    record: UnsafeCell<Record>,
    value: UnsafeCell<T>,
}

/// Who has entered.
struct Record {
    /// The owners of the flags; 0 for a flag that nobody has yet.
    owners: [u64; 2],
    /// The thread that entered last, other than as the favourite, and how often in a row.
    last: u64,
    in_a_row: u32,
}

// SAFETY: the value is used only through a guard. There is one at a time: the module's text says why, and
// the loom models try it. So sharing a lock sends its value from thread to thread, and no more.
unsafe impl<T: ?Sized + Send> Sync for BiasedLock<T> {}
// SAFETY: as for `Sync`. A lock that is owned has no guard, and its flags keep their threads.
unsafe impl<T: ?Sized + Send> Send for BiasedLock<T> {}

impl<T> BiasedLock<T> {
    /// Creates a lock whose favourite is the first thread that enters 64 times in a row.
    pub fn new(value: T) -> Self {
        Self {
            word: AtomicU64::new(NOBODY),
            flags: [AtomicU64::new(OUTSIDE), AtomicU64::new(OUTSIDE)],
            record: UnsafeCell::new(Record {
                owners: [0; 2],
                last: 0,
                in_a_row: 0,
            }),
            value: UnsafeCell::new(value),
        }
    }

    /// Creates a lock whose favourite is the calling thread, for a value that lives too short for 64
    /// entries.
    pub fn favouring_this_thread(value: T) -> Self {
        Self::favouring(ThreadId::current(), value)
    }

    fn favouring(thread: ThreadId, value: T) -> Self {
        let mut lock = Self::new(value);
        if membarrier::is_available() {
            lock.record.get_mut().owners[0] = thread.0;
            lock.word = AtomicU64::new(thread.0);
        }
        lock
    }

    /// Returns the value. Whoever owns the lock needs not enter.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> BiasedLock<T> {
    /// Returns the value. Whoever has the only reference to the lock needs not enter.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// Enters, and waits while another thread is inside: it yields the core, and sleeps for moments later on.
    ///
    /// # Panics
    ///
    /// Panics, or waits for ever, if this thread is inside already.
    #[inline]
    pub fn enter(&self) -> BiasedGuard<'_, T> {
        self.enter_as(ThreadId::current())
    }

    /// Enters if no other thread is inside. The calling thread must not be inside itself: then it returns
    /// `None`, too.
    #[inline]
    pub fn try_enter(&self) -> Option<BiasedGuard<'_, T>> {
        self.try_enter_as(ThreadId::current())
    }

    #[inline]
    fn enter_as(&self, thread: ThreadId) -> BiasedGuard<'_, T> {
        match self.enter_favoured(thread) {
            Some(guard) => guard,
            None => self.enter_taking(thread),
        }
    }

    #[inline]
    fn try_enter_as(&self, thread: ThreadId) -> Option<BiasedGuard<'_, T>> {
        match self.enter_favoured(thread) {
            Some(guard) => Some(guard),
            None => self.try_enter_taking(thread),
        }
    }

    /// Enters as the favourite, if this thread is it and nobody is inside.
    #[inline]
    fn enter_favoured(&self, thread: ThreadId) -> Option<BiasedGuard<'_, T>> {
        let word = self.word.load(Ordering::Relaxed);
        if word & !SECOND_FLAG != thread.0 {
            return None;
        }
        let flag = self.flag(word);
        // Only this thread writes the flag. If it is set, the thread is inside. Acquire: pairs with the store of
        // a thread that had this one's id before, and has ended.
        if flag.load(Ordering::Acquire) != OUTSIDE {
            return None;
        }
        flag.store(INSIDE, Ordering::Relaxed);
        membarrier::light();
        // Acquire: nothing of the value is read before.
        if self.word.load(Ordering::Acquire) != word {
            flag.store(OUTSIDE, Ordering::Release);
            return None;
        }
        Some(BiasedGuard::new(self, flag, OUTSIDE))
    }

    /// Returns the flag that a word names.
    #[inline]
    fn flag(&self, word: u64) -> &AtomicU64 {
        &self.flags[usize::from(word & SECOND_FLAG != 0)]
    }

    #[cold]
    #[inline(never)]
    fn enter_taking(&self, thread: ThreadId) -> BiasedGuard<'_, T> {
        let mut round = 0;
        let word = loop {
            if let Some(word) = self.take() {
                break word;
            }
            pause(round);
            round = round.saturating_add(1);
        };
        if word != NOBODY {
            let is_mine = word & !SECOND_FLAG == thread.0;
            if is_mine && self.flag(word).load(Ordering::Relaxed) != OUTSIDE {
                self.word.store(word, Ordering::Release);
                panic!("the thread is inside already, and would wait for itself");
            }
            membarrier::heavy();
            // Acquire: pairs with the favourite's store when it leaves.
            while self.flag(word).load(Ordering::Acquire) != OUTSIDE {
                pause(round);
                round = round.saturating_add(1);
            }
        }
        self.enter_taken(thread)
    }

    #[cold]
    #[inline(never)]
    fn try_enter_taking(&self, thread: ThreadId) -> Option<BiasedGuard<'_, T>> {
        let word = self.take()?;
        if word != NOBODY {
            let flag = self.flag(word);
            let is_outside = flag.load(Ordering::Relaxed) == OUTSIDE && {
                membarrier::heavy();
                flag.load(Ordering::Acquire) == OUTSIDE
            };
            if !is_outside {
                self.word.store(word, Ordering::Release);
                return None;
            }
        }
        Some(self.enter_taken(thread))
    }

    /// Takes the word if it is free. Returns what it was.
    fn take(&self) -> Option<u64> {
        let word = self.word.load(Ordering::Relaxed);
        if word & TAKEN != 0 {
            return None;
        }
        // Acquire: pairs with the store when the last thread left that was not the favourite.
        self.word
            .compare_exchange(word, word | TAKEN, Ordering::Acquire, Ordering::Relaxed)
            .ok()
    }

    /// Enters with a word that this thread has taken, and whose favourite is outside. Its favour ends.
    fn enter_taken(&self, thread: ThreadId) -> BiasedGuard<'_, T> {
        // SAFETY: this thread is inside, and not as the favourite.
        let record = unsafe { &mut *self.record.get() };
        BiasedGuard::new(self, &self.word, record.enter(thread))
    }
}

impl Record {
    /// Counts an entry. Returns the word with which the thread leaves: after many entries in a row, it is the
    /// favourite.
    fn enter(&mut self, thread: ThreadId) -> u64 {
        self.in_a_row = match self.last == thread.0 {
            true => self.in_a_row.saturating_add(1),
            false => 1,
        };
        self.last = thread.0;
        match self.in_a_row < ENTRIES_FOR_FAVOUR {
            true => NOBODY,
            false => self.favour(thread),
        }
    }

    /// Returns the word that favours a thread, or `NOBODY` if both flags belong to others, or the kernel lacks
    /// what a favour needs.
    fn favour(&mut self, thread: ThreadId) -> u64 {
        let is_free = |owner: &u64| [thread.0, 0].contains(owner);
        let place = self.owners.iter().position(is_free);
        match place.filter(|_| membarrier::is_available()) {
            Some(place) => {
                self.owners[place] = thread.0;
                self.in_a_row = 0;
                thread.0 | [0, SECOND_FLAG][place]
            }
            None => NOBODY,
        }
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for BiasedLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the value: whoever prints it should not wait.
        f.write_str("BiasedLock")
    }
}

/// The right to use the value, which ends when it is dropped. It stays on its thread.
#[must_use = "the thread leaves when it is dropped"]
pub struct BiasedGuard<'a, T: ?Sized> {
    lock: &'a BiasedLock<T>,
    /// How the thread leaves: it stores this value there, in its flag or in the word.
    place: &'a AtomicU64,
    left: u64,
    not_send: PhantomData<*const ()>,
}

// SAFETY: a shared guard gives shared references to the value.
unsafe impl<T: ?Sized + Sync> Sync for BiasedGuard<'_, T> {}

impl<'a, T: ?Sized> BiasedGuard<'a, T> {
    #[inline]
    fn new(lock: &'a BiasedLock<T>, place: &'a AtomicU64, left: u64) -> Self {
        Self {
            lock,
            place,
            left,
            not_send: PhantomData,
        }
    }
}

impl<T: ?Sized> Deref for BiasedGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the thread is inside while its guard lives, so no other one uses the value.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> DerefMut for BiasedGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and `&mut self` makes this the only reference.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: ?Sized> Drop for BiasedGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Release: the next thread sees the value as this one leaves it.
        self.place.store(self.left, Ordering::Release);
    }
}

#[cfg(all(test, loom))]
mod loom_models;
#[cfg(all(test, not(loom)))]
mod tests;
