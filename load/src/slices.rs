//! [`Slice`]s: how the response time went over the time of a loop.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::histogram::{self, add_times};

/// Digits of a slice's histogram. It is for a curve: 1 % is precise enough, and takes 30 KB.
const DIGITS: u8 = 2;

/// One of the equal parts of the time in which calls are recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Slice {
    /// Calls that were sent late.
    pub late: u64,
    /// Calls that failed.
    pub failed: u64,
    /// Response times in nanoseconds, with two significant digits. An open loop counts a call where it
    /// was intended to be sent, a closed one where it ended.
    #[serde(with = "histogram")]
    pub response: Histogram<u64>,
}

/// The slices of a loop, in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Slices {
    /// Length of each of them in nanoseconds.
    pub length_ns: u64,
    /// The slices; the last one may be shorter.
    pub each: Vec<Slice>,
}

impl Slice {
    fn new() -> Self {
        Self {
            late: 0,
            failed: 0,
            response: histogram::with_digits(DIGITS).expect("two digits are possible"),
        }
    }

    fn merge(&mut self, other: &Self) {
        self.late += other.late;
        self.failed += other.failed;
        self.response += &other.response;
    }
}

impl Slices {
    /// Divides `time` into `count` slices.
    pub(crate) fn new(time: Duration, count: usize) -> Self {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self {
            length_ns: nanos.div_ceil(count.max(1) as u64).max(1),
            each: (0..count).map(|_| Slice::new()).collect(),
        }
    }

    /// The slice at this time since the end of the warm-up.
    #[inline]
    pub(crate) fn at(&mut self, time: Duration) -> Option<&mut Slice> {
        if self.each.is_empty() {
            return None;
        }
        self.each
            .get_mut((time.as_nanos() as u64 / self.length_ns) as usize)
    }

    #[inline]
    pub(crate) fn add(&mut self, time: Duration, response: Duration, count: u64) {
        if let Some(slice) = self.at(time) {
            add_times(&mut slice.response, response, count);
        }
    }

    /// Removes the slices that begin at this time or later.
    pub(crate) fn end_at(&mut self, time: Duration) {
        let begun = (time.as_nanos() as u64).div_ceil(self.length_ns);
        self.each.truncate(begun as usize);
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (slice, other) in self.each.iter_mut().zip(&other.each) {
            slice.merge(other);
        }
        let more = other.each.iter().skip(self.each.len());
        self.each.extend(more.cloned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_belongs_to_one_slice_and_a_loop_that_ends_early_has_fewer() {
        let seconds = Duration::from_secs;
        let mut slices = Slices::new(seconds(10), 4);
        assert_eq!(slices.length_ns, 2_500_000_000);
        for second in 0..12 {
            slices.add(seconds(second), Duration::from_millis(second + 1), 1);
        }
        let counts: Vec<u64> = slices.each.iter().map(|one| one.response.len()).collect();
        assert_eq!(counts, [3, 2, 3, 2], "two are after the end");
        slices.end_at(seconds(5));
        assert_eq!(slices.each.len(), 2);
        slices.end_at(Duration::ZERO);
        assert_eq!(slices.each.len(), 0);
        assert!(Slices::new(Duration::ZERO, 0).at(Duration::ZERO).is_none());
    }
}
