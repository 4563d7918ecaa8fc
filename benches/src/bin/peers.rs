//! Compares Verbline with its peers, in alternating turns of one run and in one table:
//!
//! ```text
//! make bench-peers
//! ```
//!
//! tonic carries the same messages over a Unix socket and over TCP. If `ucx_perftest` is installed,
//! UCX sends active messages with the same payload; that is not an RPC but a lower bound for one.
//! Every measurement runs between two processes that are pinned to the same two cores.
#![forbid(unsafe_code)]
// Printing is the purpose of a benchmark.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use benches::message::{FIXED_SIZE, Load, Shape};
use benches::peers::tonic::{self, Socket, Tonic, TonicArgs};
use benches::peers::ucx::{self, Ucx};
use benches::raw::{self, PingPong, RawArgs};
use benches::rpc::{self, ClosedLoop, Rpc};
use benches::service::{ServerArgs, intents_for};
use benches::slices::{Record, Side, alternate, median, ratio_p50};
use benches::table::{self, Table};
use benches::{Outcome, clock, cores};
use clap::{Parser, Subcommand};
use rpc_core::frame::HEADER_LEN;
use rpc_transport_verbs::Device;

/// Measures Verbline, tonic and UCX in alternating turns
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
    #[arg(long, default_value_t = 5)]
    rounds: usize,
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

impl Measurement {
    fn run(&self) -> Outcome<()> {
        let cores = cores::Cores::choose()?;
        println!(
            "{} rounds; in each, every row makes {} calls of {} bytes, one at a time",
            self.rounds, self.calls, self.size
        );
        println!("{cores}");
        println!(
            "reading the clock costs {} and happens once per call",
            table::duration(clock::cost_of_reading())
        );

        let mut rows = self.rows(cores)?;
        let mut sides: Vec<&mut dyn Side> =
            rows.iter_mut().map(|row| &mut *row.side as _).collect();
        let turns = sides.len() * self.rounds;
        let is_terminal = std::io::stderr().is_terminal();
        let records = alternate(&mut sides, self.rounds, self.calls, |taken| {
            if is_terminal {
                eprint!("\r{taken} of {turns} turns");
            }
        })?;
        if is_terminal {
            eprintln!();
        }
        print!("\n{}", compare(&rows, &records));
        println!(
            "p50 is the median over the rounds; a ratio is the median of the rounds' ratios. UCX \
             prints half round trips; they are doubled here."
        );
        Ok(())
    }

    fn rows(&self, cores: cores::Cores) -> Outcome<Vec<Row>> {
        let device = match &self.device {
            Some(name) => Device::open(name)?,
            None => Device::best()?,
        };
        let device = device.name();
        let blob = Load::new(Shape::Bytes, self.size)?;
        let fixed = Load::new(Shape::Fixed64, self.size).ok();
        let intents = intents_for(blob.encoded_len());

        let loads = [("fixed64", fixed), ("bytes", Some(blob))];
        let mut rows = Vec::new();
        for (shape, load) in loads {
            let Some(load) = load else { continue };
            let rpc = Rpc::start_pinned(device, cores, &intents)?;
            if rows.is_empty() {
                // The lower bounds come first. The first shape determines their frame length.
                let len = HEADER_LEN + load.encoded_len();
                let like_rpc = RawArgs::like(&rpc.poller().limits(), cores.client, len);
                let raw = PingPong::start(&like_rpc, cores.server)?;
                let name = format!("raw verbs on {device}, {len} bytes");
                rows.push(Row::new(name, raw).comparable("/ raw"));
                match Ucx::find(cores, self.size) {
                    Some(ucx) => {
                        let name = format!("UCX active message, {} bytes", self.size);
                        rows.push(Row::new(name, ucx).comparable("/ UCX"));
                    }
                    None => println!("{}", ucx::MISSING),
                }
            }
            let rpc = ClosedLoop::new(rpc, load.clone())?;
            let name = format!("Verbline on {device}, {shape}");
            rows.push(Row::new(name, rpc).comparable(format!("/ {shape}")));
            for (name, socket) in [("a Unix socket", Socket::Unix), ("TCP", Socket::Tcp)] {
                let tonic = Tonic::start(socket, cores, load.clone())?;
                rows.push(Row::new(format!("tonic over {name}, {shape}"), tonic));
            }
        }
        Ok(rows)
    }
}

/// Builds a table of all rows, with their ratios to the base rows.
fn compare(rows: &[Row], records: &[Record]) -> Table {
    let bases: Vec<(&str, &Record)> = rows
        .iter()
        .zip(records)
        .filter_map(|(row, record)| Some((row.base.as_deref()?, record)))
        .collect();
    let heads = bases.iter().map(|&(head, _)| head);
    let mut table = Table::new(["", "p50", "p99"].into_iter().chain(heads));
    for (row, record) in rows.iter().zip(records) {
        let p50 = median(&mut record.slice_p50.clone());
        // For an external program, only the medians are known.
        let p99 = if record.histogram.len() > record.slice_p50.len() as u64 {
            let nanos = record.histogram.value_at_quantile(0.99);
            table::duration(Duration::from_nanos(nanos))
        } else {
            "-".to_owned()
        };
        let cells = [
            row.name.clone(),
            table::duration(Duration::from_nanos(p50)),
            p99,
        ];
        let ratios = bases
            .iter()
            .map(|&(_, base)| format!("{:.2}", ratio_p50(record, base)));
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
