//! The figures of one machine on one day, kept in a file, and how others compare with them.
//!
//! A figure is a number in the JSON output of a measurement. Its name says what it is: `…_ns` is a time,
//! `…_per_s` a rate, and `…ratio…` a ratio to a reference that took turns with it. A
//! machine changes its speed between two runs, which changes times and rates, and ratios less.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Outcome;
use crate::report::Row;
use crate::slices::median_of;

/// The least relative change of a ratio that is worth a look.
const OF_RATIOS: f64 = 0.05;

/// The same of a time or a rate, whose reference is the machine's speed.
const OF_OTHERS: f64 = 0.25;

/// What was measured, and where.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    /// Describes the machine and the toolchain, by keys such as `processor`.
    pub machine: BTreeMap<String, String>,
    /// The values of each figure, one for each run, by the figure's name.
    pub figures: BTreeMap<String, Vec<f64>>,
}

impl Baseline {
    /// Adds the figures that a measurement has printed: one JSON object on each line that begins with
    /// a brace.
    ///
    /// # Errors
    ///
    /// Fails if such a line is no JSON, or if there is no figure.
    pub fn add(&mut self, name: &str, output: &str) -> Outcome<()> {
        let mut count = 0;
        for line in output.lines().filter(|line| line.starts_with('{')) {
            let object: Value = serde_json::from_str(line)?;
            flatten(name, &object, &mut |name, value| {
                count += 1;
                self.figures.entry(name).or_default().push(value);
            });
        }
        if count == 0 {
            return Err(format!("{name} printed no figures: {output}").into());
        }
        Ok(())
    }

    /// A row for each figure: both sides' medians, their ratio, and whether they differ by more than
    /// the noise.
    #[must_use]
    pub fn compare(&self, now: &Self) -> Vec<Row> {
        let names: BTreeSet<&String> = self.figures.keys().chain(now.figures.keys()).collect();
        let row = |name: &String| {
            let (then, now) = (self.figures.get(name), now.figures.get(name));
            let [before, after] = [then, now].map(|values| values.map(|values| middle(values)));
            let verdict = match (then, now) {
                (None, _) => "new",
                (_, None) => "gone",
                (Some(then), Some(now)) if differ(name, then, now) => "differs",
                _ => "",
            };
            Row::new(name.as_str())
                .with("then", before)
                .with("now", after)
                .with("ratio", before.zip(after).map(|(then, now)| now / then))
                .with("verdict", verdict)
        };
        names.into_iter().map(row).collect()
    }
}

/// True if no run of one side is within the range of the other one's, and the medians differ by more
/// than the machine makes them differ.
fn differ(name: &str, then: &[f64], now: &[f64]) -> bool {
    let range = |values: &[f64]| {
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        (least, values.iter().copied().fold(0.0, f64::max))
    };
    let ((then_least, then_most), (now_least, now_most)) = (range(then), range(now));
    let change = (middle(now) / middle(then) - 1.0).abs();
    let limit = if is_ratio(name) { OF_RATIOS } else { OF_OTHERS };
    (now_least > then_most || now_most < then_least) && change > limit
}

fn middle(values: &[f64]) -> f64 {
    median_of(values.iter().copied())
}

/// Calls `add` with the name and the value of each figure in `value`.
fn flatten(name: &str, value: &Value, add: &mut impl FnMut(String, f64)) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                // The name of a row says enough without that of its table.
                match value {
                    Value::Array(_) => flatten(name, value, add),
                    value => flatten(&format!("{name}, {key}"), value, add),
                }
            }
        }
        Value::Array(values) => {
            for value in values {
                let row = value.get("name").and_then(Value::as_str).unwrap_or("");
                flatten(&format!("{name}, {row}"), value, add);
            }
        }
        Value::Number(number) if is_figure(name) => {
            if let Some(value) = number.as_f64() {
                add(name.to_owned(), value);
            }
        }
        _ => {}
    }
}

/// Times of the slowest calls are none: they are the machine's.
fn is_figure(name: &str) -> bool {
    let is_time = name.ends_with("p50_ns") || name.ends_with("p99_ns");
    is_time || name.ends_with("_per_s") || is_ratio(name)
}

fn is_ratio(name: &str) -> bool {
    let key = name.rsplit(", ").next().unwrap_or(name);
    key.contains("ratio")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Report;

    fn baseline(ratios: &[f64], times: &[f64]) -> Baseline {
        let mut baseline = Baseline {
            machine: [("processor".to_owned(), "one".to_owned())].into(),
            figures: BTreeMap::new(),
        };
        for (ratio, time) in ratios.iter().zip(times) {
            let output = format!(
                "a table\n{{\"size_bytes\":64,\"clients\":[{{\"name\":\"rpc\",\"p50_ns\":{time},\"max_ns\":9,\
                 \"ratio_to_raw\":{ratio}}}]}}\n"
            );
            baseline.add("latency", &output).unwrap();
        }
        baseline
    }

    #[test]
    fn figures_are_found_by_their_names() {
        let found = baseline(&[1.4], &[580.0]).figures;
        let names: Vec<_> = found.keys().map(String::as_str).collect();
        let expected = ["latency, rpc, p50_ns", "latency, rpc, ratio_to_raw"];
        assert_eq!(names, expected);
        assert_eq!(found["latency, rpc, p50_ns"], [580.0]);
    }

    #[test]
    fn output_without_figures_is_an_error() {
        let mut empty = baseline(&[], &[]);
        let error = empty.add("latency", "{\"size\":64}").unwrap_err();
        assert!(error.to_string().contains("latency printed no figures"));
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let written = baseline(&[1.4, 1.5], &[580.0, 590.0]);
        let text = serde_json::to_string(&written).unwrap();
        assert_eq!(serde_json::from_str::<Baseline>(&text).unwrap(), written);
        assert!(serde_json::from_str::<Baseline>("{\"machine\":{}}").is_err());
    }

    #[test]
    fn what_differs_by_more_than_the_noise_is_marked() {
        let then = baseline(&[1.40, 1.41, 1.42], &[580.0, 590.0, 600.0]);
        let differing = |ratios: &[f64], times: &[f64]| {
            let mut report = Report::new("compare");
            report.table("figures", then.compare(&baseline(ratios, times)));
            report.to_string().matches("differs").count()
        };
        // The machine is slower by a fifth: the ratio tells that Verbline is not.
        assert_eq!(differing(&[1.41, 1.40, 1.42], &[700.0, 710.0, 720.0]), 0);
        // One run within the range of the other side.
        assert_eq!(differing(&[1.41, 1.60, 1.60], &[590.0, 580.0, 580.0]), 0);
        assert_eq!(differing(&[1.60, 1.61, 1.62], &[590.0, 580.0, 580.0]), 1);
        assert_eq!(differing(&[1.20, 1.21, 1.22], &[400.0, 390.0, 390.0]), 2);
    }
}
