//! TLS over TCP beside plain TCP, and beside tonic's TLS, over loopback, in alternating turns.
//!
//! * One call of 64 bytes at a time; both sides wait in the same way, as in `over-tcp`.
//! * Calls of 64 bytes, 32 in flight.
//! * Uploads and downloads of 1 MiB.
//! * `connecting`: connections with their first calls, and many at a time.
//! * The memory of idle connections.
//!
//! `plain again` shows how far the ratio of equal things is from one. Verbline uses AES-128-GCM, and
//! tonic, as rustls does without further settings, AES-256-GCM.

mod connecting;

use clap::{Args, ValueEnum};
use rpc_core::{Intents, Waiting};

use crate::Outcome;
use crate::bandwidth::calls::{Calls, Direction, Source};
use crate::bandwidth::in_flight;
use crate::in_flight::with_room;
use crate::message::Load;
use crate::peers::tonic::{Socket, Tonic};
use crate::peers::tonic_puts::TonicPuts;
use crate::rates::{Rated, rate};
use crate::report::Row;
use crate::rounds::{Rounds, alternate_rows};
use crate::rpc::{Client, ClosedLoop, Rpc};
use crate::security::Security;
use crate::service::{ServerArgs, intents_for};
use crate::setup::{Bench, Measurement, busy_intents};

const MIB: usize = 1 << 20;

/// TLS over TCP beside plain TCP and tonic's TLS: calls, uploads, downloads, connecting and memory
#[derive(Clone, Debug, Args)]
pub struct OverTls {
    /// What is measured [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// Calls of each slice
    #[arg(long, default_value_t = 2000)]
    calls: usize,
    /// Slices of each side
    #[arg(long, default_value_t = 20)]
    slices: usize,
    /// Uploads of each slice
    #[arg(long, default_value_t = 256)]
    uploads: usize,
    /// Connections of each slice
    #[arg(long, default_value_t = 50)]
    connects: usize,
    /// Idle connections whose memory is measured
    #[arg(long, default_value_t = 500)]
    idle: usize,
}

/// A part of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Idle connections: first, while both processes have freed nothing that they could use again.
    Memory,
    /// One call at a time.
    Latency,
    /// Calls in flight.
    Rate,
    /// Uploads and downloads.
    Uploads,
    /// Connections and their first calls.
    Connecting,
}

impl Measurement for OverTls {
    fn device(&self) -> Option<&'static str> {
        Some("tcp")
    }

    fn measure(&self, bench: &mut Bench) -> Outcome<()> {
        bench.announce(format_args!("{} slices of each side", self.slices));
        let parts = match &self.only[..] {
            [] => Part::value_variants(),
            only => only,
        };
        for part in parts {
            match part {
                Part::Memory => self.memory(bench)?,
                Part::Latency => {
                    self.latency(bench, Waiting::Busy)?;
                    self.latency(bench, Waiting::Event)?;
                }
                Part::Rate => self.rate(bench)?,
                Part::Uploads => self.uploads(bench)?,
                Part::Connecting => connecting::measure(bench, [self.slices, self.connects])?,
            }
        }
        Ok(())
    }
}

/// Starts a server process and connects once, from this thread, which is pinned.
fn start(bench: &Bench, security: &Security, intents: &Intents) -> Outcome<Rpc> {
    let (device, cores) = (&bench.device, bench.cores);
    let args = ServerArgs::new(device.name(), cores.server, intents);
    Rpc::start_with(
        &security.of_clients(device)?,
        security.of_server(args),
        &cores.on_client_core(intents),
    )
}

