//! [`Clock`]: a time source that tests can control, and the form in which deadlines travel.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// A poller's time source. The poller reads it while a call has a deadline, and while requests wait
/// for their handlers.
#[derive(Clone, Debug, Default)]
pub struct Clock(Source);

#[derive(Clone, Debug, Default)]
enum Source {
    #[default]
    System,
    #[cfg_attr(not(feature = "test-util"), allow(dead_code))]
    Manual(Manual),
}

/// A time that only advances by hand, as one host's clock shows it.
#[derive(Clone, Debug)]
struct Manual {
    time: Arc<ManualTime>,
    /// Microseconds by which this host's clock is ahead.
    ahead_us: i64,
    /// Microseconds that this host's clock gains in a second.
    drift_ppm: i64,
}

#[derive(Debug)]
struct ManualTime {
    start: Instant,
    /// Nanoseconds advanced since `start`.
    passed_ns: AtomicU64,
}

/// The longest time that a deadline may lie ahead on the wire: half of the range of 32 bits of
/// microseconds, less a minute for the error between two clocks. The client's own timer enforces
/// later deadlines.
const WIRE_HORIZON: Duration = Duration::from_secs((1 << 31) / 1_000_000 - 60);

impl Clock {
    /// Returns the system's monotonic clock.
    #[must_use]
    pub fn system() -> Self {
        Self::default()
    }

    /// Creates a clock that stands still until it is [`advance`](Self::advance)d. Its clones share
    /// its time.
    #[cfg(feature = "test-util")]
    #[must_use]
    pub fn manual() -> Self {
        Self(Source::Manual(Manual {
            time: Arc::new(ManualTime {
                start: Instant::now(),
                passed_ns: AtomicU64::new(0),
            }),
            ahead_us: 0,
            drift_ppm: 0,
        }))
    }

    /// Returns the clock of another host, which shares the time of this manual clock: it shows
    /// `ahead_us` microseconds more, and gains `drift_ppm` microseconds in a second.
    ///
    /// # Panics
    ///
    /// Panics if this is the system's clock.
    #[cfg(feature = "test-util")]
    #[must_use]
    pub fn on_another_host(&self, ahead_us: i64, drift_ppm: i64) -> Self {
        match &self.0 {
            Source::System => panic!("the system clock is the one of this host"),
            Source::Manual(manual) => Self(Source::Manual(Manual {
                time: Arc::clone(&manual.time),
                ahead_us,
                drift_ppm,
            })),
        }
    }

    /// Returns the current time.
    #[must_use]
    pub fn now(&self) -> Instant {
        match &self.0 {
            Source::System => Instant::now(),
            Source::Manual(Manual { time, .. }) => {
                time.start + Duration::from_nanos(time.passed_ns.load(Ordering::Relaxed))
            }
        }
    }

    /// Returns the moment at which this time will have passed, or `None` if the clock cannot represent it.
    pub(crate) fn after(&self, timeout: Duration) -> Option<Instant> {
        deadline_after(self.now(), timeout)
    }

    /// Advances a manual clock and all its clones.
    ///
    /// # Panics
    ///
    /// Panics if this is the system's clock.
    #[cfg(feature = "test-util")]
    pub fn advance(&self, by: Duration) {
        match &self.0 {
            Source::System => panic!("the system clock cannot be advanced"),
            Source::Manual(Manual { time, .. }) => {
                let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
                time.passed_ns.fetch_add(by, Ordering::Relaxed);
            }
        }
    }

    /// Returns what this host's `CLOCK_MONOTONIC` shows at `moment`, in microseconds since an
    /// arbitrary start that all processes of the host share.
    #[must_use]
    pub fn host_us(&self, moment: Instant) -> i64 {
        let (base, base_us, drift_ppm) = match &self.0 {
            Source::System => {
                let base = monotonic_base();
                (base.moment, base.us, 0)
            }
            Source::Manual(manual) => (manual.time.start, manual.ahead_us, manual.drift_ppm),
        };
        let since = match moment.checked_duration_since(base) {
            Some(since) => since.as_micros() as i64,
            None => -(base.duration_since(moment).as_micros() as i64),
        };
        base_us + since + since / 1_000_000 * drift_ppm
    }

