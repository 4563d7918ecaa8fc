//! How a sender reaches a receiver that no longer polls its ring.
//!
//! A poller directly polls a few *hot* rings. A ring that stays empty becomes *cold*: its receiver
//! arms a mark in the ring, and from then on relies on the ring's bit in the [`ReadyBits`] of the
//! ring's sender. Each pair of a context and a peer process has ready bits of its own, which only
//! that peer maps: a peer that clears bits or sets them without end delays its own messages.
//!
//! ```text
//!  receiver                              sender
//!  R1 mark = ARMED                       S1 commit the message
//!  R2 fence                              S2 fence
//!  R3 load the commit word again         S3 load the mark
//! ```
//!
//! Several messages may be committed before one S2: its fence orders the commits of all of them
//! before S3, so one doorbell announces them all. Until then, only a receiver that polls the ring
//! sees them; a receiver that stops polling meanwhile is notified by the doorbell.
//!
//! Without the fences both loads could miss: the sender's store of the commit word and the
//! receiver's store of the mark may each wait in a store buffer while the other side's word is
//! loaded (R3 before S1 is visible, S3 before R1 is visible). The message would then stay in the
//! ring forever. Both fences are sequentially consistent, so whichever comes second sees the other
//! side's store: either R3 finds the message, or S3 finds the mark and the sender sets the bit.
//!
//! # Sleep
//!
//! A context whose completion queues are armed does not poll. It records this in its sleep note,
//! which peers map read-only, makes every ring cold, and relies on its
//! [`wake sockets`](super::wake_socket), one for each peer:
//!
//! ```text
//!  receiver                              sender, whose S3 has found the mark
//!  A1 asleep = 1                         B1 set the ready bit
//!  A2 fence                              B2 fence
//!  A3 take the ready bits of all peers   B3 load asleep; if it is 1, write the file
//!  A4 make each hot ring cold: R1 R2 R3
//!  A5 wait for the files
//! ```
//!
//! No message is lost during sleep. If the sender's S3 finds a ring hot, then R3, in A4, finds its
//! message, as above. If S3 finds it cold, the sender continues with B1, and the two fences order
//! the rest: if A3 missed the bit *and* B3 missed the note, each side's load would have come before
//! the other side's store was visible. Two sequentially consistent fences between store and load
//! rule that out.
//!
//! While the note is set, A3 and A4 may be repeated without A1 and A2: if a sender's B3 misses the
//! note, its fence comes before A2, so every load after A2 sees its bit. A woken thread empties the
//! file *before* A3. A sender whose write is emptied has set its bit before, so A3 finds the bit; a
//! later write remains for the next wait. In the opposite order, emptying the file could discard
//! the write for a bit that was set after A3.
//!
//! Senders can only read the note. If they cleared it, so that only one of many senders writes the
//! file, a sender that was killed or stopped between the two steps would leave the other senders'
//! messages unnoticed. So a sleeper may be notified more than once before it resumes. None of this
//! is on the path of a message to a hot ring: B1 to B3 run only after S3 has found the mark.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use super::memory::Mapping;
use super::sync::{AtomicU32, AtomicU64, Ordering, fence};
use crate::hooks::point;

const HOT: u32 = 0;
const ARMED: u32 = 1;

/// A ring's mark. Only the ring's receiver writes it.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Mark(AtomicU32);

impl Mark {
    #[cfg(loom)]
    fn new() -> Self {
        Self(AtomicU32::new(HOT))
    }

    /// Executes R1 and R2: the receiver stops polling the ring. It must check the ring once more
    /// after this.
    pub(crate) fn arm(&self) {
        self.0.store(ARMED, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Records that the receiver polls the ring again: senders need not notify it.
    pub(crate) fn disarm(&self) {
        // Relaxed: a sender that still sees ARMED sets a bit needlessly.
        self.0.store(HOT, Ordering::Relaxed);
    }

    /// Executes S2 and S3, once per batch of messages: returns true if the receiver has to be
    /// notified.
    #[inline]
    pub(crate) fn is_armed_after_commit(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) == ARMED
    }
}

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;

/// A context's note that it sleeps or is unattended. Only the context's process can write it. It has
/// its own memory: senders read it after setting a bit or committing a one-sided request.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct SleepNote {
    asleep: AtomicU32,
    /// Nonzero if no application thread polls the context. The handshake is the same as for a
    /// ring's mark, with the engine as the receiver: it writes the note, fences, and checks the
    /// rings once more before it sleeps.
    unattended: AtomicU32,
}

impl SleepNote {
    #[cfg(loom)]
    fn new() -> Self {
        Self {
            asleep: AtomicU32::new(AWAKE),
            unattended: AtomicU32::new(0),
        }
    }

