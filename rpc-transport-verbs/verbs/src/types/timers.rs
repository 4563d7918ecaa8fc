//! Timers and retry counters of a reliable connection: the codes of verbs, converted to and from
//! times.
//!
//! The device encodes them in a few bits. The types here can only hold valid codes, so `modify`
//! never sees an invalid one. A time between two codes is rounded up: a timer that is too long
//! makes recovery slow, but one that is too short makes the connection fail.

use std::fmt;
use std::time::Duration;

use super::queue_pair_state::Attribute;

/// A number that is not a valid code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{attribute} = {code}: a code of at most {max}")]
pub struct InvalidCode {
    /// The attribute that it was meant for.
    pub attribute: Attribute,
    /// The invalid code.
    pub code: u8,
    /// The largest valid code.
    pub max: u8,
}

/// Defines the conversions from and to codes that all four types share.
macro_rules! code {
    ($name:ident, $attribute:ident, $max:literal) => {
        impl $name {
            /// Returns the value with this code, or `None` if the code is invalid.
            pub const fn new(code: u8) -> Option<Self> {
                if code <= $max { Some(Self(code)) } else { None }
            }

            /// Returns the code, as the device encodes it.
            pub const fn code(self) -> u8 {
                self.0
            }
        }

        impl TryFrom<u8> for $name {
            type Error = InvalidCode;

            fn try_from(code: u8) -> Result<Self, InvalidCode> {
                Self::new(code).ok_or(InvalidCode {
                    attribute: crate::types::Attribute::$attribute,
                    code,
                    max: $max,
                })
            }
        }

        impl From<$name> for u8 {
            fn from(value: $name) -> Self {
                value.0
            }
        }
    };
}

/// Minimum RNR timer (`min_rnr_timer`, 5 bits): the minimum time that a peer waits after an RNR NAK
/// before it retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RnrTimer(u8);

code!(RnrTimer, MinRnrTimer, 31);

/// The time of each code in microseconds (`enum ib_rnr_timeout` of the kernel).
const RNR_TIMER_US: [u64; 32] = [
    655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1_280, 1_920, 2_560, 3_840,
    5_120, 7_680, 10_240, 15_360, 20_480, 30_720, 40_960, 61_440, 81_920, 122_880, 163_840,
    245_760, 327_680, 491_520,
];

impl RnrTimer {
    /// Code 0, which is the longest time: 655.36 ms.
    pub const LONGEST: Self = Self(0);

    /// Returns the time.
    pub const fn duration(self) -> Duration {
        Duration::from_micros(RNR_TIMER_US[self.0 as usize])
    }

    /// Returns the shortest timer of at least `time`; `None` above 655.36 ms.
    pub fn at_least(time: Duration) -> Option<Self> {
        // The table ascends, except that its first entry is the longest.
        (1..=31)
            .chain([0])
            .map(Self)
            .find(|timer| timer.duration() >= time)
    }

    /// Decodes a timer that a peer has written; only the lower 5 bits count.
    pub(crate) fn from_wire(bits: u8) -> Self {
        Self(bits & 31)
    }
}

impl From<RnrTimer> for Duration {
    fn from(timer: RnrTimer) -> Self {
        timer.duration()
    }
}

impl fmt::Display for RnrTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.duration())
    }
}

/// Time to wait for an acknowledgement before a request is retried (`timeout`, 5 bits): 4.096 µs ×
/// 2^code. A device may wait up to four times as long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AckTimeout(u8);

code!(AckTimeout, Timeout, 31);

impl AckTimeout {
    /// Code 0: no timer. Lost packets are never retransmitted, and a silent peer is never detected.
    pub const FOREVER: Self = Self(0);

    /// Returns the time; `None` means forever.
    pub const fn duration(self) -> Option<Duration> {
        match self.0 {
            0 => None,
            code => Some(Duration::from_nanos(4096 << code)),
        }
    }

    /// Returns the shortest timeout of at least `time`; `None` above 8,796 s, where only
    /// [`FOREVER`](Self::FOREVER) is long enough.
    pub fn at_least(time: Duration) -> Option<Self> {
        (1..=31)
            .map(Self)
            .find(|timeout| timeout.duration().is_some_and(|lasts| lasts >= time))
    }
}

impl From<AckTimeout> for Option<Duration> {
    fn from(timeout: AckTimeout) -> Self {
        timeout.duration()
    }
}

