//! How a poller shares its time between a client that keeps many calls in flight and clients that
//! have one call each. All clients are on one thread, each with its own connection to the same poller.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use clap::Args;
use hdrhistogram::Histogram;
use proto::bench::BenchClient;
use rpc_core::{CallError, Intents, LocalChannel, LocalPoller};

use crate::in_flight::Period;
use crate::report::Row;
use crate::setup::{Bench, Measurement};
use crate::spin::{SpinServer, Work};
use crate::task_set::run_all;
use crate::{Outcome, arguments, cores, slices};

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
        let server = SpinServer::start(bench.device(), bench.cores.server, &intents)?;
        cores::pin_current_thread(bench.cores.client)?;
        let poller = LocalPoller::builder(&bench.device)
            .intents(intents)
            .build()?;
        let connections = (0..clients)
            .map(|_| Ok(BenchClient::new(poller.connect(server.address())?)))
            .collect::<Outcome<Vec<_>>>()?;
        let period = Period::from_now(time);
        let counted = poller.block_on(self.keep_in_flight(&connections, period))?;

        let rates: Vec<f64> = counted.iter().map(|one| period.rate(one)).collect();
        let equal = rates.iter().sum::<f64>() / clients as f64;
        let least = rates[1..].iter().copied().fold(f64::INFINITY, f64::min);
        let report = &mut bench.report;
        report.figure("spin_us", self.spin_us);
        report.figure("least_of_equal_share", least / equal);
        let rows = rates
            .iter()
            .zip(&counted)
            .enumerate()
            .map(|(index, (rate, times))| {
                let name = if index == 0 {
                    "flooder".to_owned()
                } else {
                    format!("other {index}")
                };
                Row::new(name)
                    .with("in_flight", if index == 0 { self.flooder } else { 1 })
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

impl Unfair {
    /// Keeps the calls of each connection in flight, and returns the latencies of each.
    async fn keep_in_flight(
        &self,
        clients: &[BenchClient<LocalChannel>],
        period: Period,
    ) -> Result<Vec<Histogram<u64>>, CallError> {
        let counted = clients.iter().map(|_| RefCell::new(slices::histogram()));
        let counted: Vec<_> = counted.collect();
        let work = Work {
            phase: 0,
            spin: Duration::from_micros(self.spin_us),
            give_up: None,
        };
        let in_flight = std::iter::once(self.flooder).chain(std::iter::repeat(1));
        let callers = clients.iter().zip(&counted).zip(in_flight);
        let callers = callers.flat_map(|((client, counted), in_flight)| {
            (0..in_flight).map(move |_| async move {
                loop {
                    let began = Instant::now();
                    client.echo_fixed(work.to_message()).await?;
                    if period.add(began, &mut counted.borrow_mut()) {
                        return Ok(());
                    }
                }
            })
        });
        run_all(callers).await?;
        Ok(counted.into_iter().map(RefCell::into_inner).collect())
    }
}
