//! Calls per second with many under way, from one client thread to one poller:
//!
//! ```text
//! cargo run --release -p benches --bin throughput
//! cargo run --release -p benches --bin throughput -- --in-flight 32 --idle-connections 1000 --json
//! ```
//!
//! It starts its server process itself and pins both sides.
#![forbid(unsafe_code)]
// A benchmark's product is what it prints.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::cell::RefCell;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use benches::crew::Crew;
use benches::message::{FIXED_SIZE, Load, Shape};
use benches::report::{LoadShape, sends_per_doorbell, sends_per_signal};
use benches::rpc::Rpc;
use benches::service::{ServerArgs, intents_for};
use benches::slices;
use benches::table::{self, Table};
use benches::{Outcome, cores, report};
use clap::{Parser, Subcommand};
use hdrhistogram::Histogram;
use proto::bench::{BenchClient, StatsReply};
use rpc_core::limits::Intents;
use rpc_core::transport::Counters;
use rpc_core::{CallError, LocalChannel};
use rpc_transport_verbs::Device;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Calls before the clock starts to count: buffers are warm, and windows have grown.
const WARM_UP: Duration = Duration::from_millis(500);

/// Measures calls per second with many of them under way.
#[derive(Parser)]
#[command(subcommand_negates_reqs = true, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    role: Option<Role>,
    #[command(flatten)]
    measurement: Measurement,
}

/// What the process is that it starts itself.
#[derive(Subcommand)]
enum Role {
    #[command(name = benches::rpc::SERVE, hide = true)]
    Calls(ServerArgs),
}

#[derive(clap::Args)]
struct Measurement {
    /// Name of the device [default: the best there is, or what VERBLINE_DEVICE names]
    #[arg(long)]
    device: Option<String>,
    /// Shape of the message [default: fixed64 for 64 bytes, bytes for any other size]
    #[arg(long, value_enum)]
    message: Option<Shape>,
    /// Bytes of payload
    #[arg(long, default_value_t = FIXED_SIZE)]
    size: usize,
    /// Calls under way at a time, over all connections
    #[arg(long, default_value_t = 32)]
    in_flight: usize,
    /// Connections that carry them, in turn
    #[arg(long, default_value_t = 1)]
    connections: usize,
    /// Connections beside these that carry nothing
    #[arg(long, default_value_t = 0)]
    idle_connections: usize,
    /// Seconds to measure, after half a second of warming up
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Print the result as one JSON object on the last line
    #[arg(long)]
    json: bool,
}

