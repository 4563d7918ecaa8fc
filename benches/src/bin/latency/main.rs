//! Measures the latency of one call at a time, with local and shared clients, next to the latency
//! of raw verbs:
//!
//! ```text
//! cargo run --release -p benches --bin latency
//! cargo run --release -p benches --bin latency -- --message bytes --size 1024 --json
//! ```
//!
//! The program starts its server processes, pins both sides, and measures them in alternating
//! slices of one run. With `--rate` or `--sweep` it sends calls at intended times instead
//! ([`open`]):
//!
//! ```text
//! cargo run --release -p benches --bin latency -- --rate 200k --arrivals poisson
//! cargo run --release -p benches --bin latency -- --sweep
//! ```
//!
//! and with `--idle-gap` it measures the first call after an idle period ([`idle_gap`]).
#![forbid(unsafe_code)]
// Printing is the purpose of a benchmark.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod idle_gap;
mod open;
mod summary;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use benches::message::{FIXED_SIZE, Load, Shape};
use benches::raw::{PingPong, RawArgs};
use benches::rpc::{ClosedLoop, Rpc};
use benches::service::{ServerArgs, intents_for};
use benches::shared::{Shared, SharedLoop, Waiter};
use benches::slices::{self, alternate};
use benches::table::{self, Table};
use benches::tcp::{self, TcpArgs};
use benches::{Outcome, allocations, arguments, clock, cores, hgrm, report};
use clap::{Parser, Subcommand};
use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};
use open::OpenArgs;
use rpc_core::frame::HEADER_LEN;
use rpc_core::{Intents, Waiting};
use rpc_transport_verbs::Device;

/// Calls that each client makes in a closed loop.
const CALLS: usize = 200_000;

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::COUNTING;

/// Measures the latency of calls, one at a time, next to the latency of raw verbs
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
    #[command(name = tcp::SERVE, hide = true)]
    Tcp(TcpArgs),
}

#[derive(clap::Args)]
struct Measurement {
    /// Device name [default: the best available device, or the one that VERBLINE_DEVICE names]
    #[arg(long)]
    device: Option<String>,
    /// Shape of the message
    #[arg(long, value_enum, default_value = "fixed64")]
    message: Shape,
    /// Payload size in bytes
    #[arg(long, default_value_t = FIXED_SIZE)]
    size: usize,
    /// Calls to record for each client, and as many raw round trips [default: 200000, or 50 with
    /// --idle-gap]
    #[arg(long, conflicts_with = "open")]
    calls: Option<usize>,
    /// Turns that each client takes
    #[arg(long, default_value_t = 20, conflicts_with_all = ["open", "idle_gap"])]
    slices: usize,
    /// What pollers do while idle
    #[arg(long, default_value = "adaptive", value_parser = arguments::waiting())]
    waiting: Waiting,
    /// Keep both sides idle for this long before each call, and report the latency of that first
    /// call (100ms)
    #[arg(long, value_name = "DURATION", value_parser = arguments::duration, conflicts_with = "open")]
    idle_gap: Option<Duration>,
    /// Print one sentence: a call beside raw verbs and beside TCP on loopback
    #[arg(long, conflicts_with_all = ["open", "idle_gap", "json"])]
    summary: bool,
    #[command(flatten)]
    open: OpenArgs,
    /// Output directory for the histograms, in the format of HdrHistogram's plotter
    #[arg(long, default_value = "target/latency")]
    out: PathBuf,
    /// Print the result as one JSON object on the last line
    #[arg(long)]
    json: bool,
}

impl Measurement {
    fn run(&self) -> Outcome<()> {
        if self.open.is_wanted() {
            return self.open.run(self);
        }
        if let Some(gap) = self.idle_gap {
            return idle_gap::run(self, gap);
        }
        if self.summary {
            return summary::run(self);
        }
        self.run_closed_loop()
    }

    /// Prepares what every kind of measurement needs.
    fn prepare(&self) -> Outcome<(Load, cores::Cores, Device)> {
        let load = Load::new(self.message, self.size)?;
        let cores = cores::Cores::choose()?;
        let device = match &self.device {
            Some(name) => Device::open(name)?,
            None => Device::best()?,
        };
        Ok((load, cores, device))
    }

    fn intents(&self, load: &Load) -> Intents {
        Intents {
            waiting: self.waiting,
            ..intents_for(load.encoded_len())
        }
    }

