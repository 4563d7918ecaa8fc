//! How fast bytes move, and what they cost others: uploads and downloads of any size in turns with READs
//! on raw verbs and with a copy of memory; one upload at a time; small calls beside a stream of large
//! messages; and the memory that an idle server has registered.

use clap::Args;
use rpc_core::Intents;
use verbline_load::unit::Unit;

use crate::bandwidth::calls::{Calls, Direction, Source};
use crate::bandwidth::memory::Memory;
use crate::bandwidth::puts::{self, Puts};
use crate::bandwidth::raw::Raw;
use crate::bandwidth::{copies, idle, in_flight, neighbour};
use crate::line::Distance;
use crate::report::Row;
use crate::rounds::{self, Rounds};
use crate::rpc::{Client, Rpc};
use crate::setup::{Bench, Measurement, busy_intents};
use crate::slices::Side;
use crate::{Outcome, arguments};
use verbline_load::plot::{Axis, Curve, Plot, Scale};

/// Bytes per second of uploads and downloads, in turns with raw READs and a copy of memory
#[derive(Clone, Debug, Args)]
pub struct Bandwidth {
    /// Payload sizes, separated by commas
    #[arg(
        long,
        value_parser = arguments::bytes,
        value_delimiter = ',',
        default_value = "1K,4K,16K,64K,256K,1M,4M,16M,64M"
    )]
    sizes: Vec<usize>,
    /// Where the payloads of uploads lie
    #[arg(long, value_enum, default_value_t)]
    source: Source,
    /// Bytes that each turn moves
    #[arg(long, value_parser = arguments::bytes, default_value = "256M")]
    bytes: usize,
    /// Turns that each row takes
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// What is measured for each size, in the order of a round.
const COLUMNS: [&str; 5] = ["upload", "download", "raw_read", "memcpy", "raw_send"];
const UPLOAD: usize = 0;
const RAW_READ: usize = 2;
const MEMCPY: usize = 3;

impl Measurement for Bandwidth {
    fn measure(&self, bench: &mut Bench) -> Outcome<()> {
        arguments::at_least_one_round(self.rounds)?;
        let longest = longest(&self.sizes);
        let bytes = self.bytes.max(longest);
        bench.announce(format_args!(
            "{} rounds; in each, every column moves {} (a copy: in memory), and the receiver reads a \
             word of each cache line",
            self.rounds,
            size_text(bytes)
        ));
        let cores = bench.cores;
        let rpc = Rpc::start_pinned(&bench.device, cores, &busy_intents(longest + FIELD))?;
        bench.say(rpc.poller().limits());
        let client = rpc.bulk()?;
        rpc.server().pause()?;
        let mut raw = Raw::start(bench.device(), cores, bytes)?;
        let mut memory = Memory::new(cores, bytes);
        let mut rows = Vec::new();
        for &size in &self.sizes {
            bench.progress(size_text(size));
            let calls = Calls::new(&rpc, &client, size, self.source)?;
            let of_calls = |direction| rpc.server().in_turn(|| calls.rate(direction, bytes));
            let before = copies::count(&rpc)?;
            let rounds =
                rounds::alternate_rows(COLUMNS.len(), self.rounds, cores, |column| match COLUMNS
                    [column]
                {
                    "upload" => of_calls(Direction::Upload),
                    "download" => of_calls(Direction::Download),
                    "raw_read" => raw.read_rate(size),
                    "memcpy" => memory.rate(size),
                    _ => raw.send_rate(),
                })?;
            let copies = copies::per_byte(before, copies::count(&rpc)?);
            rows.push((size, rounds, copies));
        }
        let report = &mut bench.report;
        report.figure("turn_bytes", bytes);
        for state in [None, Some(Distance::Near), Some(Distance::Far)] {
            let is_apart = |rounds: &Rounds, state| {
                // With one state only, its figures are those of all rounds.
                (1..COLUMNS.len() * self.rounds).contains(&rounds.count(state))
            };
            let seen = rows
                .iter()
                .filter(|row| state.is_none_or(|state| is_apart(&row.1, state)));
            let table: Vec<Row> = seen.map(|row| row_of(row, state)).collect();
            if !table.is_empty() {
                let title = state.map_or("rates".to_owned(), |state| format!("rates {state}"));
                report.table(title, table);
            }
        }
        let curves = COLUMNS.iter().enumerate().map(|(column, name)| {
            let gbs = |rounds: &Rounds| rounds.median(column, None).unwrap_or(f64::NAN) / 1e9;
            let points = rows
                .iter()
                .map(|(size, rounds, _)| (*size as f64, gbs(rounds)));
            Curve::new(name.replace('_', " "), points)
        });
        report.plot(
            "rates",
            Plot {
                title: "bandwidth: bytes per second by size of message".to_owned(),
                subtitle: String::new(),
                x: Axis::new("payload", Unit::Bytes, Scale::Log),
                y: Axis::new("rate", Unit::GigabytesPerSecond, Scale::Linear),
                curves: curves.collect(),
                marks: Vec::new(),
                rule: None,
            },
        );
        report.note(
            "A rate is the median of its turns; a ratio is the median of the rounds' ratios.",
        );
        Ok(())
    }
}

