//! Measures how a poller shares its time between a client that keeps many calls in flight and
//! clients that have one call each:
//!
//! ```text
//! cargo run --release -p benches --bin unfair
//! ```
//!
//! All clients are in one process and on one thread, each with its own connection to the same
//! poller. An equal share is the rate of all calls divided by the number of clients. The last line
//! of output is one JSON object.
#![forbid(unsafe_code)]
// Printing is the purpose of a benchmark.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::cell::RefCell;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use benches::in_flight::Period;
use benches::spin::{SpinArgs, SpinServer, Work};
use benches::table::{self, Table};
use benches::task_set::TaskSet;
use benches::{Outcome, cores, report, slices};
use clap::{Parser, Subcommand};
use hdrhistogram::Histogram;
use proto::bench::BenchClient;
use rpc_core::{CallError, Intents, LocalChannel, LocalPoller};
use rpc_transport_verbs::Device;

/// Measures how a poller shares its time between a flooding client and clients of one call
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
    #[command(name = benches::spin::SERVE, hide = true)]
    Spins(SpinArgs),
}

#[derive(clap::Args)]
struct Measurement {
    /// Device name [default: the best available device, or the one that VERBLINE_DEVICE names]
    #[arg(long)]
    device: Option<String>,
    /// Microseconds for which a handler spins
    #[arg(long, default_value_t = 200)]
    spin_us: u64,
    /// Calls that the flooding client keeps in flight
    #[arg(long, default_value_t = 128)]
    flooder: usize,
    /// Clients that have one call in flight each
    #[arg(long, default_value_t = 7)]
    others: usize,
    /// Seconds to measure, after a warm-up of half a second
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
}

impl Measurement {
    fn run(&self) -> Outcome<()> {
        if self.flooder == 0 || self.others == 0 {
            return Err("--flooder and --others: expected at least 1".into());
        }
        let seconds = Duration::try_from_secs_f64(self.seconds)?;
        let cores = cores::Cores::choose()?;
        let device = match &self.device {
            Some(name) => Device::open(name)?,
            None => Device::best()?,
        };
        println!(
            "handlers of {} µs on '{}': one client with {} calls in flight, {} clients with one",
            self.spin_us,
            device.name(),
            self.flooder,
            self.others
        );
        println!("{cores}");
        let defaults = Intents::default();
        let clients = 1 + self.others;
        let intents = Intents {
            connections: u32::try_from(clients)?.max(defaults.connections),
            max_in_flight: u32::try_from(self.flooder)?.max(defaults.max_in_flight),
            ..defaults
        };
        let server = SpinServer::start(device.name(), cores.server, &intents)?;
        cores::pin_current_thread(cores.client)?;
        let poller = LocalPoller::builder(&device)
            .intents(intents.clone())
            .build()?;
        let connections = (0..clients)
            .map(|_| Ok(BenchClient::new(poller.connect(server.address())?)))
            .collect::<Outcome<Vec<_>>>()?;

        let period = Period::from_now(seconds);
        let spin = Duration::from_micros(self.spin_us);
        let in_flight = std::iter::once(self.flooder).chain(std::iter::repeat_n(1, self.others));
        let counted = poller.block_on(keep_in_flight(&connections, in_flight, spin, period))?;

        let rates: Vec<f64> = counted.iter().map(|one| period.rate(one)).collect();
        let equal = rates.iter().sum::<f64>() / clients as f64;
        let mut table = Table::new(["", "calls/s", "of an equal share", "p50", "p99"]);
        for (index, (rate, latencies)) in rates.iter().zip(&counted).enumerate() {
            let time = |quantile| {
                let nanos = latencies.value_at_quantile(quantile);
                table::duration(Duration::from_nanos(nanos))
            };
            table.add([
                match index {
                    0 => format!("{} in flight", self.flooder),
                    _ => "1 in flight".to_owned(),
                },
                format!("{rate:.0}"),
                format!("{:.0} %", rate / equal * 100.0),
                time(0.5),
                time(0.99),
            ]);
        }
        print!("\n{table}\n");
        println!("{}", report::unfair(rates[0], &rates[1..]));
        Ok(())
    }
}

/// Keeps the given number of calls in flight on each connection, and returns the latencies of the
/// calls of each.
async fn keep_in_flight(
    clients: &[BenchClient<LocalChannel>],
    in_flight: impl Iterator<Item = usize>,
    spin: Duration,
    period: Period,
) -> Result<Vec<Histogram<u64>>, CallError> {
    let counted: Vec<_> = clients
        .iter()
        .map(|_| RefCell::new(slices::histogram()))
        .collect();
    let failure = RefCell::new(None);
    let work = Work {
        phase: 0,
        spin,
        give_up: None,
    };
    let callers = clients.iter().zip(&counted).zip(in_flight);
    let callers = callers.flat_map(|((client, counted), in_flight)| {
        let failure = &failure;
        (0..in_flight).map(move |_| async move {
            loop {
                let began = Instant::now();
                if let Err(error) = client.echo_fixed(work.to_message()).await {
                    failure.borrow_mut().get_or_insert(error);
                    return;
                }
                if period.add(began, &mut counted.borrow_mut()) {
                    return;
                }
            }
        })
    });
    TaskSet::new(callers).await;
    match failure.into_inner() {
        Some(error) => Err(error),
        None => Ok(counted.into_iter().map(RefCell::into_inner).collect()),
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match &cli.role {
        Some(Role::Spins(args)) => args.serve(),
        None => cli.measurement.run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("unfair: {error}");
            ExitCode::FAILURE
        }
    }
}
