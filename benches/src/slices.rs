//! Alternating slices: measures several things in turns, so that all of them see the same machine
//! state.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use verbline_load::histogram;

use crate::Outcome;

/// One of the things that are measured in turns.
pub trait Side {
    /// Starts to use its cores, makes a few unrecorded calls, then makes `calls` calls in a closed
    /// loop with a stopwatch lap after each, and leaves its cores idle.
    ///
    /// # Errors
    ///
    /// Returns any error that ends the measurement.
    fn take_turn(&mut self, calls: usize, stopwatch: &mut Stopwatch) -> Outcome<()>;
}

impl<F: FnMut(usize, &mut Stopwatch) -> Outcome<()>> Side for F {
    fn take_turn(&mut self, calls: usize, stopwatch: &mut Stopwatch) -> Outcome<()> {
        self(calls, stopwatch)
    }
}

/// Calls at the beginning of a turn that are not recorded. The caches still hold the other side's
/// data then, and the server may just have been resumed.
pub const UNRECORDED: usize = 1000;

/// Times calls that follow each other without a pause. The end of one call is the start of the
/// next, so the clock is read once per call.
#[derive(Debug)]
pub struct Stopwatch {
    last: Instant,
    /// Nanoseconds. Samples stay plain numbers during the calls and go into a histogram afterwards.
    samples: Vec<u64>,
}

impl Stopwatch {
    pub(crate) fn new(calls: usize) -> Self {
        Self {
            last: Instant::now(),
            samples: Vec::with_capacity(calls),
        }
    }

    /// Marks the start of the first call.
    #[inline]
    pub fn start(&mut self) {
        self.last = Instant::now();
    }

    /// Marks the end of a call and the start of the next one.
    #[inline]
    pub fn lap(&mut self) {
        let now = Instant::now();
        self.samples.push((now - self.last).as_nanos() as u64);
        self.last = now;
    }

    /// Makes exchanges one after the other, and times those after the first `unrecorded` ones.
    ///
    /// # Errors
    ///
    /// Returns the error of the first exchange that fails.
    #[inline]
    pub fn time<E>(
        &mut self,
        unrecorded: usize,
        exchanges: usize,
        mut exchange: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        for _ in 0..unrecorded {
            exchange()?;
        }
        self.start();
        for _ in 0..exchanges {
            exchange()?;
            self.lap();
        }
        Ok(())
    }

    /// Does the same with exchanges that are awaited.
    ///
    /// # Errors
    ///
    /// Returns the error of the first exchange that fails.
    #[inline]
    pub async fn time_async<E>(
        &mut self,
        unrecorded: usize,
        exchanges: usize,
        mut exchange: impl AsyncFnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        for _ in 0..unrecorded {
            exchange().await?;
        }
        self.start();
        for _ in 0..exchanges {
            exchange().await?;
            self.lap();
        }
        Ok(())
    }

    /// Adds a time that another program measured.
    pub fn record(&mut self, time: Duration) {
        self.samples.push(time.as_nanos() as u64);
    }
}

/// The record of one side.
#[derive(Debug)]
pub struct Record {
    /// Latencies of all slices, in nanoseconds.
    pub histogram: Histogram<u64>,
    /// The median of each slice, in nanoseconds.
    pub slice_p50: Vec<u64>,
    /// The sum of all recorded times.
    pub busy: Duration,
}

impl Record {
    /// Creates the record of one slice.
    #[must_use]
    pub fn of(mut stopwatch: Stopwatch) -> Self {
        let mut record = Self::default();
        record.add(&mut stopwatch.samples);
        record
    }

    /// Adds a slice.
    pub fn add(&mut self, samples: &mut [u64]) {
        for &nanos in &*samples {
            self.histogram.saturating_record(nanos.max(1));
        }
        self.busy += Duration::from_nanos(samples.iter().sum());
        self.slice_p50.push(median(samples));
    }

    /// Returns the calls per second during its turns.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.histogram.len() as f64 / self.busy.as_secs_f64()
    }
}

impl Default for Record {
    fn default() -> Self {
        Self {
            histogram: histogram(),
            slice_p50: Vec::new(),
            busy: Duration::ZERO,
        }
    }
}

/// Lets each side take `slices` turns of `calls` calls, in round-robin order, and returns a record
/// for each side. `before_each` is called before each turn with the number of turns taken so far.
///
/// # Errors
///
/// Returns the first error of a side.
pub fn alternate(
    sides: &mut [&mut dyn Side],
    slices: usize,
    calls: usize,
    mut before_each: impl FnMut(usize),
) -> Outcome<Vec<Record>> {
    let count = sides.len();
    let mut records: Vec<Record> = sides.iter().map(|_| Record::default()).collect();
    let mut stopwatch = Stopwatch::new(calls);
    for slice in 0..slices {
        for (index, side) in sides.iter_mut().enumerate() {
            before_each(slice * count + index);
            stopwatch.samples.clear();
            side.take_turn(calls, &mut stopwatch)?;
            records[index].add(&mut stopwatch.samples);
        }
    }
    Ok(records)
}

/// Returns the ratio of `side` to `base`: the median over slices of the ratio of their medians. The
/// two slices of a ratio ran right after each other.
#[must_use]
pub fn ratio_p50(side: &Record, base: &Record) -> f64 {
    let pairs = side.slice_p50.iter().zip(&base.slice_p50);
    median_of(pairs.map(|(&side, &base)| side as f64 / base as f64))
}

/// Returns the median, or the upper of the two middle values, or NaN if there are no values.
pub fn median_of(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Returns the median, or the upper of the two middle values, or 0 if there are no samples.
pub fn median(samples: &mut [u64]) -> u64 {
    if samples.is_empty() {
        return 0;
    }
    *samples.select_nth_unstable(samples.len() / 2).1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a side with a fixed time per call, five times longer in every other turn, to simulate the
    /// machine's regime.
    fn steady(nanos: u64) -> impl Side {
        let mut regimes = [1, 5].into_iter().cycle();
        move |calls: usize, stopwatch: &mut Stopwatch| {
            let time = Duration::from_nanos(nanos * regimes.next().unwrap_or(1));
            (0..calls).for_each(|_| stopwatch.record(time));
            Ok(())
        }
    }

    #[test]
    fn the_ratio_does_not_see_the_regime() {
        let (mut raw, mut rpc) = (steady(200), steady(300));
        let mut seen = Vec::new();
        let records = alternate(&mut [&mut raw, &mut rpc], 4, 10, |turns| seen.push(turns));
        let [raw, rpc] = &records.expect("no errors")[..] else {
            panic!("a record for each side");
        };
        assert_eq!(seen, [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(raw.slice_p50, [200, 1000, 200, 1000]);
        assert_eq!(rpc.histogram.len(), 40);
        assert!((ratio_p50(rpc, raw) - 1.5).abs() < 1e-9);
        assert_eq!(raw.busy, Duration::from_nanos(2 * 10 * 200 + 2 * 10 * 1000));
    }

    #[test]
    fn the_median_of_an_even_number_is_the_upper_one() {
        assert_eq!(median(&mut [4, 1, 3, 2]), 3);
        assert_eq!(median(&mut []), 0);
    }
}
