//! [`Ruler`]: an axis with its range and its ticks.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;

use super::{Axis, Scale};
use crate::unit::Unit;

/// An axis with the range of its values.
pub(super) struct Ruler<'a> {
    axis: &'a Axis,
    pub(super) range: Range<f64>,
}

/// Maps a value to where it lies on a straight ruler.
pub(super) fn bend(scale: Scale, value: f64) -> f64 {
    match scale {
        Scale::Linear => value,
        Scale::Log => value.max(f64::MIN_POSITIVE).log10(),
        Scale::Percentile => -(1.0 - value.clamp(0.0, 1.0 - 1e-9)).log10(),
    }
}

impl<'a> Ruler<'a> {
    pub(super) fn new(axis: &'a Axis, values: impl Iterator<Item = f64>) -> Self {
        let values = values.filter(|value| value.is_finite());
        let values = values.filter(|value| axis.scale != Scale::Log || *value > 0.0);
        let (least, most) = values
            .map(|value| (value, value))
            .reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
            .unwrap_or((1.0, 1.0));
        let range = match axis.scale {
            Scale::Linear => 0.0..most.max(f64::MIN_POSITIVE) * 1.04,
            Scale::Log => least / 1.1..most * 1.1,
            Scale::Percentile => 0.0..most.clamp(0.5, 1.0 - 1e-9),
        };
        Self { axis, range }
    }

    fn straight(&self) -> RangedCoordf64 {
        let bend = |value| bend(self.axis.scale, value);
        (bend(self.range.start)..bend(self.range.end)).into()
    }

    /// Round values in equal ratios, as many as an axis has room for.
    fn log_ticks(&self) -> Vec<f64> {
        const ROOM: usize = 10;
        let divisions: &[(f64, &[f64])] = match self.axis.unit {
            Unit::Bytes => &[
                (2.0, &[1.0]),
                (4.0, &[1.0]),
                (16.0, &[1.0]),
                (256.0, &[1.0]),
            ],
            _ => &[
                (10.0, &[1.0, 1.5, 2.0, 3.0, 5.0, 7.0]),
                (10.0, &[1.0, 2.0, 5.0]),
                (10.0, &[1.0]),
                (1000.0, &[1.0]),
            ],
        };
        let ticks = |(base, factors): &(f64, &[f64])| -> Vec<f64> {
            let exponent = |value: f64| value.log(*base).floor() as i32;
            let exponents = exponent(self.range.start)..=exponent(self.range.end);
            let of = |exponent| {
                factors
                    .iter()
                    .map(move |factor| factor * base.powi(exponent))
            };
            let all = exponents.flat_map(of);
            all.filter(|tick| self.range.contains(tick)).collect()
        };
        let mut divided = divisions.iter().map(ticks);
        divided
            .find(|ticks| ticks.len() <= ROOM)
            .unwrap_or_default()
    }
}

impl Ranged for Ruler<'_> {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let value = bend(self.axis.scale, *value);
        self.straight().map(&value, limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match self.axis.scale {
            Scale::Linear => self.straight().key_points(hint),
            Scale::Log => self.log_ticks(),
            Scale::Percentile => {
                let nines = (1..10).map(|nines| 1.0 - 10f64.powi(-nines));
                let nines = nines.take_while(|quantile| *quantile <= self.range.end);
                [0.0, 0.5].into_iter().chain(nines).collect()
            }
        }
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Ruler<'_> {
    fn format_ext(&self, value: &f64) -> String {
        if self.axis.scale != Scale::Percentile {
            return self.axis.unit.label(*value);
        }
        let text = format!("{:.6}", value * 100.0);
        format!("{} %", text.trim_end_matches('0').trim_end_matches('.'))
    }
}

#[cfg(test)]
mod tests {
    use plotters::coord::ranged1d::BoldPoints;

    use super::*;

    /// The ticks of a ruler of 100 pixels: their places and labels.
    fn ticks(unit: Unit, scale: Scale, values: &[f64]) -> Vec<(i32, String)> {
        let axis = Axis::new("", unit, scale);
        let ruler = Ruler::new(&axis, values.iter().copied());
        let ticks = ruler.key_points(BoldPoints(10)).into_iter();
        ticks
            .map(|tick| (ruler.map(&tick, (0, 100)), ruler.format_ext(&tick)))
            .collect()
    }

    fn labels(unit: Unit, scale: Scale, values: &[f64]) -> Vec<String> {
        ticks(unit, scale, values)
            .into_iter()
            .map(|tick| tick.1)
            .collect()
    }

    #[test]
    fn each_nine_of_a_percentile_has_the_same_width() {
        let ticks = ticks(Unit::Share, Scale::Percentile, &[0.0, 0.999]);
        let expected = [
            (0, "0 %"),
            (10, "50 %"),
            (33, "90 %"),
            (66, "99 %"),
            (100, "99.9 %"),
        ];
        assert_eq!(
            ticks,
            expected.map(|(place, label)| (place, label.to_owned()))
        );
    }

    #[test]
    fn ticks_are_round_and_within_the_axis() {
        assert_eq!(
            labels(Unit::Number, Scale::Linear, &[950.0]),
            [
                "0", "100", "200", "300", "400", "500", "600", "700", "800", "900"
            ]
        );
        assert_eq!(
            labels(Unit::Bytes, Scale::Log, &[1024.0, 8192.0]),
            ["1 KiB", "2 KiB", "4 KiB", "8 KiB"]
        );
        assert_eq!(
            labels(Unit::Number, Scale::Log, &[90.0, 2e6]),
            ["100", "1000", "10000", "100000", "1000000"]
        );
    }
}
