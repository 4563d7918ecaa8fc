//! Calls per second with many in flight, over one or many connections, or through a shared client.

use std::fmt;
use std::thread;
use std::time::Duration;

use clap::{Args, ValueEnum};
use hdrhistogram::Histogram;
use proto::bench::StatsReply;
use rpc_core::transport::Counters;
use rpc_core::{Intents, block_on};

use crate::in_flight::{Period, keep_in_flight, with_room};
use crate::message::Load;
use crate::report::Row;
use crate::rpc::{Client, Rpc};
use crate::setup::{Bench, Measurement, MessageArgs};
use crate::shared::Shared;
use crate::{Outcome, arguments};

/// Calls per second with many in flight, of one local client or through a shared one
#[derive(Clone, Debug, Args)]
pub struct Throughput {
    #[command(flatten)]
    message: MessageArgs,
    /// Kind of client that makes the calls
    #[arg(long, value_enum, default_value = "local")]
    client: Kind,
    /// Threads that make calls through a shared client [default: 1]
    #[arg(long)]
    client_threads: Option<usize>,
    /// Pollers of a shared client, each with one connection [default: 1]
    #[arg(long)]
    pollers: Option<usize>,
    /// Calls in flight, over all connections and threads [default: 32, or 256 with a shared client]
    #[arg(long)]
    in_flight: Option<usize>,
    /// Connections of a local client, which carry the calls in turn
    #[arg(long, default_value_t = 1)]
    connections: usize,
    /// Additional connections that stay idle
    #[arg(long, default_value_t = 0)]
    idle_connections: usize,
    /// Seconds to measure, after a warm-up of half a second
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
}

/// The kind of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// The thread that makes the calls polls the device
    Local,
    /// Any thread makes calls; the channel's own pollers carry them
    Shared,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Local => "local",
            Self::Shared => "shared",
        })
    }
}

impl Measurement for Throughput {
    fn measure(&self, bench: &mut Bench) -> Outcome<()> {
        let is_local = self.client == Kind::Local;
        if is_local && (self.client_threads.is_some() || self.pollers.is_some()) {
            return Err("--client-threads and --pollers require --client shared".into());
        }
        if !is_local && (self.connections > 1 || self.idle_connections > 0) {
            return Err(
                "--connections and --idle-connections require --client local: a shared client has \
                 one connection for each of its --pollers"
                    .into(),
            );
        }
        let load = self.message.load()?;
        let time = arguments::recorded(self.seconds)?;
        bench.announce(format_args!(
            "calls of {} bytes, {} in flight",
            self.message.size,
            self.in_flight()
        ));
        let report = &mut bench.report;
        report.figure("size_bytes", self.message.size);
        report.figure("client", self.client.to_string());
        report.figure("client_threads", self.client_threads());
        report.figure("in_flight", self.in_flight());
        report.figure("connections", self.connections());
        report.figure("idle_connections", self.idle_connections);
        match self.client {
            Kind::Local => self.run_local(bench, &load, time),
            Kind::Shared => self.run_shared(bench, &load, time),
        }
    }
}

impl Throughput {
    fn client_threads(&self) -> usize {
        self.client_threads.unwrap_or(1).max(1)
    }

    fn in_flight(&self) -> usize {
        self.in_flight.unwrap_or(match self.client {
            Kind::Local => 32,
            Kind::Shared => 256,
        })
    }

    /// Connections that carry calls.
    fn connections(&self) -> usize {
        match self.client {
            Kind::Local => self.connections.max(1),
            Kind::Shared => self.pollers.unwrap_or(1).max(1),
        }
    }

    fn run_local(&self, bench: &mut Bench, load: &Load, time: Duration) -> Outcome<()> {
        let mut rpc = Rpc::start_pinned(&bench.device, bench.cores, &self.intents(load)?)?;
        rpc.connect(self.connections() - 1)?;
        let clients = rpc.clients();
        rpc.connect(self.idle_connections)?;
        bench.say(rpc.poller().limits());
        // The call that reads the server's counters is included.
        let counters = || -> Outcome<[Counters; 2]> {
            let server = counters_of(&rpc.stats()?);
            Ok([server, rpc.poller().stats().total().transport])
        };
        let before = counters()?;
        let period = Period::from_now(time);
        let calls = keep_in_flight(&clients, self.in_flight(), load, period);
        let counted = rpc.block_on(calls)?;
        let [server, client] = counters()?;
        report_calls(bench, &counted, period);
        let frames = [
            frames("server", &server.since(&before[0])),
            frames("client", &client.since(&before[1])),
        ];
        bench.report.table("frames", frames);
        Ok(())
    }

    fn run_shared(&self, bench: &mut Bench, load: &Load, time: Duration) -> Outcome<()> {
        let (threads, pollers) = (self.client_threads(), self.connections());
        let shared = Shared::start(&bench.device, bench.cores, &self.intents(load)?, pollers)?;
        if let Some(limits) = shared.channel().limits() {
            bench.say(limits);
        }
        let before = counters_of(&shared.stats()?);
        let period = Period::from_now(time);
        let share = |thread| {
            let all = self.in_flight();
            all / threads + usize::from(thread < all % threads)
        };
        let counted = thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|thread| {
                    let (clients, in_flight) = ([shared.client()], share(thread));
                    scope.spawn(move || block_on(keep_in_flight(&clients, in_flight, load, period)))
                })
                .collect();
            let mut all = verbline_load::histogram();
            for worker in workers {
                all.add(worker.join().map_err(|_| "a client's thread panicked")??)?;
            }
            Outcome::Ok(all)
        })?;
        let server = counters_of(&shared.stats()?).since(&before);
        report_calls(bench, &counted, period);
        bench.report.table("frames", [frames("server", &server)]);
        bench.report.note(
            "The client's threads are not pinned. Only the server's counters are shown, because a \
             shared client reports none.",
        );
        Ok(())
    }

    /// Returns the intents for both sides, sized for the requested load and no more.
    fn intents(&self, load: &Load) -> Outcome<Intents> {
        with_room(
            self.message.intents(load),
            self.connections() + self.idle_connections,
            self.in_flight().div_ceil(self.connections()),
        )
    }
}

fn report_calls(bench: &mut Bench, counted: &Histogram<u64>, period: Period) {
    let row = Row::new("calls").with_times(counted);
    let row = row.with("calls_per_s", period.rate(counted).round());
    bench.report.table("calls", [row]);
    bench.report.histogram("calls", counted);
}

/// What the counters of a side say.
fn frames(name: &str, side: &Counters) -> Row {
    let per = |count: u64| side.sends as f64 / count.max(1) as f64;
    Row::new(name)
        .with("sends_per_signal", per(side.signaled))
        .with("sends_per_doorbell", per(side.doorbells))
        .with("srq_limit_events", side.srq_limit_events)
        .with("rnr", side.rnr)
}

fn counters_of(reply: &StatsReply) -> Counters {
    Counters {
        sends: reply.sends,
        signaled: reply.signaled,
        doorbells: reply.doorbells,
        srq_limit_events: reply.srq_limit_events,
        rnr: reply.rnr,
        ..Counters::default()
    }
}
