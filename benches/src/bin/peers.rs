//! Compares Verbline with its peers, in alternating turns of one run and in one table:
//!
//! ```text
//! make bench-peers
//! ```
//!
//! tonic carries the same messages over a Unix socket and over TCP. If `ucx_perftest` is installed,
//! UCX sends active messages with the same payload; that is not an RPC but a lower bound for one.
//! iceoryx2 sends 64 bytes of plain memory, as request and response and over two publish-subscribe
//! services. Uploads of 4 KiB to 8 MiB come last: Verbline's beside those of all of these and of a
//! plain Unix socket (`--uploads` measures only them). Every measurement runs between two processes
//! that are pinned to the same two cores, and all of them poll, except tonic's and the shared
//! client. Just before each turn, the program measures what a cache line takes between the cores.
#![forbid(unsafe_code)]
// Printing is the purpose of a benchmark.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use benches::bandwidth::puts;
use benches::line::Distance;
use benches::message::{FIXED_SIZE, Load, Shape};
use benches::peers::iceoryx2::{self, Iceoryx, IceoryxArgs, IceoryxRate, Pattern};
use benches::peers::iceoryx2_puts::{self, IceoryxPutArgs};
use benches::peers::tonic::{self, Socket, Tonic, TonicArgs};
use benches::peers::ucx::{self, Exchange, Ucx};
use benches::peers::unix_puts::{self, UnixArgs};
use benches::peers::uploads;
use benches::rates::{self, LocalRate, Rated, SharedRate};
use benches::raw::{self, PingPong, RawArgs};
use benches::rounds::{self, Rounds};
use benches::rpc::{self, ClosedLoop, Rpc};
use benches::service::{ServerArgs, intents_for};
use benches::shared::Shared;
use benches::slices::{Record, Side};
use benches::table::{self, Table};
use benches::{Outcome, arguments, clock, cores};
use clap::{Parser, Subcommand};
use rpc_core::frame::HEADER_LEN;
use rpc_core::{Intents, Waiting};
use rpc_transport_verbs::Device;

/// Measures Verbline, UCX, iceoryx2 and tonic in alternating turns
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
    #[command(name = raw::SERVE, hide = true)]
    Frames(RawArgs),
    #[command(name = tonic::SERVE, hide = true)]
    Tonic(TonicArgs),
    #[command(name = iceoryx2::SERVE, hide = true)]
    Iceoryx(IceoryxArgs),
    #[command(name = iceoryx2_puts::SERVE, hide = true)]
    IceoryxPuts(IceoryxPutArgs),
    #[command(name = unix_puts::SERVE, hide = true)]
    UnixPuts(UnixArgs),
}

#[derive(clap::Args)]
struct Measurement {
    /// Device name [default: the best available device, or the one that VERBLINE_DEVICE names]
    #[arg(long)]
    device: Option<String>,
    /// Payload size in bytes; with 64, the message of eight fixed64 fields is measured too
    #[arg(long, default_value_t = FIXED_SIZE)]
    size: usize,
    /// Calls in each turn
    #[arg(long, default_value_t = 20_000)]
    calls: usize,
    /// Turns that each row takes
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Measure uploads only
    #[arg(long)]
    uploads: bool,
    /// Sizes of uploads, separated by commas [default: 4K,64K,1M,8M]
    #[arg(long, value_parser = arguments::bytes, value_delimiter = ',')]
    upload_sizes: Vec<usize>,
    /// Print the uploads as one JSON object on the last line
    #[arg(long)]
    json: bool,
}

/// One row of the table.
struct Row {
    name: String,
    /// The header of the column with every row's ratio to this row, if it has such a column.
    base: Option<String>,
    side: Box<dyn Side>,
}

impl Row {
    fn new(name: String, side: impl Side + 'static) -> Self {
        Self {
            name,
            base: None,
            side: Box::new(side),
        }
    }

    fn comparable(self, head: impl Into<String>) -> Self {
        Self {
            base: Some(head.into()),
            ..self
        }
    }
}

/// Calls in flight from one thread when rates are measured, of a local and of a shared client.
const IN_FLIGHT: u32 = 32;
const IN_FLIGHT_SHARED: u32 = 256;

