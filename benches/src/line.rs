//! Measures how long a cache line takes between the two cores.
//!
//! On a virtual machine this changes by the minute: the two virtual cores share a cache at one time
//! and do not at another, and every figure depends on it. So it is measured just before each turn,
//! and turns are only compared with turns in the same state.

use std::fmt;
use std::hint;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::cores::{self, Cores};
use crate::slices::median;

/// Round trips that are timed together, so that reading the clock costs nothing.
const CHUNK: u64 = 100;

/// Chunks of one measurement, which takes one to six milliseconds.
const CHUNKS: usize = 100;

/// Limit between the two states. A round trip takes about 100 ns in one and 540 ns in the other.
const NEAR: Duration = Duration::from_nanos(250);

/// The state of the machine while something is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distance {
    /// The cores share a cache.
    Near,
    /// They do not.
    Far,
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Near => "near",
            Self::Far => "far",
        })
    }
}

/// The median round trip of one cache line between two threads.
#[derive(Clone, Copy, Debug)]
pub struct RoundTrip(pub Duration);

impl RoundTrip {
    /// Measures it between this thread and a new one on the server's core. This thread must run on
    /// the client's core, and the server's core must be idle.
    ///
    /// # Errors
    ///
    /// Fails if both sides have the same core, or if the new thread cannot be pinned.
    pub fn measure(cores: Cores) -> Outcome<Self> {
        if cores.is_shared() {
            return Err("a cache line needs two cores to move between".into());
        }
        let line = Line::default();
        let last = CHUNK * CHUNKS as u64;
        let mut chunks = Vec::with_capacity(CHUNKS);
        thread::scope(|scope| {
            let echo = scope.spawn(|| {
                let pinned = cores::pin_current_thread(cores.server);
                // Answer even if this thread is not pinned, because the other side waits for it.
                for turn in 0..last {
                    line.wait_for(2 * turn + 1);
                    line.set(2 * turn + 2);
                }
                pinned
            });
            let mut start = Instant::now();
            for turn in 0..last {
                line.set(2 * turn + 1);
                line.wait_for(2 * turn + 2);
                if (turn + 1).is_multiple_of(CHUNK) {
                    let now = Instant::now();
                    chunks.push((now - start).as_nanos() as u64 / CHUNK);
                    start = now;
                }
            }
            echo.join().map_err(|_| "the echoing thread panicked")??;
            Outcome::Ok(())
        })?;
        Ok(Self(Duration::from_nanos(median(&mut chunks))))
    }

    /// Returns the state of the machine that this round trip shows.
    #[must_use]
    pub fn distance(&self) -> Distance {
        if self.0 < NEAR {
            Distance::Near
        } else {
            Distance::Far
        }
    }
}

/// A count in a cache line of its own, and the line beside it, which the processor may fetch too. One
/// side counts, and another one waits for it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Line(AtomicU64);

impl Line {
    /// Publishes what this side did before it counted up to here.
    #[inline]
    pub fn set(&self, count: u64) {
        self.0.store(count, Ordering::Release);
    }

    /// Waits until the other side has counted up to here.
    #[inline]
    pub fn wait_for(&self, count: u64) {
        while self.0.load(Ordering::Acquire) < count {
            hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_takes_long_is_far() {
        assert_eq!(
            RoundTrip(Duration::from_nanos(100)).distance(),
            Distance::Near
        );
        assert_eq!(
            RoundTrip(Duration::from_nanos(540)).distance(),
            Distance::Far
        );
    }

    #[test]
    fn one_core_has_no_distance() {
        let cores = Cores {
            client: 0,
            server: 0,
            are_siblings: false,
        };
        assert!(RoundTrip::measure(cores).is_err());
    }
}
