//! Tables and JSON objects of the program `bandwidth`.

use serde_json::{Map, Value, json};

use super::idle::Idle;
use crate::line::Distance;
use crate::rounds::Rounds;
use crate::slices::Record;
use crate::table::Table;

/// What is measured for each size, in the order of a round.
pub const COLUMNS: [&str; 5] = ["upload", "download", "raw_read", "memcpy", "raw_send"];
const UPLOAD: usize = 0;
const RAW_READ: usize = 2;
const MEMCPY: usize = 3;

const BOTH: [Distance; 2] = [Distance::Near, Distance::Far];

/// The rates of one size.
#[derive(Debug)]
pub struct Row {
    /// Bytes of a payload.
    pub size: usize,
    /// Calls or READs in flight.
    pub in_flight: usize,
    /// Bytes per second, by column and round.
    pub rounds: Rounds,
    /// Copies of each byte of the uploads on its way, if the counters of both sides cover them.
    pub copies_per_byte: Option<f64>,
}

impl Row {
    /// Returns the figures of all rounds, and those of each state apart.
    fn json(&self) -> Value {
        let rounds = &self.rounds;
        let mut row = Map::new();
        row.insert("size".to_owned(), self.size.into());
        row.insert("in_flight".to_owned(), self.in_flight.into());
        let ratios = [
            rounds.ratio_of_all(UPLOAD, RAW_READ),
            rounds.ratio_of_all(RAW_READ, MEMCPY),
        ];
        row.extend(figures(|column| rounds.median_of_all(column), ratios));
        row.insert(
            "copies_per_byte".to_owned(),
            self.copies_per_byte.map(|copies| rounded(copies, 3)).into(),
        );
        for distance in BOTH
            .into_iter()
            .filter(|&distance| rounds.count(distance) > 0)
        {
            let ratios = [
                rounds.ratio(UPLOAD, RAW_READ, distance),
                rounds.ratio(RAW_READ, MEMCPY, distance),
            ];
            let state = figures(|column| rounds.median(column, distance), ratios);
            row.insert(distance.to_string(), state.into());
        }
        row.into()
    }
}

/// Returns the rate of each column, and the ratios of an upload to a READ and of a READ to a copy.
fn figures(rate: impl Fn(usize) -> Option<f64>, ratios: [Option<f64>; 2]) -> Map<String, Value> {
    let rates = COLUMNS.iter().enumerate().map(|(column, name)| {
        let gbs = rate(column).map(|rate| rounded(rate / 1e9, 3));
        (format!("{name}_gbs"), gbs.into())
    });
    let names = ["upload_of_raw_read", "raw_read_of_memcpy"];
    let ratios = names.into_iter().zip(ratios);
    let ratios =
        ratios.map(|(name, ratio)| (name.to_owned(), ratio.map(|ratio| rounded(ratio, 3)).into()));
    rates.chain(ratios).collect()
}

/// Returns the object that `bandwidth --json` prints.
#[must_use]
pub fn rates(device: &str, rows: &[Row]) -> Value {
    let rows: Vec<Value> = rows.iter().map(Row::json).collect();
    json!({ "device": device, "rows": rows })
}

/// Builds the table of the rates in one state of the machine.
#[must_use]
pub fn rates_table(rows: &[Row], distance: Distance) -> Table {
    let head = [
        "size",
        "in flight",
        "upload",
        "download",
        "raw READ",
        "memcpy",
        "raw SEND, 4 KiB",
    ];
    let mut table =
        Table::new(
            head.into_iter()
                .chain(["upload ÷ READ", "READ ÷ memcpy", "copies/byte"]),
        );
    for row in rows.iter().filter(|row| row.rounds.count(distance) > 0) {
        let rates = (0..COLUMNS.len()).map(|column| {
            let rate = row.rounds.median(column, distance);
            or_none(rate.map(|rate| format!("{:.2} GB/s", rate / 1e9)))
        });
        let ratios = [(UPLOAD, RAW_READ), (RAW_READ, MEMCPY)];
        let ratios = ratios.map(|(of, base)| row.rounds.ratio(of, base, distance));
        let last = ratios.into_iter().chain([row.copies_per_byte]);
        let last = last.map(|number| or_none(number.map(|number| format!("{number:.2}"))));
        let cells = [size_text(row.size), row.in_flight.to_string()];
        table.add(cells.into_iter().chain(rates).chain(last));
    }
    table
}

