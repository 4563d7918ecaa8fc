//! Measures what connections cost: the rate of calls over one connection, the same beside many idle
//! connections, and the same number of calls in flight spread in turn over all of them, in
//! alternating turns of one run:
//!
//! ```text
//! cargo run --release -p benches --bin connections -- --idle 1000
//! ```
#![forbid(unsafe_code)]
// Printing is the purpose of a benchmark.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

use benches::in_flight::allow_more_files;
use benches::message::{FIXED_SIZE, Load, Shape};
use benches::rates::{self, LocalRate, Rated};
use benches::rpc::Rpc;
use benches::service::{ServerArgs, intents_for};
use benches::{Outcome, arguments, cores};
use clap::{Parser, Subcommand};
use rpc_core::{Intents, Waiting};
use rpc_transport_verbs::Device;

/// Measures the rate of calls over one and over many connections in alternating turns
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
    #[command(name = benches::rpc::SERVE, hide = true)]
    Calls(ServerArgs),
}

#[derive(clap::Args)]
struct Measurement {
    /// Device name [default: the best available device, or the one that VERBLINE_DEVICE names]
    #[arg(long)]
    device: Option<String>,
    /// Connections beside the one
    #[arg(long, default_value_t = 1000)]
    idle: usize,
    /// Calls in flight, over all connections
    #[arg(long, default_value_t = 32)]
    in_flight: usize,
    /// Turns that each row takes
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// What pollers do while idle
    #[arg(long, default_value = "adaptive", value_parser = arguments::waiting())]
    waiting: Waiting,
}

impl Measurement {
    fn run(&self) -> Outcome<()> {
        let cores = cores::Cores::choose()?;
        let device = match &self.device {
            Some(name) => Device::open(name)?,
            None => Device::best()?,
        };
        let device = device.name();
        let load = Load::new(Shape::Fixed64, FIXED_SIZE)?;
        let intents = Intents {
            waiting: self.waiting,
            ..intents_for(load.encoded_len())
        };
        let all = self.idle + 1;
        let intents_of_many = Intents {
            connections: u32::try_from(all)?.max(intents.connections),
            ..intents.clone()
        };
        println!(
            "{} rounds of calls of {FIXED_SIZE} bytes on '{device}', {} in flight from one thread",
            self.rounds, self.in_flight
        );
        println!("{cores}");
        allow_more_files()?;
        let rpc = Rpc::start_pinned(device, cores, &intents)?;
        let mut one = LocalRate::new(rpc, &load, self.in_flight, 1)?;
        let mut rpc = Rpc::start_pinned(device, cores, &intents_of_many)?;
        let before = [
            resident(rpc.server().pid().as_raw_nonzero().get())?,
            resident(std::process::id() as i32)?,
        ];
        rpc.connect(self.idle)?;
        let after = [
            resident(rpc.server().pid().as_raw_nonzero().get())?,
            resident(std::process::id() as i32)?,
        ];
        for (side, (before, after)) in ["server", "client"].iter().zip(before.iter().zip(after)) {
            let each = after.saturating_sub(*before) as f64 / self.idle.max(1) as f64 / 1024.0;
            println!("resident memory of the {side} for each idle connection: {each:.1} KiB");
        }
        let mut many = LocalRate::new(rpc, &load, self.in_flight, 1)?;

        let names = [
            "one connection".to_owned(),
            format!("one connection, {} more idle", self.idle),
            format!("in turn over {all} connections"),
        ];
        let rounds = rates::alternate(names.len(), self.rounds, cores, |row| {
            if row == 0 {
                return one.take_turn();
            }
            many.use_connections(if row == 1 { 1 } else { all });
            many.take_turn()
        })?;
        print!("\n{}", rates::table(&names, &rounds));
        println!("{rounds}");
        Ok(())
    }
}

/// Returns the resident memory of a process, in bytes.
fn resident(process: i32) -> Outcome<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let kib: u64 = kib.ok_or("/proc says no resident memory")?.parse()?;
    Ok(kib * 1024)
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match &cli.role {
        Some(Role::Calls(args)) => args.serve(),
        None => cli.measurement.run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("connections: {error}");
            ExitCode::FAILURE
        }
    }
}
