//! [`Histogram`], into which one thread records, and [`Latencies`], its snapshot.
//!
//! Buckets are log-linear: each time below 16 ns has its own bucket, and each power of two above is
//! divided into 16 buckets of equal width. A bucket is at most 1/16 as wide as its lower bound and
//! is reported as its middle, so a percentile is off by at most **1/32, or 3.2 %**, and is exact
//! below 32 ns. Times beyond [`LONGEST`] are recorded as [`LONGEST`].

use std::fmt;
use std::time::Duration;

use super::counter::{Counter, Gauge};

/// Sixteen buckets per power of two.
const BITS: u32 = 4;

/// The longest time that is distinguished from longer ones, about 18 minutes. Times beyond it are
/// not the subject of a latency histogram.
pub const LONGEST: Duration = Duration::from_nanos((1 << MAX_BITS) - 1);

const MAX_BITS: u32 = 40;
const BUCKETS: usize = ((MAX_BITS - BITS + 1) << BITS) as usize;

/// Returns the bucket index of a time in nanoseconds.
#[inline]
fn bucket_of(ns: u64) -> usize {
    let ns = ns.min(LONGEST.as_nanos() as u64);
    let width_bits = (u64::BITS - ns.leading_zeros()).saturating_sub(BITS + 1);
    // The shifted time still has its leading bit, so it has `BITS + 1` bits and contributes one
    // more power of two: the buckets from 16 ns on follow those below 16 ns.
    ((width_bits as usize) << BITS) + (ns >> width_bits) as usize
}

/// Returns a bucket's lower bound and its width, in nanoseconds.
fn bucket(index: usize) -> (u64, u64) {
    let width_bits = (index >> BITS).saturating_sub(1);
    let least = (index - (width_bits << BITS)) as u64;
    (least << width_bits, 1 << width_bits)
}

/// A histogram of times, recorded by a poller. Takes 4.7 KiB.
pub(crate) struct Histogram {
    buckets: Box<[Counter]>,
    sum_ns: Counter,
    max_ns: Gauge,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            buckets: (0..BUCKETS).map(|_| Counter::default()).collect(),
            sum_ns: Counter::default(),
            max_ns: Gauge::default(),
        }
    }
}

impl Histogram {
    /// Records a time. Only the writing thread may call this.
    pub(crate) fn record(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket_of(ns)].add(1);
        self.sum_ns.add(ns);
        if ns > self.max_ns.get() {
            self.max_ns.set(ns);
        }
    }

    /// Returns a snapshot. May be called from any thread.
    pub(crate) fn read(&self) -> Latencies {
        Latencies {
            // Read before the buckets, so that the highest bucket is at least this value.
            max_ns: self.max_ns.get(),
            sum_ns: self.sum_ns.get(),
            buckets: trimmed(self.buckets.iter().map(Counter::get).collect()),
        }
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.read(), f)
    }
}

/// The latencies of the calls that were timed: see
/// [`Intents::latency_sampling`](crate::Intents::latency_sampling).
///
/// Percentiles are off by at most 1/32 of their value.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Latencies {
    /// Counts per bucket, up to the last nonempty bucket.
    buckets: Vec<u64>,
    sum_ns: u64,
    max_ns: u64,
}

impl Latencies {
    /// Returns the number of calls that were timed.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Returns the time that the given share of the calls did not exceed: `0.5` for the median.
    /// Returns `None` if no call was timed.
    #[must_use]
    pub fn percentile(&self, share: f64) -> Option<Duration> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        // The cast back is lossless: the rank is at most `count`, because shares end at 1.
        let rank = ((share.clamp(0.0, 1.0) * count as f64).ceil() as u64).clamp(1, count);
        let mut seen = 0;
        let index = self.buckets.iter().position(|&in_bucket| {
            seen += in_bucket;
            seen >= rank
        })?;
        Some(Duration::from_nanos(self.middle(index)))
    }

    /// Returns the longest time of the calls that were timed. In a
    /// [difference](super::Stats::since) it is subject to the error of the buckets.
    #[must_use]
    pub fn max(&self) -> Option<Duration> {
        (self.count() > 0).then_some(Duration::from_nanos(self.max_ns))
    }

    /// Returns the mean.
    #[must_use]
    pub fn mean(&self) -> Option<Duration> {
        let mean = self.sum_ns.checked_div(self.count())?;
        Some(Duration::from_nanos(mean))
    }

    /// Returns the sum of the times.
    #[must_use]
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_ns)
    }

    /// Iterates over the nonempty buckets: the middle of each and its count.
    pub fn iter(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        (0..)
            .zip(&self.buckets)
            .filter(|&(_, &count)| count > 0)
            .map(|(index, &count)| (Duration::from_nanos(self.middle(index)), count))
    }

    /// Returns the sum of the times, in nanoseconds.
    pub(super) fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// Returns bounds in nanoseconds, and the number of calls that took at most as long as each: two
    /// bounds for each power of two, which are the longest times of a bucket.
    pub(super) fn cumulative(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let ends = (8..35).flat_map(|bits| [1 << bits, 3 << (bits - 1)]);
        let (mut index, mut count) = (0, 0);
        ends.map(move |end: u64| {
            let next = bucket_of(end);
            let below = self.buckets.iter().take(next).skip(index);
            count += below.sum::<u64>();
            index = next;
            (end - 1, count)
        })
    }

    fn middle(&self, index: usize) -> u64 {
        let (least, width) = bucket(index);
        (least + (width - 1) / 2).min(self.max_ns)
    }

    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let before = earlier.buckets.iter().copied().chain(std::iter::repeat(0));
        let differences = self.buckets.iter().zip(before);
        let buckets: Vec<_> = trimmed(
            differences
                .map(|(now, before)| now.saturating_sub(before))
                .collect(),
        );
        let max_ns = match buckets.len().checked_sub(1) {
            None => 0,
            // The overall maximum occurred after the earlier snapshot.
            Some(_) if self.max_ns > earlier.max_ns => self.max_ns,
            Some(last) => self.middle(last),
        };
        Self {
            sum_ns: self.sum_ns.saturating_sub(earlier.sum_ns),
            buckets,
            max_ns,
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        if self.buckets.len() < other.buckets.len() {
            self.buckets.resize(other.buckets.len(), 0);
        }
        for (sum, count) in self.buckets.iter_mut().zip(&other.buckets) {
            *sum += count;
        }
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }
}

