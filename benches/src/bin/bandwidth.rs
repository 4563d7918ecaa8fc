//! Measures how fast bytes move: uploads and downloads of any size, many in flight, in alternating
//! turns with READs on raw verbs and with a copy of memory that the other core has just written:
//!
//! ```text
//! cargo run --release -p benches --bin bandwidth -- --json
//! ```
//!
//! Other measurements: `--puts` (one upload at a time), `--neighbour` (64-byte calls of another
//! connection while a stream of 8 MiB messages runs) and `--idle-memory` (what a server registers
//! before anyone has connected). Everything polls, between two processes on two cores. Just before
//! each turn, the program measures what a cache line takes between the cores.
#![forbid(unsafe_code)]
// Printing is the purpose of a benchmark.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use benches::bandwidth::calls::{Calls, Direction, Source, client_of};
use benches::bandwidth::copies::Copies;
use benches::bandwidth::idle::{self, Idle};
use benches::bandwidth::memory::Memory;
use benches::bandwidth::puts::Puts;
use benches::bandwidth::raw::Raw;
use benches::bandwidth::report::{self, Row, size_text};
use benches::bandwidth::{SERVE_RAW, SourceArgs, in_flight, neighbour, puts};
use benches::line::{Distance, RoundTrip};
use benches::rounds::{self, Rounds};
use benches::rpc::{self, Rpc};
use benches::service::{ServerArgs, intents_for};
use benches::slices::Side;
use benches::table::{self, Table};
use benches::{Outcome, arguments, cores, rates};
use clap::{Parser, Subcommand};
use rpc_core::{Intents, Waiting};
use rpc_transport_verbs::Device;

/// Measures bytes per second of messages of any size, and what they cost others
#[derive(Parser)]
#[command(subcommand_negates_reqs = true, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    role: Option<Role>,
    #[command(flatten)]
    measurement: Measurement,
}

/// The roles of the processes that this program starts.
#[derive(Subcommand)]
enum Role {
    #[command(name = rpc::SERVE, hide = true)]
    Calls(ServerArgs),
    #[command(name = SERVE_RAW, hide = true)]
    Source(SourceArgs),
}

#[derive(clap::Args)]
struct Measurement {
    /// Device name [default: the best available device, or the one that VERBLINE_DEVICE names]
    #[arg(long)]
    device: Option<String>,
    /// Measure one upload at a time
    #[arg(long, group = "kind")]
    puts: bool,
    /// Measure 64-byte calls beside a stream of large messages
    #[arg(long, group = "kind")]
    neighbour: bool,
    /// Print what an idle server has registered
    #[arg(long, group = "kind")]
    idle_memory: bool,
    /// Payload sizes, separated by commas: 64K,1M [default: 1K to 64M by factors of 4; with --puts:
    /// 4K,64K,1M,8M; with --neighbour: 8M]
    #[arg(long, value_parser = arguments::bytes, value_delimiter = ',', conflicts_with = "idle_memory")]
    sizes: Vec<usize>,
    /// Where the payloads of uploads lie: on the heap, or in memory that the poller has allocated
    #[arg(long, value_enum, default_value_t, conflicts_with_all = ["neighbour", "idle_memory"])]
    source: Source,
    /// Bytes that each turn moves
    #[arg(long, value_parser = arguments::bytes, default_value = "256M", conflicts_with = "kind")]
    bytes: usize,
    /// Seconds of a turn of small calls
    #[arg(long, default_value_t = 0.5, requires = "neighbour")]
    seconds: f64,
    /// Turns that each row takes
    #[arg(long, default_value_t = 5, conflicts_with = "idle_memory")]
    rounds: usize,
    /// Print the result as one JSON object on the last line
    #[arg(long)]
    json: bool,
}

impl Measurement {
    fn run(&self) -> Outcome<()> {
        if self.rounds == 0 {
            return Err("--rounds 0: nothing could be measured".into());
        }
        let cores = cores::Cores::choose()?;
        let device = match &self.device {
            Some(name) => Device::open(name)?,
            None => Device::best()?,
        };
        println!("{cores}");
        let report = if self.idle_memory {
            idle_memory(&device, cores)?
        } else if self.puts {
            self.puts(device.name(), cores)?
        } else if self.neighbour {
            self.neighbour(device.name(), cores)?
        } else {
            self.rates(device.name(), cores)?
        };
        if self.json {
            println!("{report}");
        }
        Ok(())
    }

