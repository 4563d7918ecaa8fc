//! Streams between two processes, in alternating turns with tonic's streams and with unary calls. Both
//! sides are pinned, and poll without pause, except tonic's and the shared channel's.

use clap::{Args, ValueEnum};
use proto::bench::{Blob, Fixed};
use rpc_core::{Intents, Waiting};

use crate::Outcome;
use crate::in_flight::allow_more_files;
use crate::message::{FIXED_SIZE, Load, Shape};
use crate::peers::tonic::Socket;
use crate::peers::tonic_streams::{self, TonicStream};
use crate::rates::Rated;
use crate::report::Row;
use crate::rounds;
use crate::rpc::{Client, OnCore, Rpc};
use crate::service::ServerArgs;
use crate::setup::{Bench, Measurement, busy_intents};
use crate::shared::Shared;
use crate::streams::idle::{IdleStreams, settle};
use crate::streams::rate::{self, ServerStream};
use crate::streams::round_trip::{cancel, first_message, ping_pong, unary};

/// Streams beside tonic's and beside unary calls: rates, round trips, cancellation, memory
#[derive(Clone, Debug, Args)]
pub struct Streams {
    /// What to measure [default: everything]
    #[arg(long, value_enum)]
    only: Vec<Subject>,
    /// Turns that each row takes
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Idle streams
    #[arg(long, default_value_t = 10_000)]
    idle_streams: usize,
    /// Idle connections
    #[arg(long, default_value_t = 1000)]
    idle_connections: usize,
}

/// A part of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Subject {
    /// What an idle stream and an idle connection take
    Memory,
    /// Messages of 64 bytes per second
    Rate,
    /// Bytes per second in messages of 4 KiB
    Long,
    /// Round trips on streams
    RoundTrip,
    /// Unary calls beside idle streams
    Idle,
}

/// Payload of the long messages.
const LONG: usize = 4096;

/// Timed round trips in a turn, after as many as each side needs to get warm.
const ROUND_TRIPS: usize = 5000;

/// Turns of round trips per round of rates: they are shorter.
const SHORT_TURNS: usize = 4;

impl Measurement for Streams {
    fn measure(&self, bench: &mut Bench) -> Outcome<()> {
        bench.announce(format_args!("{} rounds of streams", self.rounds));
        bench.report.figure("rounds", self.rounds);
        let measures = |subject| self.only.is_empty() || self.only.contains(&subject);
        // The system chooses the cores of a shared channel's poller, so that this must happen before
        // this thread is pinned.
        let shared = |subject, payload_len| {
            // Its poller must sleep while other rows have their turns.
            let intents = Intents {
                waiting: Waiting::Adaptive,
                ..intents(payload_len)?
            };
            let start = || Shared::start(&bench.device, bench.cores, &intents, 1);
            measures(subject).then(start).transpose()
        };
        let fixed = shared(Subject::Rate, FIXED_SIZE)?;
        let blob = shared(Subject::Rate, FIXED_SIZE)?;
        let long = shared(Subject::Long, LONG)?;
        if measures(Subject::Memory) {
            self.memory(bench)?;
        }
        if let Some(shared) = fixed {
            self.rate::<Fixed>(bench, "fixed64", FIXED_SIZE, shared)?;
        }
        if let Some(shared) = blob {
            self.rate::<Blob>(bench, "bytes", FIXED_SIZE, shared)?;
        }
        if let Some(shared) = long {
            self.rate::<Blob>(bench, "bytes 4 KiB", LONG, shared)?;
        }
        if measures(Subject::RoundTrip) {
            self.round_trips(bench)?;
        }
        if measures(Subject::Idle) {
            self.beside_idle_streams(bench)?;
        }
        Ok(())
    }
}

