//! One call at a time, to servers whose pollers are pinned, and to servers whose pollers are not.

use clap::Args;

use crate::Outcome;
use crate::child::Process;
use crate::report::Row;
use crate::role::Role;
use crate::rpc::{ClosedLoop, Rpc};
use crate::service::ServerArgs;
use crate::setup::{Bench, Measurement, MessageArgs, busy_intents};
use crate::slices::{Side, alternate, ratio_p50};

/// One call at a time: servers that are pinned and servers that are not, in alternating slices
#[derive(Clone, Debug, Args)]
pub struct Pinning {
    #[command(flatten)]
    message: MessageArgs,
    /// Calls to record of each server
    #[arg(long, default_value_t = 200_000)]
    calls: usize,
    /// Turns that each server takes
    #[arg(long, default_value_t = 20)]
    slices: usize,
    /// Run an idle server beside, whose poller never sleeps, and is pinned to the core of the others
    #[arg(long)]
    beside: bool,
}

/// The servers. Each kind is there twice: what two of a kind differ by is noise.
const SERVERS: [(&str, bool); 4] = [
    ("pinned", true),
    ("pinned, again", true),
    ("not pinned", false),
    ("not pinned, again", false),
];

impl Measurement for Pinning {
    fn measure(&self, bench: &mut Bench) -> Outcome<()> {
        let load = self.message.load()?;
        let intents = self.message.intents(&load);
        let slices = self.slices.clamp(1, self.calls.max(1));
        let calls = (self.calls / slices).max(1);
        bench.announce(format_args!(
            "{slices} slices of {calls} calls of {} bytes, one at a time, {} pollers",
            self.message.size, self.message.waiting
        ));
        let core = bench.cores.server;
        let _beside = match self.beside {
            true => {
                let busy = busy_intents(load.encoded_len());
                let args = ServerArgs::new(bench.device(), core, &busy);
                Some(Process::start(&Role::Calls(args))?)
            }
            false => None,
        };
        let start = |is_pinned| {
            let mut args = ServerArgs::new(bench.device(), core, &intents);
            args.core = args.core.filter(|_| is_pinned);
            let rpc = Rpc::start_with(&bench.device, args, &intents)?;
            ClosedLoop::new(rpc, load.clone())
        };
        let servers = SERVERS.map(|(_, is_pinned)| start(is_pinned));
        let mut servers = servers.into_iter().collect::<Outcome<Vec<_>>>()?;
        let mut sides: Vec<_> = servers
            .iter_mut()
            .map(|side| side as &mut dyn Side)
            .collect();
        let records = alternate(&mut sides, slices, calls, |taken| {
            bench.progress(format_args!("{taken} turns"));
        })?;
        let rows = SERVERS.iter().zip(&records).map(|((name, _), record)| {
            let row = Row::new(*name)
                .with_times(&record.histogram)
                .with("calls_per_s", record.rate().round());
            row.with("ratio_to_pinned", ratio_p50(record, &records[0]))
        });
        let rows: Vec<_> = rows.collect();
        bench.report.table("servers", rows);
        for ((name, _), record) in SERVERS.iter().zip(&records) {
            bench.report.histogram(*name, &record.histogram);
        }
        bench.report.note(
            "A ratio is the median over slices of the ratio of their p50. The client's thread is not \
             pinned.",
        );
        Ok(())
    }
}