impl fmt::Display for AckTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.duration() {
            Some(time) => write!(f, "{time:.3?}"),
            None => f.write_str("for ever"),
        }
    }
}

/// How often an unacknowledged request is retried (`retry_cnt`, 3 bits).
///
/// By the specification 7 means seven retries, but on some devices (Soft-RoCE) it means forever.
/// Values up to 6 mean the same everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RetryCount(u8);

code!(RetryCount, RetryCnt, 7);

impl RetryCount {
    /// The first attempt only, without retries.
    pub const NONE: Self = Self(0);

    /// Returns how long a silent peer is tolerated: the first attempt and each retry wait for one
    /// timeout. `None` means forever.
    pub fn budget(self, timeout: AckTimeout) -> Option<Duration> {
        Some(timeout.duration()? * (u32::from(self.0) + 1))
    }

    /// Returns the smallest count that tolerates a silent peer for at least `silence`; `None` if
    /// seven retries are not enough.
    pub fn at_least(silence: Duration, timeout: AckTimeout) -> Option<Self> {
        (0..=7)
            .map(Self)
            .find(|count| count.budget(timeout).is_none_or(|budget| budget >= silence))
    }
}

impl fmt::Display for RetryCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// How often a request is retried after an RNR NAK (`rnr_retry`, 3 bits); 7 means forever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RnrRetry(u8);

code!(RnrRetry, RnrRetry, 7);

impl RnrRetry {
    /// Code 7: no limit.
    pub const FOREVER: Self = Self(7);

    /// Returns the number of retries; `None` means forever.
    pub const fn limit(self) -> Option<u8> {
        match self.0 {
            7 => None,
            count => Some(count),
        }
    }

    /// Returns the minimum time for which requests to a receiver with this timer are retried;
    /// `None` means forever.
    pub fn budget(self, timer: RnrTimer) -> Option<Duration> {
        Some(timer.duration() * u32::from(self.limit()?))
    }

    /// Returns the smallest count with which requests to a receiver with this timer are retried for
    /// at least `wait`, or [`FOREVER`](Self::FOREVER) if six retries are not enough.
    pub fn at_least(wait: Duration, timer: RnrTimer) -> Self {
        (0..7)
            .map(Self)
            .find(|count| count.budget(timer).is_some_and(|budget| budget >= wait))
            .unwrap_or(Self::FOREVER)
    }
}

