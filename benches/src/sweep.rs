//! [`Sweep`]: the same open loop at rising rates until the knee, where calls begin to queue.

use crate::Outcome;
use crate::open_loop::OpenRecord;

/// The server does not keep up with a rate if it answers less than this share of the calls in time.
pub const MIN_ACHIEVED_SHARE: f64 = 0.95;

/// A rate is beyond the knee if its p99 response time exceeds the lowest p99 of the previous rates
/// by this factor. A queue that keeps growing makes it a thousand times longer.
pub const MAX_LATENCY_FACTOR: f64 = 10.0;

/// The record of each rate, lowest first. The last one may be the knee.
#[derive(Clone, Debug, Default)]
pub struct Sweep {
    /// The records.
    pub steps: Vec<OpenRecord>,
    /// The reason why the rate of the last step is too high, if a knee was found.
    pub knee: Option<String>,
}

impl Sweep {
    /// Measures at each rate until the knee. A rate that looks like the knee is measured again,
    /// because a machine that stalls for a moment looks the same. The better of the two
    /// measurements counts.
    ///
    /// # Errors
    ///
    /// Returns the error of the first measurement that fails.
    pub fn run(
        rates: impl IntoIterator<Item = f64>,
        mut measure: impl FnMut(f64) -> Outcome<OpenRecord>,
    ) -> Outcome<Self> {
        let mut sweep = Self::default();
        for rate in rates {
            let mut step = measure(rate)?;
            let mut knee = sweep.knee_at(&step);
            if knee.is_some() {
                let again = measure(rate)?;
                knee = sweep.knee_at(&again);
                if knee.is_none() || p99(&again) < p99(&step) {
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
    fn knee_at(&self, step: &OpenRecord) -> Option<String> {
        let share = step.achieved / step.wanted;
        if share < MIN_ACHIEVED_SHARE {
            return Some(format!(
                "{:.0} % of the offered rate was achieved, less than {:.0} %",
                share * 100.0,
                MIN_ACHIEVED_SHARE * 100.0
            ));
        }
        let unloaded = self.steps.iter().map(p99).min()?;
        let factor = p99(step) as f64 / unloaded as f64;
        (factor > MAX_LATENCY_FACTOR).then(|| {
            format!(
                "the p99 response time is {factor:.0} times the lowest p99 of the rates below, more than \
                 {MAX_LATENCY_FACTOR:.0} times"
            )
        })
    }

    /// Returns the record of the highest rate before the knee.
    #[must_use]
    pub fn sustained(&self) -> Option<&OpenRecord> {
        match (&self.knee, &*self.steps) {
            (Some(_), [below @ .., _]) => below.last(),
            (_, steps) => steps.last(),
        }
    }
}

fn p99(record: &OpenRecord) -> u64 {
    record.response.value_at_quantile(0.99)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slices::histogram;

    fn step(wanted: f64, achieved: f64, nanos: u64) -> OpenRecord {
        let mut times = histogram();
        times.record_n(nanos, 100).expect("within the bounds");
        OpenRecord {
            wanted,
            achieved,
            service: times.clone(),
            response: times,
            late: 0,
            unsent: 0,
        }
    }

    /// Answers in 1 µs up to one million calls per second, and queues above that.
    fn server(rate: f64) -> Outcome<OpenRecord> {
        let time = if rate > 1e6 { 1_000_000 } else { 1000 };
        Ok(step(rate, rate.min(1e6), time))
    }

    #[test]
    fn the_knee_is_the_first_rate_that_is_not_kept_up_with() {
        let rates = [250e3, 500e3, 1000e3, 2000e3, 4000e3];
        let sweep = Sweep::run(rates, server).expect("no error");
        assert_eq!(sweep.steps.len(), 4);
        let knee = sweep.knee.as_deref().expect("the fourth rate");
        assert!(knee.starts_with("50 % of the offered rate"), "{knee}");
        assert_eq!(sweep.sustained().map(|step| step.wanted), Some(1e6));
        let sweep = Sweep::run(rates[..2].to_vec(), server).expect("no error");
        assert_eq!((sweep.steps.len(), &sweep.knee), (2, &None));
        assert_eq!(sweep.sustained().map(|step| step.wanted), Some(500e3));
    }

    #[test]
    fn the_knee_is_the_first_rate_at_which_calls_wait() {
        let waits = |rate| Ok(step(rate, rate, if rate > 3.0 { 20_000 } else { 1000 }));
        let sweep = Sweep::run([1.0, 2.0, 4.0, 8.0], waits).expect("no error");
        assert_eq!(sweep.steps.len(), 3);
        let knee = sweep.knee.expect("the third rate");
        assert!(knee.contains("is 20 times the lowest p99"), "{knee}");
    }

    #[test]
    fn a_moment_in_which_the_machine_stalls_is_no_knee() {
        let mut measurements = 0;
        let sweep = Sweep::run([1.0, 2.0, 3.0], |rate| {
            measurements += 1;
            let nanos = if measurements == 2 { 1_000_000 } else { 1000 };
            Ok(step(rate, rate, nanos))
        });
        let sweep = sweep.expect("no error");
        assert_eq!((sweep.steps.len(), sweep.knee, measurements), (3, None, 4));
    }
}
