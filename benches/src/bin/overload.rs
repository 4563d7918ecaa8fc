//! Measures goodput against offered load: what a server still does for its callers when more calls
//! arrive than it can answer, and how soon it is well again afterwards:
//!
//! ```text
//! cargo run --release -p benches --bin overload
//! cargo run --release -p benches --bin overload -- --spin-us 50 --client local
//! ```
//!
//! Calls arrive by an open-loop schedule: no arrival waits for an earlier call. A call is *good* if
//! its response arrives within the deadline, counted from its intended start. The program starts
//! its server process, measures how many calls per second it can answer, and offers multiples of
//! that. Near and above the capacity the server needs its whole core: the column `cpu` has the share
//! that the system gave it. The last line of output is one JSON object.
#![forbid(unsafe_code)]
// Printing is the purpose of a benchmark.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use benches::arrivals::Arrivals;
use benches::overload::chart::{self, Point};
use benches::overload::offer::{Shape, offer, run_when_due};
use benches::overload::recovery::Recovery;
use benches::overload::tally::{End, Tally};
use benches::overload::timeline::{Phase, Timeline};
use benches::spin::{Handlers, MAX_PHASES, SpinArgs, SpinServer, Work};
use benches::task_set::TaskSet;
use benches::{Outcome, arguments, cores, report, table};
use clap::{Parser, Subcommand, ValueEnum};
use proto::bench::BenchClient;
use rpc_core::{
    CallError, Caller, Channel, Execution, Intents, LocalChannel, LocalPoller, block_on,
};
use rpc_transport_verbs::Device;

/// Measures goodput against offered load
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
    /// Kind of client that makes the calls
    #[arg(long, value_enum, default_value = "shared")]
    client: Kind,
    /// Microseconds for which a handler spins
    #[arg(long, default_value_t = 1000)]
    spin_us: u64,
    /// Time from the intended start of a call to its deadline
    #[arg(long, default_value = "100ms", value_parser = arguments::duration)]
    deadline: Duration,
    /// Connections of the client
    #[arg(long, default_value_t = 4)]
    connections: usize,
    /// Maximum calls in flight per connection
    #[arg(long, default_value_t = 64)]
    in_flight: usize,
    /// Offered loads, in multiples of the capacity
    #[arg(long, value_delimiter = ',', default_value = "0.5,0.75,1,1.5,2,3,4")]
    loads: Vec<f64>,
    /// Calls per second that the server can answer [default: measured in a closed loop]
    #[arg(long, value_parser = arguments::rate)]
    capacity: Option<f64>,
    /// Distribution of the times between calls
    #[arg(long, value_enum, default_value = "poisson")]
    arrivals: Arrivals,
    /// Seed of the Poisson arrivals, to repeat a run that printed its seed
    #[arg(long)]
    seed: Option<u64>,
    /// Seconds of each load, after a warm-up at the same load
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Seconds of the warm-up
    #[arg(long, default_value_t = 1.0)]
    warm_up: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// The thread that makes the calls polls the device
    Local,
    /// A shared channel with one poller for each connection
    Shared,
}

/// Load after the last step, while the server recovers, in multiples of the capacity.
const LOAD_AFTERWARDS: f64 = 0.5;

