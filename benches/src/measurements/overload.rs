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
use std::mem;
use std::task::Poll;
use std::time::{Duration, Instant};

use clap::Args;
use proto::bench::BenchClient;
use rpc_core::{Caller, Execution, Intents};
use verbline_load::unit::Unit;
use verbline_load::{Arrivals, run_all};

use super::throughput::Kind;
use crate::overload::offer::{Shape, offer};
use crate::overload::recovery::Recovery;
use crate::overload::tally::{Failure, Tally};
use crate::overload::timeline::{Phase, Timeline};
use crate::report::Row;
use crate::rpc::{Client, Rpc};
use crate::service::ServerArgs;
use crate::setup::{Bench, Measurement};
use crate::shared::Shared;
use crate::spin::{MAX_PHASES, Work, handlers_begun};
use crate::{Outcome, arguments, cores};
use verbline_load::plot::{Axis, Curve, Plot, Scale};

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
        let report = &mut bench.report;
        report.figure("client", self.client.to_string());
        report.figure("spin_us", self.spin_us);
        report.figure("deadline_ns", self.deadline.as_nanos() as u64);
        report.figure("seed", seed);
        // All threads of the client inherit this.
        cores::pin_current_thread(bench.cores.client)?;
        let server = ServerArgs::spinning(bench.device(), bench.cores.server, &intents);
        match self.client {
            Kind::Local => {
                let mut rpc = Rpc::start_with(&bench.device, server, &intents)?;
                rpc.connect(self.connections - 1)?;
                let clients = rpc.clients();
                self.offer_all(bench, &mut rpc, &clients, seed)
            }
            Kind::Shared => {
                let device = &bench.device;
                let mut shared = Shared::start_with(device, server, &intents, self.connections)?;
                let clients = [shared.client()];
                self.offer_all(bench, &mut shared, &clients, seed)
            }
        }
    }
}