    fn run_closed_loop(&self) -> Outcome<()> {
        let (load, cores, device) = self.prepare()?;
        let calls = self.calls.unwrap_or(CALLS).max(1);
        let slices = self.slices.clamp(1, calls);
        let calls_per_slice = calls / slices;
        let calls = slices * calls_per_slice;
        let device = device.name();
        println!(
            "{calls} calls of {} bytes on '{device}', one at a time, in {slices} slices; \
             alternating with as many raw round trips",
            self.size
        );
        println!("{cores}");
        println!(
            "reading the clock costs {} and happens once per call",
            table::duration(clock::cost_of_reading())
        );

        let intents = self.intents(&load);
        let frame_len = HEADER_LEN + load.encoded_len();
        // Must run before this thread is pinned, so that the system chooses the core of the
        // channel's poller.
        let shared = Shared::start(device, cores.server, &intents, 1)?;
        let waiters = [Waiter::tokio()?, Waiter::Blocking];
        let names = waiters.each_ref().map(Waiter::to_string);
        let [tokio, blocking] =
            waiters.map(|waiter| SharedLoop::new(&shared, waiter, load.clone()));
        let (mut tokio, mut blocking) = (tokio?, blocking?);
        let rpc = Rpc::start_pinned(device, cores, &intents)?;
        println!("{}", rpc.poller().limits());
        let like_rpc = RawArgs::like(&rpc.poller().limits(), cores.client, frame_len);
        let mut rpc = ClosedLoop::new(rpc, load)?;
        let mut raw = PingPong::start(&like_rpc, cores.server)?;

        let bar = progress_bar(4 * slices);
        let records = alternate(
            &mut [&mut raw, &mut rpc, &mut tokio, &mut blocking],
            slices,
            calls_per_slice,
            |turns| {
                bar.set_position(turns as u64);
            },
        )?;
        bar.finish_and_clear();
        let [raw, rpc_record, tokio_record, blocking_record] = &records[..] else {
            return Err("internal error: a side has no record".into());
        };
        let allocations = rpc.allocations_per_call()?;

        let mut table = Table::new([""].into_iter().chain(table::PERCENTILES).chain(["rate"]));
        for (name, record) in [
            (format!("raw, {frame_len} bytes"), raw),
            (format!("rpc, {frame_len} bytes framed"), rpc_record),
            (names[0].clone(), tokio_record),
            (names[1].clone(), blocking_record),
        ] {
            let cells = table::percentiles(&record.histogram);
            table.add(
                [name]
                    .into_iter()
                    .chain(cells)
                    .chain([table::rate(record.rate())]),
            );
        }
        print!("\n{table}");
        println!(
            "rpc / raw: {:.2} (median over slices of the ratio of their p50)",
            slices::ratio_p50(rpc_record, raw)
        );
        println!(
            "shared / rpc: {:.2} async, {:.2} blocking (median over slices); the channel's poller runs on a \
             thread that is not pinned, and the application's thread sleeps while it waits",
            slices::ratio_p50(tokio_record, rpc_record),
            slices::ratio_p50(blocking_record, rpc_record)
        );
        println!(
            "allocations per call: {:.6} on the client, {:.6} on the server (rpc)",
            allocations.client, allocations.server
        );
        for (name, record) in [
            ("raw", raw),
            ("rpc", rpc_record),
            ("shared-async", tokio_record),
            ("shared-blocking", blocking_record),
        ] {
            let path = save(&record.histogram, &self.out, &format!("{name}-{frame_len}"))?;
            println!("histogram, in ns: {}", path.display());
        }
        if self.json {
            let shared = [
                (names[0].clone(), tokio_record),
                (names[1].clone(), blocking_record),
            ];
            println!(
                "{}",
                report::latency(
                    device,
                    self.size,
                    calls,
                    raw,
                    rpc_record,
                    &shared,
                    allocations
                )
            );
        }
        Ok(())
    }
}

fn save(histogram: &Histogram<u64>, out: &Path, name: &str) -> Outcome<PathBuf> {
    let path = out.join(format!("{name}.hgrm"));
    hgrm::save(histogram, &path)
        .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    Ok(path)
}

/// Returns a progress bar, which draws only on a terminal.
fn progress_bar(turns: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} turns, {eta} left");
    let bar = ProgressBar::new(turns as u64);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match &cli.role {
        Some(Role::Calls(args)) => args.serve(),
        Some(Role::Frames(args)) => args.serve(),
        Some(Role::Tcp(args)) => args.serve(),
        None => cli.measurement.run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("latency: {error}");
            ExitCode::FAILURE
        }
    }
}
