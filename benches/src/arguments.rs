//! Parsers for rates, sizes, durations and other command-line values.

use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use rpc_core::Waiting;
use verbline_load::Points;
use verbline_load::unit::Unit;

/// Parses a rate in calls per second: `2000`, `200k`, `1.5M`.
///
/// # Errors
///
/// Returns a sentence that describes the expected format.
pub fn rate(text: &str) -> Result<f64, String> {
    Unit::PerSecond.parse(text)
}

/// Parses a duration with its unit: `100ms`, `2.5s`, `10us`.
///
/// # Errors
///
/// Returns a sentence that describes the expected format.
pub fn duration(text: &str) -> Result<Duration, String> {
    let nanos = Unit::Nanoseconds.parse(text)?;
    Duration::try_from_secs_f64(nanos / 1e9).map_err(|error| error.to_string())
}

/// Parses a number of bytes: `4096`, `64K`, `8M`, with units of 1024.
///
/// # Errors
///
/// Returns a sentence that describes the expected format.
pub fn bytes(text: &str) -> Result<usize, String> {
    Unit::Bytes.parse(text).map(|bytes| bytes as usize)
}

/// Parses a number of things, of which there is one at least: `32`.
///
/// # Errors
///
/// Returns a sentence that describes the expected format.
pub fn count(text: &str) -> Result<usize, String> {
    Unit::Number.parse(text).map(|count| count as usize)
}

/// Parses the rates of a sweep, of which there are several: see [`Points::parse`].
///
/// # Errors
///
/// Returns a sentence that describes the expected format.
pub fn rates(text: &str) -> Result<Points, String> {
    let rates = Points::parse(text, Unit::PerSecond)?;
    match rates.is_sweep() {
        true => Ok(rates),
        false => Err("expected from:to:steps, or a list of rates: 10k:2M:12".to_owned()),
    }
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
