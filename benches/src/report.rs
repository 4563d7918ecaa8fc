//! [`Report`]: the figures of a measurement, once for people and once for programs.
//!
//! A figure has a name, whose ending says its unit ([`Unit::of`]). The same name heads its column in
//! the table and is its key in the JSON object. `docs/benchmarks.md` says what each name means.

use std::collections::BTreeSet;
use std::fmt;
use std::iter::once;
use std::path::{Path, PathBuf};

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use hdrhistogram::Histogram;
use serde_json::{Map, Value};
use verbline_load::hgrm;
use verbline_load::unit::Unit;

use crate::Outcome;
use crate::line::Distance;
use crate::rounds::Rounds;
use verbline_load::plot::{Axis, Curve, Plot, Scale};

/// What a measurement found.
#[derive(Clone, Debug)]
pub struct Report {
    name: String,
    /// The conditions and the figures that belong to no row.
    figures: Row,
    tables: Vec<(String, Vec<Row>)>,
    notes: Vec<String>,
    histograms: Vec<(String, Histogram<u64>)>,
    plots: Vec<(String, Plot)>,
}

/// The figures of one thing, in the order in which they were added.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    name: String,
    figures: Map<String, Value>,
}

impl Row {
    /// Creates a row without figures.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            figures: Map::new(),
        }
    }

    /// Adds a figure: a number, a text, or `None` if it could not be measured.
    #[must_use]
    pub fn with(mut self, figure: impl Into<String>, value: impl Into<Value>) -> Self {
        self.set(figure, value);
        self
    }

    fn set(&mut self, figure: impl Into<String>, value: impl Into<Value>) {
        let value = match value.into() {
            // Six digits show the allocations of one call in a million.
            Value::Number(number) if number.is_f64() => number
                .as_f64()
                .map(|number| (number * 1e6).round() / 1e6)
                .into(),
            value => value,
        };
        self.figures.insert(figure.into(), value);
    }

    /// Adds the percentiles of a histogram of nanoseconds.
    #[must_use]
    pub fn with_times(self, times: &Histogram<u64>) -> Self {
        self.with("min_ns", times.min())
            .with("p50_ns", times.value_at_quantile(0.5))
            .with("p90_ns", times.value_at_quantile(0.9))
            .with("p99_ns", times.value_at_quantile(0.99))
            .with("p999_ns", times.value_at_quantile(0.999))
            .with("max_ns", times.max())
    }

    /// Adds the median over rounds, and the medians while cache lines were near and far. Where there
    /// is a `base`, the ratio to it follows each. All are of `row`.
    #[must_use]
    pub fn with_rounds(
        mut self,
        figure: &str,
        rounds: &Rounds,
        row: usize,
        base: Option<usize>,
    ) -> Self {
        self.set(figure, rounds.median(row, None));
        if let Some(base) = base {
            self.set("ratio", rounds.ratio(row, base, None));
        }
        for distance in [Distance::Near, Distance::Far] {
            if rounds.count(distance) == 0 {
                continue;
            }
            self.set(format!("{distance}_{figure}"), rounds.median(row, distance));
            if let Some(base) = base {
                self.set(
                    format!("{distance}_ratio"),
                    rounds.ratio(row, base, distance),
                );
            }
        }
        self
    }
}

