//! One call at a time, of a local and a shared client, beside the raw verbs below them.

use clap::Args;
use rpc_core::frame::HEADER_LEN;
use verbline_load::unit::Unit;

use crate::raw::{PingPong, RawArgs};
use crate::report::Row;
use crate::rpc::{ClosedLoop, Rpc};
use crate::setup::{Bench, Measurement, MessageArgs};
use crate::shared::{Shared, Waiter, closed_loop};
use crate::slices::{alternate, ratio_p50};
use crate::{Outcome, clock};

/// One call at a time: local and shared clients beside raw verbs, in alternating slices
#[derive(Clone, Debug, Args)]
pub struct Latency {
    #[command(flatten)]
    message: MessageArgs,
    /// Calls to record for each client, and as many raw round trips
    #[arg(long, default_value_t = 200_000)]
    calls: usize,
    /// Turns that each client takes
    #[arg(long, default_value_t = 20)]
    slices: usize,
}

impl Measurement for Latency {
    fn measure(&self, bench: &mut Bench) -> Outcome<()> {
        let load = self.message.load()?;
        let intents = self.message.intents(&load);
        let slices = self.slices.clamp(1, self.calls.max(1));
        let calls = (self.calls / slices).max(1);
        let frame_len = HEADER_LEN + load.encoded_len();
        bench.announce(format_args!(
            "{slices} slices of {calls} calls of {} bytes, one at a time, and of as many raw round trips",
            self.message.size
        ));
        // Must run before this thread is pinned, so that the system chooses the core of the
        // channel's poller.
        let shared = Shared::start(&bench.device, bench.cores, &intents, 1)?;
        let mut tokio = closed_loop(&shared, Waiter::tokio()?, load.clone())?;
        let mut blocking = closed_loop(&shared, Waiter::Blocking, load.clone())?;
        let rpc = Rpc::start_pinned(&bench.device, bench.cores, &intents)?;
        bench.say(rpc.poller().limits());
        let like_rpc = RawArgs::like(&rpc.poller().limits(), bench.cores.client, frame_len);
        let mut rpc = ClosedLoop::new(rpc, load)?;
        let mut raw = PingPong::start(&like_rpc, bench.cores.server)?;
        let records = alternate(
            &mut [&mut raw, &mut rpc, &mut tokio, &mut blocking],
            slices,
            calls,
            |taken| bench.progress(format_args!("{taken} of {} turns", 4 * slices)),
        )?;
        let [of_client, of_server] = rpc.allocations_per_call()?;

        let report = &mut bench.report;
        report.figure("size_bytes", self.message.size);
        report.figure("frame_bytes", frame_len);
        report.figure("calls", slices * calls);
        report.figure("client_allocations_per_call", of_client);
        report.figure("server_allocations_per_call", of_server);
        let [raw, rpc, ..] = &records[..] else {
            return Err("internal error: a side has no record".into());
        };
        let names = ["raw", "rpc", "shared async", "shared blocking"];
        let rows = names.into_iter().zip(&records).map(|(name, record)| {
            let row = Row::new(name)
                .with_times(&record.histogram)
                .with("calls_per_s", record.rate().round());
            match name {
                "raw" => row,
                "rpc" => row.with("ratio_to_raw", ratio_p50(record, raw)),
                _ => row.with("ratio_to_rpc", ratio_p50(record, rpc)),
            }
        });
        report.table("clients", rows.collect::<Vec<_>>());
        for (name, record) in names.into_iter().zip(&records) {
            report.histogram(name, &record.histogram);
        }
        report.note(
            "A ratio is the median over slices of the ratio of their p50. The shared channel's poller \
             is not pinned, and the application's thread sleeps while it waits.",
        );
        let cost = Unit::Nanoseconds.text(clock::cost_of_reading().as_nanos() as f64);
        report.note(format!(
            "Reading the clock costs {cost} and happens once per call."
        ));
        Ok(())
    }
}