/// A row, and the one that its ratios are to.
type Compared = (&'static str, usize);

/// Adds a table with the medians of each row, their ratios, and the least and the most ratio of a round.
fn add_rates(bench: &mut Bench, title: &str, figure: &str, rows: &[Compared], rounds: &Rounds) {
    let rows = rows.iter().enumerate().map(|(row, &(name, base))| {
        let (least, most) = rounds.least_and_most_ratio(row, base);
        Row::new(name)
            .with_rounds(figure, rounds, row, Some(base))
            .with("least_ratio", least)
            .with("most_ratio", most)
    });
    bench.report.table(title, rows);
    bench.report.note(rounds.to_string());
}

impl OverTls {
    fn memory(&self, bench: &mut Bench) -> Outcome<()> {
        let kinds = [
            ("plain", Security::default()),
            ("TLS", Security::tls(false)),
        ];
        let mut rows = Vec::new();
        // All stay until the end, so that none uses what another has freed.
        let mut all = Vec::new();
        let intents = with_room(Intents::default(), self.idle + 1, 0)?;
        for (name, security) in &kinds {
            let mut many = start(bench, security, &intents)?;
            let before = many.resident()?;
            many.connect(self.idle)?;
            let mut add = |what: &str, [client, server]: [u64; 2]| {
                let row = Row::new(format!("{name}, {what}")).with("client_bytes", client);
                rows.push(row.with("server_bytes", server));
            };
            add("without calls", many.growth_per(before, self.idle)?);
            let mut load = Load::fixed();
            for client in &many.clients() {
                many.block_on(load.exchange(client))?;
            }
            add("after a call", many.growth_per(before, self.idle)?);
            many.server().pause()?;
            all.push(many);
        }
        bench.report.figure("idle_connections", self.idle);
        bench.report.table("memory of an idle connection", rows);
        Ok(())
    }

    fn latency(&self, bench: &mut Bench, waiting: Waiting) -> Outcome<()> {
        let (cores, tls) = (bench.cores, Security::tls(false));
        let load = Load::fixed();
        let intents = Intents {
            waiting,
            ..intents_for(load.encoded_len())
        };
        let call =
            |security: &Security| ClosedLoop::new(start(bench, security, &intents)?, load.clone());
        let mut plain = call(&Security::default())?;
        let mut sealed = call(&tls)?;
        let mut again = call(&Security::default())?;
        let mut tonic = Tonic::start(Socket::Tcp, waiting, cores, load.clone())?;
        let mut tonic_sealed = Tonic::start_secured(&tls, waiting, cores, load.clone())?;
        let names = ["plain", "TLS", "plain again", "tonic", "tonic TLS"];
        let names = names.map(|name| format!("{name}, {waiting}"));
        let [first, second, third, fourth, fifth] = names.each_ref().map(String::as_str);
        bench.latencies(
            &format!("one at a time, waiting {waiting}"),
            [self.slices, self.calls],
            vec![
                (first, &mut plain),
                (second, &mut sealed),
                (third, &mut again),
                (fourth, &mut tonic),
                (fifth, &mut tonic_sealed),
            ],
            |_, row| row,
            Some(0),
        )
    }

    fn rate(&self, bench: &mut Bench) -> Outcome<()> {
        const IN_FLIGHT: usize = 32;
        let (load, tls) = (Load::fixed(), Security::tls(false));
        let call = |security| {
            let rpc = start(bench, security, &Intents::default())?;
            rate(rpc, &load, IN_FLIGHT)
        };
        let plain = Security::default();
        let (mut first, mut sealed, mut again) = (call(&plain)?, call(&tls)?, call(&plain)?);
        let (waiting, cores) = (Waiting::Busy, bench.cores);
        let mut tonic = Tonic::start(Socket::Tcp, waiting, cores, load.clone())?;
        let mut tonic_sealed = Tonic::start_secured(&tls, waiting, cores, load.clone())?;
        let rows = [
            ("plain", 0),
            ("TLS", 0),
            ("plain again", 0),
            ("tonic", 0),
            ("tonic TLS", 0),
        ];
        let rounds = alternate_rows(rows.len(), self.slices, cores, |row| match row {
            0 => first.take_turn(),
            1 => sealed.take_turn(),
            2 => again.take_turn(),
            3 => tonic.rate(IN_FLIGHT),
            _ => tonic_sealed.rate(IN_FLIGHT),
        })?;
        add_rates(bench, "32 in flight", "calls_per_s", &rows, &rounds);
        Ok(())
    }

    fn uploads(&self, bench: &mut Bench) -> Outcome<()> {
        let (cores, tls) = (bench.cores, Security::tls(false));
        let intents = busy_intents(2 * MIB);
        let plain = start(bench, &Security::default(), &intents)?;
        let sealed = start(bench, &tls, &intents)?;
        let (of_plain, of_sealed) = (plain.bulk()?, sealed.bulk()?);
        let of_plain = Calls::new(&plain, &of_plain, MIB, Source::Heap)?;
        let of_sealed = Calls::new(&sealed, &of_sealed, MIB, Source::Heap)?;
        let mut tonic = TonicPuts::start(Socket::Tcp, Waiting::Busy, cores, MIB)?;
        let mut tonic_sealed = TonicPuts::start_secured(&tls, Waiting::Busy, cores, MIB)?;
        for rpc in [&plain, &sealed] {
            rpc.server().pause()?;
        }
        let rows = [
            ("uploads, plain", 0),
            ("uploads, TLS", 0),
            ("uploads, plain again", 0),
            ("downloads, plain", 3),
            ("downloads, TLS", 3),
            ("uploads with tonic", 0),
            ("uploads with tonic, TLS", 5),
        ];
        let bytes = self.uploads * MIB;
        let rounds = alternate_rows(rows.len(), self.slices, cores, |row| {
            bench.progress(format_args!("1 MiB: {}", rows[row].0));
            let (rpc, calls, direction) = match row {
                0 | 2 => (&plain, &of_plain, Direction::Upload),
                1 => (&sealed, &of_sealed, Direction::Upload),
                3 => (&plain, &of_plain, Direction::Download),
                4 => (&sealed, &of_sealed, Direction::Download),
                5 => return Ok(tonic.rate(self.uploads, in_flight(MIB))? / 1e9),
                _ => return Ok(tonic_sealed.rate(self.uploads, in_flight(MIB))? / 1e9),
            };
            let rate = rpc.server().in_turn(|| calls.rate(direction, bytes))?;
            Ok(rate / 1e9)
        })?;
        add_rates(bench, "1 MiB", "rate_gbs", &rows, &rounds);
        Ok(())
    }
}
