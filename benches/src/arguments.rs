//! Parsers for rates, sizes, durations and other command-line values.

use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use rpc_core::Waiting;

/// Parses a rate in calls per second: `2000`, `200k`, `1.5M`.
///
/// # Errors
///
/// Returns a sentence that describes the expected format.
pub fn rate(text: &str) -> Result<f64, String> {
    let rate = scaled(text, &[("k", 1e3), ("K", 1e3), ("M", 1e6), ("", 1.0)]);
    rate.filter(|rate| (1e-3..=1e9).contains(rate))
        .ok_or("expected calls per second, over 0 and up to 1000M: 2000, 200k, 1.5M".to_owned())
}

/// Parses a duration with its unit: `100ms`, `2.5s`, `10us`.
///
/// # Errors
///
/// Returns a sentence that describes the expected format.
pub fn duration(text: &str) -> Result<Duration, String> {
    // "ms" must be tried before "s", because it also ends with "s".
    let units = [
        ("ns", 1e-9),
        ("us", 1e-6),
        ("µs", 1e-6),
        ("ms", 1e-3),
        ("s", 1.0),
    ];
    scaled(text, &units)
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or("expected a number with a unit: 100ms, 2.5s, 10us".to_owned())
}

/// Parses a number of bytes: `4096`, `64K`, `8M`, with units of 1024.
///
/// # Errors
///
/// Returns a sentence that describes the expected format.
pub fn bytes(text: &str) -> Result<usize, String> {
    let units = [("k", 1 << 10), ("K", 1 << 10), ("M", 1 << 20), ("", 1)];
    let mut units = units.into_iter();
    let found = units.find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)));
    let bytes =
        found.and_then(|(number, factor)| number.parse::<usize>().ok()?.checked_mul(factor));
    bytes
        .filter(|bytes| (1..=1 << 30).contains(bytes))
        .ok_or("expected a number of bytes, from 1 to 1024M: 4096, 64K, 8M".to_owned())
}

/// Parses a number with the first of these units that it ends with.
fn scaled(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let mut units = units.iter();
    let (number, factor) =
        units.find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))?;
    Some(number.trim_end().parse::<f64>().ok()? * factor)
}

/// Returns the time of `--seconds`.
///
/// # Errors
///
/// Returns a sentence if nothing could be recorded in it.
pub fn recorded(seconds: f64) -> Result<Duration, String> {
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) if !time.is_zero() => Ok(time),
        _ => Err(format!("--seconds {seconds}: nothing could be recorded")),
    }
}

/// Checks the number of `--rounds`.
///
/// # Errors
///
/// Returns a sentence if there is none.
pub fn at_least_one_round(rounds: usize) -> Result<(), String> {
    match rounds {
        0 => Err("--rounds 0: nothing could be measured".to_owned()),
        _ => Ok(()),
    }
}

/// Returns a parser for [`Waiting`].
pub fn waiting() -> impl TypedValueParser<Value = Waiting> {
    waiting_name().map(|name| waiting_of(&name))
}

/// Returns a parser for the name of a [`Waiting`].
pub fn waiting_name() -> PossibleValuesParser {
    PossibleValuesParser::new(["busy", "adaptive", "event"])
}

/// Returns the [`Waiting`] with this name; any other name is that of the default.
#[must_use]
pub fn waiting_of(name: &str) -> Waiting {
    match name {
        "busy" => Waiting::Busy,
        "event" => Waiting::Event,
        _ => Waiting::Adaptive,
    }
}

/// The rates of a sweep; each is a constant factor above the previous one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steps {
    /// Calls per second of the first step.
    pub from: f64,
    /// Calls per second of the last step, unless the knee is found earlier.
    pub to: f64,
    /// Number of steps.
    pub steps: u32,
}

impl Steps {
    /// Each step is 1.5 times the previous one, so the knee is found to within 50 %. The range
    /// starts where few calls are in flight and ends above what one connection has carried on any
    /// machine.
    pub const DEFAULT: &str = "10k:15M:19";

    /// Parses `from:to:steps`.
    ///
    /// # Errors
    ///
    /// Returns a sentence that describes the expected format.
    pub fn parse(text: &str) -> Result<Self, String> {
        let sentence = || "expected from:to:steps, rising rates and at least 2 steps: 10k:2M:12";
        let parts: Vec<&str> = text.split(':').collect();
        let [from, to, steps] = parts[..] else {
            return Err(sentence().to_owned());
        };
        let (from, to) = (rate(from)?, rate(to)?);
        match steps.parse() {
            Ok(steps) if steps >= 2 && from < to => Ok(Self { from, to, steps }),
            _ => Err(sentence().to_owned()),
        }
    }

    /// Returns the rates, lowest first.
    pub fn rates(self) -> impl Iterator<Item = f64> {
        let factor = (self.to / self.from).powf(1.0 / f64::from(self.steps - 1));
        (0..self.steps).map(move |step| self.from * factor.powi(step as i32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_plain_or_in_thousands_or_millions() {
        assert_eq!(rate("2000"), Ok(2e3));
        assert_eq!(rate("1.5k"), Ok(1.5e3));
        assert_eq!(rate("3M"), Ok(3e6));
        for wrong in ["", "0", "-1", "k", "1G", "inf", "NaN", "2000M"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn bytes_are_plain_or_in_units_of_1024() {
        assert_eq!(bytes("4096"), Ok(4096));
        assert_eq!(bytes("64K"), Ok(65_536));
        assert_eq!(bytes("1024M"), Ok(1 << 30));
        for wrong in ["", "0", "-1", "K", "1G", "1.5M", "1025M", "1e3", "1 K"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations_have_a_unit() {
        assert_eq!(duration("100ms"), Ok(Duration::from_millis(100)));
        assert_eq!(duration("2.5 s"), Ok(Duration::from_millis(2500)));
        assert_eq!(duration("10us"), Ok(Duration::from_micros(10)));
        for wrong in ["", "100", "ms", "-1s", "1e400s", "5 m"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_sweep_rises_by_one_factor_from_its_first_rate_to_its_last() {
        let steps = Steps::parse("1k:100k:3").expect("a sweep");
        let rates: Vec<u64> = steps.rates().map(|rate| rate.round() as u64).collect();
        assert_eq!(rates, [1000, 10_000, 100_000]);
        assert!(Steps::parse(Steps::DEFAULT).is_ok());
        for wrong in [
            "", "1k", "1k:2k", "1k:2k:1", "2k:1k:5", "1k:2k:x", "1:2:3:4",
        ] {
            assert!(Steps::parse(wrong).is_err(), "{wrong}");
        }
    }
}
