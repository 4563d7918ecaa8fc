//! [`Period`]: when a loop records calls; and [`of_both_loops`], what both loops are told and do alike.

use std::time::Duration;

/// When a loop records calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// The time at the beginning during which calls are made but not recorded.
    pub warm_up: Duration,
    /// The time after the warm-up during which calls are recorded.
    pub time: Duration,
    /// The number of slices that the time is divided into, for a curve. Each takes 30 KB.
    pub slices: usize,
}

impl Default for Period {
    /// Ten seconds in 60 slices, after a warm-up of one.
    fn default() -> Self {
        Self {
            warm_up: Duration::from_secs(1),
            time: Duration::from_secs(10),
            slices: 60,
        }
    }
}

impl Period {
    pub(crate) fn end(&self) -> Duration {
        self.warm_up.saturating_add(self.time)
    }
}

/// Expands to the setters of a loop's period and end, and to `run` and `try_run` over its `drive`. The loop
/// has the fields `period`, `until` and those that are listed. The documentation is that of `run`.
macro_rules! of_both_loops {
    ($Loop:ident { $($own:ident),* } $(#[$run:meta])*) => {
        impl<U> $Loop<U> {
            /// Sets when calls are recorded, all at once. Settings that follow change parts of it.
            #[must_use]
            pub fn period(mut self, period: Period) -> Self {
                self.period = period;
                self
            }

            /// Sets the time at the beginning during which calls are made but not recorded.
            #[must_use]
            pub fn warm_up(mut self, warm_up: Duration) -> Self {
                self.period.warm_up = warm_up;
                self
            }

            /// Sets the time after the warm-up during which calls are recorded.
            #[must_use]
            pub fn time(mut self, time: Duration) -> Self {
                self.period.time = time;
                self
            }

            /// Sets the number of slices that the time is divided into, for a curve: 60 unless it is set.
            /// Each takes 30 KB.
            #[must_use]
            pub fn slices(mut self, slices: usize) -> Self {
                self.period.slices = slices;
                self
            }

            /// Ends the loop when this future does, with what it has recorded by then: calls in flight are
            /// dropped and count as unanswered. Use it for Ctrl-C.
            #[must_use]
            pub fn until<V: Future>(self, until: V) -> $Loop<V> {
                $Loop {
                    $($own: self.$own,)*
                    period: self.period,
                    until,
                }
            }
        }

        impl<U: Future> $Loop<U> {
            $(#[$run])*
            pub async fn run<C, E>(self, callers: impl IntoIterator<Item = C>) -> Record
            where
                C: AsyncFnMut() -> Result<(), E>,
                E: fmt::Display,
            {
                let start = Instant::now();
                let count = |error: E| Some(error.to_string());
                self.drive(|| start.elapsed(), callers, count).await
            }

            /// Makes the calls, as [`run`](Self::run) does, until one fails.
            ///
            /// # Errors
            ///
            /// Returns the error of the first call that fails, after the calls in flight have ended.
            pub async fn try_run<C, E>(self, callers: impl IntoIterator<Item = C>) -> Result<Record, E>
            where
                C: AsyncFnMut() -> Result<(), E>,
            {
                let start = Instant::now();
                let mut first = None;
                let end = |error| {
                    first.get_or_insert(error);
                    None
                };
                let record = self.drive(|| start.elapsed(), callers, end).await;
                first.map_or(Ok(record), Err)
            }
        }
    };
}

pub(crate) use of_both_loops;