impl Measurement {
    fn run(&self) -> Outcome<()> {
        self.check()?;
        let seconds = |seconds: f64| Duration::try_from_secs_f64(seconds);
        let (length, warm_up) = (seconds(self.seconds)?, seconds(self.warm_up)?);
        let seed = self.seed.unwrap_or_else(|| RandomState::new().hash_one(()));
        let cores = cores::Cores::choose()?;
        let device = match &self.device {
            Some(name) => Device::open(name)?,
            None => Device::best()?,
        };
        println!(
            "handlers of {} µs on '{}', deadline {}, {} connections of {} calls in flight at most",
            self.spin_us,
            device.name(),
            table::duration(self.deadline),
            self.connections,
            self.in_flight
        );
        println!("{cores}");
        println!(
            "{} arrivals, seed: {seed} (--seed {seed} repeats them)",
            self.arrivals
        );

        let intents = Intents {
            connections: u32::try_from(self.connections)?.max(Intents::default().connections),
            max_in_flight: u32::try_from(self.in_flight)?,
            ..Intents::default()
        };
        let server = SpinServer::start(device.name(), cores.server, &intents)?;
        // All threads of the client inherit this.
        cores::pin_current_thread(cores.client)?;
        let client = Client::connect(self, &device, &server, &intents)?;
        let mut rig = Rig {
            shape: Shape {
                spin: Duration::from_micros(self.spin_us),
                deadline: self.deadline,
                in_flight: self.in_flight,
            },
            server,
            client,
        };
        let capacity = match self.capacity {
            Some(capacity) => capacity,
            None => rig.measure_capacity(length.max(Duration::from_millis(200)))?,
        };
        println!("capacity: {capacity:.0} calls per second\n");
        println!("{}", Step::HEADER);
        let mut steps: Vec<Step> = Vec::new();
        let mut recovery = Recovery::default();
        for (index, &load) in self.loads.iter().enumerate() {
            let is_last = index + 1 == self.loads.len();
            let phase = |number, load, length| Phase {
                number,
                rate: capacity * load,
                length,
            };
            let mut phases = vec![
                phase(2 * index, load, warm_up),
                phase(2 * index + 1, load, length),
            ];
            let afterwards = 2 * index + 2;
            if is_last {
                phases.push(phase(afterwards, LOAD_AFTERWARDS, length.max(warm_up)));
            }
            let timeline = Timeline {
                arrivals: self.arrivals,
                seed,
                phases,
            };
            let mut tally = Tally::default();
            let cpu_time = rig.server.cpu_time();
            let (start, cpu_before) = (Instant::now(), cpu_time.read()?);
            rig.offer(&timeline, |arrival, end| {
                if arrival.phase == 2 * index + 1 {
                    tally.add(end);
                } else if arrival.phase == afterwards {
                    recovery.add(arrival.in_phase, matches!(end, End::Good(_)));
                }
            });
            let cpu = cpu_time.read()? - cpu_before;
            let server_share = cpu.as_secs_f64() / start.elapsed().as_secs_f64();
            let handlers = rig.handlers_when_quiet(2 * index + 1)?;
            let step = Step {
                load,
                length,
                tally,
                handlers,
                server_share,
            };
            println!("{}", step.line());
            steps.push(step);
        }
        let rate = |step: &Step| step.per_second(step.tally.good.len());
        let points: Vec<Point> = steps
            .iter()
            .map(|step| Point {
                offered: step.per_second(step.tally.offered),
                good: rate(step),
            })
            .collect();
        print!("\n{}\n", chart::draw(&points, capacity));
        let last = self.loads.last().copied().unwrap_or_default();
        match recovery.time() {
            Some(time) => println!(
                "from {last} to {LOAD_AFTERWARDS} times the capacity: full goodput after {} ms",
                time.as_millis()
            ),
            None => println!(
                "from {last} to {LOAD_AFTERWARDS} times the capacity: NO full goodput to the end"
            ),
        }
        let shares = steps.iter().map(Step::useless_share);
        println!(
            "{}",
            report::overload(
                steps.iter().map(rate).fold(0.0, f64::max),
                steps.last().map_or(0.0, rate),
                shares.fold(0.0, f64::max),
            )
        );
        Ok(())
    }

    fn check(&self) -> Outcome<()> {
        if self.connections == 0 || self.in_flight == 0 {
            return Err("with --connections 0 or --in-flight 0, no call could ever be sent".into());
        }
        if self.seconds.is_nan() || self.seconds <= 0.0 {
            return Err(format!("--seconds {}: nothing could be recorded", self.seconds).into());
        }
        if self.loads.is_empty() || self.loads.iter().any(|&load| load.is_nan() || load <= 0.0) {
            return Err("--loads: expected multiples of the capacity above 0: 0.5,1,4".into());
        }
        let most = (MAX_PHASES - 1) / 2;
        if self.loads.len() > most {
            return Err(format!("--loads: {most} at most").into());
        }
        Ok(())
    }
}

/// A server and the client that loads it.
struct Rig {
    shape: Shape,
    // Declared before the server, so that connections end before their peer does.
    client: Client,
    server: SpinServer,
}

enum Client {
    Local(Vec<BenchClient<LocalChannel>>, LocalPoller),
    Shared(BenchClient<Channel>, usize),
}

impl Client {
    fn connect(
        options: &Measurement,
        device: &Device,
        server: &SpinServer,
        intents: &Intents,
    ) -> Outcome<Self> {
        Ok(match options.client {
            Kind::Local => {
                let poller = LocalPoller::builder(device)
                    .intents(intents.clone())
                    .build()?;
                let clients = (0..options.connections)
                    .map(|_| Ok(BenchClient::new(poller.connect(server.address())?)))
                    .collect::<Outcome<_>>()?;
                Self::Local(clients, poller)
            }
            Kind::Shared => {
                let channel = Channel::builder(device, server.address())
                    .max_in_flight(intents.max_in_flight)
                    .pollers(options.connections)
                    .connect();
                Self::Shared(BenchClient::new(block_on(channel)?), options.connections)
            }
        })
    }
}

impl Rig {
    /// Returns the calls per second that the server answers in a closed loop with some calls in
    /// flight on each connection.
    fn measure_capacity(&self, length: Duration) -> Result<f64, CallError> {
        match &self.client {
            Client::Local(clients, poller) => {
                poller.block_on(closed_loop(clients, clients.len(), self.shape.spin, length))
            }
            Client::Shared(client, connections) => {
                let client = std::slice::from_ref(client);
                block_on(closed_loop(client, *connections, self.shape.spin, length))
            }
        }
    }

