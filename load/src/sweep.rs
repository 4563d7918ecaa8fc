//! [`Sweep`]: the same open loop at rising rates until the knee, where calls begin to queue.

use std::fmt;

use crate::record::Record;

/// The server does not keep up with a rate if it answers less than this share of the calls in time.
pub const MIN_ACHIEVED_SHARE: f64 = 0.95;

/// A rate is beyond the knee if its p99 response time exceeds the lowest p99 of the previous rates
/// by this factor. A queue that keeps growing makes it a thousand times longer.
pub const MAX_LATENCY_FACTOR: f64 = 10.0;

/// The record of each rate, lowest first. The last one may be the knee.
#[derive(Clone, Debug, Default)]
pub struct Sweep {
    /// The rates that were offered.
    pub steps: Vec<Step>,
    /// The reason why the rate of the last step is too high, if a knee was found.
    pub knee: Option<Knee>,
}

/// One rate of a sweep.
#[derive(Clone, Debug)]
pub struct Step {
    /// Calls per second.
    pub rate: f64,
    /// What they were like.
    pub record: Record,
}

/// Why a rate is too high.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Knee {
    /// This share of the calls was answered in time: less than [`MIN_ACHIEVED_SHARE`].
    NotKeptUp(f64),
    /// The p99 response time is this many times the lowest of the rates below: more than
    /// [`MAX_LATENCY_FACTOR`].
    Waits(f64),
}

impl Sweep {
    /// Measures at each rate until the knee. A rate that looks like the knee is measured again,
    /// because a machine that stalls for a moment looks the same. The better of the two
    /// measurements counts.
    ///
    /// # Errors
    ///
    /// Returns the error of the first measurement that fails.
    pub async fn run<E>(
        rates: impl IntoIterator<Item = f64>,
        mut measure: impl AsyncFnMut(f64) -> Result<Record, E>,
    ) -> Result<Self, E> {
        let mut sweep = Self::default();
        for rate in rates {
            let mut step = Step {
                rate,
                record: measure(rate).await?,
            };
            let mut knee = sweep.knee_at(&step);
            if knee.is_some() {
                let again = Step {
                    rate,
                    record: measure(rate).await?,
                };
                knee = sweep.knee_at(&again);
                if knee.is_none() || again.p99() < step.p99() {
                    step = again;
                }
                knee = knee.and_then(|_| sweep.knee_at(&step));
            }
            sweep.steps.push(step);
            if knee.is_some() {
                sweep.knee = knee;
                break;
            }
        }
        Ok(sweep)
    }

    /// Returns the reason why the rate of a step is too high, if it is.
    fn knee_at(&self, step: &Step) -> Option<Knee> {
        let share = step.record.achieved / step.rate;
        if share < MIN_ACHIEVED_SHARE {
            return Some(Knee::NotKeptUp(share));
        }
        let unloaded = self.steps.iter().map(Step::p99).min()?;
        let factor = step.p99() as f64 / unloaded as f64;
        (factor > MAX_LATENCY_FACTOR).then_some(Knee::Waits(factor))
    }

    /// Returns the step of the highest rate before the knee.
    #[must_use]
    pub fn sustained(&self) -> Option<&Step> {
        match (&self.knee, &*self.steps) {
            (Some(_), [below @ .., _]) => below.last(),
            (_, steps) => steps.last(),
        }
    }
}

impl Step {
    fn p99(&self) -> u64 {
        self.record.response.value_at_quantile(0.99)
    }
}

impl fmt::Display for Knee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotKeptUp(share) => write!(
                f,
                "{:.0} % of the offered rate was achieved, less than {:.0} %",
                share * 100.0,
                MIN_ACHIEVED_SHARE * 100.0
            ),
            Self::Waits(factor) => write!(
                f,
                "the p99 response time is {factor:.0} times the lowest p99 of the rates below, more than \
                 {MAX_LATENCY_FACTOR:.0} times"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use super::*;
    use crate::slices::Slices;
    use crate::task_set::tests::poll_to_end;

    fn record(rate: f64, achieved: f64, nanos: u64) -> Result<Record, Infallible> {
        let mut record = Record::new(Some(rate), 1, Slices::new(Duration::ZERO, 0));
        record.achieved = achieved;
        let times = &mut record.response;
        times.record_n(nanos, 100).expect("within the bounds");
        Ok(record)
    }

    fn sweep(rates: &[f64], mut measure: impl FnMut(f64) -> Result<Record, Infallible>) -> Sweep {
        let measure = async |rate| measure(rate);
        let rates = rates.iter().copied();
        poll_to_end(Sweep::run(rates, measure)).expect("no error")
    }

    /// Answers in 1 µs up to one million calls per second, and queues above that.
    fn server(rate: f64) -> Result<Record, Infallible> {
        let time = if rate > 1e6 { 1_000_000 } else { 1000 };
        record(rate, rate.min(1e6), time)
    }

    #[test]
    fn the_knee_is_the_first_rate_that_is_not_kept_up_with() {
        let rates = [250e3, 500e3, 1000e3, 2000e3, 4000e3];
        let knee = sweep(&rates, server);
        assert_eq!(knee.steps.len(), 4);
        assert_eq!(knee.sustained().map(|step| step.rate), Some(1e6));
        let knee = knee.knee.expect("the fourth rate").to_string();
        assert!(knee.starts_with("50 % of the offered rate"), "{knee}");
        let below = sweep(&rates[..2], server);
        assert_eq!((below.steps.len(), below.knee), (2, None));
        assert_eq!(below.sustained().map(|step| step.rate), Some(500e3));
    }

    #[test]
    fn the_knee_is_the_first_rate_at_which_calls_wait() {
        let waits = |rate| record(rate, rate, if rate > 3.0 { 20_000 } else { 1000 });
        let sweep = sweep(&[1.0, 2.0, 4.0, 8.0], waits);
        assert_eq!(sweep.steps.len(), 3);
        let knee = sweep.knee.expect("the third rate").to_string();
        assert!(knee.contains("is 20 times the lowest p99"), "{knee}");
    }

    #[test]
    fn a_moment_in_which_the_machine_stalls_is_no_knee() {
        let mut measurements = 0;
        let sweep = sweep(&[1.0, 2.0, 3.0], |rate| {
            measurements += 1;
            let nanos = if measurements == 2 { 1_000_000 } else { 1000 };
            record(rate, rate, nanos)
        });
        assert_eq!((sweep.steps.len(), sweep.knee, measurements), (3, None, 4));
    }
}