    /// Leaves the context to the engine, which must check its rings once more after this.
    pub(crate) fn set_unattended(&self) {
        self.unattended.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Records that an application thread polls the context, or that the engine is working on it.
    pub(crate) fn set_attended(&self) {
        // Relaxed: a sender that sees this store late wakes the engine needlessly.
        self.unattended.store(0, Ordering::Relaxed);
    }

    /// Returns true if the engine has to be woken. Called after a commit and the fence of its
    /// notification.
    pub(crate) fn is_unattended_after_commit(&self) -> bool {
        fence(Ordering::SeqCst);
        self.unattended.load(Ordering::Relaxed) != 0
    }

    /// Executes A1 and A2. Before the context waits, it has to take its bits and make its rings
    /// cold.
    pub(crate) fn fall_asleep(&self) {
        self.asleep.store(ASLEEP, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Records that the context polls again.
    pub(crate) fn wake_up(&self) {
        // Relaxed: a sender that still sees ASLEEP writes the file needlessly.
        self.asleep.store(AWAKE, Ordering::Relaxed);
    }

    /// Executes B2 and B3: returns true if the context has to be woken.
    pub(crate) fn is_asleep_after_bit(&self) -> bool {
        fence(Ordering::SeqCst);
        self.asleep.load(Ordering::Relaxed) == ASLEEP
    }
}

/// Bits by which one peer marks the cold rings of one context that it has sent into: one bit per
/// queue pair, and a summary bit per word of bits, with all summaries in one cache line. Polls read
/// that line. No sender writes it while all traffic is on hot rings.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct ReadyBits<const WORDS: usize, const SUMMARIES: usize> {
    summaries: [AtomicU64; SUMMARIES],
    words: [AtomicU64; WORDS],
}

/// Maximum number of queue pairs of one domain: 64 bits × 64 words × 8 summary words, so that the
/// summaries fill exactly one cache line.
pub(crate) const MAX_READY: usize = 64 * 64 * 8;

/// Queue pairs whose bits have their summaries in one word.
pub(crate) const GROUP: usize = 64 * 64;

/// The bits of a whole domain, as laid out in its shared memory.
pub(crate) type DomainReadyBits = ReadyBits<{ MAX_READY / 64 }, { MAX_READY / GROUP }>;

/// The type of a value in shared memory: it consists of atomics, so all bit patterns are valid, and
/// its alignment is at most a page's.
///
/// # Safety
///
/// The type is as described.
pub(crate) unsafe trait InSharedMemory {}

// SAFETY: all fields of the type are atomics, and its alignment is 64 bytes, less than a page's.
unsafe impl InSharedMemory for DomainReadyBits {}
// SAFETY: all fields of the type are atomics, and its alignment is 64 bytes, less than a page's.
unsafe impl InSharedMemory for SleepNote {}

/// A value at the beginning of a mapping, which it keeps alive.
#[derive(Debug)]
pub(crate) struct Mapped<T> {
    value: NonNull<T>,
    mapping: Arc<Mapping>,
}

// SAFETY: the pointer is an address of the process, the same from every thread. `new` is the only
// constructor, and its types are atomics.
unsafe impl<T: InSharedMemory> Send for Mapped<T> {}
// SAFETY: a shared reference only gives access to the value, which consists of atomics, as the
// implementation of `InSharedMemory` promises.
unsafe impl<T: InSharedMemory> Sync for Mapped<T> {}

impl<T: InSharedMemory> Mapped<T> {
    /// Returns `None` if the memory is too short for the value.
    pub(crate) fn new(mapping: Arc<Mapping>) -> Option<Self> {
        (mapping.len() >= size_of::<T>()).then(|| Self {
            value: mapping.start().cast(),
            mapping,
        })
    }
}

#[cfg(all(any(test, fuzzing), not(loom)))]
impl<T> Mapped<T> {
    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }
}

impl<T> Clone for Mapped<T> {
    fn clone(&self) -> Self {
        Self {
            value: self.value,
            mapping: Arc::clone(&self.mapping),
        }
    }
}

impl<T: InSharedMemory> Deref for Mapped<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: `new` checked that the memory is long enough, and mmap aligned it to a page; it
        // lives as long as `self`. `T` consists of atomics, for which all bit patterns are valid.
        unsafe { self.value.as_ref() }
    }
}

