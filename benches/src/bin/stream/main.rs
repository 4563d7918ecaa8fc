//! Measures streams between two processes, in alternating turns with tonic's streams and with unary
//! calls:
//!
//! ```text
//! cargo run --release -p benches --bin stream
//! cargo run --release -p benches --bin stream -- --only rate --json
//! ```
//!
//! - `rate`: messages of 64 bytes per second of one server stream, in both shapes; also with a frame
//!   for each message, through a shared channel, and of tonic over TCP;
//! - `long`: the same with messages of 4 KiB, in bytes per second;
//! - `round-trip`: a message there and back on an open stream, the first message of a stream, and
//!   from the drop of a call at the client to the drop of its handler, beside unary calls;
//! - `memory`: what an idle stream and an idle connection take in both processes;
//! - `idle`: unary calls on a connection with 10,000 idle streams, beside one without.
//!
//! Both sides are pinned, and poll without pause, except tonic's and the shared channel's. Just
//! before each turn, the program measures what a cache line takes between the cores: turns with near
//! and with far lines are reported apart.
#![forbid(unsafe_code)]
// Printing is the purpose of a benchmark.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod report;

use std::process::ExitCode;
use std::rc::Rc;

use benches::in_flight::allow_more_files;
use benches::line::RoundTrip;
use benches::message::{FIXED_SIZE, Load, Shape};
use benches::peers::tonic::{self, Socket, TonicArgs};
use benches::peers::tonic_streams::{self, TonicStream};
use benches::rates::{self, Rated};
use benches::rounds::Rounds;
use benches::service::intents_for;
use benches::slices::{Side, alternate};
use benches::streams::client::{SharedStreamClient, StreamClient};
use benches::streams::idle::{IdleStreams, Memory, settle};
use benches::streams::rate::{self, LocalStream, SharedStream};
use benches::streams::round_trip::{Cancel, FirstMessage, PingPong, Unary};
use benches::streams::service::{self, StreamServerArgs};
use benches::table::Table;
use benches::{Outcome, cores};
use clap::{Parser, Subcommand, ValueEnum};
use proto::bench::{Blob, Fixed};
use rpc_core::{Intents, Waiting};
use rpc_transport_verbs::Device;
use serde_json::{Map, Value, json};

use self::report::{Latencies, Report, object, rounded};

/// Measures streams, in alternating turns with tonic's streams and with unary calls
#[derive(Parser)]
#[command(subcommand_negates_reqs = true, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    role: Option<Role>,
    #[command(flatten)]
    measurement: Measurement,
}

/// The roles of the processes that this program starts.
#[derive(Subcommand)]
enum Role {
    #[command(name = service::SERVE, hide = true)]
    Streams(StreamServerArgs),
    #[command(name = tonic::SERVE, hide = true)]
    Tonic(TonicArgs),
}

