//! One sentence about a call, for somebody who sees Verbline for the first time.

use clap::Args;
use rpc_core::frame::HEADER_LEN;

use crate::Outcome;
use crate::raw::{PingPong, RawArgs};
use crate::rpc::{ClosedLoop, Rpc};
use crate::setup::{Bench, Measurement, MessageArgs};
use crate::slices::{Record, alternate};
use crate::sockets::{SocketArgs, SocketPingPong};

/// One sentence: a call beside raw verbs and beside TCP on loopback
#[derive(Clone, Debug, Args)]
pub struct Summary {
    #[command(flatten)]
    message: MessageArgs,
    /// Calls of each side: about two seconds in all
    #[arg(long, default_value_t = 40_000)]
    calls: usize,
    /// Turns that each side takes
    #[arg(long, default_value_t = 20)]
    slices: usize,
}

impl Measurement for Summary {
    fn measure(&self, bench: &mut Bench) -> Outcome<()> {
        if self.message.size == 0 {
            return Err(
                "a summary compares with TCP, which cannot send 0 bytes: give a --size".into(),
            );
        }
        let load = self.message.load()?;
        let slices = self.slices.max(1);
        let cores = bench.cores;
        let frame_len = HEADER_LEN + load.encoded_len();
        let rpc = Rpc::start_pinned(&bench.device, cores, &self.message.intents(&load))?;
        let like_rpc = RawArgs::like(&rpc.poller().limits(), cores.client, frame_len);
        let mut rpc = ClosedLoop::new(rpc, load)?;
        let mut raw = PingPong::start(&like_rpc, cores.server)?;
        let message_len = self.message.size;
        let args = SocketArgs {
            message_len,
            answer_len: message_len,
            ..SocketArgs::default()
        };
        let mut tcp = SocketPingPong::start(cores, args)?;
        let sides = &mut [&mut rpc as _, &mut raw as _, &mut tcp as _];
        let records = alternate(sides, slices, (self.calls / slices).max(1), |_| {})?;
        // One unit for all, so that a reader can compare.
        let at = |record: &Record, quantile| {
            let nanos = record.histogram.value_at_quantile(quantile);
            format!("{:.1} µs", nanos as f64 / 1e3)
        };
        bench.report.note(format!(
            "A {}-byte call over '{}' took {} (median; p99 {}); raw verbs took {}, \
             a ping-pong over TCP on loopback {}.",
            self.message.size,
            bench.device(),
            at(&records[0], 0.5),
            at(&records[0], 0.99),
            at(&records[1], 0.5),
            at(&records[2], 0.5),
        ));
        Ok(())
    }
}