impl<const WORDS: usize, const SUMMARIES: usize> ReadyBits<WORDS, SUMMARIES> {
    #[cfg(any(test, loom))]
    fn new() -> Self {
        Self {
            summaries: std::array::from_fn(|_| AtomicU64::new(0)),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Returns true if any bit of the first group is set. A plain load: a swap
    /// would take exclusive ownership of the cache line at each poll.
    #[inline]
    pub(crate) fn has_any_in_first_group(&self) -> bool {
        self.summaries[0].load(Ordering::Relaxed) != 0
    }

    /// Executes B1 on the sender's side: sets a bit. Ignores an index out of range, which only a
    /// faulty peer could have supplied.
    pub(crate) fn set(&self, index: usize) {
        let word = index / 64;
        let (Some(bits), Some(summary)) = (self.words.get(word), self.summaries.get(word / 64))
        else {
            return;
        };
        // The bit is set before its summary, and the receiver takes them in the opposite order: if
        // it misses this bit, the summary bit is set after it took the summary, and a later look
        // finds it. Release: a receiver that takes the bit sees the commit.
        bits.fetch_or(1 << (index % 64), Ordering::Release);
        point!(Summary);
        summary.fetch_or(1 << (word % 64), Ordering::Release);
    }

    /// Takes the set bits of one word, if any bit of the groups that hold indices below `end` is
    /// set, and calls `found` for each: the work of a poll, bounded whatever the peer writes.
    #[inline]
    pub(crate) fn take_word(&self, end: usize, found: impl FnMut(usize)) {
        for (group, summary) in self.groups(end) {
            // A plain load first, as in `has_any_in_first_group`.
            let words = summary.load(Ordering::Relaxed);
            if words != 0 {
                let word = words.trailing_zeros() as usize;
                // Acquire: pairs with the summary's `fetch_or`, so that its bit is visible below.
                summary.fetch_and(!(1 << word), Ordering::Acquire);
                return self.take_bits(group * 64 + word, found);
            }
        }
    }

    /// Takes all set bits of the groups that hold indices below `end`, and calls `found` for each.
    /// A bit that is set meanwhile may remain; each word is taken at most once.
    #[inline]
    pub(crate) fn take(&self, end: usize, mut found: impl FnMut(usize)) {
        for (group, summary) in self.groups(end) {
            if summary.load(Ordering::Relaxed) == 0 {
                continue;
            }
            // Acquire: as in `take_word`.
            let mut words = summary.swap(0, Ordering::Acquire);
            while words != 0 {
                let word = group * 64 + words.trailing_zeros() as usize;
                words &= words - 1;
                self.take_bits(word, &mut found);
            }
        }
    }

    fn groups(&self, end: usize) -> impl Iterator<Item = (usize, &AtomicU64)> {
        self.summaries.iter().take(end.div_ceil(GROUP)).enumerate()
    }

    fn take_bits(&self, word: usize, mut found: impl FnMut(usize)) {
        point!(TakeBits);
        let Some(bits) = self.words.get(word) else {
            return;
        };
        let mut bits = bits.swap(0, Ordering::Acquire);
        while bits != 0 {
            found(word * 64 + bits.trailing_zeros() as usize);
            bits &= bits - 1;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_bit_is_taken_once_and_names_its_index() {
        let ready = Box::new(DomainReadyBits::new());
        let set = [0, 63, 64, 4095, 4096, MAX_READY - 1];
        for index in set {
            ready.set(index);
        }
        ready.set(MAX_READY);
        ready.set(usize::MAX);
        let mut taken = Vec::new();
        ready.take(MAX_READY, |index| taken.push(index));
        assert_eq!(taken, set);
        ready.take(MAX_READY, |index| panic!("{index} was taken already"));
    }

    #[test]
    fn one_word_is_taken_at_a_time_until_none_is_left() {
        let ready = Box::new(DomainReadyBits::new());
        let set = [3, 5, 64, 4096];
        for index in set {
            ready.set(index);
        }
        let mut taken = Vec::new();
        let mut looks = 0;
        while taken.len() < set.len() {
            ready.take_word(2 * GROUP, |index| taken.push(index));
            looks += 1;
        }
        assert_eq!((taken, looks), (set.to_vec(), 3));
        ready.take_word(MAX_READY, |index| panic!("{index} was taken already"));
    }

    /// Whatever a peer writes, a look ends: it takes one word.
    #[test]
    fn a_storm_of_bits_costs_a_look_one_word() {
        let ready = Box::new(DomainReadyBits::new());
        for summary in &ready.summaries {
            summary.store(u64::MAX, Ordering::Relaxed);
        }
        for word in &ready.words {
            word.store(u64::MAX, Ordering::Relaxed);
        }
        let mut found = 0;
        ready.take_word(MAX_READY, |_| found += 1);
        assert_eq!(found, 64);
    }

    #[test]
    fn all_summaries_share_one_cache_line() {
        assert_eq!(std::mem::offset_of!(DomainReadyBits, words), 64);
    }
}

#[cfg(all(test, loom))]
mod loom_models;