impl Report {
    /// Creates an empty report of the measurement with this name.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            figures: Row::default(),
            tables: Vec::new(),
            notes: Vec::new(),
            histograms: Vec::new(),
            plots: Vec::new(),
        }
    }

    /// Adds a condition or a figure that belongs to no row.
    pub fn figure(&mut self, figure: &str, value: impl Into<Value>) {
        self.figures.set(figure, value);
    }

    /// Adds a table.
    pub fn table(&mut self, title: impl Into<String>, rows: impl IntoIterator<Item = Row>) {
        self.tables.push((title.into(), rows.into_iter().collect()));
    }

    /// Adds a table with a row for each name, of the values in `rounds`. Ratios are those to `base`.
    pub fn rounds(
        &mut self,
        title: &str,
        figure: &str,
        names: &[impl AsRef<str>],
        rounds: &Rounds,
        base: Option<usize>,
    ) {
        let names = names.iter().enumerate();
        let rows =
            names.map(|(row, name)| Row::new(name.as_ref()).with_rounds(figure, rounds, row, base));
        self.table(title, rows);
        self.note(rounds.to_string());
    }

    /// Adds a sentence for people.
    pub fn note(&mut self, note: impl Into<String>) {
        let note = note.into();
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Keeps a histogram of nanoseconds for a `.hgrm` file and for the drawing of percentiles.
    pub fn histogram(&mut self, name: impl Into<String>, times: &Histogram<u64>) {
        self.histograms.push((name.into(), times.clone()));
    }

    /// Adds a drawing.
    pub fn plot(&mut self, name: &str, plot: Plot) {
        self.plots.push((name.to_owned(), plot));
    }

    /// Returns the whole report as one object.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut object = Map::new();
        object.insert("bench".to_owned(), self.name.as_str().into());
        object.extend(self.figures.figures.clone());
        for (title, rows) in &self.tables {
            let rows = rows.iter().map(|row| {
                let mut object = Map::new();
                object.insert("name".to_owned(), row.name.as_str().into());
                object.extend(row.figures.clone());
                Value::from(object)
            });
            object.insert(title.replace(' ', "_"), rows.collect());
        }
        object.into()
    }

    /// Writes the histograms and the drawings into a folder, and returns the paths of the drawings.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be written.
    pub fn save(&self, folder: &Path) -> Outcome<Vec<PathBuf>> {
        let file = |name: &str, ending: &str| {
            let name = format!("{}-{name}", self.name);
            let is_kept = |letter: char| letter.is_ascii_alphanumeric() || letter == '.';
            let words = name
                .split(|letter| !is_kept(letter))
                .filter(|word| !word.is_empty());
            folder.join(format!("{}.{ending}", words.collect::<Vec<_>>().join("-")))
        };
        let write = |path: &Path, bytes: &[u8]| {
            std::fs::create_dir_all(folder)
                .and_then(|()| std::fs::write(path, bytes))
                .map_err(|error| format!("cannot write {}: {error}", path.display()))
        };
        for (name, times) in &self.histograms {
            let mut text = Vec::new();
            hgrm::write(times, &mut text)?;
            write(&file(name, "hgrm"), &text)?;
        }
        let percentiles = (!self.histograms.is_empty()).then(|| self.percentiles());
        let plots = percentiles.into_iter().chain(self.plots.iter().cloned());
        let mut saved = Vec::new();
        for (name, mut plot) in plots {
            let path = file(&name, "svg");
            if plot.subtitle.is_empty() {
                plot.subtitle = self.conditions();
            }
            write(&path, plot.to_svg().as_bytes())?;
            saved.push(path);
        }
        Ok(saved)
    }

    /// The conditions that fit into one line, in their order.
    fn conditions(&self) -> String {
        /// Letters of a line that is as wide as a drawing.
        const LINE: usize = 110;
        let mut line = String::new();
        for (figure, value) in &self.figures.figures {
            let next = format!("{} {}", heading(figure), cell(figure, value));
            if line.chars().count() + next.chars().count() > LINE {
                break;
            }
            line += if line.is_empty() { "" } else { " · " };
            line += &next;
        }
        line
    }

    fn percentiles(&self) -> (String, Plot) {
        let curve = |(name, times): &(String, Histogram<u64>)| {
            // Beyond the last call there is no quantile.
            let last = 1.0 - 1.0 / times.len().max(2) as f64;
            let steps = times.iter_quantiles(10).map(|step| {
                let quantile = step.quantile_iterated_to().min(last);
                (quantile, step.value_iterated_to() as f64)
            });
            let first = (0.0, times.min().max(1) as f64);
            Curve::new(name.clone(), [first].into_iter().chain(steps))
        };
        let plot = Plot {
            title: format!("{}: latency by percentile", self.name),
            subtitle: String::new(),
            x: Axis::new(
                "share of the calls that took at most this long",
                Unit::Share,
                Scale::Percentile,
            ),
            y: Axis::new("latency", Unit::Nanoseconds, Scale::Log),
            curves: self.histograms.iter().map(curve).collect(),
            marks: Vec::new(),
            rule: None,
        };
        ("percentiles".to_owned(), plot)
    }
}

/// Writes a value of this figure for people.
fn cell(figure: &str, value: &Value) -> String {
    match value {
        // Counts and seeds to their last digit.
        Value::Number(number) if number.is_u64() && Unit::of(figure).0 == Unit::Number => {
            number.to_string()
        }
        Value::Number(number) => {
            let (unit, _) = Unit::of(figure);
            number
                .as_f64()
                .map_or_else(String::new, |number| unit.text(number))
        }
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        value => value.to_string(),
    }
}

/// The heading of a column.
fn heading(figure: &str) -> String {
    Unit::of(figure)
        .1
        .replace("p999", "p99.9")
        .replace('_', " ")
}

