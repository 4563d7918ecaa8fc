//! Writes histograms as text in the format of HdrHistogram's plotter
//! (<https://hdrhistogram.github.io/HdrHistogram/plotFiles.html>), with the same lines as the Java
//! library. Values are in nanoseconds; select that unit in the plotter.

use std::io::{self, Write};

use hdrhistogram::Histogram;

/// Number of lines for each halving of the distance to 100 %.
const TICKS_PER_HALF_DISTANCE: u32 = 5;

/// Writes a histogram.
///
/// # Errors
///
/// Returns the writer's error.
pub fn write(histogram: &Histogram<u64>, out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "{:>12} {:>14} {:>10} {:>14}\n",
        "Value", "Percentile", "TotalCount", "1/(1-Percentile)"
    )?;
    let mut total = 0;
    for step in histogram.iter_quantiles(TICKS_PER_HALF_DISTANCE) {
        total += step.count_since_last_iteration();
        let (value, quantile) = (step.value_iterated_to() as f64, step.quantile_iterated_to());
        if quantile < 1.0 {
            let inverse = 1.0 / (1.0 - quantile);
            writeln!(
                out,
                "{value:>12.3} {quantile:>2.12} {total:>10} {inverse:>14.2}"
            )?;
        } else {
            // The last column would be infinite. The plotter expects none.
            writeln!(out, "{value:>12.3} {quantile:>2.12} {total:>10}")?;
        }
    }
    let (mean, deviation) = (histogram.mean(), histogram.stdev());
    writeln!(
        out,
        "#[Mean    = {mean:>12.3}, StdDeviation   = {deviation:>12.3}]"
    )?;
    let (max, count) = (histogram.max() as f64, histogram.len());
    writeln!(
        out,
        "#[Max     = {max:>12.3}, Total count    = {count:>12}]"
    )?;
    writeln!(
        out,
        "#[Buckets = {:>12}, SubBuckets     = {:>12}]",
        histogram.buckets(),
        (2 * 10u64.pow(u32::from(histogram.sigfig()))).next_power_of_two()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_are_those_that_the_plotter_parses() {
        let mut histogram = Histogram::new_with_bounds(1, 1_000_000, 3).expect("valid bounds");
        for value in 1..=1000 {
            histogram.record(value).expect("within the bounds");
        }
        let mut text = Vec::new();
        write(&histogram, &mut text).expect("a vector takes everything");
        let text = String::from_utf8(text).expect("text");
        let mut lines = text.lines();
        let header = lines.next().expect("a header");
        assert!(header.trim_start().starts_with("Value"), "{header}");
        assert_eq!(lines.next(), Some(""));

        let rows: Vec<Vec<f64>> = lines
            .by_ref()
            .take_while(|line| !line.starts_with('#'))
            .map(|line| {
                let columns = line.split_whitespace();
                columns
                    .map(|column| column.parse().expect("a number"))
                    .collect()
            })
            .collect();
        let (last, rows) = rows.split_last().expect("rows");
        assert_eq!(last[1..], [1.0, 1000.0]);
        let median = rows.iter().find(|row| row[1] >= 0.5).expect("a median");
        assert_eq!((median[0], median[2], median[3]), (500.0, 500.0, 2.0));
        assert!(rows.iter().all(|row| row.len() == 4));
        assert!(rows.windows(2).all(|pair| pair[0][1] < pair[1][1]));
        assert!(text.contains("Total count    =         1000]"), "{text}");
    }
}
