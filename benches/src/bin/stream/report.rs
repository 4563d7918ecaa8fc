//! Prints the results: tables for people, or one JSON object for each state of the machine.

use std::time::Duration;

use benches::line::Distance;
use benches::rounds::Rounds;
use benches::table::{self, Table};
use serde_json::{Map, Value};

/// Medians of turns, and the 99th percentile over all turns.
pub(crate) struct Latencies {
    pub(crate) rounds: Rounds,
    pub(crate) p99: Vec<u64>,
}

/// Where the results go.
pub(crate) struct Report<'a> {
    pub(crate) device: &'a str,
    pub(crate) json: bool,
}

impl Report<'_> {
    /// Prints a line for each state of the machine that was seen.
    pub(crate) fn each_state(
        &self,
        rounds: &Rounds,
        line: impl Fn(Distance) -> Map<String, Value>,
    ) {
        if !self.json {
            return;
        }
        for distance in [Distance::Near, Distance::Far] {
            if rounds.count(distance) > 0 {
                let mut object = line(distance);
                object.insert("lines".to_owned(), distance.to_string().into());
                object.insert("turns".to_owned(), rounds.count(distance).into());
                self.line(object);
            }
        }
    }

    pub(crate) fn line(&self, values: Map<String, Value>) {
        let mut object = Map::new();
        object.insert("device".to_owned(), self.device.into());
        object.extend(values);
        println!("{}", Value::Object(object));
    }

    pub(crate) fn latencies(&self, title: &str, names: &[&str], measured: &Latencies) {
        if self.json {
            return;
        }
        println!("\n{title}:");
        let none = || "-".to_owned();
        let nanos = |nanos: f64| table::duration(Duration::from_nanos(nanos as u64));
        let head = [
            "",
            "p50, lines near",
            "÷ first",
            "p50, lines far",
            "÷ first",
            "p99",
        ];
        let mut table = Table::new(head);
        for (row, &name) in names.iter().enumerate() {
            let mut cells = vec![name.to_owned()];
            for distance in [Distance::Near, Distance::Far] {
                let p50 = measured.rounds.median(row, distance);
                cells.push(p50.map_or_else(none, nanos));
                let ratio = measured.rounds.ratio(row, 0, distance);
                cells.push(ratio.map_or_else(none, |ratio| format!("{ratio:.2}")));
            }
            cells.push(nanos(measured.p99[row] as f64));
            table.add(cells);
        }
        print!("{table}");
        println!("{}", measured.rounds);
    }
}

pub(crate) fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}

pub(crate) fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}
