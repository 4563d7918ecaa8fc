//! Goodput against offered load: what a server still does for its callers when more calls arrive than it
//! can answer, and how soon it is well again afterwards.
//!
//! Calls arrive by an open-loop schedule: no arrival waits for an earlier call. A call is *good* if its
//! response arrives within the deadline, counted from its intended start. The capacity is measured
//! first; loads are multiples of it. Near and above the capacity the server needs its whole core: the
//! figure `server_cpu_share` is what the system gave it.

use std::cell::Cell;
use std::future::poll_fn;
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use proto::bench::BenchClient;
use rpc_core::{
    CallError, Caller, Channel, Execution, Intents, LocalChannel, LocalPoller, block_on,
};

use super::throughput::Kind;
use crate::arrivals::Arrivals;
use crate::overload::offer::{Shape, offer, run_when_due};
use crate::overload::recovery::Recovery;
use crate::overload::tally::{End, Tally};
use crate::overload::timeline::{Arrival, Phase, Timeline};
use crate::plot::{Axis, Curve, Plot, Scale};
use crate::report::Row;
use crate::setup::{Bench, Measurement};
use crate::spin::{Handlers, MAX_PHASES, SpinServer, Work};
use crate::task_set::run_all;
use crate::unit::Unit;
use crate::{Outcome, arguments, cores};