impl Measurement {
    fn run(&self) -> Outcome<()> {
        let cores = cores::Cores::choose()?;
        println!("{cores}");
        println!(
            "reading the clock costs {} and happens once per call",
            table::duration(clock::cost_of_reading())
        );
        let device = match &self.device {
            Some(name) => Device::open(name)?,
            None => Device::best()?,
        };
        let device = device.name();
        if !self.uploads {
            self.calls(device, cores)?;
        }
        let sizes = match &self.upload_sizes[..] {
            [] => &puts::SIZES[..],
            sizes => sizes,
        };
        let report = uploads::run(device, cores, sizes, self.rounds, |taken| {
            if std::io::stderr().is_terminal() {
                eprint!("\r{taken:<24}");
            }
        })?;
        if self.json {
            println!("{report}");
        }
        Ok(())
    }

    fn calls(&self, device: &str, cores: cores::Cores) -> Outcome<()> {
        println!(
            "{} rounds; in each, every row makes {} calls of {} bytes, one at a time (tonic: a \
             twentieth of them)",
            self.rounds, self.calls, self.size
        );
        // Must run before this thread is pinned, so that the system chooses the core of the
        // channel's poller.
        let load =
            Load::new(Shape::Fixed64, self.size).or_else(|_| Load::new(Shape::Bytes, self.size))?;
        // Its poller must sleep while other rows have their turns.
        let adaptive = Intents {
            waiting: Waiting::Adaptive,
            ..intents(&load, IN_FLIGHT_SHARED)
        };
        let shared = Shared::start(device, cores.server, &adaptive, 1)?;
        let shared = SharedRate::new(shared, &load, IN_FLIGHT_SHARED as usize)?;

        self.latencies(device, cores)?;
        self.rates(device, cores, &load, shared)
    }

    fn latencies(&self, device: &str, cores: cores::Cores) -> Outcome<()> {
        let mut rows = self.rows(device, cores)?;
        let mut sides: Vec<&mut dyn Side> =
            rows.iter_mut().map(|row| &mut *row.side as _).collect();
        let turns = sides.len() * self.rounds;
        let is_terminal = std::io::stderr().is_terminal();
        let taken = rounds::alternate(&mut sides, self.rounds, self.calls, cores, |taken| {
            if is_terminal {
                eprint!("\r{taken} of {turns} turns");
            }
        });
        if is_terminal {
            eprintln!();
        }
        let (records, rounds) = taken?;
        for distance in [Distance::Near, Distance::Far] {
            if rounds.count(distance) > 0 {
                println!("\nRound trips while cache lines were {distance}:");
                print!("{}", compare(&rows, &records, &rounds, distance));
            }
        }
        println!("{rounds}");
        println!(
            "p50 is the median of a row's turns; a ratio is the median of the rounds' ratios, over \
             the rounds in which both rows saw this state; p99 is over all turns. UCX prints half \
             round trips; they are doubled here."
        );
        Ok(())
    }

    fn rows(&self, device: &str, cores: cores::Cores) -> Outcome<Vec<Row>> {
        let blob = Load::new(Shape::Bytes, self.size)?;
        let fixed = Load::new(Shape::Fixed64, self.size).ok();

        let loads = [("fixed64", fixed), ("bytes", Some(blob))];
        let mut rows = Vec::new();
        for (shape, load) in loads {
            let Some(load) = load else { continue };
            let rpc = Rpc::start_pinned(device, cores, &intents(&load, 1))?;
            if rows.is_empty() {
                // The lower bounds come first. The first shape determines their frame length.
                let len = HEADER_LEN + load.encoded_len();
                let like_rpc = RawArgs::like(&rpc.poller().limits(), cores.client, len);
                let raw = PingPong::start(&like_rpc, cores.server)?;
                let name = format!("raw verbs on {device}, {len} bytes");
                rows.push(Row::new(name, raw).comparable("÷ raw"));
                match Ucx::find(cores, self.size, Exchange::RoundTrip) {
                    Some(ucx) => {
                        let name = format!("UCX active message, {} bytes", self.size);
                        rows.push(Row::new(name, ucx).comparable("÷ UCX"));
                    }
                    None => println!("{}", ucx::MISSING),
                }
            }
            let rpc = ClosedLoop::new(rpc, load.clone())?;
            let name = format!("Verbline on {device}, {shape}");
            rows.push(Row::new(name, rpc).comparable(format!("÷ {shape}")));
            if shape == "fixed64" {
                for (name, pattern) in [
                    ("request-response", Pattern::RequestResponse),
                    ("publish-subscribe, both ways", Pattern::PublishSubscribe),
                ] {
                    let side = Iceoryx::start(pattern, cores)?;
                    rows.push(Row::new(format!("iceoryx2 {name}"), side));
                }
            }
            for (name, socket) in [("a Unix socket", Socket::Unix), ("TCP", Socket::Tcp)] {
                let tonic = Tonic::start(socket, cores, load.clone())?;
                rows.push(Row::new(format!("tonic over {name}, {shape}"), tonic));
            }
        }
        Ok(rows)
    }

