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

/// The bits of a whole domain, as laid out in its shared memory.
pub(crate) type DomainReadyBits = ReadyBits<{ MAX_READY / 64 }, { MAX_READY / 64 / 64 }>;

impl<const WORDS: usize, const SUMMARIES: usize> ReadyBits<WORDS, SUMMARIES> {
    #[cfg(any(test, loom))]
    fn new() -> Self {
        Self {
            summaries: std::array::from_fn(|_| AtomicU64::new(0)),
            note: SleepNote::new(),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
        }
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
        let groups = end.div_ceil(64 * 64);
        for (group, summary) in self.summaries.iter().take(groups).enumerate() {
            // A plain load first: a swap would take exclusive ownership of the cache line at each
            // poll.
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
mod loom_models {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::provider::soft::shared::commit::*;

    struct Shared {
        message: AtomicU64,
        mark: Mark,
        ready: ReadyBits<1, 1>,
    }

    /// A receiver makes a ring cold while a sender sends: at least one of them notices the other.
    #[test]
    fn loom_cold_ring_loses_no_message() {
        let _ = Flags::default();
        loom::model(|| {
            let shared = Arc::new(Shared {
                message: AtomicU64::new(0),
                mark: Mark::new(),
                ready: ReadyBits::new(),
            });
            let sender = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    shared.message.store(1, Ordering::Release);
                    if shared.mark.is_armed_after_commit() {
                        shared.ready.set(5);
                    }
                })
            };
            shared.mark.arm();
            let seen_directly = shared.message.load(Ordering::Acquire) == 1;
            sender.join().unwrap();
            let mut told = false;
            shared.ready.take(64, |index| told |= index == 5);
            assert!(seen_directly || told, "the message lies there for ever");
        });
    }

    /// The engine attends to a context that no thread polls and leaves it again while a one-sided
    /// request arrives: the engine sees the request or is woken for it.
    #[test]
    fn loom_unattended_context_loses_no_request() {
        loom::model(|| {
            let shared = Sleeping::new();
            shared.ready.note.set_unattended();
            let sender = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    shared.message.store(1, Ordering::Release);
                    if shared.ready.note.is_unattended_after_commit() {
                        shared.file.fetch_add(1, Ordering::Relaxed);
                    }
                })
            };
            // The engine was woken for an earlier request.
            shared.ready.note.set_attended();
            shared.message.load(Ordering::Acquire);
            shared.ready.note.set_unattended();
            let is_seen = shared.message.load(Ordering::Acquire) == 1;
            sender.join().unwrap();
            let is_called = shared.file.load(Ordering::Relaxed) > 0;
            assert!(is_seen || is_called, "the request waits for the next tick");
        });
    }

    /// State shared by a sleeper and a sender; `file` stands for the eventfd.
    struct Sleeping {
        message: AtomicU64,
        mark: Mark,
        ready: ReadyBits<1, 1>,
        file: AtomicU64,
    }

    impl Sleeping {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                message: AtomicU64::new(0),
                mark: Mark::new(),
                ready: ReadyBits::new(),
                file: AtomicU64::new(0),
            })
        }

        fn send(&self, number: u64) {
            self.message.store(number, Ordering::Release);
            if self.mark.is_armed_after_commit() && self.ready.announce(5) {
                self.file.fetch_add(1, Ordering::Relaxed);
            }
        }

        /// Executes A3 and A4 in the order of the code: returns the newest message that this look
        /// found, and leaves the ring cold.
        fn peek_and_cool(&self) -> u64 {
            self.ready.take(64, |_| self.mark.disarm());
            self.mark.arm();
            self.message.load(Ordering::Acquire)
        }
    }

    /// A receiver falls asleep while a sender sends: it has seen the message, or its file is
    /// written.
    #[test]
    fn loom_sleeper_is_woken_for_every_message() {
        loom::model(|| {
            let shared = Sleeping::new();
            let sender = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.send(1))
            };
            shared.ready.note.fall_asleep();
            let seen = shared.peek_and_cool() == 1;
            sender.join().unwrap();
            let woken = shared.file.load(Ordering::Relaxed) > 0;
            assert!(seen || woken, "the message is slept through");
        });
    }

    /// As above, with a ring that has long been cold: its mark orders nothing; only A2 and B2 do.
    #[test]
    fn loom_sleeper_is_woken_for_every_message_of_a_cold_ring() {
        loom::model(|| {
            let shared = Sleeping::new();
            shared.mark.arm();
            let sender = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.send(1))
            };
            shared.ready.note.fall_asleep();
            let mut seen = false;
            shared.ready.take(64, |_| seen = true);
            sender.join().unwrap();
            let woken = shared.file.load(Ordering::Relaxed) > 0;
            assert!(seen || woken, "the message is slept through");
        });
    }

    /// A sleeping receiver is woken by the first message, looks, and goes back to sleep while the
    /// second is sent.
    #[test]
    fn loom_sleeper_that_was_woken_sleeps_again_without_losing_a_message() {
        loom::model(|| {
            let shared = Sleeping::new();
            shared.ready.note.fall_asleep();
            shared.peek_and_cool();
            let sender = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    shared.send(1);
                    shared.send(2);
                })
            };
            // The file is emptied first; only then does the receiver look.
            let was_woken = shared.file.swap(0, Ordering::Relaxed) > 0;
            let seen = shared.peek_and_cool();
            sender.join().unwrap();
            let woken = shared.file.load(Ordering::Relaxed) > 0;
            assert!(
                seen == 2 || woken,
                "message 2 is slept through (seen {seen}, woken before: {was_woken})"
            );
        });
    }

    /// Bits that are set while bits are being taken are found then or at the next take.
    #[test]
    fn loom_ready_bit_is_not_lost_while_bits_are_taken() {
        loom::model(|| {
            let ready = Arc::new(ReadyBits::<1, 1>::new());
            let sender = {
                let ready = Arc::clone(&ready);
                thread::spawn(move || {
                    ready.set(1);
                    ready.set(2);
                })
            };
            let mut taken = 0_u64;
            ready.take(64, |index| taken |= 1 << index);
            sender.join().unwrap();
            ready.take(64, |index| taken |= 1 << index);
            assert_eq!(taken, 0b110);
        });
    }
}