    fn sizes_or(&self, defaults: &[usize]) -> Vec<usize> {
        if self.sizes.is_empty() {
            defaults.to_vec()
        } else {
            self.sizes.clone()
        }
    }

    fn rates(&self, device: &str, cores: cores::Cores) -> Outcome<serde_json::Value> {
        let defaults: Vec<usize> = (0..9).map(|step| 1024 << (2 * step)).collect();
        let sizes = self.sizes_or(&defaults);
        let bytes = self.bytes.max(longest(&sizes));
        println!(
            "{} rounds; in each, every column moves {} over '{device}' (a copy: in memory), and the \
             receiver reads a word of each cache line",
            self.rounds,
            size_text(bytes)
        );
        let rpc = Rpc::start_pinned(device, cores, &intents(longest(&sizes)))?;
        println!("{}", rpc.poller().limits());
        let client = client_of(&rpc)?;
        rpc.server().pause()?;
        let mut raw = Raw::start(device, cores, bytes)?;
        let mut memory = Memory::new(cores, bytes);
        let mut rows = Vec::new();
        for &size in &sizes {
            progress(&size_text(size));
            let calls = Calls::new(&rpc, &client, size, self.source)?;
            let mut copies = Copies::default();
            let mut of_calls = |direction| {
                rpc.server().resume()?;
                let before = Copies::count(&rpc)?;
                let rate = calls.rate(direction, bytes)?;
                if direction == Direction::Upload {
                    copies.add(Copies::count(&rpc)?.since(before));
                }
                rpc.server().pause()?;
                Ok(rate)
            };
            let columns = report::COLUMNS.len();
            let rounds =
                rates::alternate(
                    columns,
                    self.rounds,
                    cores,
                    |column| match report::COLUMNS[column] {
                        "upload" => of_calls(Direction::Upload),
                        "download" => of_calls(Direction::Download),
                        "raw_read" => raw.read_rate(size),
                        "memcpy" => memory.rate(size),
                        _ => raw.send_rate(),
                    },
                )?;
            rows.push(Row {
                size,
                in_flight: in_flight(size),
                rounds,
                copies_per_byte: copies.per_byte(),
            });
        }
        progress("");
        for distance in [Distance::Near, Distance::Far] {
            if rows.iter().any(|row| row.rounds.count(distance) > 0) {
                println!("\nWhile cache lines were {distance}:");
                print!("{}", report::rates_table(&rows, distance));
            }
        }
        println!(
            "each figure is the median of its turns; a ratio is the median of the rounds' ratios"
        );
        Ok(report::rates(device, &rows))
    }

    fn puts(&self, device: &str, cores: cores::Cores) -> Outcome<serde_json::Value> {
        let sizes = self.sizes_or(&puts::SIZES);
        println!(
            "{} rounds over '{device}'; the server reads a word of each cache line, then answers",
            self.rounds
        );
        let rpc = Rpc::start_pinned(device, cores, &intents(longest(&sizes)))?;
        println!("{}", rpc.poller().limits());
        let client = client_of(&rpc)?;
        rpc.server().pause()?;
        let puts = |&size| Calls::new(&rpc, &client, size, self.source).map(Puts::from);
        let mut all: Vec<Puts<'_>> = sizes.iter().map(puts).collect::<Outcome<_>>()?;
        let mut sides: Vec<&mut dyn Side> = all.iter_mut().map(|puts| puts as _).collect();
        let (records, rounds) =
            rounds::alternate(&mut sides, self.rounds, puts::MOST, cores, |taken| {
                progress(&format!("{taken} turns"));
            })?;
        progress("");
        let mut table = Table::new(["one put", "p50 near", "p50 far", "p99"]);
        for (row, (&size, record)) in sizes.iter().zip(&records).enumerate() {
            let of = |distance| duration(rounds.median(row, distance));
            let p99 = record.histogram.value_at_quantile(0.99) as f64;
            let cells = [of(Distance::Near), of(Distance::Far), duration(Some(p99))];
            table.add([size_text(size)].into_iter().chain(cells));
        }
        print!("\n{table}");
        println!("{rounds}");
        Ok(report::puts(device, &sizes, &records, &rounds))
    }

