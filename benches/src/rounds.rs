//! Values of several rows over rounds, told apart by the state of the machine in which each was
//! measured.

use std::fmt;

use crate::Outcome;
use crate::cores::Cores;
use crate::line::{Distance, RoundTrip};
use crate::slices::{self, Record, Side};

/// The values of each row in each round, and what a cache line took just before each was measured.
#[derive(Clone, Debug)]
pub struct Rounds {
    /// By row and round.
    values: Vec<Vec<f64>>,
    /// In the order of the measurements: all rows of the first round, then of the second.
    lines: Vec<RoundTrip>,
}

impl Rounds {
    /// Combines the values of each row with the cache lines, in the order of the measurements.
    ///
    /// # Panics
    ///
    /// Panics if there is not one line for each value.
    #[must_use]
    pub fn new(values: Vec<Vec<f64>>, lines: Vec<RoundTrip>) -> Self {
        let count: usize = values.iter().map(Vec::len).sum();
        assert_eq!(count, lines.len(), "each value has its own line");
        Self { values, lines }
    }

    /// Returns the same rounds with other values.
    #[must_use]
    pub fn with_values(&self, values: Vec<Vec<f64>>) -> Self {
        Self::new(values, self.lines.clone())
    }

    /// Returns the number of values that were measured in a state.
    #[must_use]
    pub fn count(&self, distance: Distance) -> usize {
        let lines = self.lines.iter();
        lines.filter(|line| line.distance() == distance).count()
    }

    fn is_in(&self, state: Option<Distance>, row: usize, round: usize) -> bool {
        let line = self.lines[round * self.values.len() + row];
        state.is_none_or(|state| line.distance() == state)
    }

    /// Returns the median of a row's values in a state, or in all, if there are any.
    pub fn median(&self, row: usize, state: impl Into<Option<Distance>>) -> Option<f64> {
        let state = state.into();
        let values = self.values[row].iter().enumerate();
        median(
            values
                .filter(|(round, _)| self.is_in(state, row, *round))
                .map(|(_, value)| *value),
        )
    }

    /// Returns the ratios of a row to another in the rounds in which both were measured in this state, or
    /// in all.
    pub fn ratios(
        &self,
        row: usize,
        base: usize,
        state: impl Into<Option<Distance>>,
    ) -> impl Iterator<Item = f64> {
        let state = state.into();
        let pairs = self.values[row].iter().zip(&self.values[base]).enumerate();
        let is_in = move |round| self.is_in(state, row, round) && self.is_in(state, base, round);
        pairs
            .filter(move |(round, _)| is_in(*round))
            .map(|(_, (value, base))| value / base)
    }

    /// Returns the median of these ratios.
    pub fn ratio(
        &self,
        row: usize,
        base: usize,
        state: impl Into<Option<Distance>>,
    ) -> Option<f64> {
        median(self.ratios(row, base, state))
    }

    /// Returns the least and the most value of a row.
    #[must_use]
    pub fn least_and_most(&self, row: usize) -> (f64, f64) {
        least_and_most(self.values[row].iter().copied())
    }

    /// Returns the least and the most ratio of a row to another in one round.
    #[must_use]
    pub fn least_and_most_ratio(&self, row: usize, base: usize) -> (f64, f64) {
        least_and_most(self.ratios(row, base, None))
    }
}

/// Lets each side take `rounds` turns of `calls` calls, and measures a cache line just before each.
/// Returns the records, and the medians of the turns in nanoseconds. `before_each` is called before each
/// turn with the number of turns taken so far.
///
/// # Errors
///
/// Returns the first error of a side.
pub fn alternate(
    sides: &mut [&mut dyn Side],
    rounds: usize,
    calls: usize,
    cores: Cores,
    mut before_each: impl FnMut(usize),
) -> Outcome<(Vec<Record>, Rounds)> {
    let mut lines = Vec::new();
    let records = slices::alternate(sides, rounds, calls, |taken| {
        before_each(taken);
        lines.push(RoundTrip::measure(cores));
    })?;
    let of_row = |record: &Record| record.slice_p50.iter().map(|&p50| p50 as f64).collect();
    let values = records.iter().map(of_row).collect();
    let rounds = Rounds::new(values, lines.into_iter().collect::<Outcome<_>>()?);
    Ok((records, rounds))
}

/// Lets each row take a turn in each round, and measures a cache line just before each. `measure`
/// returns the value of the row with an index.
///
/// # Errors
///
/// Returns the first error of a row.
pub fn alternate_rows(
    rows: usize,
    rounds: usize,
    cores: Cores,
    mut measure: impl FnMut(usize) -> Outcome<f64>,
) -> Outcome<Rounds> {
    let mut values = vec![Vec::new(); rows];
    let mut lines = Vec::new();
    for _ in 0..rounds {
        for (row, values) in values.iter_mut().enumerate() {
            lines.push(RoundTrip::measure(cores)?);
            values.push(measure(row)?);
        }
    }
    Ok(Rounds::new(values, lines))
}

/// Describes the lines: how many were near and far, and what they took.
impl fmt::Display for Rounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a cache line between the cores, just before each turn: ")?;
        let mut states = Vec::new();
        for distance in [Distance::Near, Distance::Far] {
            let lines = self.lines.iter().filter(|line| line.distance() == distance);
            let nanos = lines.map(|line| line.0.as_nanos() as f64);
            if let Some(median) = median(nanos) {
                let count = self.count(distance);
                states.push(format!(
                    "{distance} {count} times (median {median:.0} ns there and back)"
                ));
            }
        }
        f.write_str(&states.join(", "))
    }
}

/// Returns the least and the most of these values.
pub fn least_and_most(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, 0.0), |(least, most), value| {
        (least.min(value), most.max(value))
    })
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    Some(slices::median_of(values)).filter(|median| !median.is_nan())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_turns_in_the_same_state_are_compared() {
        let [near, far] = [100, 540].map(|nanos| RoundTrip(Duration::from_nanos(nanos)));
        // In the third round the state changed between the two rows.
        let lines = vec![near, near, near, near, near, far, far, far];
        let values = vec![vec![1.0, 2.0, 3.0, 10.0], vec![2.0, 4.0, 99.0, 30.0]];
        let rounds = Rounds::new(values, lines);
        assert_eq!(rounds.ratio(1, 0, Distance::Near), Some(2.0));
        assert_eq!(rounds.ratio(1, 0, Distance::Far), Some(3.0));
        assert_eq!(rounds.median(0, Distance::Near), Some(2.0));
        assert_eq!(rounds.median(1, Distance::Far), Some(99.0));
        assert_eq!(rounds.ratio(1, 0, None), Some(3.0));
        assert_eq!(rounds.median(0, None), Some(3.0));
        assert_eq!(rounds.least_and_most(1), (2.0, 99.0));
        assert_eq!(rounds.least_and_most_ratio(1, 0), (2.0, 33.0));
        assert_eq!(
            (rounds.count(Distance::Near), rounds.count(Distance::Far)),
            (5, 3)
        );
        assert!(
            rounds.to_string().contains("near 5 times (median 100 ns"),
            "{rounds}"
        );
    }

    #[test]
    fn a_state_that_was_not_seen_has_no_median() {
        let near = RoundTrip(Duration::from_nanos(100));
        let rounds = Rounds::new(vec![vec![1.0]], vec![near]);
        assert_eq!(rounds.median(0, Distance::Far), None);
        assert_eq!(rounds.ratio(0, 0, Distance::Far), None);
    }
}
