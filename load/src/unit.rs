//! [`Unit`]: what a figure counts, and how it is written for people.

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A time, in nanoseconds.
    Nanoseconds,
    /// Events per second.
    PerSecond,
    /// 10⁹ bytes per second.
    GigabytesPerSecond,
    /// A length or an amount of memory, in bytes.
    Bytes,
    /// A part of one, written in percent.
    Share,
    /// A ratio or a count.
    Number,
}

/// The endings of the names of figures, and the units that they stand for.
const ENDINGS: [(&str, Unit); 5] = [
    ("_ns", Unit::Nanoseconds),
    ("_per_s", Unit::PerSecond),
    ("_gbs", Unit::GigabytesPerSecond),
    ("_bytes", Unit::Bytes),
    ("_share", Unit::Share),
];

impl Unit {
    /// Returns the unit that the ending of a figure's name says, and the name without it.
    #[must_use]
    pub fn of(figure: &str) -> (Self, &str) {
        ENDINGS
            .iter()
            .find_map(|(ending, unit)| Some((*unit, figure.strip_suffix(ending)?)))
            .unwrap_or((Self::Number, figure))
    }

    /// Writes a value with a suitable unit, in three digits.
    #[must_use]
    pub fn text(self, value: f64) -> String {
        let scaled = |steps: &[(f64, &str)]| {
            // The next unit begins where three digits of this one would be rounded to four.
            let step = steps.iter().rfind(|(factor, _)| value >= factor * 0.9995);
            let (factor, unit) = step.or(steps.first()).copied().unwrap_or((1.0, ""));
            format!("{} {unit}", digits(value / factor))
        };
        match self {
            Self::Nanoseconds => scaled(&[(1.0, "ns"), (1e3, "µs"), (1e6, "ms"), (1e9, "s")]),
            Self::PerSecond => scaled(&[(1.0, "/s"), (1e3, "k/s"), (1e6, "M/s")]),
            Self::GigabytesPerSecond => format!("{value:.2} GB/s"),
            Self::Bytes => {
                let kib = f64::from(1 << 10);
                scaled(&[(1.0, "B"), (kib, "KiB"), (kib * kib, "MiB")])
            }
            Self::Share => format!("{:.2} %", value * 100.0),
            Self::Number if value.fract() == 0.0 || value >= 1e3 => format!("{value:.0}"),
            // The frames of a message of a stream, the allocations of a call.
            Self::Number if value.abs() < 0.001 => format!("{value:.6}"),
            Self::Number if value.abs() < 0.1 => format!("{value:.4}"),
            Self::Number => format!("{value:.2}"),
        }
    }

    /// Writes a round value, as at the tick of an axis, without the zeros at its end.
    #[must_use]
    pub fn label(self, value: f64) -> String {
        let text = self.text(value);
        match text.split_once(' ') {
            Some((number, unit)) if number.contains('.') => {
                let number = number.trim_end_matches('0').trim_end_matches('.');
                format!("{number} {unit}")
            }
            _ => text,
        }
    }
}

/// Writes a number in three digits; whole numbers below ten thousand as they are.
fn digits(value: f64) -> String {
    match value {
        value if value.fract() == 0.0 && value < 1e4 => format!("{value:.0}"),
        value if value < 9.995 => format!("{value:.2}"),
        value if value < 99.95 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_figure_says_its_unit() {
        assert_eq!(Unit::of("p50_ns"), (Unit::Nanoseconds, "p50"));
        assert_eq!(Unit::of("calls_per_s"), (Unit::PerSecond, "calls"));
        assert_eq!(Unit::of("ratio"), (Unit::Number, "ratio"));
    }

    #[test]
    fn values_choose_their_unit() {
        let times = [0.0, 7.0, 999.0, 999.6, 1_234.0, 99_949.0, 12_345_678.0];
        let texts = times.map(|nanos| Unit::Nanoseconds.text(nanos));
        let expected = [
            "0 ns", "7 ns", "999 ns", "1.00 µs", "1.23 µs", "99.9 µs", "12.3 ms",
        ];
        assert_eq!(texts, expected);
        assert_eq!(Unit::PerSecond.text(2_083_000.0), "2.08 M/s");
        assert_eq!(Unit::Bytes.text(f64::from(8 << 20)), "8 MiB");
        assert_eq!(Unit::Share.text(0.0123), "1.23 %");
        let ratios =
            [1.0, 0.66, 0.0184, 0.000_005, 510_903.23].map(|number| Unit::Number.text(number));
        assert_eq!(ratios, ["1", "0.66", "0.0184", "0.000005", "510903"]);
        assert_eq!(Unit::Nanoseconds.label(1_500.0), "1.5 µs");
    }
}
