//! Tables for people.

use std::fmt;
use std::time::Duration;

use comfy_table::CellAlignment;
use comfy_table::presets::NOTHING;
use hdrhistogram::Histogram;

/// Rows of text under a header. Each column is as wide as its widest cell. The first column is
/// left-aligned, the others right-aligned. There are no lines, so that figures are easy to copy.
#[derive(Clone, Debug)]
pub struct Table(comfy_table::Table);

impl Table {
    /// Creates a table with these columns.
    pub fn new<'a>(header: impl IntoIterator<Item = &'a str>) -> Self {
        let mut table = comfy_table::Table::new();
        table
            .load_preset(NOTHING)
            .set_header(header.into_iter().collect::<Vec<_>>());
        for (index, column) in table.column_iter_mut().enumerate() {
            if index == 0 {
                column.set_padding((0, 0));
            } else {
                column
                    .set_padding((2, 0))
                    .set_cell_alignment(CellAlignment::Right);
            }
        }
        Self(table)
    }

    /// Adds a row.
    pub fn add(&mut self, row: impl IntoIterator<Item = String>) {
        self.0.add_row(row.into_iter().collect::<Vec<_>>());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.0.trim_fmt())
    }
}

/// The columns of [`percentiles`].
pub const PERCENTILES: [&str; 6] = ["min", "p50", "p90", "p99", "p99.9", "max"];

/// Formats the percentiles of a histogram of nanoseconds.
#[must_use]
pub fn percentiles(histogram: &Histogram<u64>) -> [String; 6] {
    [
        histogram.min(),
        histogram.value_at_quantile(0.5),
        histogram.value_at_quantile(0.9),
        histogram.value_at_quantile(0.99),
        histogram.value_at_quantile(0.999),
        histogram.max(),
    ]
    .map(|nanos| duration(Duration::from_nanos(nanos)))
}

/// Formats a duration with a suitable unit, in three or four digits.
#[must_use]
pub fn duration(duration: Duration) -> String {
    let nanos = duration.as_nanos() as f64;
    if nanos < 10_000.0 {
        format!("{nanos:.0} ns")
    } else if nanos < 10_000_000.0 {
        format!("{:.1} µs", nanos / 1e3)
    } else {
        format!("{:.1} ms", nanos / 1e6)
    }
}

/// Formats a rate in thousands or millions of calls per second.
#[must_use]
pub fn rate(per_second: f64) -> String {
    if per_second < 1e6 {
        format!("{:.1} k/s", per_second / 1e3)
    } else {
        format!("{:.2} M/s", per_second / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(["", "p50", "rate"]);
        table.add(["raw".to_owned(), "480 ns".to_owned(), rate(2_083_000.0)]);
        table.add(["rpc, bytes".to_owned(), "1 µs".to_owned(), rate(999.0)]);
        let expected = "               p50      rate\n\
                        raw         480 ns  2.08 M/s\n\
                        rpc, bytes    1 µs   1.0 k/s\n";
        assert_eq!(table.to_string(), expected);
    }

    #[test]
    fn durations_choose_their_unit() {
        let texts = [999, 9_999, 10_000, 9_999_000, 12_345_678];
        let texts = texts.map(|nanos| duration(Duration::from_nanos(nanos)));
        assert_eq!(
            texts,
            ["999 ns", "9999 ns", "10.0 µs", "9999.0 µs", "12.3 ms"]
        );
    }
}
