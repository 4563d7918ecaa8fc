//! How a sender reaches a receiver that no longer polls its ring.
//!
//! A poller directly polls a few *hot* rings. A ring that stays empty becomes *cold*: its receiver
//! arms a mark in the ring, and from then on relies on the ring's bit in the domain's
//! [`ReadyBits`].
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
//! A context whose completion queues are armed does not poll. It records this in a sleep note
//! beside its ready bits, makes every ring cold, and relies on its
//! [`EventFd`](crate::event_fd::EventFd):
//!
//! ```text
//!  receiver                              sender, whose S3 has found the mark
//!  A1 asleep = 1                         B1 set the ready bit
//!  A2 fence                              B2 fence
//!  A3 take the ready bits                B3 load asleep; if it is 1, write the file
//!  A4 make each hot ring cold: R1 R2 R3
//!  A5 wait for the file
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
//! Senders only read the note. If they cleared it, so that only one of many senders writes the
//! file, a sender that was killed or stopped between the two steps would leave the other senders'
//! messages unnoticed. So a sleeper may be notified more than once before it resumes. None of this
//! is on the path of a message to a hot ring: B1 to B3 run only after S3 has found the mark.

use std::ops::Deref;
use std::sync::Arc;

use super::memory::SharedMemory;
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

/// A context's note that it sleeps or is unattended. Only the context's process writes it. It has
/// its own cache line: senders read it after setting a bit or committing a one-sided request.
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
    #[cfg(any(test, loom))]
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
    fn is_asleep_after_bit(&self) -> bool {
        fence(Ordering::SeqCst);
        self.asleep.load(Ordering::Relaxed) == ASLEEP
    }
}

/// Bits of a domain that mark its cold rings with new messages: one bit per queue pair, and a
/// summary bit per word of bits, with all summaries in one cache line. A poll reads that line. No
/// sender writes it while all traffic is on hot rings.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct ReadyBits<const WORDS: usize, const SUMMARIES: usize> {
    summaries: [AtomicU64; SUMMARIES],
    pub(crate) note: SleepNote,
    words: [AtomicU64; WORDS],
}

/// Maximum number of queue pairs of one domain: 64 bits × 64 words × 8 summary words, so that the
/// summaries fill exactly one cache line.
pub(crate) const MAX_READY: usize = 64 * 64 * 8;

/// Queue pairs whose bits have their summaries in one word.
pub(crate) const GROUP: usize = 64 * 64;

/// The bits of a whole domain, as laid out in its shared memory.
pub(crate) type DomainReadyBits = ReadyBits<{ MAX_READY / 64 }, { MAX_READY / GROUP }>;

/// The ready bits of a context of this process.
#[derive(Debug)]
pub(crate) struct OwnReadyBits(Arc<SharedMemory>);

impl OwnReadyBits {
    /// Adopts memory that is at least as long as the bits.
    pub(crate) fn new(memory: Arc<SharedMemory>) -> Self {
        assert!(memory.mapping.len() >= size_of::<DomainReadyBits>());
        Self(memory)
    }
}

impl Deref for OwnReadyBits {
    type Target = DomainReadyBits;

    #[inline]
    fn deref(&self) -> &DomainReadyBits {
        // SAFETY: `new` checked that the memory is long enough; mmap aligned it to a page, and it
        // lives as long as `self`. The bits are atomics, for which all bit patterns are valid.
        unsafe { self.0.mapping.start().cast().as_ref() }
    }
}

impl<const WORDS: usize, const SUMMARIES: usize> ReadyBits<WORDS, SUMMARIES> {
    #[cfg(any(test, loom))]
    fn new() -> Self {
        Self {
            summaries: std::array::from_fn(|_| AtomicU64::new(0)),
            note: SleepNote::new(),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Returns true if any bit of the first group is set. A plain load: a swap
    /// would take exclusive ownership of the cache line at each poll.
    #[inline]
    pub(crate) fn has_any_in_first_group(&self) -> bool {
        self.summaries[0].load(Ordering::Relaxed) != 0
    }

    /// Executes the sender's side, B1 to B3: sets the bit and returns true if the receiver has to
    /// be woken.
    pub(crate) fn announce(&self, index: usize) -> bool {
        self.set(index);
        self.note.is_asleep_after_bit()
    }

    /// Sets a bit. Ignores an index out of range, which only a faulty peer could have supplied.
    fn set(&self, index: usize) {
        let word = index / 64;
        let (Some(bits), Some(summary)) = (self.words.get(word), self.summaries.get(word / 64))
        else {
            return;
        };
        // The bit is set before its summary, and the receiver takes them in the opposite order: if
        // it misses this bit, the summary bit is set after it took the summaries, and its next poll
        // finds it. Release: a receiver that takes the bit sees the commit.
        bits.fetch_or(1 << (index % 64), Ordering::Release);
        point!(Summary);
        summary.fetch_or(1 << (word % 64), Ordering::Release);
    }

    /// Executes the receiver's side: takes all set bits of the groups that hold indices below
    /// `end`, and calls `found` for each.
    #[inline]
    pub(crate) fn take(&self, end: usize, mut found: impl FnMut(usize)) {
        let groups = end.div_ceil(GROUP);
        for (group, summary) in self.summaries.iter().take(groups).enumerate() {
            // A plain load first, as in `has_any_in_first_group`.
            if summary.load(Ordering::Relaxed) == 0 {
                continue;
            }
            // Acquire: pairs with the summary's `fetch_or`, so that its bit is visible below.
            let mut words = summary.swap(0, Ordering::Acquire);
            while words != 0 {
                let word = group * 64 + words.trailing_zeros() as usize;
                words &= words - 1;
                point!(TakeBits);
                let Some(bits) = self.words.get(word) else {
                    break;
                };
                let mut bits = bits.swap(0, Ordering::Acquire);
                while bits != 0 {
                    found(word * 64 + bits.trailing_zeros() as usize);
                    bits &= bits - 1;
                }
            }
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
    fn all_summaries_share_one_cache_line_and_the_note_has_its_own() {
        assert_eq!(std::mem::offset_of!(DomainReadyBits, note), 64);
        assert_eq!(std::mem::offset_of!(DomainReadyBits, words), 128);
    }
}

#[cfg(all(test, loom))]
mod loom_models;