impl Streams {
    fn rate<M: rate::Subscribed + tonic_streams::Subscribed>(
        &self,
        bench: &mut Bench,
        shape: &str,
        payload_len: usize,
        shared: Shared,
    ) -> Outcome<()> {
        bench.progress(format_args!("rate, {shape}"));
        let (intents, cores) = (intents(payload_len)?, bench.cores);
        let start = |coalesces| {
            let mut args = ServerArgs::new(bench.device(), cores.server, &intents);
            args.coalesces = coalesces;
            let client =
                Rpc::start_with(&OnCore::new(&bench.device, cores.client), args, &intents)?;
            ServerStream::<M, _>::open(client, payload_len)
        };
        let mut local = start(true)?;
        let mut uncoalesced = start(false)?;
        let mut shared = ServerStream::<M, _>::open(shared, payload_len)?;
        let mut tonic = TonicStream::<M>::start(Socket::Tcp, Waiting::Busy, cores, payload_len)?;
        let mut sides: [&mut dyn Rated; 4] =
            [&mut local, &mut uncoalesced, &mut shared, &mut tonic];
        let rounds = rounds::alternate_rows(sides.len(), self.rounds, cores, |row| {
            sides[row].take_turn()
        })?;
        let names = [
            "Verbline",
            "a frame each",
            "shared channel",
            "tonic over TCP",
        ];
        let frames = [&local, &uncoalesced].map(|side| side.frames_per_message());
        let rows = names.into_iter().enumerate().map(|(row, name)| {
            let gbs = rounds
                .median(row, None)
                .map(|rate| rate * payload_len as f64 / 1e9);
            Row::new(format!("{name}, {shape}"))
                .with_rounds("messages_per_s", &rounds, row, Some(0))
                .with("payload_gbs", gbs)
                .with("frames_per_message", frames.get(row).copied())
        });
        bench.report.table(format!("streams of {shape}"), rows);
        bench.report.note(rounds.to_string());
        Ok(())
    }

    fn round_trips(&self, bench: &mut Bench) -> Outcome<()> {
        let client = Rpc::start_pinned(&bench.device, bench.cores, &intents(FIXED_SIZE)?)?;
        let mut ping_pong = ping_pong(&client)?;
        client.server().pause()?;
        bench.latencies(
            "round trips",
            [self.rounds * SHORT_TURNS, ROUND_TRIPS],
            vec![
                ("unary call", &mut unary(&client)),
                ("there and back on an open stream", &mut ping_pong),
                ("first message of a stream", &mut first_message(&client)),
                (
                    "drop of a call to drop of its handler",
                    &mut cancel(&client),
                ),
            ],
            |_, row| row,
            Some(0),
        )
    }

    fn beside_idle_streams(&self, bench: &mut Bench) -> Outcome<()> {
        let start = |streams: usize| -> Outcome<_> {
            let intents = Intents {
                max_streams: streams.max(1) as u32,
                ..intents(FIXED_SIZE)?
            };
            let client = Rpc::start_pinned(&bench.device, bench.cores, &intents)?;
            let idle = IdleStreams::open(&client, streams)?;
            client.server().pause()?;
            Ok((client, idle))
        };
        let (without, _none) = start(0)?;
        let (with, _idle) = start(self.idle_streams)?;
        bench.report.figure("idle_streams", self.idle_streams);
        bench.latencies(
            "beside idle streams",
            [self.rounds * SHORT_TURNS, ROUND_TRIPS],
            vec![
                ("unary call without idle streams", &mut unary(&without)),
                ("unary call beside idle streams", &mut unary(&with)),
            ],
            |_, row| row,
            Some(0),
        )
    }

    fn memory(&self, bench: &mut Bench) -> Outcome<()> {
        bench.progress("memory");
        let (streams, connections) = (self.idle_streams, self.idle_connections);
        let intents_of_streams = Intents {
            max_streams: streams as u32 + 1,
            ..intents(FIXED_SIZE)?
        };
        let client = Rpc::start_pinned(&bench.device, bench.cores, &intents_of_streams)?;
        // The first stream takes what all of them share.
        let first = IdleStreams::open(&client, 1)?;
        let before = client.resident()?;
        let idle = IdleStreams::open(&client, streams)?;
        settle(&client)?;
        let per_stream = client.growth_per(before, streams)?;
        drop((first, idle));
        drop(client);

        allow_more_files()?;
        let intents = Intents {
            connections: connections as u32 + 1,
            ..intents(FIXED_SIZE)?
        };
        let mut client = Rpc::start_pinned(&bench.device, bench.cores, &intents)?;
        client.stats()?;
        let before = client.resident()?;
        client.connect(connections)?;
        settle(&client)?;
        let per_connection = client.growth_per(before, connections)?;
        let row = |what: String, [client, server]: [u64; 2]| {
            Row::new(what)
                .with("client_bytes", client)
                .with("server_bytes", server)
        };
        let rows = [
            row(format!("a stream, of {streams} idle ones"), per_stream),
            row(
                format!("a connection, of {connections} idle ones"),
                per_connection,
            ),
        ];
        bench.report.table("resident memory", rows);
        Ok(())
    }
}

/// Returns intents with busy polling, as in the comparison of peers.
fn intents(payload_len: usize) -> Outcome<Intents> {
    let load = Load::new(Shape::Bytes, payload_len)?;
    Ok(busy_intents(load.encoded_len()))
}