    fn rates(
        &self,
        device: &str,
        cores: cores::Cores,
        load: &Load,
        shared: SharedRate,
    ) -> Outcome<()> {
        let intents = intents(load, IN_FLIGHT);
        let rpc = Rpc::start_pinned(device, cores, &intents)?;
        let mut rows: Vec<(String, Box<dyn Rated>)> = vec![
            (
                format!("Verbline on {device}, {IN_FLIGHT} in flight"),
                Box::new(LocalRate::new(rpc, load, IN_FLIGHT as usize, 1)?),
            ),
            (
                format!("its shared client, {IN_FLIGHT_SHARED} in flight from one thread"),
                Box::new(shared),
            ),
        ];
        if self.size == FIXED_SIZE {
            rows.push((
                format!("iceoryx2 request-response, {IN_FLIGHT} in flight"),
                Box::new(IceoryxRate::start(cores, IN_FLIGHT as usize)?),
            ));
        }
        let rounds = rates::alternate(rows.len(), self.rounds, cores, |row| {
            rows[row].1.take_turn()
        })?;
        let names: Vec<String> = rows.into_iter().map(|(name, _)| name).collect();
        println!("\nRates, one thread a side (and the poller of the shared client):");
        print!("{}", rates::table(&names, &rounds));
        println!("{rounds}");
        Ok(())
    }
}

/// Returns intents with busy polling, as UCX and iceoryx2 poll.
fn intents(load: &Load, in_flight: u32) -> Intents {
    let defaults = intents_for(load.encoded_len());
    Intents {
        waiting: Waiting::Busy,
        max_in_flight: defaults.max_in_flight.max(in_flight),
        ..defaults
    }
}

/// Builds a table of all rows in one state of the machine, with their ratios to the base rows.
fn compare(rows: &[Row], records: &[Record], rounds: &Rounds, distance: Distance) -> Table {
    let bases: Vec<(&str, usize)> = rows
        .iter()
        .enumerate()
        .filter_map(|(index, row)| Some((row.base.as_deref()?, index)))
        .collect();
    let heads = bases.iter().map(|&(head, _)| head);
    let mut table = Table::new(["", "p50", "p99"].into_iter().chain(heads));
    let nanos = |nanos| table::duration(Duration::from_nanos(nanos));
    let none = || "-".to_owned();
    for (index, (row, record)) in rows.iter().zip(records).enumerate() {
        let p50 = rounds.median(index, distance);
        // For an external program, only the medians are known.
        let p99 = (record.histogram.len() > record.slice_p50.len() as u64)
            .then(|| record.histogram.value_at_quantile(0.99));
        let cells = [
            row.name.clone(),
            p50.map_or_else(none, |p50| nanos(p50 as u64)),
            p99.map_or_else(none, nanos),
        ];
        let ratios = bases.iter().map(|&(_, base)| {
            let ratio = rounds.ratio(index, base, distance);
            ratio.map_or_else(none, |ratio| format!("{ratio:.2}"))
        });
        table.add(cells.into_iter().chain(ratios));
    }
    table
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match &cli.role {
        Some(Role::Calls(args)) => args.serve(),
        Some(Role::Frames(args)) => args.serve(),
        Some(Role::Tonic(args)) => args.serve(),
        Some(Role::Iceoryx(args)) => args.serve(),
        Some(Role::IceoryxPuts(args)) => args.serve(),
        Some(Role::UnixPuts(args)) => args.serve(),
        None => cli.measurement.run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("peers: {error}");
            ExitCode::FAILURE
        }
    }
}
