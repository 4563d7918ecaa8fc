//! What connections cost: the rate over one, beside many idle ones, and over many in turn, and the memory
//! of each.

use clap::Args;

use crate::Outcome;
use crate::in_flight::with_room;
use crate::rates::turn;
use crate::report::Row;
use crate::rounds::alternate_rows;
use crate::rpc::{Client, Rpc};
use crate::setup::{Bench, Measurement, MessageArgs};

/// Calls per second over one connection, beside many idle ones, and over many in turn
#[derive(Clone, Debug, Args)]
pub struct Connections {
    #[command(flatten)]
    message: MessageArgs,
    /// Connections beside the one
    #[arg(long, default_value_t = 1000)]
    idle: usize,
    /// Calls in flight, over all connections
    #[arg(long, default_value_t = 32)]
    in_flight: usize,
    /// Turns that each row takes
    #[arg(long, default_value_t = 7)]
    rounds: usize,
}

impl Measurement for Connections {
    fn measure(&self, bench: &mut Bench) -> Outcome<()> {
        let load = self.message.load()?;
        let intents = self.message.intents(&load);
        let all = self.idle + 1;
        let intents_of_many = with_room(intents.clone(), all, 0)?;
        bench.announce(format_args!(
            "{} rounds of calls of {} bytes, {} in flight from one thread",
            self.rounds, self.message.size, self.in_flight
        ));
        let one = Rpc::start_pinned(&bench.device, bench.cores, &intents)?;
        one.server().pause()?;
        let mut many = Rpc::start_pinned(&bench.device, bench.cores, &intents_of_many)?;
        let before = many.resident()?;
        many.connect(self.idle)?;
        let unused = many.growth_per(before, self.idle)?;
        let (of_one, of_many) = (one.clients(), many.clients());
        let mut load_of_each = load.clone();
        for client in &of_many {
            many.block_on(load_of_each.exchange(client))?;
        }
        let after_a_call = many.growth_per(before, self.idle)?;
        many.server().pause()?;
        let report = &mut bench.report;
        report.figure("size_bytes", self.message.size);
        report.figure("in_flight", self.in_flight);
        report.figure("idle_connections", self.idle);
        let rows = ["one connection", "one beside idle ones", "all in turn"];
        let rounds = alternate_rows(rows.len(), self.rounds, bench.cores, |row| {
            let (client, connections) = match row {
                0 => (&one, &of_one[..]),
                1 => (&many, &of_many[..1]),
                _ => (&many, &of_many[..]),
            };
            Ok(turn(client, connections, &load, self.in_flight)?.calls_per_s)
        })?;
        bench
            .report
            .rounds("connections", "calls_per_s", &rows, &rounds, Some(0));
        let after_many = many.growth_per(before, self.idle)?;
        let row = |what: &str, [client, server]: [u64; 2]| {
            Row::new(what)
                .with("client_bytes", client)
                .with("server_bytes", server)
        };
        let rows = [
            row("a connection without calls", unused),
            row("after a call", after_a_call),
            row("after all rounds", after_many),
        ];
        bench.report.table("resident memory", rows);
        Ok(())
    }
}
