//! [`Points`]: the values of a sweep, as they stand on a command line.

use std::fmt;

use crate::unit::Unit;

/// The most values of one sweep.
const MOST: u32 = 1000;

/// The values of a sweep, or a single one.
#[derive(Clone, Debug, PartialEq)]
pub struct Points(Vec<f64>);

impl Points {
    /// Parses a value (`20k`), a list of rising values (`1k,2k,5k`), or `from:to:steps`, in which each value
    /// is a constant factor above the previous one (`1k:64k:7`). [`Unit::parse`] reads the values. Those of
    /// [`Unit::Bytes`] and [`Unit::Number`] are whole; steps that are rounded to the same number are one.
    ///
    /// # Errors
    ///
    /// Returns a sentence that says what was expected.
    pub fn parse(text: &str, unit: Unit) -> Result<Self, String> {
        let values = match text.split(':').collect::<Vec<_>>()[..] {
            [from, to, steps] => {
                let (from, to) = (unit.parse(from)?, unit.parse(to)?);
                let steps = steps
                    .parse()
                    .ok()
                    .filter(|steps| (2..=MOST).contains(steps));
                let (true, Some(steps)) = (from < to, steps) else {
                    return Err(format!(
                        "expected from:to:steps, with rising values and 2 to {MOST} steps"
                    ));
                };
                let factor = (to / from).powf(1.0 / f64::from(steps - 1));
                let value = |step: u32| from * factor.powi(step as i32);
                let is_whole = matches!(unit, Unit::Bytes | Unit::Number);
                let values = (0..steps).map(value);
                let mut values: Vec<f64> = match is_whole {
                    true => values.map(f64::round).collect(),
                    false => values.collect(),
                };
                values.dedup();
                values
            }
            [list] => {
                let values: Result<Vec<f64>, String> =
                    list.split(',').map(|value| unit.parse(value)).collect();
                values?
            }
            _ => return Err("expected a value, a list of values, or from:to:steps".to_owned()),
        };
        if !values.is_sorted_by(|a, b| a < b) {
            return Err("expected rising values".to_owned());
        }
        Ok(Self(values))
    }

    /// The values, lowest first. There is at least one.
    #[must_use]
    pub fn values(&self) -> &[f64] {
        &self.0
    }

    /// The only value, or the first one.
    #[must_use]
    pub fn first(&self) -> f64 {
        self.0[0]
    }

    /// Returns true if there are several values.
    #[must_use]
    pub fn is_sweep(&self) -> bool {
        self.0.len() > 1
    }
}

impl From<f64> for Points {
    fn from(value: f64) -> Self {
        Self(vec![value])
    }
}

impl fmt::Display for Points {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, value) in self.0.iter().enumerate() {
            write!(f, "{}{value}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(text: &str) -> Result<Vec<f64>, String> {
        Points::parse(text, Unit::PerSecond).map(|points| points.0)
    }

    #[test]
    fn a_sweep_rises_by_one_factor_or_by_a_list() {
        assert_eq!(rates("20k"), Ok(vec![2e4]));
        assert_eq!(rates("1k,2k,5.5k"), Ok(vec![1e3, 2e3, 5.5e3]));
        let rounded = rates("1k:100k:3").map(|rates| rates.into_iter().map(f64::round).collect());
        assert_eq!(rounded, Ok(vec![1e3, 1e4, 1e5]));
        let sizes = Points::parse("1:4:9", Unit::Bytes).map(|points| points.0);
        assert_eq!(sizes, Ok(vec![1.0, 2.0, 3.0, 4.0]), "each size once");
        for wrong in [
            "",
            "1k,",
            "1k,1k",
            "2k,1k",
            "1k:2k",
            "1k:2k:1",
            "1k:2k:1001",
            "2k:1k:5",
            "1k:2k:x",
            "1:2:3:4",
        ] {
            assert!(rates(wrong).is_err(), "{wrong}");
        }
    }
}