#[derive(clap::Args)]
struct Measurement {
    /// Device name [default: the best available device, or the one that VERBLINE_DEVICE names]
    #[arg(long)]
    device: Option<String>,
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
    /// Print each result as a JSON object on a line of its own
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Subject {
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

impl Measurement {
    fn run(&self) -> Outcome<()> {
        let cores = cores::Cores::choose()?;
        let device = match &self.device {
            Some(name) => Device::open(name)?,
            None => Device::best()?,
        };
        let device = device.name();
        if !self.json {
            println!("{cores}; {} rounds on {device}", self.rounds);
        }
        // The system chooses the cores of a shared channel's poller, so that this must happen before
        // this thread is pinned.
        let mut shared = Vec::new();
        for payload_len in [FIXED_SIZE, FIXED_SIZE, LONG] {
            let is_measured = match payload_len {
                LONG => self.measures(Subject::Long),
                _ => self.measures(Subject::Rate),
            };
            // Its poller must sleep while other rows have their turns.
            let intents = Intents {
                waiting: Waiting::Adaptive,
                ..intents(payload_len)?
            };
            let start = || SharedStreamClient::start(device, cores, &intents);
            shared.push(is_measured.then(start).transpose()?);
        }
        let report = Report {
            device,
            json: self.json,
        };
        if self.measures(Subject::Memory) {
            self.memory(&report, cores)?;
        }
        let [fixed, blob, long] = <[_; 3]>::try_from(shared).map_err(|_| "three clients")?;
        if let Some(shared) = fixed {
            self.rate::<Fixed>(&report, cores, "fixed64", FIXED_SIZE, shared)?;
        }
        if let Some(shared) = blob {
            self.rate::<Blob>(&report, cores, "bytes", FIXED_SIZE, shared)?;
        }
        if let Some(shared) = long {
            self.rate::<Blob>(&report, cores, "bytes", LONG, shared)?;
        }
        if self.measures(Subject::RoundTrip) {
            self.round_trips(&report, cores)?;
        }
        if self.measures(Subject::Idle) {
            self.beside_idle_streams(&report, cores)?;
        }
        Ok(())
    }

    fn measures(&self, subject: Subject) -> bool {
        self.only.is_empty() || self.only.contains(&subject)
    }

    fn rate<M: rate::Subscribed + tonic_streams::Subscribed>(
        &self,
        report: &Report<'_>,
        cores: cores::Cores,
        shape: &str,
        payload_len: usize,
        shared: SharedStreamClient,
    ) -> Outcome<()> {
        let intents = intents(payload_len)?;
        let start = |coalesces| {
            let client = StreamClient::start(report.device, cores, &intents, coalesces)?;
            LocalStream::<M>::open(client, payload_len)
        };
        let mut local = start(true)?;
        let mut uncoalesced = start(false)?;
        let mut shared = SharedStream::<M>::open(shared, payload_len)?;
        let mut tonic = TonicStream::<M>::start(Socket::Tcp, cores, payload_len)?;
        let mut sides: [&mut dyn Rated; 4] =
            [&mut local, &mut uncoalesced, &mut shared, &mut tonic];
        let rounds = rates::alternate(sides.len(), self.rounds, cores, |row| {
            sides[row].take_turn()
        })?;
        let frames = [&local, &uncoalesced].map(|side| side.sent().frames_per_message());

        if !report.json {
            println!("\nServer streaming of {payload_len} bytes ({shape}), messages per second:");
            let names = [
                format!("{} on {}", "Verbline", report.device),
                "its messages in a frame each".to_owned(),
                "its shared channel".to_owned(),
                "tonic over TCP".to_owned(),
            ];
            print!("{}", rates::table(&names, &rounds));
            println!("{rounds}");
            let [coalesced, uncoalesced] = frames;
            println!("frames per message: {coalesced:.4}, in a frame each {uncoalesced:.4}");
        }
        report.each_state(&rounds, |distance| {
            let rate = |row| rounds.median(row, distance).map(f64::round);
            let mut line = Map::new();
            let mut add = |key: &str, value: Value| line.insert(key.to_owned(), value);
            add("size", payload_len.into());
            add("shape", shape.into());
            if payload_len == LONG {
                let gigabytes = |row| {
                    let rate = rounds.median(row, distance)?;
                    Some(rounded(rate * payload_len as f64 / 1e9, 3))
                };
                add("gb_per_s", gigabytes(0).into());
                add("shared_gb_per_s", gigabytes(2).into());
                add("tonic_gb_per_s", gigabytes(3).into());
            }
            add("messages_per_s", rate(0).into());
            add("frames_per_message", rounded(frames[0], 4).into());
            add("uncoalesced_messages_per_s", rate(1).into());
            add(
                "uncoalesced_frames_per_message",
                rounded(frames[1], 4).into(),
            );
            add("shared_messages_per_s", rate(2).into());
            add("tonic_messages_per_s", rate(3).into());
            line
        });
        Ok(())
    }

    fn round_trips(&self, report: &Report<'_>, cores: cores::Cores) -> Outcome<()> {
        let client = StreamClient::start(report.device, cores, &intents(FIXED_SIZE)?, true)?;
        let client = Rc::new(client);
        let mut ping_pong = PingPong::open(&client)?;
        client.server().pause()?;
        let names = [
            "a unary call",
            "a message there and back on an open stream",
            "the first message of a stream",
            "from the drop of a call to the drop of its handler",
        ];
        let measured = self.latencies(
            cores,
            &mut [
                &mut Unary::new(&client)?,
                &mut ping_pong,
                &mut FirstMessage::new(&client),
                &mut Cancel::new(&client),
            ],
        )?;
        report.latencies("Round trips of 64 bytes", &names, &measured);
        report.each_state(&measured.rounds, |distance| {
            let p50 = |row| measured.rounds.median(row, distance);
            let ratio = |row| {
                measured
                    .rounds
                    .ratio(row, 0, distance)
                    .map(|x| rounded(x, 3))
            };
            object(json!({
                "size": FIXED_SIZE,
                "unary_p50_ns": p50(0),
                "unary_p99_ns": measured.p99[0],
                "ping_pong_p50_ns": p50(1),
                "ping_pong_p99_ns": measured.p99[1],
                "ping_pong_to_unary": ratio(1),
                "first_message_p50_ns": p50(2),
                "first_message_p99_ns": measured.p99[2],
                "first_message_to_unary": ratio(2),
                "drop_p50_ns": p50(3),
                "drop_p99_ns": measured.p99[3],
                "drop_to_unary": ratio(3),
            }))
        });
        Ok(())
    }

    fn beside_idle_streams(&self, report: &Report<'_>, cores: cores::Cores) -> Outcome<()> {
        let start = |streams: usize| -> Outcome<_> {
            let intents = Intents {
                max_streams: streams.max(1) as u32,
                ..intents(FIXED_SIZE)?
            };
            let client = StreamClient::start(report.device, cores, &intents, true)?;
            let idle = IdleStreams::open(&client, streams)?;
            client.server().pause()?;
            Ok((Rc::new(client), idle))
        };
        let (without, _none) = start(0)?;
        let (with, _idle) = start(self.idle_streams)?;
        let names = ["a unary call", "a unary call beside idle streams"];
        let measured = self.latencies(
            cores,
            &mut [&mut Unary::new(&without)?, &mut Unary::new(&with)?],
        )?;
        let title = format!("{} idle streams on the connection", self.idle_streams);
        report.latencies(&title, &names, &measured);
        report.each_state(&measured.rounds, |distance| {
            let p50 = |row| measured.rounds.median(row, distance);
            let ratio = measured.rounds.ratio(1, 0, distance);
            object(json!({
                "idle_streams": self.idle_streams,
                "unary_p50_ns": p50(0),
                "unary_beside_idle_p50_ns": p50(1),
                "ratio_p50": ratio.map(|ratio| rounded(ratio, 3)),
            }))
        });
        Ok(())
    }

    fn latencies(&self, cores: cores::Cores, sides: &mut [&mut dyn Side]) -> Outcome<Latencies> {
        let slices = self.rounds * SHORT_TURNS;
        let turns = sides.len() * slices;
        let mut lines = vec![RoundTrip::measure(cores)];
        let records = alternate(sides, slices, ROUND_TRIPS, |taken| {
            if taken < turns {
                lines.push(RoundTrip::measure(cores));
            }
        })?;
        let medians = records.iter().map(|record| {
            let medians = record.slice_p50.iter();
            medians.map(|&nanos| nanos as f64).collect()
        });
        let lines = lines.into_iter().collect::<Outcome<_>>()?;
        Ok(Latencies {
            rounds: Rounds::new(medians.collect(), lines),
            p99: records
                .iter()
                .map(|record| record.histogram.value_at_quantile(0.99))
                .collect(),
        })
    }

    fn memory(&self, report: &Report<'_>, cores: cores::Cores) -> Outcome<()> {
        let (streams, connections) = (self.idle_streams, self.idle_connections);
        let intents_of_streams = Intents {
            max_streams: streams as u32 + 1,
            ..intents(FIXED_SIZE)?
        };
        let client = StreamClient::start(report.device, cores, &intents_of_streams, true)?;
        // The first stream takes what all of them share.
        let first = IdleStreams::open(&client, 1)?;
        let before = Memory::read(&client)?;
        let idle = IdleStreams::open(&client, streams)?;
        settle(&client)?;
        let per_stream = Memory::read(&client)?.growth_per(&before, streams);
        drop((first, idle));
        drop(client);

        allow_more_files()?;
        let intents = Intents {
            connections: connections as u32 + 1,
            ..intents(FIXED_SIZE)?
        };
        let mut client = StreamClient::start(report.device, cores, &intents, true)?;
        client.stats()?;
        let before = Memory::read(&client)?;
        client.connect(connections)?;
        settle(&client)?;
        let per_connection = Memory::read(&client)?.growth_per(&before, connections);

        if report.json {
            report.line(object(json!({
                "idle_streams": streams,
                "client_bytes_per_idle_stream": per_stream[0],
                "server_bytes_per_idle_stream": per_stream[1],
                "idle_connections": connections,
                "client_bytes_per_idle_connection": per_connection[0],
                "server_bytes_per_idle_connection": per_connection[1],
            })));
        } else {
            println!("\nResident memory, in bytes:");
            let mut table = Table::new(["", "client", "server"]);
            for (name, bytes) in [
                (format!("a stream, of {streams} idle ones"), per_stream),
                (
                    format!("a connection, of {connections} idle ones"),
                    per_connection,
                ),
            ] {
                table.add([name].into_iter().chain(bytes.map(|b| b.to_string())));
            }
            print!("{table}");
        }
        Ok(())
    }
}

/// Returns intents with busy polling, as in the comparison of peers.
fn intents(payload_len: usize) -> Outcome<Intents> {
    let load = Load::new(Shape::Bytes, payload_len)?;
    Ok(Intents {
        waiting: Waiting::Busy,
        ..intents_for(load.encoded_len())
    })
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match &cli.role {
        Some(Role::Streams(args)) => {
            if args.no_coalescing {
                rpc_core::testing::disable_coalescing();
            }
            args.serve()
        }
        Some(Role::Tonic(args)) => args.serve(),
        None => cli.measurement.run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stream: {error}");
            ExitCode::FAILURE
        }
    }
}
