//! [`Sweep`]: the same loop under rising loads. Rising rates end at the knee, where calls begin to queue.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::record::Record;
use crate::unit::Unit;

/// The server does not keep up with a rate if it answers less than this share of the calls in time.
pub const MIN_ACHIEVED_SHARE: f64 = 0.95;

/// A rate is beyond the knee if its p99 response time exceeds the lowest p99 of the previous rates
/// by this factor. A queue that keeps growing makes it a thousand times longer.
pub const MAX_LATENCY_FACTOR: f64 = 10.0;

/// The record of each load, lowest first. The last one of rising rates may be the knee.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sweep {
    /// What was raised.
    pub over: Over,
    /// The loads that were measured.
    pub steps: Vec<Step>,
    /// The reason why the rate of the last step is too high, if a knee was found.
    pub knee: Option<Knee>,
}

/// What a sweep raises from step to step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Over {
    /// Calls per second of an open loop.
    Rate,
    /// Bytes of each message.
    MessageBytes,
    /// Connections.
    Connections,
    /// Calls in flight.
    InFlight,
}

/// One load of a sweep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Calls per second, bytes, connections, or calls in flight.
    pub at: f64,
    /// What the calls were like.
    pub record: Record,
}

/// Why a rate is too high.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Knee {
    /// This share of the calls was answered in time: less than [`MIN_ACHIEVED_SHARE`].
    NotKeptUp(f64),
    /// The p99 response time is this many times the lowest of the rates below: more than
    /// [`MAX_LATENCY_FACTOR`].
    Waits(f64),
}

impl Over {
    /// The unit of what is raised.
    #[must_use]
    pub fn unit(self) -> Unit {
        match self {
            Self::Rate => Unit::PerSecond,
            Self::MessageBytes => Unit::Bytes,
            Self::Connections | Self::InFlight => Unit::Number,
        }
    }
}

/// Writes what is raised, as in the heading of a column.
impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Rate => "rate",
            Self::MessageBytes => "message",
            Self::Connections => "connections",
            Self::InFlight => "in flight",
        })
    }
}

impl From<Record> for Sweep {
    /// Makes a sweep of one load: of the rate of an open loop, or the calls in flight of a closed one.
    fn from(record: Record) -> Self {
        let (over, at) = match record.wanted {
            Some(rate) => (Over::Rate, rate),
            None => (Over::InFlight, record.callers as f64),
        };
        Self {
            over,
            steps: vec![Step { at, record }],
            knee: None,
        }
    }
}

impl Sweep {
    /// Measures at each rate until the knee. A rate that looks like the knee is measured again,
    /// because a machine that stalls for a moment looks the same. The better of the two
    /// measurements counts.
    ///
    /// # Errors
    ///
    /// Returns the error of the first measurement that fails.
    pub async fn of_rates<E>(
        rates: impl IntoIterator<Item = f64>,
        mut measure: impl AsyncFnMut(f64) -> Result<Record, E>,
    ) -> Result<Self, E> {
        let mut sweep = Self {
            over: Over::Rate,
            steps: Vec::new(),
            knee: None,
        };
        for at in rates {
            let record = measure(at).await?;
            let mut step = Step { at, record };
            let mut knee = sweep.knee_at(&step);
            if knee.is_some() {
                let record = measure(at).await?;
                let again = Step { at, record };
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

    /// Measures at each of these values.
    ///
    /// # Errors
    ///
    /// Returns the error of the first measurement that fails.
    pub async fn of_each<E>(
        over: Over,
        values: impl IntoIterator<Item = f64>,
        mut measure: impl AsyncFnMut(f64) -> Result<Record, E>,
    ) -> Result<Self, E> {
        let mut steps = Vec::new();
        for at in values {
            let record = measure(at).await?;
            steps.push(Step { at, record });
        }
        let knee = None;
        Ok(Self { over, steps, knee })
    }

    /// Returns the reason why the rate of a step is too high, if it is.
    fn knee_at(&self, step: &Step) -> Option<Knee> {
        let share = step.record.achieved / step.at;
        if share < MIN_ACHIEVED_SHARE {
            return Some(Knee::NotKeptUp(share));
        }
        let unloaded = self.steps.iter().map(Step::p99).min()?;
        let factor = step.p99() as f64 / unloaded.max(1) as f64;
        (factor > MAX_LATENCY_FACTOR).then_some(Knee::Waits(factor))
    }

    /// Returns the highest step before the knee.
    #[must_use]
    pub fn sustained(&self) -> Option<&Step> {
        match (&self.knee, &*self.steps) {
            (Some(_), [below @ .., _]) => below.last(),
            (_, steps) => steps.last(),
        }
    }

    /// Says where the knee of rising rates is. `None` of another sweep, and of one rate.
    #[must_use]
    pub fn knee_sentence(&self) -> Option<String> {
        let last = self.steps.last()?.at;
        let text = |rate| Unit::PerSecond.text(rate);
        match (&self.knee, self.sustained()) {
            (Some(knee), Some(below)) => Some(format!(
                "knee: above {}. At {}, {knee}",
                text(below.at),
                text(last)
            )),
            (Some(knee), None) => Some(format!("knee: below the first rate: {knee}")),
            (None, _) if self.over == Over::Rate && self.steps.len() > 1 => {
                Some("knee: not reached; raise the rates".to_owned())
            }
            _ => None,
        }
    }
}

impl Step {
    fn p99(&self) -> u64 {
        self.record.response.value_at_quantile(0.99)
    }
}

/// Writes a table with a line for each step, of response times, and says where the knee is. The record of a
/// step has a table of its own.
impl fmt::Display for Sweep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<12}{:>12}{:>11}{:>11}{:>11}{:>11}{:>11}{:>11}",
            self.over, "answered", "p50", "p99", "p99.9", "max", "never sent", "failed"
        )?;
        for Step { at, record } in &self.steps {
            let time = |quantile| match record.response.is_empty() {
                true => "–".to_owned(),
                false => {
                    let time = record.response.value_at_quantile(quantile);
                    Unit::Nanoseconds.text(time as f64)
                }
            };
            writeln!(
                f,
                "{:<12}{:>12}{:>11}{:>11}{:>11}{:>11}{:>11}{:>11}",
                self.over.unit().text(*at),
                Unit::PerSecond.text(record.achieved),
                time(0.5),
                time(0.99),
                time(0.999),
                time(1.0),
                record.unsent,
                record.failures.count()
            )?;
        }
        if let Some(knee) = self.knee_sentence() {
            writeln!(f, "{knee}")?;
        }
        Ok(())
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
        poll_to_end(Sweep::of_rates(rates, measure)).expect("no error")
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
        assert_eq!(knee.sustained().map(|step| step.at), Some(1e6));
        let knee = knee.knee.expect("the fourth rate").to_string();
        assert!(knee.starts_with("50 % of the offered rate"), "{knee}");
        let below = sweep(&rates[..2], server);
        assert_eq!((below.steps.len(), below.knee), (2, None));
        assert_eq!(below.sustained().map(|step| step.at), Some(500e3));
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
