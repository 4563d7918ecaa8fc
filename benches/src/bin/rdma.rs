//! Compares a call over an RDMA device with raw verbs and `ib_send_lat`, in alternating turns of
//! one run:
//!
//! ```text
//! make bench-rdma
//! ```
//!
//! All three exchange messages of the same length between two processes that are pinned to the same
//! two cores. Afterwards the program counts the system calls of each.
#![forbid(unsafe_code)]
// Printing is the purpose of a benchmark.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::process::{Command, ExitCode};
use std::time::Duration;
use std::{env, io};

use benches::message::{FIXED_SIZE, Load, Shape};
use benches::perftest::{self, SendLatency};
use benches::raw::{PingPong, RawArgs};
use benches::report::RdmaReport;
use benches::rpc::{ClosedLoop, Rpc};
use benches::service::{ServerArgs, intents_for};
use benches::slices::{Record, Side, alternate, median, ratio_p50};
use benches::system_calls::{self, PerRoundTrip, Trace};
use benches::table::{self, Table};
use benches::{Outcome, clock, cores, report};
use clap::{Parser, Subcommand, ValueEnum};
use rpc_core::frame::HEADER_LEN;
use rpc_core::{Intents, Waiting};
use rpc_transport_verbs::Device;

/// Measures calls over an RDMA device, raw verbs and `ib_send_lat` in alternating turns
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
    #[command(name = benches::rpc::SERVE, hide = true)]
    Calls(ServerArgs),
    #[command(name = benches::raw::SERVE, hide = true)]
    Frames(RawArgs),
    #[command(name = EXCHANGE, hide = true)]
    Exchange(ExchangeArgs),
}

/// Name of the hidden command that makes round trips of one kind, for strace to count.
const EXCHANGE: &str = "exchange";

/// Numbers of round trips in the two runs whose system calls are compared.
const TRACED: [usize; 2] = [500, 2500];

#[derive(clap::Args)]
struct ExchangeArgs {
    /// Device name
    #[arg(long)]
    device: String,
    /// What to exchange
    #[arg(long, value_enum)]
    what: ExchangeLayer,
    /// Number of round trips
    #[arg(long)]
    calls: usize,
}

#[derive(Clone, Copy, ValueEnum)]
enum ExchangeLayer {
    Raw,
    Rpc,
}

#[derive(clap::Args)]
struct Measurement {
    /// Device name [default: the best available device, or the one that VERBLINE_DEVICE names]
    #[arg(long)]
    device: Option<String>,
    /// Name of the device that ib_send_lat uses [default: the same device]
    #[arg(long)]
    beside: Option<String>,
    /// GID index that ib_send_lat uses; on Ethernet, the index of the IPv4 address's GID
    #[arg(long, default_value_t = 1)]
    gid_index: u32,
    /// Round trips in each turn
    #[arg(long, default_value_t = 2000)]
    calls: usize,
    /// Turns that each side takes
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Instructions per call as counted by `benches/count`, to include in the report
    #[arg(long)]
    instructions_per_call: Option<u64>,
    /// Instructions per frame exchange over `soft` as counted by `benches/count`, to include in the
    /// report
    #[arg(long)]
    instructions_per_exchange: Option<u64>,
    /// Print the result as one JSON object on the last line
    #[arg(long)]
    json: bool,
}

/// The two Verbline sides on one device, ready to take turns.
struct VerblineSides {
    raw: PingPong,
    rpc: ClosedLoop,
    frame_len: usize,
}

impl VerblineSides {
    fn start(device: &str, cores: cores::Cores) -> Outcome<Self> {
        let load = Load::new(Shape::Fixed64, FIXED_SIZE)?;
        let frame_len = HEADER_LEN + load.encoded_len();
        let rpc = Rpc::start_pinned(device, cores, &intents(&load))?;
        let like_rpc = RawArgs::like(&rpc.poller().limits(), cores.client, frame_len);
        Ok(Self {
            rpc: ClosedLoop::new(rpc, load)?,
            raw: PingPong::start(&like_rpc, cores.server)?,
            frame_len,
        })
    }
}

impl ExchangeArgs {
    fn run(&self) -> Outcome<()> {
        let cores = cores::Cores::choose()?;
        let load = Load::new(Shape::Fixed64, FIXED_SIZE)?;
        let rpc = Rpc::start_pinned(&self.device, cores, &intents(&load))?;
        // Only one side exists, because strace would also count the system calls of the other.
        let mut side: Box<dyn Side> = match self.what {
            ExchangeLayer::Raw => {
                let len = HEADER_LEN + load.encoded_len();
                let like_rpc = RawArgs::like(&rpc.poller().limits(), cores.client, len);
                drop(rpc);
                Box::new(PingPong::start(&like_rpc, cores.server)?)
            }
            ExchangeLayer::Rpc => Box::new(ClosedLoop::new(rpc, load)?),
        };
        alternate(&mut [&mut *side], 1, self.calls, |_| ())?;
        Ok(())
    }
}

