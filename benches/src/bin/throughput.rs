//! Measures calls per second with many calls in flight, from one client thread to one poller, or
//! through a shared client from any number of threads:
//!
//! ```text
//! cargo run --release -p benches --bin throughput
//! cargo run --release -p benches --bin throughput -- --in-flight 32 --idle-connections 1000 --json
//! cargo run --release -p benches --bin throughput -- --client shared --client-threads 2
//! ```
//!
//! The program starts its server process and pins both sides. The system chooses the cores for the
//! threads of a shared client.
#![forbid(unsafe_code)]
// Printing is the purpose of a benchmark.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use benches::in_flight::{Period, allow_more_files, keep_in_flight};
use benches::message::{FIXED_SIZE, Load, Shape};
use benches::report::{LoadShape, sends_per_doorbell, sends_per_signal};
use benches::rpc::Rpc;
use benches::service::{ServerArgs, intents_for};
use benches::shared::Shared;
use benches::table::{self, Table};
use benches::{Outcome, arguments, cores, report, slices};
use clap::{Parser, Subcommand, ValueEnum};
use hdrhistogram::Histogram;
use proto::bench::{StatsReply, StatsRequest};
use rpc_core::transport::Counters;
use rpc_core::{Intents, Waiting, block_on};
use rpc_transport_verbs::Device;

/// Measures calls per second with many calls in flight
#[derive(Parser)]
#[command(subcommand_negates_reqs = true, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    role: Option<Role>,
    #[command(flatten)]
    measurement: Measurement,
}

/// The role of the process that this program starts.
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
    /// Shape of the message [default: fixed64 for 64 bytes, bytes for any other size]
    #[arg(long, value_enum)]
    message: Option<Shape>,
    /// Payload size in bytes
    #[arg(long, default_value_t = FIXED_SIZE)]
    size: usize,
    /// Kind of client that makes the calls
    #[arg(long, value_enum, default_value = "local")]
    client: Kind,
    /// Threads that make calls through a shared client [default: 1]
    #[arg(long)]
    client_threads: Option<usize>,
    /// Pollers of a shared client, each with one connection [default: 1]
    #[arg(long)]
    pollers: Option<usize>,
    /// What pollers do while idle
    #[arg(long, default_value = "adaptive", value_parser = arguments::waiting())]
    waiting: Waiting,
    /// Calls in flight, over all connections and threads [default: 32, or 256 with a shared client]
    #[arg(long)]
    in_flight: Option<usize>,
    /// Connections of a local client, which carry the calls in turn
    #[arg(long, default_value_t = 1)]
    connections: usize,
    /// Additional connections that stay idle
    #[arg(long, default_value_t = 0)]
    idle_connections: usize,
    /// Seconds to measure, after a warm-up of half a second
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Print the result as one JSON object on the last line
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// The thread that makes the calls polls the device
    Local,
    /// Any thread makes calls; the channel's own pollers carry them
    Shared,
}

impl Measurement {
    fn run(&self) -> Outcome<()> {
        match self.client {
            Kind::Local => {
                if self.client_threads.is_some() || self.pollers.is_some() {
                    return Err("--client-threads and --pollers require --client shared".into());
                }
            }
            Kind::Shared => {
                if self.connections > 1 || self.idle_connections > 0 {
                    return Err(
                        "--connections and --idle-connections require --client local: a shared \
                                client has one connection for each of its --pollers"
                            .into(),
                    );
                }
            }
        }
        let shape = self.message.unwrap_or(match self.size {
            FIXED_SIZE => Shape::Fixed64,
            _ => Shape::Bytes,
        });
        let load = Load::new(shape, self.size)?;
        let seconds = Duration::try_from_secs_f64(self.seconds)
            .map_err(|error| format!("--seconds {}: {error}", self.seconds))?;
        let cores = cores::Cores::choose()?;
        let device = match &self.device {
            Some(name) => Device::open(name)?,
            None => Device::best()?,
        };
        let device = device.name();
        let measured = match self.client {
            Kind::Local => self.run_local(device, cores, &load, seconds)?,
            Kind::Shared => self.run_shared(device, cores, &load, seconds)?,
        };
        let Measured { counted, sides, .. } = &measured;

        let calls_per_s = counted.len() as f64 / seconds.as_secs_f64();
        let mut table = Table::new([""].into_iter().chain(table::PERCENTILES).chain(["rate"]));
        let cells = table::percentiles(counted);
        let name = format!("{} in flight", self.in_flight());
        table.add(
            [name]
                .into_iter()
                .chain(cells)
                .chain([table::rate(calls_per_s)]),
        );
        print!("\n{table}\n");
        let mut table = Table::new(["", "sends/signal", "sends/doorbell", "srq limits", "rnr"]);
        for (name, side) in ["server", "client"].into_iter().zip(sides) {
            table.add([
                name.to_owned(),
                format!("{:.1}", sends_per_signal(side)),
                format!("{:.1}", sends_per_doorbell(side)),
                side.srq_limit_events.to_string(),
                side.rnr.to_string(),
            ]);
        }
        print!("{table}");
        if self.json {
            let load = LoadShape {
                size: self.size,
                client: match self.client {
                    Kind::Local => "local",
                    Kind::Shared => "shared",
                },
                client_threads: self.client_threads(),
                in_flight: self.in_flight(),
                connections: measured.connections,
            };
            println!(
                "{}",
                report::throughput(device, load, calls_per_s, counted, sides)
            );
        }
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.in_flight.unwrap_or(match self.client {
            Kind::Local => 32,
            Kind::Shared => 256,
        })
    }

