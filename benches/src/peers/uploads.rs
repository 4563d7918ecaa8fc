//! Uploads of Verbline and of its peers in alternating turns: one at a time, and several from one
//! thread. Every receiver reads a word of each cache line, except UCX's.

// Printing is what this module is for.
#![allow(clippy::print_stdout)]

use proto::bulk::BulkClient;
use rpc_core::{Intents, LocalChannel, Waiting};
use serde_json::{Value, json};

use super::iceoryx2_puts::IceoryxPuts;
use super::tonic::Socket;
use super::tonic_puts::TonicPuts;
use super::ucx::{self, Exchange, Ucx};
use super::unix_puts::UnixPuts;
use crate::bandwidth::calls::{Calls, Direction, Source, client_of};
use crate::bandwidth::puts::{self, Puts};
use crate::bandwidth::report::size_text;
use crate::bandwidth::{in_flight, transfers};
use crate::cores::Cores;
use crate::line::Distance;
use crate::rounds::{self, Rounds};
use crate::rpc::Rpc;
use crate::service::intents_for;
use crate::slices::{Record, Side};
use crate::table::{self, Table};
use crate::{Outcome, rates};

/// Bytes that a turn moves when several uploads are in flight.
const BYTES: usize = 128 << 20;

/// The size from which several uploads at a time are measured.
const LARGE: usize = 1 << 20;

/// Verbline's name in tables and reports. It has the first row.
const VERBLINE: &str = "verbline";

/// The uploads of one size, one at a time.
struct OneAtATime {
    size: usize,
    names: Vec<&'static str>,
    records: Vec<Record>,
    rounds: Rounds,
}

/// Bytes per second with several uploads in flight.
struct Several {
    size: usize,
    rounds: Rounds,
}

/// The names of the rows of [`Several`].
const SEVERAL: [&str; 2] = [VERBLINE, "tonic"];

/// Uploads payloads of these sizes, prints tables, and returns the report. `after_each` is called with
/// a description of each turn that was taken.
///
/// # Errors
///
/// Returns the first error of a side.
pub fn run(
    device: &str,
    cores: Cores,
    sizes: &[usize],
    count: usize,
    mut after_each: impl FnMut(&str),
) -> Outcome<Value> {
    /// The tag and the length of the field.
    const FIELD: usize = 16;
    let longest = sizes.iter().copied().max().unwrap_or_default();
    let intents = Intents {
        waiting: Waiting::Busy,
        ..intents_for(longest + FIELD)
    };
    let rpc = Rpc::start_pinned(device, cores, &intents)?;
    let client = client_of(&rpc)?;
    rpc.server().pause()?;
    let mut alone = Vec::new();
    for &size in sizes {
        let one = one_at_a_time(&rpc, &client, cores, size, count, |taken| {
            after_each(&format!("{}: {taken} turns", size_text(size)));
        })?;
        alone.push(one);
    }
    let mut several = Vec::new();
    for &size in sizes.iter().filter(|&&size| size >= LARGE) {
        after_each(&format!("{}, several", size_text(size)));
        several.push(several_at_a_time(&rpc, &client, cores, size, count)?);
    }
    after_each("");
    for distance in [Distance::Near, Distance::Far] {
        let seen = |rounds: &Rounds| rounds.count(distance) > 0;
        if alone.iter().any(|one| seen(&one.rounds)) {
            println!("\nUploads, one at a time, while cache lines were {distance}:");
            print!("{}", table_of(&alone, distance));
        }
        if several.iter().any(|one| seen(&one.rounds)) {
            println!("\nUploads, several at a time, while cache lines were {distance}:");
            print!("{}", table_of_several(&several, distance));
        }
    }
    println!(
        "the receiver reads a word of each cache line and answers with eight bytes; UCX: half of a \
         round trip of such messages, which nobody reads; a ratio is the median of the rounds' ratios"
    );
    Ok(report(device, &alone, &several))
}

fn one_at_a_time(
    rpc: &Rpc,
    client: &BulkClient<LocalChannel>,
    cores: Cores,
    size: usize,
    count: usize,
    after_each: impl FnMut(usize),
) -> Outcome<OneAtATime> {
    let mut rows: Vec<(&'static str, Box<dyn Side + '_>)> = vec![
        (
            VERBLINE,
            Box::new(Puts::from(Calls::new(rpc, client, size, Source::Heap)?)),
        ),
        ("unix socket", Box::new(UnixPuts::start(cores, size)?)),
        ("iceoryx2", Box::new(IceoryxPuts::start(cores, size)?)),
        (
            "tonic",
            Box::new(TonicPuts::start(Socket::Unix, cores, size)?),
        ),
    ];
    match Ucx::find(cores, size, Exchange::OneWay) {
        Some(ucx) => rows.push(("ucx", Box::new(ucx))),
        None => println!("{}", ucx::MISSING),
    }
    let names = rows.iter().map(|(name, _)| *name).collect();
    let mut sides: Vec<&mut dyn Side> = rows.iter_mut().map(|(_, side)| &mut **side as _).collect();
    let calls = puts::puts_in_a_turn(size);
    let (records, rounds) = rounds::alternate(&mut sides, count, calls, cores, after_each)?;
    Ok(OneAtATime {
        size,
        names,
        records,
        rounds,
    })
}

