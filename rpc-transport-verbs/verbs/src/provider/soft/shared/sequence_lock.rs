//! A record in shared memory that one process writes and others read without a lock.
//!
//! ```text
//!  owner                                reader
//!  W1 sequence = odd                    R1 load sequence: if it is odd, the record changes
//!  W2 fence                             R2 load the words
//!  W3 store the words                   R3 fence, load sequence: the words are of one write
//!  W4 sequence = next even              R4 use what the words name: copy the memory
//!  W5 fence                             R5 fence, load sequence: what R4 read is valid
//!  W6 reuse what the words named
//! ```
//!
//! If R2 reads a word of a later write than R1, W2 comes before R3, and R3 sees another sequence
//! than R1. If R4 reads a byte that W6 wrote, W5 comes before R5, and R5 sees another sequence than
//! R1. W5 also makes the sequence visible before the owner's next step, whatever kind of store that
//! step uses: an R5 that runs after `write` has returned rejects the bytes that R4 has read by the
//! old words.
//!
//! A reader never waits for an owner: an owner that is stopped between W1 and W4 leaves an odd
//! sequence behind, and `read` gives up after a few attempts.

use super::sync::{AtomicU64, Ordering, fence};

/// Attempts to read a record that its owner writes at the same time.
const ATTEMPTS: usize = 4;

/// A record of `N` words. All bit patterns are valid; zeroed memory is a record of zeros.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Record<const N: usize> {
    sequence: AtomicU64,
    words: [AtomicU64; N],
}

/// Identifies one state of a record: the record's sequence while the state holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp(u64);

impl<const N: usize> Record<N> {
    #[cfg(test)]
    pub(crate) fn new() -> Self {
        Self {
            sequence: AtomicU64::new(0),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Executes W1 to W5. Only the owner calls this, on one thread at a time.
    pub(crate) fn write(&self, words: [u64; N]) {
        // Relaxed: only this side writes the sequence.
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence
            .store(sequence.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        for (to, word) in self.words.iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
        self.sequence
            .store(sequence.wrapping_add(2), Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Executes R1 to R3. Returns `None` if the owner keeps changing the record. Everything that
    /// is returned is a claim of the owner.
    #[inline]
    pub(crate) fn read(&self) -> Option<([u64; N], Stamp)> {
        for _ in 0..ATTEMPTS {
            // Acquire: pairs with W4, so that R2 reads the words of this write or of a later one.
            let stamp = Stamp(self.sequence.load(Ordering::Acquire));
            let words = std::array::from_fn(|at| self.words[at].load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if stamp.0.is_multiple_of(2) && self.sequence.load(Ordering::Relaxed) == stamp.0 {
                return Some((words, stamp));
            }
            #[cfg(not(loom))]
            std::hint::spin_loop();
        }
        None
    }

    /// Executes R5, after a copy: returns true if the state of the stamp has held until the copy
    /// ended.
    #[inline]
    pub(crate) fn holds_after_copy(&self, stamp: Stamp) -> bool {
        fence(Ordering::SeqCst);
        self.sequence.load(Ordering::Relaxed) == stamp.0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_write_ends_the_state_before_it_even_if_the_words_are_the_same() {
        let record = Record::<2>::new();
        let (zeros, empty) = record.read().unwrap();
        assert_eq!(zeros, [0, 0]);
        record.write([7, 8]);
        assert!(!record.holds_after_copy(empty));
        let (words, first) = record.read().unwrap();
        assert_eq!(words, [7, 8]);
        assert!(record.holds_after_copy(first));
        record.write([7, 8]);
        assert!(!record.holds_after_copy(first));
    }

    /// An owner that was stopped or killed in the middle of a write blocks no reader.
    #[test]
    fn a_record_that_is_being_written_is_given_up() {
        let record = Record::<1>::new();
        record.sequence.store(5, Ordering::Relaxed);
        assert!(record.read().is_none());
    }

    #[test]
    fn the_sequence_may_wrap() {
        let record = Record::<1>::new();
        record.sequence.store(u64::MAX - 1, Ordering::Relaxed);
        let (_, stamp) = record.read().unwrap();
        record.write([3]);
        assert!(!record.holds_after_copy(stamp));
        assert_eq!(record.read().unwrap().0, [3]);
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, Ordering};
    use loom::thread;

    use super::Record;

    /// The words of a record that is read are those of one write.
    #[test]
    fn loom_a_record_is_read_whole() {
        loom::model(|| {
            let record = Arc::new(Record::<2>::new());
            let owner = {
                let record = Arc::clone(&record);
                thread::spawn(move || record.write([1, 1]))
            };
            if let Some(([first, second], _)) = record.read() {
                assert_eq!(first, second);
            }
            owner.join().unwrap();
        });
    }

    /// The owner withdraws a record and reuses the two words of memory that the record named. A
    /// reader whose stamp holds after the copy has copied both words unchanged.
    #[test]
    fn loom_a_copy_by_a_withdrawn_record_is_found_void() {
        loom::model(|| {
            let record = Arc::new(Record::<1>::new());
            record.write([1]);
            let memory = Arc::new([AtomicU64::new(1), AtomicU64::new(1)]);
            let owner = {
                let (record, memory) = (Arc::clone(&record), Arc::clone(&memory));
                thread::spawn(move || {
                    record.write([0]);
                    for word in &*memory {
                        word.store(2, Ordering::Relaxed);
                    }
                })
            };
            if let Some(([1], stamp)) = record.read() {
                // In reverse order: a copy may read its bytes in any order.
                let second = memory[1].load(Ordering::Relaxed);
                let first = memory[0].load(Ordering::Relaxed);
                if record.holds_after_copy(stamp) {
                    assert_eq!((first, second), (1, 1));
                }
            }
            owner.join().unwrap();
        });
    }

    /// After `write` has returned, no copy by the old words is accepted, even if the reader learns
    /// of the return by nothing but another word.
    #[test]
    fn loom_no_copy_is_accepted_after_a_withdrawal() {
        loom::model(|| {
            let record = Arc::new(Record::<1>::new());
            record.write([1]);
            let (_, stamp) = record.read().unwrap();
            let withdrawn = Arc::new(AtomicU64::new(0));
            let owner = {
                let (record, withdrawn) = (Arc::clone(&record), Arc::clone(&withdrawn));
                thread::spawn(move || {
                    record.write([0]);
                    withdrawn.store(1, Ordering::Relaxed);
                })
            };
            let was_withdrawn = withdrawn.load(Ordering::Relaxed) == 1;
            let is_accepted = record.holds_after_copy(stamp);
            assert!(!(was_withdrawn && is_accepted));
            owner.join().unwrap();
        });
    }
}