    fn client_threads(&self) -> usize {
        self.client_threads.unwrap_or(1).max(1)
    }

    fn run_local(
        &self,
        device: &str,
        cores: cores::Cores,
        load: &Load,
        seconds: Duration,
    ) -> Outcome<Measured> {
        let connections = self.connections.max(1);
        println!(
            "calls of {} bytes on '{device}', {} in flight over {connections} connections, {} more \
             connections idle",
            self.size,
            self.in_flight(),
            self.idle_connections
        );
        println!("{cores}");

        let intents = self.intents(connections, load.encoded_len())?;
        let mut rpc = Rpc::start_pinned(device, cores, &intents)?;
        rpc.connect(connections - 1)?;
        let clients = rpc.clients().to_vec();
        rpc.connect(self.idle_connections)?;
        println!("{}", rpc.poller().limits());

        let before = counters_of_both(&rpc)?;
        let period = Period::from_now(seconds);
        let calls = keep_in_flight(&clients, self.in_flight(), load, period);
        let counted = rpc.poller().block_on(calls)?;
        let after = counters_of_both(&rpc)?;
        Ok(Measured {
            counted,
            sides: vec![after[0].since(&before[0]), after[1].since(&before[1])],
            connections,
        })
    }

    fn run_shared(
        &self,
        device: &str,
        cores: cores::Cores,
        load: &Load,
        seconds: Duration,
    ) -> Outcome<Measured> {
        let (threads, pollers) = (self.client_threads(), self.pollers.unwrap_or(1).max(1));
        println!(
            "calls of {} bytes on '{device}', {} in flight through one shared client with {pollers} \
             pollers, from {threads} threads",
            self.size,
            self.in_flight()
        );
        println!(
            "server pinned to core {}, client threads not pinned; only the server's counters are shown, \
             because a shared client reports none",
            cores.server
        );
        let intents = self.intents(pollers, load.encoded_len())?;
        let shared = Shared::start(device, cores.server, &intents, pollers)?;
        if let Some(limits) = shared.channel().limits() {
            println!("{limits}");
        }
        let stats = || -> Outcome<Counters> {
            let client = shared.client();
            let reply = block_on(client.stats(StatsRequest {}))?;
            Ok(counters_of_server(&reply.into_inner()))
        };
        let before = stats()?;
        let period = Period::from_now(seconds);
        let share = |thread| {
            let all = self.in_flight();
            all / threads + usize::from(thread < all % threads)
        };
        let counted = thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|thread| {
                    let (clients, in_flight) = ([shared.client()], share(thread));
                    scope.spawn(move || block_on(keep_in_flight(&clients, in_flight, load, period)))
                })
                .collect();
            let mut all = slices::histogram();
            for worker in workers {
                let counted = worker.join().map_err(|_| "a client's thread panicked")??;
                all.add(counted)?;
            }
            Ok::<_, Box<dyn std::error::Error>>(all)
        })?;
        Ok(Measured {
            counted,
            sides: vec![stats()?.since(&before)],
            connections: pollers,
        })
    }

    /// Returns the intents for both sides, sized for the requested load and no more.
    fn intents(&self, connections: usize, encoded_len: usize) -> Outcome<Intents> {
        let defaults = intents_for(encoded_len);
        let all = u32::try_from(connections + self.idle_connections)?;
        let each = u32::try_from(self.in_flight().div_ceil(connections))?;
        if all > defaults.connections {
            allow_more_files()?;
        }
        Ok(Intents {
            connections: all.max(defaults.connections),
            max_in_flight: each.max(defaults.max_in_flight),
            waiting: self.waiting,
            ..defaults
        })
    }
}

/// The result of a run.
struct Measured {
    /// Latencies of the calls.
    counted: Histogram<u64>,
    /// Counters of the server during the run, and of the client if it reports them.
    sides: Vec<Counters>,
    connections: usize,
}

/// Returns the counters of the server and the client. The call that reads them is included.
fn counters_of_both(rpc: &Rpc) -> Outcome<[Counters; 2]> {
    let server = counters_of_server(&rpc.stats()?);
    Ok([server, rpc.poller().stats().total().transport])
}

fn counters_of_server(reply: &StatsReply) -> Counters {
    Counters {
        sends: reply.sends,
        signaled: reply.signaled,
        doorbells: reply.doorbells,
        srq_limit_events: reply.srq_limit_events,
        rnr: reply.rnr,
        ..Counters::default()
    }
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
            eprintln!("throughput: {error}");
            ExitCode::FAILURE
        }
    }
}