impl fmt::Debug for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

fn trimmed(mut buckets: Vec<u64>) -> Vec<u64> {
    let len = buckets.iter().rposition(|&count| count > 0);
    buckets.truncate(len.map_or(0, |last| last + 1));
    buckets
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Covers all magnitudes equally.
    fn times() -> impl Strategy<Value = u64> {
        (0u32..MAX_BITS, any::<u64>()).prop_map(|(bits, ns)| ns & ((1 << (bits + 1)) - 1))
    }

    #[test]
    fn buckets_follow_on_each_other_and_hold_what_they_say() {
        let mut next = 0;
        for index in 0..BUCKETS {
            let (least, width) = bucket(index);
            assert_eq!(least, next, "bucket {index}");
            assert_eq!(bucket_of(least), index);
            assert_eq!(bucket_of(least + width - 1), index);
            next = least + width;
        }
        assert_eq!(u128::from(next), LONGEST.as_nanos() + 1);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    proptest! {
        #[test]
        fn percentiles_are_as_near_as_documented(
            mut times in proptest::collection::vec(times(), 1..400), share in 0.0..=1.0f64,
        ) {
            let histogram = Histogram::default();
            for &ns in &times {
                histogram.record(Duration::from_nanos(ns));
            }
            let latencies = histogram.read();
            times.sort_unstable();
            let rank = ((share * times.len() as f64).ceil() as usize).clamp(1, times.len());
            let exact = times[rank - 1];
            let reported = latencies.percentile(share).unwrap().as_nanos() as u64;
            prop_assert!(reported.abs_diff(exact) * 32 <= exact, "{reported} for {exact}");
            prop_assert_eq!(latencies.max().unwrap().as_nanos() as u64, times[times.len() - 1]);
            prop_assert_eq!(latencies.count(), times.len() as u64);
            prop_assert_eq!(latencies.sum().as_nanos() as u64, times.iter().sum::<u64>());
        }

        #[test]
        fn a_difference_is_what_came_after_and_sums_are_what_came_together(
            before in proptest::collection::vec(times(), 0..100),
            after in proptest::collection::vec(times(), 0..100),
        ) {
            let (whole, first, second) =
                (Histogram::default(), Histogram::default(), Histogram::default());
            for &ns in &before {
                whole.record(Duration::from_nanos(ns));
                first.record(Duration::from_nanos(ns));
            }
            let earlier = whole.read();
            for &ns in &after {
                whole.record(Duration::from_nanos(ns));
                second.record(Duration::from_nanos(ns));
            }
            let difference = whole.read().since(&earlier);
            let expected = second.read();
            prop_assert_eq!(&difference.buckets, &expected.buckets);
            prop_assert_eq!(difference.sum_ns, expected.sum_ns);
            let error = difference.max_ns.abs_diff(expected.max_ns);
            prop_assert!(error * 32 <= expected.max_ns, "{difference:?}, {expected:?}");
            let mut sum = first.read();
            sum.add(&expected);
            prop_assert_eq!(sum, whole.read());
        }
    }

    #[test]
    fn nothing_is_said_of_no_calls() {
        let none = Latencies::default();
        assert_eq!(
            (none.percentile(0.5), none.max(), none.mean()),
            (None, None, None)
        );
    }
}
