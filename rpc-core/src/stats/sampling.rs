//! Which calls are timed: [`Sampling`] chooses among those of a method, and [`is_timed_here`] among
//! those that a thread makes through shared channels.
//!
//! Either gives every call the same chance, independent of the order in which a program makes its
//! calls. A fixed distance would time only slow calls of a program of which every 16th call is slow,
//! and only one of two methods that are called in turn.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::counter::Gauge;

/// Times one of each `one_in` calls, at a random place among them. One thread calls it.
pub(crate) struct Sampling {
    /// The number of the next call that is timed, counted from 0.
    next: Gauge,
    one_in: u64,
    random: Gauge,
}

impl Sampling {
    /// Times every call if `one_in` is 1, and none if it is 0.
    pub(crate) fn new(one_in: u32) -> Self {
        let sampling = Self {
            next: Gauge::default(),
            one_in: one_in.into(),
            random: Gauge::default(),
        };
        sampling.random.set(random_seed());
        let first = if one_in == 0 {
            u64::MAX
        } else {
            sampling.place()
        };
        sampling.next.set(first);
        sampling
    }

    /// Returns true if the call with this number, which follows on that of the latest call, is timed.
    #[inline]
    pub(crate) fn is_timed(&self, call: u64) -> bool {
        call == self.next.get() && self.choose_next(call)
    }

    /// Chooses the next call after `call`. Returns true.
    #[cold]
    fn choose_next(&self, call: u64) -> bool {
        let next_group = (call / self.one_in).wrapping_add(1);
        let first = next_group.wrapping_mul(self.one_in);
        self.next.set(first.wrapping_add(self.place()));
        true
    }

    /// Returns a random number below `one_in`.
    fn place(&self) -> u64 {
        let random = next_random(self.random.get());
        self.random.set(random);
        scaled(random, self.one_in)
    }
}

thread_local! {
    /// 0 before the thread's first call.
    static RANDOM: Cell<u64> = const { Cell::new(0) };
}

/// Returns true if this call through a shared channel is timed: one in `one_in` on average. Each thread
/// chooses for itself, because the threads share no counter.
#[inline]
pub(crate) fn is_timed_here(one_in: u32) -> bool {
    RANDOM.with(|state| {
        let mut random = state.get();
        if random == 0 {
            random = random_seed();
        }
        random = next_random(random);
        state.set(random);
        one_in > 0 && scaled(random, one_in.into()) == 0
    })
}

/// Returns the state that follows in a linear congruential generator (Knuth, "The Art of Computer
/// Programming", volume 2, 3.3.4). Its upper half is the random one.
#[inline]
fn next_random(state: u64) -> u64 {
    state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407)
}

/// Returns a number below `end`, each with the same chance. `end` has 32 bits.
#[inline]
fn scaled(random: u64, end: u64) -> u64 {
    ((random >> 32) * end) >> 32
}

/// Returns another number each time, so that no two threads, methods or processes choose alike: a
/// process that makes ten calls may be started every minute.
#[cold]
fn random_seed() -> u64 {
    static OF_PROCESS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    static TAKEN: AtomicU64 = AtomicU64::new(0);
    OF_PROCESS.hash_one(TAKEN.fetch_add(1, Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Numbers of the timed calls among the first `calls`.
    fn timed(one_in: u32, calls: u64) -> Vec<u64> {
        let sampling = Sampling::new(one_in);
        (0..calls).filter(|&call| sampling.is_timed(call)).collect()
    }

    #[test]
    fn one_of_each_group_is_timed() {
        for one_in in [1, 2, 7, 32, 1000] {
            let timed = timed(one_in, 100 * u64::from(one_in));
            let groups: Vec<_> = timed.iter().map(|call| call / u64::from(one_in)).collect();
            assert_eq!(groups, Vec::from_iter(0..100), "1 in {one_in}");
        }
        assert_eq!(timed(1, 5), [0, 1, 2, 3, 4]);
        assert_eq!(timed(0, 1000), []);
    }

    /// For each period, every place in it is timed as often as any other, within six standard
    /// deviations.
    #[test]
    fn no_order_of_calls_meets_the_same_ones_again_and_again() {
        const SAMPLES: u64 = 10_000;
        let of_method = timed(32, 32 * SAMPLES);
        let of_thread: Vec<_> = (0..32 * SAMPLES).filter(|_| is_timed_here(32)).collect();
        for (timed, name) in [(of_method, "method"), (of_thread, "thread")] {
            for period in [2, 3, 16, 21, 31, 32, 33, 34, 64, 96, 1024] {
                let mut counts = vec![0u64; period];
                for call in &timed {
                    counts[*call as usize % period] += 1;
                }
                let expected = SAMPLES as f64 / period as f64;
                for count in counts {
                    let deviation = (count as f64 - expected).abs();
                    assert!(
                        deviation < 6.0 * expected.sqrt() + 6.0,
                        "{name}, period {period}: {count} instead of {expected}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_thread_that_makes_few_calls_is_timed_as_often_as_others() {
        let timed = |_| thread::spawn(|| (0..4).filter(|_| is_timed_here(4)).count());
        let timed: usize = (0..1000).map(|n| timed(n).join().unwrap()).sum();
        assert!((800..1200).contains(&timed), "{timed} of 4,000 calls");
        assert!((0..100).all(|_| is_timed_here(1)));
        assert!(!(0..100).any(|_| is_timed_here(0)));
    }
}