impl Measurement {
    fn run(&self) -> Outcome<()> {
        if !SendLatency::is_installed() {
            return Err(perftest::MISSING.into());
        }
        let cores = cores::Cores::choose()?;
        let device = match &self.device {
            Some(name) => Device::open(name)?,
            None => Device::best()?,
        };
        let device = device.name();
        let mut sides = VerblineSides::start(device, cores)?;
        let frame_len = sides.frame_len;
        let mut beside = SendLatency {
            device: self.beside.as_deref().unwrap_or(device).to_owned(),
            gid_index: self.gid_index,
            frame_len,
            cores,
        };
        println!(
            "{} rounds; in each, {} round trips of {frame_len} bytes each way, one at a time: \
             ib_send_lat on '{}', raw verbs and RPC on '{device}'",
            self.rounds, self.calls, beside.device
        );
        println!("{cores}");
        println!(
            "reading the clock costs {} and happens once per raw round trip and once per call",
            table::duration(clock::cost_of_reading())
        );
        let records = alternate(
            &mut [&mut beside, &mut sides.raw, &mut sides.rpc],
            self.rounds,
            self.calls,
            |_| (),
        )?;
        // Two pollers on one core would make strace count the scheduler's work.
        drop(sides);
        let [perftest, raw, rpc] = &records[..] else {
            return Err("internal error: a side has no record".into());
        };
        print!("\n{}", by_round(perftest, raw, rpc));
        println!(
            "ib_send_lat's typical half round trip is doubled; the ratios of the last row are the \
             medians of the rounds' ratios"
        );

        println!("\nsystem calls per round trip, both sides:");
        let system_calls = if system_calls::can_be_counted() {
            let counts = [
                count_of_perftest(&beside)?,
                count_of(device, ExchangeLayer::Raw)?,
                count_of(device, ExchangeLayer::Rpc)?,
            ];
            for (name, count) in ["ib_send_lat", "raw", "RPC"].iter().zip(&counts) {
                println!("  {name:<12} {count}");
            }
            Some(counts)
        } else {
            println!("{}", system_calls::MISSING);
            None
        };
        let instructions = [self.instructions_per_call, self.instructions_per_exchange];
        if let [Some(call), Some(exchange)] = instructions {
            println!("instructions, both sides:");
            println!("  {call} for a call over 'soft', with an empty turn of each side");
            println!("  {exchange} for one frame in each direction over 'soft', without rpc-core");
        }
        if self.json {
            let report = RdmaReport {
                perftest,
                raw,
                rpc,
                system_calls: system_calls.as_ref(),
                instructions,
            };
            println!("{}", report::rdma(device, frame_len, self.calls, &report));
        }
        Ok(())
    }
}

/// Builds a table with one row per round, and a last row with the medians.
fn by_round(perftest: &Record, raw: &Record, rpc: &Record) -> Table {
    let mut table = Table::new([
        "round",
        "2 × ib_send_lat",
        "raw p50",
        "RPC p50",
        "raw / ib_send_lat",
        "RPC / ib_send_lat",
        "RPC / raw",
    ]);
    let times = |nanos: [u64; 3]| nanos.map(|nanos| table::duration(Duration::from_nanos(nanos)));
    let ratios = |ratios: [f64; 3]| ratios.map(|ratio| format!("{ratio:.2}"));
    let records = [perftest, raw, rpc];
    for round in 0..perftest.slice_p50.len() {
        let nanos = records.map(|record| record.slice_p50[round]);
        let [perftest, raw, rpc] = nanos.map(|nanos| nanos as f64);
        let cells = [(round + 1).to_string()]
            .into_iter()
            .chain(times(nanos))
            .chain(ratios([raw / perftest, rpc / perftest, rpc / raw]));
        table.add(cells);
    }
    let medians = records.map(|record| median(&mut record.slice_p50.clone()));
    let of_rounds = [(raw, perftest), (rpc, perftest), (rpc, raw)];
    let cells = ["median".to_owned()]
        .into_iter()
        .chain(times(medians))
        .chain(ratios(of_rounds.map(|(side, base)| ratio_p50(side, base))));
    table.add(cells);
    table
}

fn count_of_perftest(beside: &SendLatency) -> Outcome<PerRoundTrip> {
    PerRoundTrip::count(&["server", "client"], TRACED, |calls, traces| {
        let under = [traces[0].words(), traces[1].words()];
        beside.exchange(calls, &under).map(drop)
    })
}

fn count_of(device: &str, what: ExchangeLayer) -> Outcome<PerRoundTrip> {
    let what = match what {
        ExchangeLayer::Raw => "raw",
        ExchangeLayer::Rpc => "rpc",
    };
    PerRoundTrip::count(&[what], TRACED, |calls, traces: &[Trace]| {
        let words = traces[0].words();
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .arg(env::current_exe()?)
            .args([EXCHANGE, "--device", device])
            .args(["--what", what, "--calls", &calls.to_string()]);
        let status = cores::spawn_unpinned(&mut command)?.wait()?;
        if status.success() {
            return Ok(());
        }
        Err(io::Error::other(format!("{what} exchanges under strace ended with {status}")).into())
    })
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match &cli.role {
        Some(Role::Calls(args)) => args.serve(),
        Some(Role::Frames(args)) => args.serve(),
        Some(Role::Exchange(args)) => args.run(),
        None => cli.measurement.run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rdma: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns intents with busy polling, like perftest's programs, whose system calls are compared.
fn intents(load: &Load) -> Intents {
    Intents {
        waiting: Waiting::Busy,
        ..intents_for(load.encoded_len())
    }
}