/// Calls answered in time when up to four times as many arrive as the server can answer
#[derive(Clone, Debug, Args)]
pub struct Overload {
    /// Kind of client that makes the calls; a shared one has one poller for each connection
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

/// Load after the last step, while the server recovers, in multiples of the capacity.
const LOAD_AFTERWARDS: f64 = 0.5;

impl Measurement for Overload {
    fn measure(&self, bench: &mut Bench) -> Outcome<()> {
        self.check()?;
        let length = arguments::recorded(self.seconds)?;
        let seed = self.seed.unwrap_or_else(|| RandomState::new().hash_one(()));
        bench.announce(format_args!(
            "handlers of {} µs, deadline {:?}, {} connections of {} calls in flight at most; seed: {seed} \
             (--seed {seed} repeats the arrivals)",
            self.spin_us, self.deadline, self.connections, self.in_flight
        ));
        let intents = Intents {
            connections: u32::try_from(self.connections)?.max(Intents::default().connections),
            max_in_flight: u32::try_from(self.in_flight)?,
            ..Intents::default()
        };
        let server = SpinServer::start(bench.device(), bench.cores.server, &intents)?;
        // All threads of the client inherit this.
        cores::pin_current_thread(bench.cores.client)?;
        let client = Client::connect(self, bench, &server, intents)?;
        let mut rig = Rig { client, server };
        let capacity = match self.capacity {
            Some(capacity) => capacity,
            None => rig.measure_capacity(self, length.max(Duration::from_millis(200)))?,
        };
        let report = &mut bench.report;
        report.figure(
            "client",
            if self.client == Kind::Local {
                "local"
            } else {
                "shared"
            },
        );
        report.figure("spin_us", self.spin_us);
        report.figure("deadline_ns", self.deadline.as_nanos() as u64);
        report.figure("seed", seed);
        report.figure("capacity_per_s", capacity.round());
        let mut recovery = Recovery::default();
        let mut steps = Vec::new();
        for index in 0..self.loads.len() {
            bench.progress(format_args!("{} × the capacity", self.loads[index]));
            steps.push(self.step(&mut rig, index, capacity, seed, &mut recovery)?);
        }
        self.report(bench, &steps, &recovery);
        Ok(())
    }
}

impl Overload {
    fn check(&self) -> Outcome<()> {
        if self.connections == 0 || self.in_flight == 0 {
            return Err("with --connections 0 or --in-flight 0, no call could ever be sent".into());
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

    /// Offers one of the loads, and a small one after the last.
    fn step(
        &self,
        rig: &mut Rig,
        index: usize,
        capacity: f64,
        seed: u64,
        recovery: &mut Recovery,
    ) -> Outcome<Step> {
        let load = self.loads[index];
        let length = arguments::recorded(self.seconds)?;
        let warm_up = Duration::try_from_secs_f64(self.warm_up)?;
        let phase = |number, load: f64, length| Phase {
            number,
            rate: capacity * load,
            length,
        };
        let (recorded, afterwards) = (2 * index + 1, 2 * index + 2);
        let mut phases = vec![
            phase(2 * index, load, warm_up),
            phase(recorded, load, length),
        ];
        if index + 1 == self.loads.len() {
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
        rig.offer(self, &timeline, |arrival, end| {
            if arrival.phase == recorded {
                tally.add(end);
            } else if arrival.phase == afterwards {
                recovery.add(arrival.in_phase, matches!(end, End::Good(_)));
            }
        });
        let cpu = cpu_time.read()? - cpu_before;
        Ok(Step {
            load,
            length,
            tally,
            handlers: rig.handlers_when_quiet(self, recorded)?,
            server_share: cpu.as_secs_f64() / start.elapsed().as_secs_f64(),
        })
    }

    fn report(&self, bench: &mut Bench, steps: &[Step], recovery: &Recovery) {
        let report = &mut bench.report;
        let good = |step: &Step| step.per_second(step.tally.good.len());
        report.table("loads", steps.iter().map(Step::row));
        report.figure("peak_per_s", steps.iter().map(good).fold(0.0, f64::max));
        report.figure("at_last_load_per_s", steps.last().map_or(0.0, good));
        let useless = steps.iter().map(Step::useless_share).fold(0.0, f64::max);
        report.figure("useless_handlers_share", useless);
        let recovered = recovery.time();
        report.figure("recovery_ns", recovered.map(|time| time.as_nanos() as u64));
        let last = self.loads.last().copied().unwrap_or_default();
        report.note(match recovered {
            Some(time) => format!(
                "from {last} to {LOAD_AFTERWARDS} times the capacity: full goodput after {} ms",
                time.as_millis()
            ),
            None => format!(
                "from {last} to {LOAD_AFTERWARDS} times the capacity: NO full goodput to the end"
            ),
        });
        for step in steps.iter().filter(|step| !step.tally.good.is_empty()) {
            report.histogram(step.name(), &step.tally.good);
        }
        let offered = |step: &Step| step.per_second(step.tally.offered);
        let curve = |name: &str, of: &dyn Fn(&Step) -> f64| {
            Curve::new(name, steps.iter().map(|step| (offered(step), of(step))))
        };
        let plot = Plot {
            title: "overload: goodput against offered load".to_owned(),
            subtitle: String::new(),
            x: Axis::new("calls offered", Unit::PerSecond, Scale::Linear),
            y: Axis::new("calls answered in time", Unit::PerSecond, Scale::Linear),
            curves: vec![
                curve("good", &good),
                curve("handlers begun", &|step| {
                    step.per_second(step.handlers.begun)
                }),
            ],
        };
        report.plot("goodput", plot);
    }

    fn shape(&self, in_flight: usize) -> Shape {
        Shape {
            spin: Duration::from_micros(self.spin_us),
            deadline: self.deadline,
            in_flight,
        }
    }
}

/// A server and the client that loads it.
struct Rig {
    // Declared before the server, so that connections end before their peer does.
    client: Client,
    server: SpinServer,
}

enum Client {
    Local(Vec<BenchClient<LocalChannel>>, LocalPoller),
    Shared(BenchClient<Channel>),
}

impl Client {
    fn connect(
        options: &Overload,
        bench: &Bench,
        server: &SpinServer,
        intents: Intents,
    ) -> Outcome<Self> {
        Ok(match options.client {
            Kind::Local => {
                let poller = LocalPoller::builder(&bench.device)
                    .intents(intents)
                    .build()?;
                let clients = (0..options.connections)
                    .map(|_| Ok(BenchClient::new(poller.connect(server.address())?)))
                    .collect::<Outcome<_>>()?;
                Self::Local(clients, poller)
            }
            Kind::Shared => {
                let channel = Channel::builder(&bench.device, server.address())
                    .max_in_flight(intents.max_in_flight)
                    .pollers(options.connections)
                    .connect();
                Self::Shared(BenchClient::new(block_on(channel)?))
            }
        })
    }
}

impl Rig {
    /// Returns the calls per second that the server answers in a closed loop with some calls in
    /// flight on each connection.
    fn measure_capacity(&self, options: &Overload, length: Duration) -> Result<f64, CallError> {
        let spin = Duration::from_micros(options.spin_us);
        match &self.client {
            Client::Local(clients, poller) => {
                poller.block_on(closed_loop(clients, options.connections, spin, length))
            }
            Client::Shared(client) => {
                let client = std::slice::from_ref(client);
                block_on(closed_loop(client, options.connections, spin, length))
            }
        }
    }

    fn offer(&self, options: &Overload, timeline: &Timeline, ended: impl FnMut(Arrival, End)) {
        let due = Cell::new(None);
        match &self.client {
            Client::Local(clients, poller) => {
                let shape = options.shape(options.in_flight);
                let mut calls = pin!(offer(clients, shape, timeline, &due, ended));
                poller.block_on(poll_fn(|cx| {
                    // The next call may be due before a response arrives.
                    cx.waker().wake_by_ref();
                    calls.as_mut().poll(cx)
                }));
            }
            Client::Shared(client) => {
                let shape = options.shape(options.in_flight * options.connections);
                let client = std::slice::from_ref(client);
                run_when_due(&due, offer(client, shape, timeline, &due, ended));
            }
        }
    }

    /// Waits until no more handlers of the phase begin, and returns their numbers.
    fn handlers_when_quiet(&mut self, options: &Overload, phase: usize) -> Outcome<Handlers> {
        let quiet = Duration::from_micros(options.spin_us) * 4 + Duration::from_millis(200);
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
    let start = Instant::now();
    let work = Work {
        phase: MAX_PHASES - 1,
        spin,
        give_up: None,
    };
    let callers = (0..connections * IN_FLIGHT).map(|index| {
        let client = &clients[index % clients.len()];
        let answered = &answered;
        async move {
            while start.elapsed() < length {
                match client.echo_fixed(work.to_message()).await {
                    Ok(_) => answered.set(answered.get() + 1),
                    Err(error) if error.execution() == Execution::NotStarted => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        }
    });
    run_all(callers).await?;
    Ok(answered.get() as f64 / start.elapsed().as_secs_f64())
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
    fn name(&self) -> String {
        format!("{:.2} × capacity", self.load)
    }

    fn per_second(&self, count: u64) -> f64 {
        count as f64 / self.length.as_secs_f64()
    }

    fn useless_share(&self) -> f64 {
        self.tally.useless(self.handlers.begun) as f64 / self.handlers.begun.max(1) as f64
    }

    fn row(&self) -> Row {
        let tally = &self.tally;
        let at =
            |quantile| (!tally.good.is_empty()).then(|| tally.good.value_at_quantile(quantile));
        let row = Row::new(self.name())
            .with("offered_per_s", self.per_second(tally.offered))
            .with("dropped_per_s", self.per_second(tally.dropped))
            .with("sent_per_s", self.per_second(tally.sent()))
            .with("good_per_s", self.per_second(tally.good.len()))
            .with("p50_ns", at(0.5))
            .with("p99_ns", at(0.99))
            .with("too_late_per_s", self.per_second(tally.too_late))
            .with("expired_per_s", self.per_second(tally.expired))
            .with("begun_per_s", self.per_second(self.handlers.begun))
            .with(
                "useless_per_s",
                self.per_second(tally.useless(self.handlers.begun)),
            )
            .with("useless_handlers_share", self.useless_share())
            .with("server_cpu_share", self.server_share);
        let ends = [
            ("unsent", &tally.unsent),
            ("refused", &tally.refused),
            ("failed", &tally.failed),
            ("lost", &tally.lost),
        ];
        let codes = ends.into_iter().flat_map(|(end, codes)| {
            codes
                .iter()
                .map(move |(code, count)| (format!("{end}_{code}_per_s"), *count))
        });
        codes.fold(row, |row, (figure, count)| {
            row.with(figure, self.per_second(count))
        })
    }
}
