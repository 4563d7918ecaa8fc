//! The first call after a rest, and the processor time of processes that are connected and idle.

use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use verbline_load::unit::Unit;
use verbline_load::{add_time, histogram};

use crate::child::{CpuTime, Process};
use crate::report::Row;
use crate::rpc::{Client, Rpc};
use crate::setup::{Bench, Measurement, MessageArgs};
use crate::shared::{Shared, Waiter};
use crate::slices::{Stopwatch, UNRECORDED};
use crate::{Outcome, arguments};

/// The first call after both sides have slept, and the processor time of idle processes
#[derive(Clone, Debug, Args)]
pub struct Idle {
    #[command(flatten)]
    message: MessageArgs,
    /// How long both sides rest before each call
    #[arg(long, default_value = "100ms", value_parser = arguments::duration)]
    gap: Duration,
    /// First calls to record for each client
    #[arg(long, default_value_t = 50)]
    calls: usize,
}

/// How long both processes stay idle, with their connection open, while their CPU time is measured.
const IDLE_TIME: Duration = Duration::from_secs(5);

impl Measurement for Idle {
    fn measure(&self, bench: &mut Bench) -> Outcome<()> {
        bench.announce(format_args!(
            "{} calls of {} bytes, each {} after the previous one",
            self.calls.max(1),
            self.message.size,
            Unit::Nanoseconds.text(self.gap.as_nanos() as f64)
        ));
        bench.report.figure("size_bytes", self.message.size);
        bench.report.figure("gap_ns", self.gap.as_nanos() as u64);
        let mut load = self.message.load()?;
        let intents = self.message.intents(&load);
        let mut rows = Vec::new();
        {
            let rpc = Rpc::start(&bench.device, bench.cores, &intents)?;
            let client = rpc.client();
            let call = || Ok(rpc.block_on(load.exchange(&client))?);
            rows.push(self.row(bench, "local", rpc.server(), call)?);
        }
        for waiter in [Waiter::tokio()?, Waiter::Blocking] {
            let shared = Shared::start(&bench.device, bench.cores, &intents, 1)?;
            let (client, name) = (shared.client(), waiter.to_string());
            let mut untimed = Stopwatch::new(0);
            let call = || Ok(waiter.make_calls(&client, &mut load, [1, 0], &mut untimed)?);
            rows.push(self.row(bench, &name, shared.server(), call)?);
        }
        bench.report.table("clients", rows);
        bench.report.note(format!(
            "A share is that of one core that a process used while its connection was idle, over {} s. \
             The client's thread is not pinned.",
            IDLE_TIME.as_secs()
        ));
        Ok(())
    }
}

impl Idle {
    /// Warms up both sides, records the latency of one call after each rest, and then the processor time
    /// of both.
    fn row(
        &self,
        bench: &mut Bench,
        name: &str,
        server: &Process,
        mut call: impl FnMut() -> Outcome<()>,
    ) -> Outcome<Row> {
        for _ in 0..UNRECORDED {
            call()?;
        }
        let mut times = histogram();
        for _ in 0..self.calls.max(1) {
            thread::sleep(self.gap);
            let start = Instant::now();
            call()?;
            add_time(&mut times, start.elapsed());
        }
        let [server, client] = cpu_shares(server.cpu_time())?;
        bench.report.histogram(name, &times);
        Ok(Row::new(name)
            .with_times(&times)
            .with("server_cpu_share", server)
            .with("client_cpu_share", client))
    }
}

/// Returns the shares of a core that the server and this process use while idle.
fn cpu_shares(server: CpuTime) -> Outcome<[f64; 2]> {
    // Let the pollers go to sleep after the last call.
    thread::sleep(Duration::from_millis(50));
    let processes = [server, CpuTime::of_this_process()];
    let read = || -> Outcome<[Duration; 2]> { Ok([processes[0].read()?, processes[1].read()?]) };
    let (start, before) = (Instant::now(), read()?);
    thread::sleep(IDLE_TIME);
    let (time, after) = (start.elapsed(), read()?);
    Ok([0, 1].map(|side| (after[side] - before[side]).as_secs_f64() / time.as_secs_f64()))
}
