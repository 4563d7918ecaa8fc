//! [`Marks`]: which channels of a poller have work from other threads, one bit for each.
//!
//! ```text
//!  poller                                    another thread with work for a channel
//!  swap the word for 0                       store the work
//!  look at the channels of its bits          set the channel's bit
//!                                            wake the poller if it sleeps (`driver/wakeup.rs`)
//! ```
//!
//! Both sides change a word by read-modify-write operations, which have one order. If the bit comes
//! before the poller's swap, the swap releases the work to the poller. If it comes after, it stays
//! until the next turn. For the sleep protocol, a bit is the work: it is set before the fence of
//! [`Wakeup::notify`](crate::driver::wakeup::Wakeup::notify), and the poller checks the words after
//! its own fence.
//!
//! A bit is only a hint: a channel may have no work, or may be gone, and its bit may be that of a
//! later channel.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A set of channels, by their numbers at the poller.
#[derive(Debug)]
pub(super) struct Marks {
    words: Box<[AtomicU64]>,
    /// The number of words that channels have used so far: the poller reads no others.
    used: AtomicUsize,
}

impl Marks {
    /// Creates an empty set for channels with numbers below `channels`.
    pub(super) fn new(channels: u32) -> Self {
        let words = channels.div_ceil(u64::BITS).max(1);
        Self {
            words: (0..words).map(|_| AtomicU64::new(0)).collect(),
            used: AtomicUsize::new(0),
        }
    }

    /// Lets the poller look for a channel from now on. Called before the channel is first marked, by
    /// the thread that marks it or by one that it has synchronized with: the fence that follows the
    /// mark publishes this too.
    pub(super) fn include(&self, channel: u32) {
        let used = (channel / u64::BITS) as usize + 1;
        self.used.fetch_max(used, Ordering::Relaxed);
    }

    /// Adds a channel. Called after its work was stored.
    #[inline]
    pub(super) fn set(&self, channel: u32) {
        let bit = 1 << (channel % u64::BITS);
        // Release: the work was stored before.
        self.words[(channel / u64::BITS) as usize].fetch_or(bit, Ordering::Release);
    }

    /// Returns true if there are any.
    #[inline]
    pub(super) fn any(&self) -> bool {
        match self.words() {
            // Most pollers have few channels.
            0 | 1 => self.words[0].load(Ordering::Relaxed) != 0,
            used => self.any_within(used),
        }
    }

    #[cold]
    fn any_within(&self, used: usize) -> bool {
        let mut used = self.words.iter().take(used);
        used.any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Returns the number of channels in the set.
    pub(super) fn count(&self) -> u32 {
        let used = self.words.iter().take(self.words());
        used.map(|word| word.load(Ordering::Relaxed).count_ones())
            .sum()
    }

    /// Returns the number of words that may contain channels.
    #[inline]
    pub(super) fn words(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Takes the channels of one word out of the set.
    #[inline]
    pub(super) fn take(&self, word: usize) -> Taken {
        // The load keeps the cache line shared while there is no work.
        let bits = match self.words[word].load(Ordering::Relaxed) {
            0 => 0,
            // Acquire: the work of these channels was stored before their bits.
            _ => self.words[word].swap(0, Ordering::Acquire),
        };
        let first = word as u32 * u64::BITS;
        Taken { first, bits }
    }
}

/// The channels of one word.
pub(super) struct Taken {
    first: u32,
    bits: u64,
}

impl Iterator for Taken {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        if self.bits == 0 {
            return None;
        }
        let bit = self.bits.trailing_zeros();
        self.bits &= self.bits - 1;
        Some(self.first + bit)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn whatever_is_marked_is_taken_once(channels in proptest::collection::btree_set(0u32..300, 0..40)) {
            let marks = Marks::new(300);
            prop_assert!(!marks.any());
            for &channel in &channels {
                marks.include(channel);
                marks.set(channel);
                marks.set(channel);
            }
            prop_assert_eq!(marks.any(), !channels.is_empty());
            prop_assert_eq!(marks.count() as usize, channels.len());
            let taken: Vec<u32> = (0..marks.words()).flat_map(|word| marks.take(word)).collect();
            prop_assert_eq!(taken, channels.into_iter().collect::<Vec<_>>());
            prop_assert!(!marks.any());
        }
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, Ordering};
    use loom::thread;

    use super::Marks;
    use crate::driver::wakeup::SleepFlag;

    /// Two callers bring work to two channels of one word while the poller takes what is marked and
    /// then goes to sleep. The poller finds the work, or the mark after it has announced its sleep,
    /// or one of the callers wakes it. Work whose mark was taken is visible.
    ///
    /// At most three switches between threads that could go on: all interleavings take hours.
    #[test]
    fn loom_work_whose_mark_is_taken_is_found_and_none_is_slept_through() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let marks = Arc::new(Marks::new(2));
            let sleep_flag = Arc::new(SleepFlag::new());
            let work = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
            let callers = [0, 1].map(|channel: u32| {
                let (marks, sleep_flag, work) = (marks.clone(), sleep_flag.clone(), work.clone());
                thread::spawn(move || {
                    marks.include(channel);
                    work[channel as usize].store(1, Ordering::Relaxed);
                    marks.set(channel);
                    sleep_flag.claim_wake()
                })
            });
            let mut found = 0;
            for channel in marks.take(0) {
                found += work[channel as usize].load(Ordering::Relaxed);
                assert_eq!(work[channel as usize].load(Ordering::Relaxed), 1);
            }
            sleep_flag.begin();
            let sees_more = marks.any();
            let woken = callers.map(|caller| caller.join().unwrap());
            assert!(found == 2 || sees_more || woken.contains(&true));
        });
    }

    /// Every interleaving of one caller, which marks a channel of a word that the poller knows, or the
    /// first one of the next word.
    #[test]
    fn loom_work_of_one_caller_is_not_slept_through() {
        for channel in [0, 64] {
            loom::model(move || {
                let marks = Arc::new(Marks::new(65));
                marks.include(0);
                let sleep_flag = Arc::new(SleepFlag::new());
                let work = Arc::new(AtomicU32::new(0));
                let caller = {
                    let (marks, sleep_flag, work) =
                        (marks.clone(), sleep_flag.clone(), work.clone());
                    thread::spawn(move || {
                        marks.include(channel);
                        work.store(1, Ordering::Relaxed);
                        marks.set(channel);
                        sleep_flag.claim_wake()
                    })
                };
                let taken: Vec<u32> = (0..marks.words())
                    .flat_map(|word| marks.take(word))
                    .collect();
                if !taken.is_empty() {
                    assert_eq!((taken, work.load(Ordering::Relaxed)), (vec![channel], 1));
                    caller.join().unwrap();
                    return;
                }
                sleep_flag.begin();
                let sees_more = marks.any();
                let woken = caller.join().unwrap();
                assert!(sees_more || woken);
            });
        }
    }
}