fn or_none(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

/// Formats a size with the largest unit of which it is a multiple.
#[must_use]
pub fn size_text(size: usize) -> String {
    match size {
        _ if size.is_multiple_of(1 << 20) => format!("{} MiB", size >> 20),
        _ if size.is_multiple_of(1 << 10) => format!("{} KiB", size >> 10),
        _ => format!("{size} B"),
    }
}

/// Returns the object that `bandwidth --puts --json` prints. Row `n` of the rounds is of `sizes[n]`,
/// in nanoseconds.
#[must_use]
pub fn puts(device: &str, sizes: &[usize], records: &[Record], rounds: &Rounds) -> Value {
    let sizes = sizes.iter().zip(records).enumerate();
    let rows: Vec<Value> = sizes
        .map(|(row, (&size, record))| {
            let p50 = |nanos: Option<f64>| nanos.map(|nanos| rounded(nanos / 1e3, 2));
            let p99 = record.histogram.value_at_quantile(0.99) as f64;
            json!({
                "size": size,
                "p50_us": p50(rounds.median_of_all(row)),
                "near_p50_us": p50(rounds.median(row, Distance::Near)),
                "far_p50_us": p50(rounds.median(row, Distance::Far)),
                "p99_us": rounded(p99 / 1e3, 2),
            })
        })
        .collect();
    json!({ "device": device, "puts": rows })
}

/// The rows of the measurement of a neighbour.
pub const NEIGHBOUR: [&str; 2] = ["alone", "beside"];

/// Returns the object that `bandwidth --neighbour --json` prints. The rows of the rounds are those of
/// [`NEIGHBOUR`], in nanoseconds.
#[must_use]
pub fn neighbour(
    device: &str,
    message_len: usize,
    p50: &Rounds,
    p99: &Rounds,
    stream: f64,
) -> Value {
    let mut report = Map::new();
    report.insert("device".to_owned(), device.into());
    report.insert("message_size".to_owned(), message_len.into());
    report.insert("stream_gbs".to_owned(), rounded(stream / 1e9, 3).into());
    for (row, name) in NEIGHBOUR.into_iter().enumerate() {
        let figures = json!({ "p50_ns": p50.median_of_all(row), "p99_ns": p99.median_of_all(row) });
        report.insert(name.to_owned(), figures);
    }
    let ratio = |ratio: Option<f64>| ratio.map(|ratio| rounded(ratio, 3));
    report.insert("ratio_p50".to_owned(), ratio(p50.ratio_of_all(1, 0)).into());
    report.insert("ratio_p99".to_owned(), ratio(p99.ratio_of_all(1, 0)).into());
    for distance in BOTH {
        let name = format!("{distance}_ratio_p99");
        report.insert(name, ratio(p99.ratio(1, 0, distance)).into());
    }
    report.into()
}

/// Returns the object that `bandwidth --idle-memory --json` prints.
#[must_use]
pub fn idle(device: &str, servers: &[Idle]) -> Value {
    let servers: Vec<Value> = servers
        .iter()
        .map(|idle| json!({ "max_message_len": idle.max_message_len, "registered_bytes": idle.registered }))
        .collect();
    json!({ "device": device, "idle_memory": servers })
}

fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::line::RoundTrip;

    fn near(values: Vec<Vec<f64>>) -> Rounds {
        let count = values.iter().map(Vec::len).sum();
        Rounds::new(values, vec![RoundTrip(Duration::from_nanos(100)); count])
    }

    #[test]
    fn the_rates_are_in_the_order_that_is_documented() {
        let row = Row {
            size: 1 << 20,
            in_flight: 8,
            rounds: near(vec![
                vec![9e9],
                vec![8e9],
                vec![10e9],
                vec![12.5e9],
                vec![1.5e9],
            ]),
            copies_per_byte: Some(2.0),
        };
        let figures = r#""upload_gbs":9.0,"download_gbs":8.0,"raw_read_gbs":10.0,"memcpy_gbs":12.5,"raw_send_gbs":1.5,"upload_of_raw_read":0.9,"raw_read_of_memcpy":0.8"#;
        assert_eq!(
            rates("soft", &[row]).to_string(),
            format!(
                r#"{{"device":"soft","rows":[{{"size":1048576,"in_flight":8,{figures},"copies_per_byte":2.0,"near":{{{figures}}}}}]}}"#
            )
        );
    }

    #[test]
    fn a_state_that_was_not_seen_is_null() {
        let mut record = Record::new();
        record.add(&mut [1500; 10]);
        assert_eq!(
            puts("soft", &[4096], &[record], &near(vec![vec![1500.0]])).to_string(),
            r#"{"device":"soft","puts":[{"size":4096,"p50_us":1.5,"near_p50_us":1.5,"far_p50_us":null,"p99_us":1.5}]}"#
        );
    }

    #[test]
    fn neighbours_are_compared_round_by_round() {
        let (p50, p99) = (
            near(vec![vec![900.0], vec![1800.0]]),
            near(vec![vec![2000.0], vec![5000.0]]),
        );
        assert_eq!(
            neighbour("soft", 8 << 20, &p50, &p99, 7e9).to_string(),
            r#"{"device":"soft","message_size":8388608,"stream_gbs":7.0,"alone":{"p50_ns":900.0,"p99_ns":2000.0},"beside":{"p50_ns":1800.0,"p99_ns":5000.0},"ratio_p50":2.0,"ratio_p99":2.5,"near_ratio_p99":2.5,"far_ratio_p99":null}"#
        );
    }

    #[test]
    fn sizes_have_their_unit() {
        assert_eq!(
            [100, 1024, 3 << 20].map(size_text),
            ["100 B", "1 KiB", "3 MiB"]
        );
    }
}
