//! How a poller shares its time between a client that keeps many calls in flight and clients that
//! have one call each. All clients are on one thread, each with its own connection to the same poller.

use std::slice;
use std::time::Duration;

use clap::Args;
use rpc_core::Intents;
use verbline_load::run_all;

use crate::in_flight::{Period, keep_in_flight};
use crate::message::Load;
use crate::report::Row;
use crate::rpc::{Client, Rpc};
use crate::service::ServerArgs;
use crate::setup::{Bench, Measurement};
use crate::spin::Work;
use crate::{Outcome, arguments, cores};

/// How a poller shares its time between a client with many calls and clients with one
#[derive(Clone, Debug, Args)]
pub struct Unfair {
    /// Microseconds for which a handler spins
    #[arg(long, default_value_t = 200)]
    spin_us: u64,
    /// Calls that the flooding client keeps in flight
    #[arg(long, default_value_t = 128)]
    flooder: usize,
    /// Clients that have one call in flight each
    #[arg(long, default_value_t = 7)]
    others: usize,
    /// Seconds to measure, after a warm-up of half a second
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
}

impl Measurement for Unfair {
    fn measure(&self, bench: &mut Bench) -> Outcome<()> {
        if self.flooder == 0 || self.others == 0 {
            return Err("--flooder and --others: expected at least 1".into());
        }
        let time = arguments::recorded(self.seconds)?;
        bench.announce(format_args!(
            "handlers of {} µs: one client with {} calls in flight, {} clients with one",
            self.spin_us, self.flooder, self.others
        ));
        let defaults = Intents::default();
        let clients = 1 + self.others;
        let intents = Intents {
            connections: u32::try_from(clients)?.max(defaults.connections),
            max_in_flight: u32::try_from(self.flooder)?.max(defaults.max_in_flight),
            ..defaults
        };
        cores::pin_current_thread(bench.cores.client)?;
        let server = ServerArgs::spinning(bench.device(), bench.cores.server, &intents);
        let mut rpc = Rpc::start_with(&bench.device, server, &intents)?;
        rpc.connect(self.others)?;
        let work = Work {
            phase: 0,
            spin: Duration::from_micros(self.spin_us),
        };
        let (clients, load) = (rpc.clients(), Load::Fixed(work.to_message()));
        let in_flight = |index| if index == 0 { self.flooder } else { 1 };
        let period = Period::from_now(time);
        let calls = clients.iter().enumerate().map(|(index, client)| {
            keep_in_flight(slice::from_ref(client), in_flight(index), &load, period)
        });
        let counted = rpc.block_on(run_all(calls))?;

        let rates: Vec<f64> = counted.iter().map(|one| period.rate(one)).collect();
        let equal = rates.iter().sum::<f64>() / rates.len() as f64;
        let least = rates[1..].iter().copied().fold(f64::INFINITY, f64::min);
        let report = &mut bench.report;
        report.figure("spin_us", self.spin_us);
        report.figure("least_of_equal_share", least / equal);
        let rows = rates.iter().zip(&counted).enumerate();
        let rows = rows.map(|(index, (rate, times))| {
            let name = match index {
                0 => "flooder".to_owned(),
                _ => format!("other {index}"),
            };
            Row::new(name)
                .with("in_flight", in_flight(index))
                .with("calls_per_s", *rate)
                .with("of_equal_share", rate / equal)
                .with_times(times)
        });
        report.table("clients", rows);
        report.histogram("flooder", &counted[0]);
        report.histogram("other 1", &counted[1]);
        Ok(())
    }
}
