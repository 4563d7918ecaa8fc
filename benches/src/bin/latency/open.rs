//! The open loop: calls at one rate, or at rising rates.

use std::hash::{BuildHasher, RandomState};
use std::iter;
use std::path::Path;
use std::time::{Duration, Instant};

use benches::arguments::{self, Steps};
use benches::arrivals::Arrivals;
use benches::message::Load;
use benches::open_loop::{LATE, OpenLoop, OpenRecord};
use benches::report::OpenShape;
use benches::rpc::Rpc;
use benches::sweep::Sweep;
use benches::table::{self, Table};
use benches::{Outcome, report};

use super::Measurement;

/// Time before recording begins, for buffers to warm up and windows to grow.
const WARM_UP: Duration = Duration::from_millis(200);

#[derive(clap::Args)]
#[group(skip)]
pub(crate) struct OpenArgs {
    /// Send calls at this rate, no matter how many are in flight (open loop): 2000, 200k, 1.5M
    #[arg(long, value_name = "PER_SECOND", value_parser = arguments::rate, group = "open")]
    pub(crate) rate: Option<f64>,
    /// Raise the rate step by step until calls queue behind each other
    #[arg(
        long,
        value_name = "FROM:TO:STEPS",
        value_parser = Steps::parse,
        num_args = 0..=1,
        default_missing_value = Steps::DEFAULT,
        group = "open"
    )]
    pub(crate) sweep: Option<Steps>,
    /// Distribution of the times between calls
    #[arg(long, value_enum, default_value = "fixed", requires = "open")]
    arrivals: Arrivals,
    /// Seed of the Poisson arrivals, to repeat a run that printed its seed
    #[arg(long, requires = "open")]
    seed: Option<u64>,
    /// Maximum calls in flight; calls beyond it are sent late
    #[arg(long, default_value_t = 256, requires = "open")]
    in_flight: u32,
    /// Seconds to record [default: 3, and 1 for each step of a sweep]
    #[arg(long, requires = "open")]
    seconds: Option<f64>,
}

impl OpenArgs {
    pub(crate) fn is_wanted(&self) -> bool {
        self.rate.is_some() || self.sweep.is_some()
    }

    pub(crate) fn run(&self, measurement: &Measurement) -> Outcome<()> {
        let (load, cores, device) = measurement.prepare()?;
        if self.in_flight == 0 {
            return Err("--in-flight 0: no call could ever be sent; use 1 or more".into());
        }
        let seconds = self.seconds.unwrap_or(match self.sweep {
            Some(_) => 1.0,
            None => 3.0,
        });
        let time = match Duration::try_from_secs_f64(seconds) {
            Ok(time) if !time.is_zero() => time,
            _ => return Err(format!("--seconds {seconds}: nothing could be recorded").into()),
        };
        // The standard library's hasher uses different keys in each process.
        let seed = self.seed.unwrap_or_else(|| RandomState::new().hash_one(()));
        let mut intents = measurement.intents(&load);
        intents.max_in_flight = intents.max_in_flight.max(self.in_flight);
        println!(
            "calls of {} bytes on '{}' at intended times, {} intervals, up to {} in flight",
            measurement.size,
            device.name(),
            self.arrivals,
            self.in_flight
        );
        if self.arrivals == Arrivals::Poisson {
            println!("seed: {seed} (--seed {seed} repeats the arrivals)");
        }
        println!("{cores}; the client's thread spins on the clock");

        let rpc = Rpc::start_pinned(device.name(), cores, &intents)?;
        println!("{}", rpc.poller().limits());
        let measure = |rate| {
            let plan = OpenLoop {
                arrivals: self.arrivals,
                rate,
                seed,
                warm_up: WARM_UP,
                time,
            };
            make_calls(&rpc, plan, &load, self.in_flight)
        };
        let shape = OpenShape {
            device: device.name(),
            size: measurement.size,
            arrivals: self.arrivals,
            seed,
            in_flight: self.in_flight,
        };
        let json = match (self.rate, self.sweep) {
            (Some(rate), _) => {
                let record = measure(rate)?;
                print_record(&record);
                save(&record, &measurement.out, "open", load.encoded_len())?;
                report::open_loop(&shape, &record)
            }
            (None, Some(steps)) => {
                let sweep = Sweep::run(steps.rates(), measure)?;
                print_sweep(&sweep);
                for step in &sweep.steps {
                    let name = format!("open-{:.0}", step.wanted);
                    save(step, &measurement.out, &name, load.encoded_len())?;
                }
                println!("histograms, in ns: {}", measurement.out.display());
                report::sweep(&shape, &sweep)
            }
            (None, None) => return Err("an open loop needs --rate or --sweep".into()),
        };
        if measurement.json {
            println!("{json}");
        }
        Ok(())
    }
}

fn make_calls(rpc: &Rpc, plan: OpenLoop, load: &Load, in_flight: u32) -> Outcome<OpenRecord> {
    let client = &rpc.clients()[0];
    let callers = iter::repeat_n(load, in_flight as usize).map(|load| {
        let mut load = load.clone();
        async move || load.exchange(client).await
    });
    let start = Instant::now();
    Ok(rpc
        .poller()
        .block_on(plan.run(|| start.elapsed(), callers))?)
}

/// Prints the service times and the response times side by side.
fn print_record(record: &OpenRecord) {
    let mut table = Table::new(iter::once("").chain(table::PERCENTILES));
    for (name, histogram) in [
        ("service: since the actual send", &record.service),
        ("response: since the intended send", &record.response),
    ] {
        table.add(iter::once(name.to_owned()).chain(table::percentiles(histogram)));
    }
    print!("\n{table}");
    println!(
        "The rows differ by the time that calls waited to be sent, which a closed loop leaves out \
         (coordinated omission)."
    );
    println!(
        "{} requested, {} achieved; {} of {} calls sent more than {} late",
        table::rate(record.wanted),
        table::rate(record.achieved),
        record.late,
        record.service.len(),
        table::duration(LATE)
    );
    if record.unsent > 0 {
        println!(
            "{} more calls were still waiting to be sent at the end; the response row includes them with \
             the time they had waited",
            record.unsent
        );
    }
}

fn print_sweep(sweep: &Sweep) {
    println!("\nresponse times, since the intended send:");
    print!("{}\n{}", sweep.table(), sweep.chart());
    println!("(o: p50, x: p99)\n");
    let sustained = sweep.sustained().map(|step| table::rate(step.wanted));
    match (&sweep.knee, sweep.steps.last(), sustained) {
        (Some(knee), Some(last), Some(sustained)) => println!(
            "knee: above {sustained}. At {}, {knee}.",
            table::rate(last.wanted)
        ),
        (Some(knee), _, None) => println!("knee: below the first rate: {knee}."),
        _ => println!("knee: not reached; sweep higher rates with --sweep from:to:steps"),
    }
}

fn save(record: &OpenRecord, out: &Path, name: &str, encoded_len: usize) -> Outcome<()> {
    let frame_len = rpc_core::frame::HEADER_LEN + encoded_len;
    for (what, histogram) in [("service", &record.service), ("response", &record.response)] {
        super::save(histogram, out, &format!("{name}-{what}-{frame_len}"))?;
    }
    Ok(())
}
