//! The open loop: calls at a rate, and at rising rates.

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

/// Calls before recording begins: buffers are warm, and windows have grown.
const WARM_UP: Duration = Duration::from_millis(200);

#[derive(clap::Args)]
#[group(skip)]
pub(crate) struct OpenArgs {
    /// Send calls at this rate, whatever is still under way: an open loop (2000, 200k, 1.5M)
    #[arg(long, value_name = "PER_SECOND", value_parser = arguments::rate, group = "open")]
    pub(crate) rate: Option<f64>,
    /// Raise the rate from step to step until calls wait for each other
    #[arg(
        long,
        value_name = "FROM:TO:STEPS",
        value_parser = Steps::parse,
        num_args = 0..=1,
        default_missing_value = Steps::DEFAULT,
        group = "open"
    )]
    pub(crate) sweep: Option<Steps>,
    /// How the times between calls are spread
    #[arg(long, value_enum, default_value = "fixed", requires = "open")]
    arrivals: Arrivals,
    /// Repeats the Poisson arrivals of a run that printed it
    #[arg(long, requires = "open")]
    seed: Option<u64>,
    /// Calls that may be under way at a time; those beyond it are sent late
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
            return Err("--in-flight 0: no call could ever be sent".into());
        }
        let seconds = self.seconds.unwrap_or(match self.sweep {
            Some(_) => 1.0,
            None => 3.0,
        });
        let time = match Duration::try_from_secs_f64(seconds) {
            Ok(time) if !time.is_zero() => time,
            _ => return Err(format!("--seconds {seconds}: nothing could be recorded").into()),
        };
        // The standard library's hasher has keys of its own for each process.
        let seed = self.seed.unwrap_or_else(|| RandomState::new().hash_one(()));
        let mut intents = measurement.intents(&load);
        intents.max_in_flight = intents.max_in_flight.max(self.in_flight);
        println!(
            "calls of {} bytes on '{}' at intended times, {} spacing, up to {} under way",
            measurement.size,
            device.name(),
            self.arrivals,
            self.in_flight
        );
        if self.arrivals == Arrivals::Poisson {
            println!("seed: {seed} (--seed {seed} repeats the arrivals)");
        }
        println!("{cores}; the client's thread spins on the clock");

        benches::cores::pin_current_thread(cores.client)?;
        let rpc = Rpc::start(device.name(), cores.server, &intents)?;
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
            (None, None) => return Err("an open loop has --rate or --sweep".into()),
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

/// The service time and the response time side by side.
fn print_record(record: &OpenRecord) {
    let mut table = Table::new(iter::once("").chain(table::PERCENTILES));
    for (name, histogram) in [
        ("service: from when it was sent", &record.service),
        ("response: from when it should have been", &record.response),
    ] {
        table.add(iter::once(name.to_owned()).chain(table::percentiles(histogram)));
    }
    print!("\n{table}");
    println!(
        "The rows differ by how long calls waited to be sent, which a closed loop leaves out \
         (coordinated omission)."
    );
    println!(
        "{} calls wanted, {} achieved; {} of {} sent more than {} late",
        table::rate(record.wanted),
        table::rate(record.achieved),
        record.late,
        record.service.len(),
        table::duration(LATE)
    );
    if record.unsent > 0 {
        println!(
            "{} more calls were still waiting to be sent at the end: they stand under response with how \
             long they had waited",
            record.unsent
        );
    }
}

fn print_sweep(sweep: &Sweep) {
    println!("\nresponse times, from when a call should have been sent:");
    print!("{}\n{}", sweep.table(), sweep.chart());
    println!("(o: p50, x: p99)\n");
    let sustained = sweep.sustained().map(|step| table::rate(step.wanted));
    match (&sweep.knee, sweep.steps.last(), sustained) {
        (Some(knee), Some(last), Some(sustained)) => println!(
            "knee: above {sustained}. At {}, {knee}.",
            table::rate(last.wanted)
        ),
        (Some(knee), _, None) => println!("knee: below the first rate: {knee}."),
        _ => println!("knee: none up to the last rate; sweep further with --sweep from:to:steps"),
    }
}

fn save(record: &OpenRecord, out: &Path, name: &str, encoded_len: usize) -> Outcome<()> {
    let frame_len = rpc_core::frame::HEADER_LEN + encoded_len;
    for (what, histogram) in [("service", &record.service), ("response", &record.response)] {
        super::save(histogram, out, &format!("{name}-{what}-{frame_len}"))?;
    }
    Ok(())
}