    fn offer(
        &self,
        timeline: &Timeline,
        ended: impl FnMut(benches::overload::timeline::Arrival, End),
    ) {
        let due = Cell::new(None);
        match &self.client {
            Client::Local(clients, poller) => {
                let mut calls = pin!(offer(clients, self.shape, timeline, &due, ended));
                poller.block_on(poll_fn(|cx| {
                    // The next call may be due before a response arrives.
                    cx.waker().wake_by_ref();
                    calls.as_mut().poll(cx)
                }));
            }
            Client::Shared(client, connections) => {
                let shape = Shape {
                    in_flight: self.shape.in_flight * connections,
                    ..self.shape
                };
                let client = std::slice::from_ref(client);
                run_when_due(&due, offer(client, shape, timeline, &due, ended));
            }
        }
    }

    /// Waits until no more handlers of the phase begin, and returns their numbers.
    fn handlers_when_quiet(&mut self, phase: usize) -> Outcome<Handlers> {
        let quiet = self.shape.spin * 4 + Duration::from_millis(200);
        let mut handlers = self.server.handlers(phase)?;
        loop {
            let until = Instant::now() + quiet;
            while Instant::now() < until {
                if let Client::Local(_, poller) = &self.client {
                    poller.turn();
                }
                thread::sleep(Duration::from_millis(1));
            }
            let before = std::mem::replace(&mut handlers, self.server.handlers(phase)?);
            if before == handlers {
                return Ok(handlers);
            }
        }
    }
}

/// Keeps some calls in flight on each connection, and returns the calls that were answered per
/// second. A call that the server did not start is made again.
async fn closed_loop<C: Caller>(
    clients: &[BenchClient<C>],
    connections: usize,
    spin: Duration,
    length: Duration,
) -> Result<f64, CallError> {
    const IN_FLIGHT: usize = 8;
    let answered = Cell::new(0_u64);
    let failure = RefCell::new(None);
    let start = Instant::now();
    let work = Work {
        phase: MAX_PHASES - 1,
        spin,
        give_up: None,
    };
    TaskSet::new((0..connections * IN_FLIGHT).map(|index| {
        let client = &clients[index % clients.len()];
        let (answered, failure) = (&answered, &failure);
        async move {
            while start.elapsed() < length {
                match client.echo_fixed(work.to_message()).await {
                    Ok(_) => answered.set(answered.get() + 1),
                    Err(error) if error.execution() == Execution::NotStarted => {}
                    Err(error) => {
                        failure.borrow_mut().get_or_insert(error);
                        return;
                    }
                }
            }
        }
    }))
    .await;
    match failure.into_inner() {
        Some(error) => Err(error),
        None => Ok(answered.get() as f64 / start.elapsed().as_secs_f64()),
    }
}

/// The result of one load.
struct Step {
    /// In multiples of the capacity.
    load: f64,
    length: Duration,
    tally: Tally,
    handlers: Handlers,
    /// Share of a core that the server's process used.
    server_share: f64,
}

impl Step {
    const HEADER: &str = " load | offered/s dropped/s unsent/s   sent/s |   good/s      p50      p99 \
        | refused/s expired/s too late/s |  begun/s useless/s  share |  cpu | by code";

    fn per_second(&self, count: u64) -> f64 {
        count as f64 / self.length.as_secs_f64()
    }

    fn useless_share(&self) -> f64 {
        self.tally.useless(self.handlers.begun) as f64 / self.handlers.begun.max(1) as f64
    }

    fn line(&self) -> String {
        let tally = &self.tally;
        let rate = |count| self.per_second(count);
        let sum = |codes: &BTreeMap<&str, u64>| rate(codes.values().sum());
        let latency = |quantile| {
            if tally.good.is_empty() {
                return "-".to_owned();
            }
            let nanos = tally.good.value_at_quantile(quantile);
            table::duration(Duration::from_nanos(nanos))
        };
        let codes = [
            ("refused", &tally.refused),
            ("failed", &tally.failed),
            ("unsent", &tally.unsent),
            ("lost", &tally.lost),
        ];
        let codes: Vec<String> = codes
            .iter()
            .flat_map(|(name, codes)| {
                codes
                    .iter()
                    .map(move |(code, count)| format!("{name} {code} {:.0}/s", rate(*count)))
            })
            .collect();
        format!(
            "{:>5.2} | {:>9.0} {:>9.0} {:>8.0} {:>8.0} | {:>8.0} {:>8} {:>8} | {:>9.0} {:>9.0} \
             {:>10.0} | {:>8.0} {:>9.0} {:>5.1}% | {:>3.0}% | {}",
            self.load,
            rate(tally.offered),
            rate(tally.dropped),
            sum(&tally.unsent),
            rate(tally.sent()),
            rate(tally.good.len()),
            latency(0.5),
            latency(0.99),
            sum(&tally.refused),
            rate(tally.expired),
            rate(tally.too_late),
            rate(self.handlers.begun),
            rate(tally.useless(self.handlers.begun)),
            self.useless_share() * 100.0,
            self.server_share * 100.0,
            codes.join(", ")
        )
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
            eprintln!("overload: {error}");
            ExitCode::FAILURE
        }
    }
}