    /// Converts a deadline to the form in which a request carries it: microseconds modulo 2³² on
    /// the clock of the receiver's host, which is `ahead_us` ahead of this host's. Returns 0, no
    /// deadline, if it lies too far ahead of `now` for that.
    pub(crate) fn to_wire(&self, deadline: Instant, now: Instant, ahead_us: i64) -> u32 {
        if deadline.saturating_duration_since(now) > WIRE_HORIZON {
            return 0;
        }
        // A deadline that happens to be 0 is a microsecond later.
        ((self.host_us(deadline).wrapping_add(ahead_us)) as u32).max(1)
    }

    /// Converts a deadline that a request carries to a moment of this host: `now` if it has passed.
    pub(crate) fn deadline_of(&self, deadline_us: u32, now: Instant) -> Instant {
        let left = deadline_us.wrapping_sub(self.host_us(now) as u32) as i32;
        // A peer may send any value; the clock can represent the next 36 minutes.
        now + Duration::from_micros(left.max(0) as u64)
    }
}

/// A moment, in the two forms in which the system's clock gives it.
#[derive(Debug)]
struct MonotonicBase {
    moment: Instant,
    us: i64,
}

/// Returns one moment as an [`Instant`], which hides its value, and in microseconds. An `Instant` is
/// a reading of `CLOCK_MONOTONIC` on Linux.
fn monotonic_base() -> &'static MonotonicBase {
    static BASE: OnceLock<MonotonicBase> = OnceLock::new();
    BASE.get_or_init(|| {
        // A thread may be preempted between two readings: the shortest of some attempts is exact.
        let attempts = (0..16).map(|_| {
            let moment = Instant::now();
            let reading = clock_gettime(ClockId::Monotonic);
            let us = reading.tv_sec * 1_000_000 + reading.tv_nsec / 1000;
            (moment.elapsed(), MonotonicBase { moment, us })
        });
        let shortest = attempts.min_by_key(|(took, _)| *took);
        shortest.map_or_else(
            || MonotonicBase {
                moment: Instant::now(),
                us: 0,
            },
            |(_, base)| base,
        )
    })
}

/// Returns the deadline that is `timeout` from `now`, or `None` if the clock cannot represent it.
pub(crate) fn deadline_after(now: Instant, timeout: Duration) -> Option<Instant> {
    now.checked_add(timeout)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_systems_clock_shows_the_same_as_the_kernels() {
        let clock = Clock::system();
        let kernel_us = || {
            let reading = clock_gettime(ClockId::Monotonic);
            reading.tv_sec * 1_000_000 + reading.tv_nsec / 1000
        };
        let before = kernel_us();
        let shown = clock.host_us(clock.now());
        let after = kernel_us();
        // The base may be a few microseconds off.
        assert!(
            before - 50 <= shown && shown <= after + 50,
            "{before} {shown} {after}"
        );
    }

    proptest! {
        /// A deadline arrives as it was meant, whatever the two clocks show, and wherever they wrap.
        #[test]
        fn a_deadline_travels_between_hosts(
            ahead_us in any::<i32>(),
            left_us in 0u64..2_000_000_000,
            waits_us in 0u64..3_000_000_000,
        ) {
            let here = Clock::manual();
            let there = here.on_another_host(ahead_us.into(), 0);
            let now = here.now();
            let deadline = now + Duration::from_micros(left_us);
            let wire = here.to_wire(deadline, now, ahead_us.into());
            prop_assert_ne!(wire, 0);
            here.advance(Duration::from_micros(waits_us));
            let left = there.deadline_of(wire, there.now()) - there.now();
            let expected = left_us.saturating_sub(waits_us);
            // The deadline 0 is moved by a microsecond.
            let off = left.as_micros() as i64 - expected as i64;
            let in_range = waits_us < left_us + (1 << 31);
            prop_assert!(!in_range || (0..=1).contains(&off), "{left:?}, expected {expected} µs");
        }
    }

    #[test]
    fn a_deadline_beyond_the_range_is_not_sent() {
        let clock = Clock::manual();
        let now = clock.now();
        let far = now + Duration::from_secs(3600);
        assert_eq!(clock.to_wire(far, now, 0), 0);
    }
}
