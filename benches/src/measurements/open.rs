//! The open loop: calls at one rate, or at rising rates, no matter how earlier ones fare.

use std::hash::{BuildHasher, RandomState};
use std::iter;
use std::time::Duration;

use clap::Args;
use verbline_load::sweep::{Step, Sweep};
use verbline_load::unit::Unit;
use verbline_load::{Arrivals, LATE, OpenLoop, Points};

use crate::Outcome;
use crate::arguments;
use crate::report::{Report, Row};
use crate::rpc::{Client, Rpc};
use crate::setup::{Bench, Measurement, MessageArgs};
use verbline_load::plot::{Axis, Curve, Plot, Scale};

/// Time before recording begins, for buffers to warm up and windows to grow.
const WARM_UP: Duration = Duration::from_millis(200);

/// Each step is 1.5 times the previous one, so the knee is found to within 50 %. The range starts where few
/// calls are in flight and ends above what one connection has carried on any machine.
const DEFAULT_RATES: &str = "10k:15M:19";

/// Calls at intended times (open loop): service and response times at one rate, or a sweep
#[derive(Clone, Debug, Args)]
#[command(group = clap::ArgGroup::new("load").required(true))]
pub struct Open {
    #[command(flatten)]
    message: MessageArgs,
    /// Send calls at this rate, no matter how many are in flight: 2000, 200k, 1.5M
    #[arg(long, value_name = "PER_SECOND", value_parser = arguments::rate, group = "load")]
    rate: Option<f64>,
    /// Raise the rate step by step until calls queue behind each other
    #[arg(
        long,
        value_name = "FROM:TO:STEPS",
        value_parser = arguments::rates,
        num_args = 0..=1,
        default_missing_value = DEFAULT_RATES,
        group = "load"
    )]
    sweep: Option<Points>,
    /// Distribution of the times between calls
    #[arg(long, value_enum, default_value = "fixed")]
    arrivals: Arrivals,
    /// Seed of the Poisson arrivals, to repeat a run that printed its seed
    #[arg(long)]
    seed: Option<u64>,
    /// Maximum calls in flight; calls beyond it are sent late
    #[arg(long, default_value_t = 256)]
    in_flight: u32,
    /// Seconds to record [default: 3, and 1 for each step of a sweep]
    #[arg(long)]
    seconds: Option<f64>,
}

impl Measurement for Open {
    fn measure(&self, bench: &mut Bench) -> Outcome<()> {
        let load = self.message.load()?;
        if self.in_flight == 0 {
            return Err("--in-flight 0: no call could ever be sent; use 1 or more".into());
        }
        let seconds = self
            .seconds
            .unwrap_or(if self.sweep.is_some() { 1.0 } else { 3.0 });
        let time = arguments::recorded(seconds)?;
        // The standard library's hasher uses different keys in each process.
        let seed = self.seed.unwrap_or_else(|| RandomState::new().hash_one(()));
        bench.announce(format_args!(
            "calls of {} bytes at intended times; the client's thread spins on the clock",
            self.message.size
        ));
        let mut intents = self.message.intents(&load);
        intents.max_in_flight = intents.max_in_flight.max(self.in_flight);
        let rpc = Rpc::start_pinned(&bench.device, bench.cores, &intents)?;
        bench.say(rpc.poller().limits());
        let measure = async |rate| {
            bench.progress(Unit::PerSecond.text(rate));
            let client = &rpc.client();
            let callers = iter::repeat_n(&load, self.in_flight as usize).map(|load| {
                let mut load = load.clone();
                async move || load.exchange(client).await
            });
            let plan = OpenLoop::at(rate)
                .arrivals(self.arrivals)
                .seed(seed)
                .warm_up(WARM_UP)
                .time(time)
                .slices(0);
            plan.try_run(callers).await
        };
        let sweep = match (self.rate, &self.sweep) {
            (Some(rate), _) => rpc.block_on(measure(rate))?.into(),
            (None, steps) => {
                let rates = steps.iter().flat_map(|steps| steps.values()).copied();
                rpc.block_on(Sweep::of_rates(rates, measure))?
            }
        };
        let report = &mut bench.report;
        report.figure("size_bytes", self.message.size);
        report.figure("arrivals", self.arrivals.to_string());
        if self.arrivals == Arrivals::Poisson {
            report.figure("seed", seed);
        }
        report.figure("in_flight_limit", self.in_flight);
        report.figure("late_means_ns", LATE.as_nanos() as u64);
        report.table("rates", sweep.steps.iter().map(of_rate));
        for Step { at, record } in &sweep.steps {
            let rate = Unit::PerSecond.text(*at);
            report.histogram(format!("{rate} response"), &record.response);
            if self.rate.is_some() {
                report.histogram(format!("{rate} service"), &record.service);
            }
        }
        report.note(
            "Response times count from the intended send, service times from the actual send: they \
             differ by the time that calls waited to be sent, which a closed loop leaves out \
             (coordinated omission).",
        );
        if self.rate.is_none() {
            say_knee(report, &sweep);
        }
        Ok(())
    }
}

fn of_rate(Step { at, record }: &Step) -> Row {
    let service = |quantile| record.service.value_at_quantile(quantile);
    Row::new(Unit::PerSecond.text(*at))
        .with("wanted_per_s", at.round())
        .with("achieved_per_s", record.achieved.round())
        .with_times(&record.response)
        .with("service_p50_ns", service(0.5))
        .with("service_p99_ns", service(0.99))
        .with("service_p999_ns", service(0.999))
        .with("service_max_ns", record.service.max())
        .with("sent", record.service.len())
        .with("late", record.late)
        .with("unsent", record.unsent)
}

/// Says which rate the server sustains, and draws the latency against the rate.
fn say_knee(report: &mut Report, sweep: &Sweep) {
    let sustained = sweep.sustained().map(|step| step.at.round());
    report.figure("sustained_per_s", sustained);
    if let Some(knee) = sweep.knee_sentence() {
        report.note(knee);
    }
    report.figure("knee", sweep.knee.map(|knee| knee.to_string()));
    let curve = |name, quantile| {
        let at = |step: &Step| step.record.response.value_at_quantile(quantile) as f64;
        Curve::new(name, sweep.steps.iter().map(|step| (step.at, at(step))))
    };
    let plot = Plot {
        title: "open: response time against offered rate".to_owned(),
        subtitle: String::new(),
        x: Axis::new("calls offered", Unit::PerSecond, Scale::Log),
        y: Axis::new("response time", Unit::Nanoseconds, Scale::Log),
        curves: vec![curve("p50", 0.5), curve("p99", 0.99), curve("p99.9", 0.999)],
        marks: Vec::new(),
        rule: None,
    };
    report.plot("rates", plot);
}