    fn neighbour(&self, device: &str, cores: cores::Cores) -> Outcome<serde_json::Value> {
        let sizes = self.sizes_or(&[8 << 20]);
        let [size] = sizes[..] else {
            return Err("--neighbour: expected one size, that of the stream's messages".into());
        };
        let length = Duration::try_from_secs_f64(self.seconds)
            .map_err(|error| format!("--seconds {}: {error}", self.seconds))?;
        println!(
            "{} rounds over '{device}': 64-byte calls, one at a time, alone and beside a stream of \
             messages of {} on another connection of the same pollers",
            self.rounds,
            size_text(size)
        );
        let rpc = Rpc::start_pinned(device, cores, &intents(size))?;
        rpc.server().pause()?;
        let (mut p50, mut p99) = (vec![Vec::new(); 2], vec![Vec::new(); 2]);
        let (mut lines, mut streams) = (Vec::new(), Vec::new());
        for round in 0..self.rounds {
            progress(&format!("round {}", round + 1));
            for (row, message_len) in [None, Some(size)].into_iter().enumerate() {
                lines.push(RoundTrip::measure(cores)?);
                rpc.server().resume()?;
                let turn = neighbour::take_turn(&rpc, length, message_len)?;
                rpc.server().pause()?;
                p50[row].push(turn.calls.value_at_quantile(0.5) as f64);
                p99[row].push(turn.calls.value_at_quantile(0.99) as f64);
                streams.extend(turn.stream);
            }
        }
        progress("");
        let (p50, p99) = (Rounds::new(p50, lines.clone()), Rounds::new(p99, lines));
        let stream = streams.iter().sum::<f64>() / streams.len() as f64;
        let mut table = Table::new(["64-byte calls", "lines", "p50", "p99"]);
        for distance in [Distance::Near, Distance::Far] {
            if p50.count(distance) == 0 {
                continue;
            }
            for (row, name) in report::NEIGHBOUR.into_iter().enumerate() {
                let figures = [&p50, &p99].map(|rounds| duration(rounds.median(row, distance)));
                let cells = [name.to_owned(), distance.to_string()];
                table.add(cells.into_iter().chain(figures));
            }
        }
        print!("\n{table}");
        let ratio = p99.ratio_of_all(1, 0).unwrap_or(f64::NAN);
        println!(
            "beside it, p99 is {ratio:.2} times that of the calls alone; the stream moves {:.2} GB/s",
            stream / 1e9
        );
        println!("{p99}");
        Ok(report::neighbour(device, size, &p50, &p99, stream))
    }
}

fn idle_memory(device: &Device, cores: cores::Cores) -> Outcome<serde_json::Value> {
    let mut servers = Vec::new();
    for max_message_len in [Idle::default_len(), idle::LONG] {
        let idle = Idle::measure(device, cores.server, max_message_len)?;
        println!(
            "an idle server for messages up to {} has registered {:.2} MiB",
            size_text(max_message_len),
            idle.registered as f64 / f64::from(1 << 20)
        );
        servers.push(idle);
    }
    Ok(report::idle(device.name(), &servers))
}

fn longest(sizes: &[usize]) -> usize {
    sizes.iter().copied().max().unwrap_or_default()
}

/// Returns the default intents, with busy polling and room for a message with such a payload.
fn intents(payload_len: usize) -> Intents {
    /// The tag and the length of the field.
    const FIELD: usize = 16;
    Intents {
        waiting: Waiting::Busy,
        ..intents_for(payload_len + FIELD)
    }
}

fn duration(nanos: Option<f64>) -> String {
    let text = nanos.map(|nanos| table::duration(Duration::from_nanos(nanos as u64)));
    text.unwrap_or_else(|| "-".to_owned())
}

/// Shows how far the measurement has come, if somebody watches.
fn progress(text: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r{text:<20}");
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match &cli.role {
        Some(Role::Calls(args)) => args.serve(),
        Some(Role::Source(args)) => args.serve(),
        None => cli.measurement.run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bandwidth: {error}");
            ExitCode::FAILURE
        }
    }
}
