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

    /// Reads a value of this unit as people write it: a rate as `2000`, `200k` or `1.5M`; a length as `4096`,
    /// `64K` or `8M`, with units of 1024; a time as `100ms`, `2.5s` or `10us`; a count as `32`.
    ///
    /// # Errors
    ///
    /// Returns a sentence that says what was expected.
    pub fn parse(self, text: &str) -> Result<f64, String> {
        let (units, range, expected): (&[_], _, _) = match self {
            Self::PerSecond => (
                &[("k", 1e3), ("K", 1e3), ("M", 1e6), ("", 1.0)],
                1e-3..=1e9,
                "expected calls per second, over 0 and up to 1000M: 2000, 200k, 1.5M",
            ),
            Self::Bytes => (
                &[("k", 1024.0), ("K", 1024.0), ("M", 1_048_576.0), ("", 1.0)],
                1.0..=1_073_741_824.0,
                "expected a number of bytes, from 1 to 1024M: 4096, 64K, 8M",
            ),
            // "ms" is tried before "s", because it also ends with "s".
            Self::Nanoseconds => (
                &[
                    ("ns", 1.0),
                    ("us", 1e3),
                    ("µs", 1e3),
                    ("ms", 1e6),
                    ("s", 1e9),
                ],
                0.0..=u64::MAX as f64,
                "expected a number with a unit: 100ms, 2.5s, 10us",
            ),
            Self::Number => (
                &[("", 1.0)],
                1.0..=1e6,
                "expected a number from 1 to 1000000: 32",
            ),
            Self::GigabytesPerSecond | Self::Share => {
                (&[("", 1.0)], 0.0..=f64::MAX, "expected a number above 0")
            }
        };
        let unit = units
            .iter()
            .find_map(|&(unit, factor)| Some((text.strip_suffix(unit)?, factor)));
        let value = unit.and_then(|(number, factor)| {
            Some((number, number.trim_end().parse::<f64>().ok()? * factor))
        });
        let is_whole = matches!(self, Self::Bytes | Self::Number);
        match value {
            // A whole number is written as one, not as 1e3 or 1.5M.
            Some((number, value))
                if range.contains(&value)
                    && (!is_whole || number.bytes().all(|digit| digit.is_ascii_digit())) =>
            {
                Ok(value)
            }
            _ => Err(expected.to_owned()),
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
    fn values_are_read_as_people_write_them() {
        let read = |unit: Unit, text| unit.parse(text);
        assert_eq!(read(Unit::PerSecond, "2000"), Ok(2e3));
        assert_eq!(read(Unit::PerSecond, "1.5k"), Ok(1.5e3));
        assert_eq!(read(Unit::PerSecond, "3M"), Ok(3e6));
        for wrong in ["", "0", "-1", "k", "1G", "inf", "NaN", "2000M"] {
            assert!(read(Unit::PerSecond, wrong).is_err(), "{wrong}");
        }
        assert_eq!(read(Unit::Bytes, "4096"), Ok(4096.0));
        assert_eq!(read(Unit::Bytes, "64K"), Ok(65_536.0));
        assert_eq!(read(Unit::Bytes, "1024M"), Ok(f64::from(1 << 30)));
        for wrong in ["", "0", "-1", "K", "1G", "1.5M", "1025M", "1e3", "1 K"] {
            assert!(read(Unit::Bytes, wrong).is_err(), "{wrong}");
        }
        assert_eq!(read(Unit::Nanoseconds, "100ms"), Ok(1e8));
        assert_eq!(read(Unit::Nanoseconds, "2.5 s"), Ok(2.5e9));
        for wrong in ["", "100", "ms", "-1s", "1e400s", "5 m"] {
            assert!(read(Unit::Nanoseconds, wrong).is_err(), "{wrong}");
        }
        assert_eq!(read(Unit::Number, "32"), Ok(32.0));
        for wrong in ["", "0", "-1", "1.5", "1e3", "x", "1000001"] {
            assert!(read(Unit::Number, wrong).is_err(), "{wrong}");
        }
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