impl fmt::Display for RnrRetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.limit() {
            Some(count) => fmt::Display::fmt(&count, f),
            None => f.write_str("for ever"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn us(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    /// The kernel's table in its own unit of 10 µs, written out a second time.
    const RNR_TENS_OF_US: [(u8, u64); 32] = [
        (0, 65536),
        (1, 1),
        (2, 2),
        (3, 3),
        (4, 4),
        (5, 6),
        (6, 8),
        (7, 12),
        (8, 16),
        (9, 24),
        (10, 32),
        (11, 48),
        (12, 64),
        (13, 96),
        (14, 128),
        (15, 192),
        (16, 256),
        (17, 384),
        (18, 512),
        (19, 768),
        (20, 1024),
        (21, 1536),
        (22, 2048),
        (23, 3072),
        (24, 4096),
        (25, 6144),
        (26, 8192),
        (27, 12288),
        (28, 16384),
        (29, 24576),
        (30, 32768),
        (31, 49152),
    ];

    #[test]
    fn every_rnr_code_has_its_time_and_comes_back_from_it() {
        for (code, tens) in RNR_TENS_OF_US {
            let timer = RnrTimer::new(code).unwrap();
            assert_eq!(timer.duration(), us(tens * 10), "code {code}");
            assert_eq!(RnrTimer::at_least(timer.duration()), Some(timer));
            assert_eq!(timer.code(), code);
        }
        assert_eq!(RnrTimer::LONGEST.to_string(), "655.36ms");
        assert_eq!(RnrTimer::at_least(us(655_361)), None);
        assert_eq!(RnrTimer::at_least(Duration::ZERO), RnrTimer::new(1));
    }

    #[test]
    fn every_acknowledgement_timeout_doubles_the_one_before() {
        assert_eq!(AckTimeout::FOREVER.duration(), None);
        for code in 1..=31 {
            let timeout = AckTimeout::new(code).unwrap();
            let time = timeout.duration().unwrap();
            assert_eq!(time.as_nanos(), 4096 * 2u128.pow(code.into()));
            assert_eq!(AckTimeout::at_least(time), Some(timeout));
            assert_eq!(
                AckTimeout::at_least(time + Duration::from_nanos(1)),
                AckTimeout::new(code + 1),
            );
        }
        // Four entries of the table, rounded as in manuals.
        let time = |code| AckTimeout::new(code).unwrap().to_string();
        assert_eq!(time(1), "8.192µs");
        assert_eq!(time(14), "67.109ms");
        assert_eq!(time(18), "1.074s");
        assert_eq!(time(0), "for ever");
    }

    #[test]
    fn a_code_that_does_not_exist_cannot_be_built_and_is_named() {
        for code in 0..=u8::MAX {
            assert_eq!(RnrTimer::new(code).is_some(), code <= 31);
            assert_eq!(AckTimeout::new(code).is_some(), code <= 31);
            assert_eq!(RetryCount::new(code).is_some(), code <= 7);
            assert_eq!(RnrRetry::new(code).is_some(), code <= 7);
        }
        let text = |error: InvalidCode| error.to_string();
        assert_eq!(
            text(RnrTimer::try_from(32).unwrap_err()),
            "min_rnr_timer = 32: a code of at most 31"
        );
        assert_eq!(
            text(AckTimeout::try_from(32).unwrap_err()),
            "timeout = 32: a code of at most 31"
        );
        assert_eq!(
            text(RetryCount::try_from(8).unwrap_err()),
            "retry_cnt = 8: a code of at most 7"
        );
        assert_eq!(
            text(RnrRetry::try_from(9).unwrap_err()),
            "rnr_retry = 9: a code of at most 7"
        );
    }

    #[test]
    fn a_budget_is_the_first_try_and_every_retry() {
        let timeout = AckTimeout::new(14).unwrap();
        let once = timeout.duration().unwrap();
        for count in 0..=7 {
            let retries = RetryCount::new(count).unwrap();
            assert_eq!(retries.budget(timeout), Some(once * (u32::from(count) + 1)));
            assert_eq!(retries.budget(AckTimeout::FOREVER), None);
            assert_eq!(
                RetryCount::at_least(once * (u32::from(count) + 1), timeout),
                Some(retries)
            );
        }
        assert_eq!(RetryCount::at_least(once * 8 + us(1), timeout), None);
        // The longest budget is still finite: 19.5 hours.
        let longest = RetryCount::new(7).unwrap().budget(AckTimeout(31)).unwrap();
        assert_eq!(longest.as_secs(), 70_368);
    }

    #[test]
    fn of_the_rnr_retries_seven_is_for_ever() {
        let timer = RnrTimer::new(13).unwrap();
        assert_eq!(RnrRetry::FOREVER.limit(), None);
        assert_eq!(RnrRetry::FOREVER.budget(timer), None);
        assert_eq!(RnrRetry::new(0).unwrap().budget(timer), Some(us(0)));
        assert_eq!(RnrRetry::new(6).unwrap().budget(timer), Some(us(5760)));
        assert_eq!(RnrRetry::at_least(us(5760), timer), RnrRetry(6));
        assert_eq!(RnrRetry::at_least(us(5761), timer), RnrRetry::FOREVER);
        assert_eq!(RnrRetry::FOREVER.to_string(), "for ever");
    }

    proptest! {
        #[test]
        fn the_shortest_that_is_long_enough_is_found(nanos in 0u64..10_000_000_000_000) {
            let time = Duration::from_nanos(nanos);
            let timers = || (0..=31).map(RnrTimer);
            match RnrTimer::at_least(time) {
                Some(found) => {
                    prop_assert!(found.duration() >= time);
                    let shorter = timers().filter(|timer| timer.duration() < found.duration());
                    prop_assert!(shorter.map(RnrTimer::duration).all(|shorter| shorter < time));
                }
                None => prop_assert!(timers().all(|timer| timer.duration() < time)),
            }
            match AckTimeout::at_least(time) {
                Some(found) => {
                    prop_assert!(found.duration().unwrap() >= time);
                    prop_assert!(found.0 == 1 || AckTimeout(found.0 - 1).duration().unwrap() < time);
                }
                None => prop_assert!(AckTimeout(31).duration().unwrap() < time),
            }
        }
    }
}
