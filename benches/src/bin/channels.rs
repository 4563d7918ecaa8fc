//! Measures what channels cost a process that calls many servers: with pollers of their own, and over
//! pollers that they share. Each row is a process of its own, which opens the channels to one server,
//! makes a call on each, counts its threads, files and memory, and then makes calls on one of them
//! while the others are idle:
//!
//! ```text
//! cargo run --release -p benches --bin channels -- --channels 100
//! ```
#![forbid(unsafe_code)]
// Printing is the purpose of a benchmark.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::fs;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use benches::cores::Cores;
use benches::in_flight::allow_more_files;
use benches::message::{FIXED_SIZE, Load, Shape};
use benches::rpc::{SERVE, start_server};
use benches::service::{ServerArgs, intents_for};
use benches::slices::histogram;
use benches::table::Table;
use benches::{Outcome, arguments};
use clap::{Parser, Subcommand};
use proto::bench::BenchClient;
use rpc_core::{Channel, Intents, Pollers, Waiting, block_on};
use rpc_transport_verbs::Device;

/// Measures threads, files, memory and latency of many channels in one process
#[derive(Parser)]
#[command(subcommand_negates_reqs = true, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    role: Option<Role>,
    #[command(flatten)]
    measurement: Measurement,
}

/// The role of the processes that this program starts.
#[derive(Subcommand)]
enum Role {
    #[command(name = SERVE, hide = true)]
    Calls(ServerArgs),
    #[command(name = ROW, hide = true)]
    Row(Measurement),
}

const ROW: &str = "measure-row";

#[derive(clap::Args)]
struct Measurement {
    /// Device name [default: the best available device, or the one that VERBLINE_DEVICE names]
    #[arg(long)]
    device: Option<String>,
    /// Channels
    #[arg(long, default_value_t = 100)]
    channels: usize,
    /// Pollers that the channels share. 0, in a row: each channel has a poller of its own
    #[arg(long, default_value_t = 1)]
    pollers: usize,
    /// Calls on the busy channel
    #[arg(long, default_value_t = 50_000)]
    calls: usize,
    /// What pollers do while idle
    #[arg(long, default_value = "adaptive", value_parser = arguments::waiting())]
    waiting: Waiting,
}

impl Measurement {
    /// Starts a process for each row.
    fn run(&self) -> Outcome<()> {
        let device = self.open()?;
        println!(
            "channels on '{}', each with one connection to one server process; calls of {FIXED_SIZE} \
             bytes, one at a time, on one of them",
            device.name()
        );
        let mut table = Table::new([
            "channels",
            "pollers",
            "threads",
            "files",
            "resident",
            "registered",
            "p50",
            "p99",
        ]);
        let own = 0;
        for (channels, pollers) in [
            (1, own),
            (1, self.pollers),
            (self.channels, own),
            (self.channels, self.pollers),
        ] {
            let row = Command::new(std::env::current_exe()?)
                .args([ROW, "--device", device.name()])
                .args(["--channels", &channels.to_string()])
                .args(["--pollers", &pollers.to_string()])
                .args(["--calls", &self.calls.to_string()])
                .args(["--waiting", &self.waiting.to_string()])
                .stderr(Stdio::inherit())
                .output()?;
            if !row.status.success() {
                return Err(format!("the process with {channels} channels failed").into());
            }
            let row = String::from_utf8(row.stdout)?;
            table.add(row.trim().split('|').map(str::to_owned));
        }
        print!("\n{table}");
        println!(
            "\nThreads, files and resident memory are those beyond the process without channels."
        );
        Ok(())
    }

    fn open(&self) -> Outcome<Device> {
        Ok(match &self.device {
            Some(name) => Device::open(name)?,
            None => Device::best()?,
        })
    }

    /// Measures one row, in a process of its own.
    fn measure(&self) -> Outcome<()> {
        allow_more_files()?;
        let device = self.open()?;
        let cores = Cores::choose()?;
        let load = Load::new(Shape::Fixed64, FIXED_SIZE)?;
        let connections = u32::try_from(self.channels)?;
        let server_intents = Intents {
            connections: connections.max(64),
            waiting: self.waiting,
            ..intents_for(load.encoded_len())
        };
        let (_server, address) = start_server(device.name(), cores.server, &server_intents)?;
        let before = Used::now()?;
        let channels = Channels::open(self, &device, &address)?;
        for channel in &channels.open {
            let client = BenchClient::new(channel.clone());
            block_on(Load::new(Shape::Fixed64, FIXED_SIZE)?.exchange(&client))?;
        }
        let after = Used::now()?;

        let client = BenchClient::new(channels.open[0].clone());
        let mut load = Load::new(Shape::Fixed64, FIXED_SIZE)?;
        let mut times = histogram();
        for call in 0..self.calls + self.calls / 10 {
            let began = Instant::now();
            block_on(load.exchange(&client))?;
            // The first calls warm up.
            if call >= self.calls / 10 {
                times.record(began.elapsed().as_nanos() as u64)?;
            }
        }
        let pollers = match self.pollers {
            0 => "its own".to_owned(),
            shared => format!("{shared}, shared"),
        };
        let microseconds = |quantile| {
            format!(
                "{:.1} µs",
                times.value_at_quantile(quantile) as f64 / 1000.0
            )
        };
        println!(
            "{}|{pollers}|{}|{}|{:.1} MiB|{:.1} MiB|{}|{}",
            self.channels,
            after.threads - before.threads,
            after.files - before.files,
            (after.resident_kib - before.resident_kib) as f64 / 1024.0,
            channels.registered as f64 / f64::from(1 << 20),
            microseconds(0.5),
            microseconds(0.99),
        );
        Ok(())
    }
}

/// The channels of one row.
struct Channels {
    open: Vec<Channel>,
    /// Bytes of slots that their pollers have registered.
    registered: usize,
}

impl Channels {
    fn open(measurement: &Measurement, device: &Device, address: &str) -> Outcome<Self> {
        let count = measurement.channels;
        let mut open = Vec::new();
        if measurement.pollers == 0 {
            for _ in 0..count {
                let builder = Channel::builder(device, address).waiting(measurement.waiting);
                open.push(block_on(builder.connect())?);
            }
            let limits = open.iter().filter_map(Channel::limits);
            let registered = limits.map(|limits| limits.registered_len()).sum();
            return Ok(Self { open, registered });
        }
        let pollers = Pollers::builder(device)
            .pollers(measurement.pollers)
            .connections(u32::try_from(count.div_ceil(measurement.pollers))?)
            .waiting(measurement.waiting)
            .start()?;
        for _ in 0..count {
            open.push(block_on(Channel::connect(&pollers, address))?);
        }
        let registered = pollers.limits().registered_len() * measurement.pollers;
        Ok(Self { open, registered })
    }
}

/// What this process uses.
struct Used {
    threads: usize,
    files: usize,
    resident_kib: u64,
}

impl Used {
    fn now() -> Outcome<Self> {
        let status = fs::read_to_string("/proc/self/status")?;
        let resident = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .and_then(|value| value.trim().strip_suffix("kB"))
            .ok_or("the system does not say how much memory is resident")?;
        Ok(Self {
            threads: fs::read_dir("/proc/self/task")?.count(),
            files: fs::read_dir("/proc/self/fd")?.count(),
            resident_kib: resident.trim().parse()?,
        })
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match &cli.role {
        Some(Role::Calls(args)) => args.serve(),
        Some(Role::Row(row)) => row.measure(),
        None => cli.measurement.run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("channels: {error}");
            ExitCode::FAILURE
        }
    }
}
