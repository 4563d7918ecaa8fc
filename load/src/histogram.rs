//! Histograms of times: how they are set up, filled, and written as text.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The longest time that a histogram tells from longer ones: an hour, in nanoseconds. In an overload,
/// calls wait for as long as the loop takes.
const LONGEST: u64 = 3_600_000_000_000;

/// Creates a histogram of nanoseconds, up to an hour, with three significant digits (0.1 %).
#[must_use]
pub fn histogram() -> Histogram<u64> {
    with_digits(3).expect("three digits are possible")
}

/// Creates a histogram of nanoseconds with fewer digits, or more.
pub(crate) fn with_digits(digits: u8) -> Result<Histogram<u64>, hdrhistogram::CreationError> {
    Histogram::new_with_bounds(1, LONGEST, digits)
}

/// Adds a time. Times below a nanosecond count as one, times above an hour as an hour.
#[inline]
pub fn add_time(histogram: &mut Histogram<u64>, time: Duration) {
    add_times(histogram, time, 1);
}

/// Adds a time as often as it was seen.
#[inline]
pub(crate) fn add_times(histogram: &mut Histogram<u64>, time: Duration, count: u64) {
    // As many nanoseconds as fit are 584 years.
    let nanos = time.as_nanos() as u64;
    histogram.saturating_record_n(nanos.max(1), count);
}

/// A histogram as text: figures for readers, and what a histogram can be made of again.
#[derive(Serialize, Deserialize)]
struct Written {
    calls: u64,
    #[serde(flatten, skip_deserializing)]
    figures: Figures,
    significant_digits: u8,
    /// Times in nanoseconds, and how many calls took each, to the significant digits.
    counts: Vec<(u64, u64)>,
}

/// What is said of a histogram, in nanoseconds.
#[derive(Default, Serialize)]
struct Figures {
    mean_ns: f64,
    min_ns: u64,
    p50_ns: u64,
    p90_ns: u64,
    p99_ns: u64,
    p999_ns: u64,
    p9999_ns: u64,
    max_ns: u64,
}

pub(crate) fn serialize<S: Serializer>(
    histogram: &Histogram<u64>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let quantile = |quantile| histogram.value_at_quantile(quantile);
    let steps = histogram.iter_recorded();
    Written {
        calls: histogram.len(),
        figures: Figures {
            mean_ns: histogram.mean(),
            min_ns: histogram.min(),
            p50_ns: quantile(0.5),
            p90_ns: quantile(0.9),
            p99_ns: quantile(0.99),
            p999_ns: quantile(0.999),
            p9999_ns: quantile(0.9999),
            max_ns: histogram.max(),
        },
        significant_digits: histogram.sigfig(),
        counts: steps
            .map(|step| (step.value_iterated_to(), step.count_at_value()))
            .collect(),
    }
    .serialize(serializer)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Histogram<u64>, D::Error> {
    let written = Written::deserialize(deserializer)?;
    let mut histogram = with_digits(written.significant_digits).map_err(de::Error::custom)?;
    for (nanos, calls) in written.counts {
        histogram.saturating_record_n(nanos, calls);
    }
    if histogram.len() != written.calls {
        return Err(de::Error::custom(format_args!(
            "a histogram of {} calls has counts for {}",
            written.calls,
            histogram.len()
        )));
    }
    Ok(histogram)
}
