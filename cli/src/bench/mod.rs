//! `verbline bench`: loads a method, and records what its calls take.
//!
//! ```text
//!  arguments.rs ─▶ plan.rs ──▶ service.rs ─▶ client.rs ─▶ caller.rs    one load
//!                  the loads   messages:     connections,  one call
//!                              random.rs     the loop      after another
//!                                  processes.rs: the same in several processes
//!      interrupt.rs: Ctrl-C    progress.rs: the bar    results.rs: table, JSON, .hgrm, report
//! ```

pub(crate) mod arguments;
mod caller;
mod client;
mod interrupt;
mod plan;
mod processes;
mod progress;
mod random;
mod results;
mod service;
mod unread;

use std::cell::RefCell;
use std::time::Duration;

use tokio::runtime::{Handle, Runtime};
use verbline::block_on;
use verbline_load::Record;
use verbline_load::sweep::{Over, Sweep};

use self::arguments::Bench;
use self::client::Client;
use self::interrupt::Interrupt;
use self::plan::{Load, Plan};
use self::progress::Progress;
use self::service::Service;
use crate::arguments::Data;
use crate::failure::Failure;
use crate::output::Output;

pub(crate) use self::results::report;

/// How long a call without a time limit is waited for: the first one, and those that are in flight at the end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Parts of the recorded time whose response times are in a report.
const SLICES: usize = 40;

/// Measures, and writes the results.
pub(crate) fn run(arguments: Bench, output: &mut Output) -> Result<(), Failure> {
    // This thread makes the calls; others receive what comes over HTTP/2 and move the bar.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(Failure::Runtime)?;
    let outcome = match arguments.is_part {
        true => run_part(&arguments, &runtime, output),
        false => run_whole(&arguments, &runtime, output),
    };
    // A name that is being looked up would be waited for.
    runtime.shutdown_background();
    outcome
}

fn run_whole(arguments: &Bench, runtime: &Runtime, output: &mut Output) -> Result<(), Failure> {
    let plan = Plan::of(arguments)?;
    if matches!(arguments.data, Some(Data::StandardInput)) && arguments.processes > 1 {
        return Err(Failure::InputForParts);
    }
    // What cannot be written is known before anything is measured.
    results::check_files(arguments)?;
    let service = runtime.block_on(Service::look_up(arguments))?;
    let bench = Measurement {
        arguments,
        service: &service,
        runtime: runtime.handle(),
        interrupt: Interrupt::on_ctrl_c(runtime.handle())?,
        progress: Progress::new(arguments.warm_up + arguments.seconds, runtime.handle()),
    };
    let sweep = bench.sweep(&plan)?;
    drop(bench);
    results::write(arguments, &plan, &service, sweep, output)
}

/// Makes the part of the calls that the parent asks for, and prints the record.
fn run_part(arguments: &Bench, runtime: &Runtime, output: &mut Output) -> Result<(), Failure> {
    let interrupt = Interrupt::on_ctrl_c(runtime.handle())?;
    let load = processes::read_load()?;
    let service = runtime.block_on(Service::look_up(arguments))?;
    let record = measure_here(
        arguments,
        &service,
        &load,
        runtime.handle(),
        &interrupt,
        || processes::wait_for_start(&interrupt),
    )?;
    output.line(&record.to_json())
}

struct Measurement<'a> {
    arguments: &'a Bench,
    service: &'a Service,
    runtime: &'a Handle,
    interrupt: Interrupt,
    progress: Progress,
}

impl Measurement<'_> {
    /// Measures each load of the plan. If rates are raised, the one at which calls queue is the last.
    fn sweep(&self, plan: &Plan) -> Result<Sweep, Failure> {
        let points = plan.points.values().iter().copied();
        let points = points.take_while(|_| !self.interrupt.is_set());
        let last = RefCell::new(None);
        // A rate that looks too high is measured again, but not after an interrupt.
        let measure = async |point| match last.take() {
            Some(record) if self.interrupt.is_set() => Ok(record),
            _ => {
                let record = self.measure(plan, point)?;
                last.replace(Some(record.clone()));
                Ok(record)
            }
        };
        match plan.over {
            Over::Rate => block_on(Sweep::of_rates(points, measure)),
            over => block_on(Sweep::of_each(over, points, measure)),
        }
    }

    fn measure(&self, plan: &Plan, point: f64) -> Result<Record, Failure> {
        let load = plan.at(point);
        self.progress.prepare(plan.name(point));
        let begin = || {
            self.progress.begin();
            Ok(())
        };
        match self.arguments.processes {
            1 => measure_here(
                self.arguments,
                self.service,
                &load,
                self.runtime,
                &self.interrupt,
                begin,
            ),
            many => processes::measure(&load, many, &self.interrupt, self.runtime, begin),
        }
    }
}

/// Makes the calls of a load in this process. `begin` is called when everything is ready.
fn measure_here(
    arguments: &Bench,
    service: &Service,
    load: &Load,
    runtime: &Handle,
    interrupt: &Interrupt,
    begin: impl FnOnce() -> Result<(), Failure>,
) -> Result<Record, Failure> {
    // Time limits of this thread are those of the runtime.
    let _entered = runtime.enter();
    let calls = service.calls(arguments, load)?;
    let client = Client::connect(arguments, load, interrupt, runtime)?;
    client.try_first(&calls, interrupt, runtime)?;
    begin()?;
    let longest = arguments.warm_up + arguments.seconds + PATIENCE;
    let until = interrupt.or_after(longest, runtime);
    Ok(client.run(&calls, load, arguments, until, runtime))
}