/// The figures of a size over all rounds, or over those in one state of the machine.
fn row_of((size, rounds, copies): &(usize, Rounds, Option<f64>), state: Option<Distance>) -> Row {
    let ratio = |column, base| rounds.ratio(column, base, state);
    let row = Row::new(size_text(*size))
        .with("size_bytes", *size)
        .with("in_flight", in_flight(*size));
    let columns = COLUMNS.iter().enumerate();
    columns
        .fold(row, |row, (column, name)| {
            let rate = rounds.median(column, state);
            row.with(format!("{name}_gbs"), rate.map(|rate| rate / 1e9))
        })
        .with("upload_of_raw_read", ratio(UPLOAD, RAW_READ))
        .with("raw_read_of_memcpy", ratio(RAW_READ, MEMCPY))
        .with("copies_per_byte", *copies)
        .with("near_turns", rounds.count(Distance::Near))
        .with("far_turns", rounds.count(Distance::Far))
}

/// One upload at a time, of several sizes
#[derive(Clone, Debug, Args)]
pub struct PutsArgs {
    /// Payload sizes, separated by commas
    #[arg(long, value_parser = arguments::bytes, value_delimiter = ',', default_value = "4K,64K,1M,8M")]
    sizes: Vec<usize>,
    /// Where the payloads lie
    #[arg(long, value_enum, default_value_t)]
    source: Source,
    /// Turns that each size takes
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

impl Measurement for PutsArgs {
    fn measure(&self, bench: &mut Bench) -> Outcome<()> {
        arguments::at_least_one_round(self.rounds)?;
        bench.announce(format_args!(
            "{} rounds; the server reads a word of each cache line, then answers",
            self.rounds
        ));
        let intents = busy_intents(longest(&self.sizes) + FIELD);
        let rpc = Rpc::start_pinned(&bench.device, bench.cores, &intents)?;
        bench.say(rpc.poller().limits());
        let client = rpc.bulk()?;
        rpc.server().pause()?;
        let puts = |&size| Calls::new(&rpc, &client, size, self.source).map(Puts::from);
        let mut all: Vec<Puts<'_>> = self.sizes.iter().map(puts).collect::<Outcome<_>>()?;
        let names: Vec<String> = self.sizes.iter().map(|&size| size_text(size)).collect();
        let sides = all.iter_mut().map(|puts| puts as &mut dyn Side);
        bench.latencies(
            "puts",
            [self.rounds, puts::MOST],
            names.iter().map(String::as_str).zip(sides).collect(),
            |index, row| row.with("size_bytes", self.sizes[index]),
            None,
        )
    }
}

/// Calls of 64 bytes, alone and beside a stream of large messages on another connection
#[derive(Clone, Debug, Args)]
pub struct Neighbour {
    /// Payload size of the stream's messages
    #[arg(long, value_parser = arguments::bytes, default_value = "8M")]
    size: usize,
    /// Seconds of a turn
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Turns that each row takes
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// The rows of the measurement of a neighbour.
const NEIGHBOUR: [&str; 2] = ["alone", "beside"];

impl Measurement for Neighbour {
    fn measure(&self, bench: &mut Bench) -> Outcome<()> {
        arguments::at_least_one_round(self.rounds)?;
        let time = arguments::recorded(self.seconds)?;
        bench.announce(format_args!(
            "{} rounds: 64-byte calls, one at a time, alone and beside a stream of messages of {} on \
             another connection of the same pollers",
            self.rounds,
            size_text(self.size)
        ));
        let rpc = Rpc::start_pinned(&bench.device, bench.cores, &busy_intents(self.size + FIELD))?;
        rpc.server().pause()?;
        let (mut p99, mut streams) = (vec![Vec::new(); 2], Vec::new());
        let p50 = rounds::alternate_rows(NEIGHBOUR.len(), self.rounds, bench.cores, |row| {
            bench.progress(format_args!("round {}", p99[row].len() + 1));
            let message_len = (NEIGHBOUR[row] == "beside").then_some(self.size);
            let turn = || neighbour::take_turn(&rpc, time, message_len);
            let turn = rpc.server().in_turn(turn)?;
            p99[row].push(turn.calls.value_at_quantile(0.99) as f64);
            streams.extend(turn.stream);
            Ok(turn.calls.value_at_quantile(0.5) as f64)
        })?;
        let p99 = p50.with_values(p99);
        let stream = streams.iter().sum::<f64>() / streams.len() as f64;
        let report = &mut bench.report;
        report.figure("message_bytes", self.size);
        report.figure("stream_gbs", stream / 1e9);
        report.rounds("p50 of 64-byte calls", "p50_ns", &NEIGHBOUR, &p50, Some(0));
        report.rounds("p99 of 64-byte calls", "p99_ns", &NEIGHBOUR, &p99, Some(0));
        Ok(())
    }
}

/// The longest message of the second idle server, in bytes.
const LONG: usize = 64 << 20;

/// The memory that an idle server has registered before anyone has connected
#[derive(Clone, Debug, Args)]
pub struct IdleMemory {}

impl Measurement for IdleMemory {
    fn measure(&self, bench: &mut Bench) -> Outcome<()> {
        bench.announce("a server without connections, whose poller has a core of its own");
        let of = |max_message_len| {
            let registered = idle::registered(&bench.device, bench.cores.server, max_message_len)?;
            Outcome::Ok(
                Row::new(format!("messages up to {}", size_text(max_message_len)))
                    .with("max_message_bytes", max_message_len)
                    .with("registered_bytes", registered),
            )
        };
        let rows = [of(Intents::default().max_message_len)?, of(LONG)?];
        bench.report.table("idle servers", rows);
        Ok(())
    }
}

/// Bytes of the tag and the length of a field, at most.
const FIELD: usize = 16;

fn longest(sizes: &[usize]) -> usize {
    sizes.iter().copied().max().unwrap_or_default()
}

fn size_text(size: usize) -> String {
    Unit::Bytes.text(size as f64)
}