/// Lays out a table. There are no lines, so that figures are easy to copy. A column is left out if it
/// only repeats the names of the rows, and those of the two states of the machine are if only one was
/// seen.
fn laid_out(title: &str, rows: &[Row]) -> String {
    let mut seen = BTreeSet::new();
    let all = rows.iter().flat_map(|row| row.figures.keys());
    let mut columns: Vec<&String> = all.filter(|figure| seen.insert(*figure)).collect();
    let states = ["near_", "far_"];
    let has = |state| columns.iter().any(|column| column.starts_with(state));
    if !states.into_iter().all(has) {
        columns.retain(|column| !states.iter().any(|state| column.starts_with(state)));
    }
    let text = |row: &Row, column: &str| {
        let value = row.figures.get(column);
        value.map_or_else(String::new, |value| cell(column, value))
    };
    columns.retain(|column| rows.iter().any(|row| text(row, column) != row.name));
    let mut table = Table::new();
    table.load_preset(NOTHING);
    table.set_header(once(title.to_owned()).chain(columns.iter().map(|column| heading(column))));
    for row in rows {
        let cells = columns.iter().map(|column| text(row, column));
        table.add_row(once(row.name.clone()).chain(cells));
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((if index == 0 { 0 } else { 2 }, 0));
        if index > 0 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt() + "\n"
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (title, rows) in &self.tables {
            writeln!(f, "\n{}", laid_out(title, rows))?;
        }
        for (figure, value) in &self.figures.figures {
            writeln!(f, "{}: {}", heading(figure), cell(figure, value))?;
        }
        for note in &self.notes {
            writeln!(f, "{note}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::line::RoundTrip;
    use verbline_load::histogram;

    fn report() -> Report {
        let mut times = histogram();
        times.record_n(500, 1000).expect("within the bounds");
        let mut report = Report::new("latency");
        report.figure("device", "soft");
        report.figure("client_allocations", 0.000_005);
        report.table(
            "clients",
            [Row::new("rpc").with_times(&times).with("calls_per_s", 2e6)],
        );
        report.histogram("rpc, 96 bytes", &times);
        report
    }

    #[test]
    fn the_object_has_the_conditions_and_then_the_tables() {
        assert_eq!(
            report().to_json().to_string(),
            r#"{"bench":"latency","device":"soft","client_allocations":5e-6,"clients":[{"name":"rpc","min_ns":500,"p50_ns":500,"p90_ns":500,"p99_ns":500,"p999_ns":500,"max_ns":500,"calls_per_s":2000000.0}]}"#
        );
    }

    #[test]
    fn the_text_has_the_same_figures_with_their_units() {
        let text = report().to_string();
        assert!(text.contains("p99.9") && text.contains("500 ns"), "{text}");
        assert!(
            text.contains("2 M/s") && text.contains("device: soft"),
            "{text}"
        );
        assert!(text.contains("client allocations: 0.000005"), "{text}");
    }

    #[test]
    fn a_state_that_was_not_seen_has_no_column() {
        let near = RoundTrip(Duration::from_nanos(100));
        let rounds = Rounds::new(vec![vec![2e6], vec![3e6]], vec![near; 2]);
        let row = Row::new("b").with_rounds("messages_per_s", &rounds, 1, Some(0));
        let expected = Row::new("b")
            .with("messages_per_s", 3e6)
            .with("ratio", 1.5)
            .with("near_messages_per_s", 3e6)
            .with("near_ratio", 1.5);
        assert_eq!(row, expected);
    }

    #[test]
    fn the_text_says_nothing_twice() {
        let row =
            |name: &str, bytes: u64| Row::new(name).with("size_bytes", bytes).with("p50_ns", 9);
        let one = row("1 KiB", 1024).with("near_p50_ns", 9);
        let table = laid_out("puts", &[one.clone(), row("4 KiB", 4096)]);
        assert_eq!(table, "puts    p50\n1 KiB  9 ns\n4 KiB  9 ns\n");
        let table = laid_out("puts", &[one.with("far_p50_ns", 70)]);
        assert!(
            table.contains("near p50") && table.contains("far p50"),
            "{table}"
        );
    }

    #[test]
    fn files_are_named_after_the_measurement() {
        let folder = std::env::temp_dir().join(format!("verbline-report-{}", std::process::id()));
        let drawings = report().save(&folder).expect("the folder can be written");
        assert_eq!(drawings, [folder.join("latency-percentiles.svg")]);
        assert!(folder.join("latency-rpc-96-bytes.hgrm").exists());
        std::fs::remove_dir_all(folder).expect("it was written");
    }
}