fn several_at_a_time(
    rpc: &Rpc,
    client: &BulkClient<LocalChannel>,
    cores: Cores,
    size: usize,
    count: usize,
) -> Outcome<Several> {
    let calls = Calls::new(rpc, client, size, Source::Heap)?;
    let mut tonic = TonicPuts::start(Socket::Unix, cores, size)?;
    let rounds = rates::alternate(SEVERAL.len(), count, cores, |row| {
        if SEVERAL[row] != VERBLINE {
            return tonic.rate(transfers(BYTES, size), in_flight(size));
        }
        rpc.server().resume()?;
        let rate = calls.rate(Direction::Upload, BYTES)?;
        rpc.server().pause()?;
        Ok(rate)
    })?;
    Ok(Several { size, rounds })
}

fn table_of(alone: &[OneAtATime], distance: Distance) -> Table {
    let mut table = Table::new(["", "p50", "p99, any lines", "÷ Verbline"]);
    for one in alone {
        for (row, (name, record)) in one.names.iter().zip(&one.records).enumerate() {
            let nanos = |nanos: f64| table::duration(std::time::Duration::from_nanos(nanos as u64));
            let p99 = (record.histogram.len() > record.slice_p50.len() as u64)
                .then(|| nanos(record.histogram.value_at_quantile(0.99) as f64));
            let ratio = one.rounds.ratio(row, 0, distance);
            let cells = [
                one.rounds.median(row, distance).map(nanos),
                p99,
                ratio.map(|ratio| format!("{ratio:.2}")),
            ];
            let cells = cells.map(|cell| cell.unwrap_or_else(|| "-".to_owned()));
            let first = format!("{}, {name}", size_text(one.size));
            table.add([first].into_iter().chain(cells));
        }
    }
    table
}

fn table_of_several(several: &[Several], distance: Distance) -> Table {
    let mut table = Table::new(["", "in flight", "rate", "÷ tonic"]);
    for one in several {
        for (row, name) in SEVERAL.iter().enumerate() {
            let rate = one.rounds.median(row, distance);
            let ratio = one.rounds.ratio(row, 1, distance);
            let cells = [
                rate.map(|rate| format!("{:.2} GB/s", rate / 1e9)),
                ratio.map(|ratio| format!("{ratio:.2}")),
            ];
            let first = [
                format!("{}, {name}", size_text(one.size)),
                in_flight(one.size).to_string(),
            ];
            let cells = cells.map(|cell| cell.unwrap_or_else(|| "-".to_owned()));
            table.add(first.into_iter().chain(cells));
        }
    }
    table
}

fn report(device: &str, alone: &[OneAtATime], several: &[Several]) -> Value {
    let rounded = |value: f64| (value * 1e3).round() / 1e3;
    let micros = |nanos: Option<f64>| nanos.map(|nanos| rounded(nanos / 1e3));
    let alone: Vec<Value> = alone
        .iter()
        .map(|one| {
            let peers = one.names.iter().enumerate().map(|(row, name)| {
                let ratio = one.rounds.ratio_of_all(row, 0);
                json!({
                    "name": name,
                    "p50_us": micros(one.rounds.median_of_all(row)),
                    "near_p50_us": micros(one.rounds.median(row, Distance::Near)),
                    "far_p50_us": micros(one.rounds.median(row, Distance::Far)),
                    "ratio_to_verbline": ratio.map(rounded),
                })
            });
            json!({ "size": one.size, "peers": peers.collect::<Vec<_>>() })
        })
        .collect();
    let several: Vec<Value> = several
        .iter()
        .map(|one| {
            let gbs = |row| {
                one.rounds
                    .median_of_all(row)
                    .map(|rate| rounded(rate / 1e9))
            };
            json!({
                "size": one.size,
                "in_flight": in_flight(one.size),
                "verbline_gbs": gbs(0),
                "tonic_gbs": gbs(1),
                "ratio_to_tonic": one.rounds.ratio_of_all(0, 1).map(rounded),
            })
        })
        .collect();
    json!({ "device": device, "uploads": alone, "uploads_in_flight": several })
}