impl Measurement {
    fn run(&self) -> Outcome<()> {
        let shape = self.message.unwrap_or(match self.size {
            FIXED_SIZE => Shape::Fixed64,
            _ => Shape::Bytes,
        });
        let load = Load::new(shape, self.size)?;
        let seconds = Duration::try_from_secs_f64(self.seconds)
            .map_err(|error| format!("--seconds {}: {error}", self.seconds))?;
        let connections = self.connections.max(1);
        let cores = cores::Cores::choose()?;
        let device = match &self.device {
            Some(name) => Device::open(name)?,
            None => Device::best()?,
        };
        let device = device.name();
        println!(
            "calls of {} bytes on '{device}', {} under way over {connections} connections, {} more \
             connections idle",
            self.size, self.in_flight, self.idle_connections
        );
        println!("{cores}");

        cores::pin_current_thread(cores.client)?;
        let intents = self.intents(connections, load.encoded_len())?;
        let mut rpc = Rpc::start(device, cores.server, &intents)?;
        rpc.connect(connections - 1)?;
        let clients = rpc.clients().to_vec();
        rpc.connect(self.idle_connections)?;
        println!("{}", rpc.poller().limits());

        let before = counters_of_both(&rpc)?;
        let counted = self.load_with(&rpc, &clients, &load, seconds)?;
        let after = counters_of_both(&rpc)?;
        let sides = [0, 1].map(|side| after[side].since(&before[side]));

        let calls_per_s = counted.len() as f64 / seconds.as_secs_f64();
        let mut table = Table::new([""].into_iter().chain(table::PERCENTILES).chain(["rate"]));
        let cells = table::percentiles(&counted);
        let name = format!("{} in flight", self.in_flight);
        table.add(
            [name]
                .into_iter()
                .chain(cells)
                .chain([table::rate(calls_per_s)]),
        );
        print!("\n{table}\n");
        let mut table = Table::new(["", "sends/signal", "sends/doorbell", "srq limits", "rnr"]);
        for (name, side) in ["client", "server"].into_iter().zip(&sides) {
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
                in_flight: self.in_flight,
                connections,
            };
            println!(
                "{}",
                report::throughput(device, load, calls_per_s, &counted, &sides)
            );
        }
        Ok(())
    }

    /// Both sides are made for what is asked, and for no more.
    fn intents(&self, connections: usize, encoded_len: usize) -> Outcome<Intents> {
        let defaults = intents_for(encoded_len);
        let all = u32::try_from(connections + self.idle_connections)?;
        let each = u32::try_from(self.in_flight.div_ceil(connections))?;
        if all > defaults.connections {
            allow_more_files()?;
        }
        Ok(Intents {
            connections: all.max(defaults.connections),
            max_in_flight: each.max(defaults.max_in_flight),
            ..defaults
        })
    }

    /// Keeps the calls under way, and returns the times of those that ended while it counted.
    fn load_with(
        &self,
        rpc: &Rpc,
        clients: &[BenchClient<LocalChannel>],
        load: &Load,
        seconds: Duration,
    ) -> Outcome<Histogram<u64>> {
        let histogram = RefCell::new(slices::histogram());
        let failure = RefCell::new(None);
        let start = Instant::now() + WARM_UP;
        let end = start + seconds;
        let workers = (0..self.in_flight).map(|index| {
            let worker = Worker {
                client: &clients[index % clients.len()],
                load: load.clone(),
                histogram: &histogram,
                start,
                end,
            };
            let failure = &failure;
            async move {
                if let Err(error) = worker.run().await {
                    failure.borrow_mut().get_or_insert(error);
                }
            }
        });
        rpc.poller().block_on(Crew::new(workers));
        match failure.into_inner() {
            Some(error) => Err(error.into()),
            None => Ok(histogram.into_inner()),
        }
    }
}

/// One of the calls under way, again and again.
struct Worker<'a> {
    client: &'a BenchClient<LocalChannel>,
    load: Load,
    histogram: &'a RefCell<Histogram<u64>>,
    start: Instant,
    end: Instant,
}

impl Worker<'_> {
    async fn run(mut self) -> Result<(), CallError> {
        let mut began = Instant::now();
        loop {
            self.load.exchange(self.client).await?;
            // The end of one call is the beginning of the next: one look at the clock for each.
            let now = Instant::now();
            if now >= self.end {
                return Ok(());
            }
            if now >= self.start {
                let nanos = (now - began).as_nanos() as u64;
                self.histogram.borrow_mut().saturating_record(nanos.max(1));
            }
            began = now;
        }
    }
}

/// The client's and the server's, the two looks that this takes included.
fn counters_of_both(rpc: &Rpc) -> Outcome<[Counters; 2]> {
    let StatsReply {
        sends,
        signaled,
        doorbells,
        srq_limit_events,
        rnr,
        ..
    } = rpc.stats()?;
    let server = Counters {
        sends,
        signaled,
        doorbells,
        srq_limit_events,
        rnr,
        ..Counters::default()
    };
    Ok([rpc.poller().counters(), server])
}

/// A connection has a socket and shared memory in each process; the usual limit of open files is
/// too low for a thousand of them. The server process inherits what is set here.
fn allow_more_files() -> Outcome<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    )
    .map_err(|error| format!("the limit of open files cannot be raised: {error}").into())
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