impl Overload {
    fn check(&self) -> Outcome<()> {
        arguments::recorded(self.seconds)?;
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

    /// Offers all loads one after the other.
    fn offer_all<C: Client>(
        &self,
        bench: &mut Bench,
        client: &mut C,
        clients: &[BenchClient<C::Channel>],
        seed: u64,
    ) -> Outcome<()> {
        let capacity = match self.capacity {
            Some(capacity) => capacity,
            None => client.block_on(self.measure_capacity(clients))?,
        };
        bench.report.figure("capacity_per_s", capacity.round());
        let mut recovery = Recovery::default();
        let mut steps = Vec::new();
        for (index, &load) in self.loads.iter().enumerate() {
            bench.progress(format_args!("{load} × the capacity"));
            let timeline = self.timeline(index, capacity, seed)?;
            steps.push(self.step(client, clients, &timeline, load, &mut recovery)?);
        }
        self.report(bench, &steps, &recovery);
        Ok(())
    }

    /// Keeps some calls in flight on each connection, and returns the calls that were answered per
    /// second. A call that the server did not start is made again.
    async fn measure_capacity<C: Caller>(&self, clients: &[BenchClient<C>]) -> Outcome<f64> {
        const IN_FLIGHT: usize = 8;
        let length = arguments::recorded(self.seconds)?.max(Duration::from_millis(200));
        let work = Work {
            phase: MAX_PHASES - 1,
            spin: Duration::from_micros(self.spin_us),
        };
        let start = Instant::now();
        let callers = (0..self.connections * IN_FLIGHT).map(|index| async move {
            let client = &clients[index % clients.len()];
            let mut answered = 0_u64;
            while start.elapsed() < length {
                match client.echo_fixed(work.to_message()).await {
                    Ok(_) => answered += 1,
                    Err(error) if error.execution() == Execution::NotStarted => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(answered)
        });
        let answered: u64 = run_all(callers).await?.iter().sum();
        Ok(answered as f64 / start.elapsed().as_secs_f64())
    }

    /// Returns the calls of one of the loads: those of the warm-up, those that are recorded and, after
    /// the last load, those of a small one. The phases of each load have numbers of their own.
    fn timeline(&self, index: usize, capacity: f64, seed: u64) -> Outcome<Timeline> {
        let (load, length) = (self.loads[index], arguments::recorded(self.seconds)?);
        let warm_up = Duration::try_from_secs_f64(self.warm_up)?;
        let mut phases = vec![(load, warm_up), (load, length)];
        if index + 1 == self.loads.len() {
            phases.push((LOAD_AFTERWARDS, length.max(warm_up)));
        }
        let phases = phases.into_iter().enumerate();
        Ok(Timeline {
            arrivals: self.arrivals,
            seed,
            phases: phases
                .map(|(phase, (load, length))| Phase {
                    number: 2 * index + phase,
                    rate: capacity * load,
                    length,
                })
                .collect(),
        })
    }

    fn step<C: Client>(
        &self,
        client: &mut C,
        clients: &[BenchClient<C::Channel>],
        timeline: &Timeline,
        load: f64,
        recovery: &mut Recovery,
    ) -> Outcome<Step> {
        let recorded = timeline.phases[1];
        let shape = Shape {
            spin: Duration::from_micros(self.spin_us),
            deadline: self.deadline,
            in_flight: self.in_flight * self.connections / clients.len(),
        };
        let mut tally = Tally::default();
        let cpu_time = client.server().cpu_time();
        let (start, cpu_before) = (Instant::now(), cpu_time.read()?);
        let due = Cell::new(None);
        let calls = offer(clients, shape, timeline, &due, |arrival, end| {
            if arrival.phase == recorded.number {
                tally.add(end);
            } else if arrival.phase > recorded.number {
                recovery.add(arrival.in_phase, end.is_ok());
            }
        });
        client.block_on_due(&due, calls);
        let cpu = cpu_time.read()? - cpu_before;
        let server_share = cpu.as_secs_f64() / start.elapsed().as_secs_f64();
        Ok(Step {
            load,
            length: recorded.length,
            tally,
            handlers_begun: self.handlers_when_quiet(client, recorded.number)?,
            server_share,
        })
    }

    /// Waits until no more handlers of the phase begin, and returns their number.
    fn handlers_when_quiet(&self, client: &mut impl Client, phase: usize) -> Outcome<u64> {
        let quiet = Duration::from_micros(self.spin_us) * 4 + Duration::from_millis(200);
        let mut handlers = handlers_begun(client.server_mut(), phase)?;
        loop {
            let until = Instant::now() + quiet;
            let is_over = poll_fn(|_| match Instant::now() < until {
                true => Poll::Pending,
                false => Poll::Ready(()),
            });
            client.block_on_due(&Cell::new(Some(until)), is_over);
            let before = mem::replace(&mut handlers, handlers_begun(client.server_mut(), phase)?);
            if before == handlers {
                return Ok(handlers);
            }
        }
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
        let offered = |step: &Step| step.per_second(step.tally.offered());
        let curve = |name: &str, of: &dyn Fn(&Step) -> f64| {
            Curve::new(name, steps.iter().map(|step| (offered(step), of(step))))
        };
        let plot = Plot {
            title: "overload: goodput against offered load".to_owned(),
            subtitle: String::new(),
            x: Axis::new("calls offered", Unit::PerSecond, Scale::Linear),
            y: Axis::new("calls answered in time", Unit::PerSecond, Scale::Linear),
            marks: Vec::new(),
            rule: None,
            curves: vec![
                curve("good", &good),
                curve("handlers begun", &|step| {
                    step.per_second(step.handlers_begun)
                }),
            ],
        };
        report.plot("goodput", plot);
    }
}

/// The result of one load.
struct Step {
    /// In multiples of the capacity.
    load: f64,
    length: Duration,
    tally: Tally,
    handlers_begun: u64,
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
        self.tally.useless(self.handlers_begun) as f64 / self.handlers_begun.max(1) as f64
    }

    fn row(&self) -> Row {
        let tally = &self.tally;
        let per_second = |count| self.per_second(count);
        let failed = |failure| {
            let count = tally.failures.get(&failure);
            per_second(count.copied().unwrap_or_default())
        };
        let at =
            |quantile| (!tally.good.is_empty()).then(|| tally.good.value_at_quantile(quantile));
        let row = Row::new(self.name())
            .with("offered_per_s", per_second(tally.offered()))
            .with("dropped_per_s", failed(Failure::Dropped))
            .with("sent_per_s", per_second(tally.sent()))
            .with("good_per_s", per_second(tally.good.len()))
            .with("p50_ns", at(0.5))
            .with("p99_ns", at(0.99))
            .with("too_late_per_s", failed(Failure::TooLate))
            .with("expired_per_s", failed(Failure::Expired))
            .with("begun_per_s", per_second(self.handlers_begun))
            .with(
                "useless_per_s",
                per_second(tally.useless(self.handlers_begun)),
            )
            .with("useless_handlers_share", self.useless_share())
            .with("server_cpu_share", self.server_share);
        // Those without a code already have their columns.
        tally.failures.iter().fold(row, |row, (failure, count)| {
            row.with(format!("{failure}_per_s"), per_second(*count))
        })
    }
}
