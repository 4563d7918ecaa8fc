//! The gateway beside tonic's own server: the same service, the same client (tonic's), in turn.
//!
//! ```text
//! cargo run --release -p benches --bin gateway
//! ```
//!
//! Each server is a process of its own, and a round starts each once. The gateway's process contains
//! the Verbline server, too, with its poller and the channel's: three threads, where tonic has one.
//! The scheduler distributes them, so the processor time of a call says more than the calls a second.
#![forbid(unsafe_code)]
// Printing is the purpose of a benchmark.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::future::pending;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use benches::Outcome;
use benches::arguments::{waiting_name, waiting_of};
use benches::bandwidth::pattern::payload;
use benches::bandwidth::service::Bulk;
use benches::child::{self, Process};
use benches::peers::tonic::{self as peer, unary};
use benches::peers::{tonic_puts, tonic_streams};
use benches::service::Echo;
use benches::streams::service::Streams;
use clap::{Parser, ValueEnum};
use proto::bench::{BenchServer, BenchStreamsServer, Blob, SubscribeRequest};
use proto::bulk::{BulkServer, PutReply, PutRequest};
use rpc_core::{Channel, Server, Waiting};
use rpc_transport_verbs::Device;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tonic::Request;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel as TonicChannel, Endpoint, Server as TonicServer};
use tonic_prost::ProstCodec;
use verbline_gateway::Gateway;

/// Calls in flight.
const IN_FLIGHT: usize = 32;

/// Bytes of a payload.
const SHORT: usize = 64;
const LONG: usize = 1 << 20;

/// Compares the gateway with tonic's own server
#[derive(Parser)]
struct Arguments {
    /// Serves, for the process that measures
    #[arg(long, hide = true)]
    serve: Option<Kind>,
    /// How the pollers of the gateway's process wait
    #[arg(long, default_value = "adaptive", value_parser = waiting_name())]
    waiting: String,
    /// Rounds, of which the medians are printed
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Milliseconds of each measurement
    #[arg(long, default_value_t = 1000)]
    millis: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    Tonic,
    Gateway,
}

/// The methods that are called, which the two servers have under different names.
#[derive(Clone, Copy)]
struct Paths {
    echo: &'static str,
    subscribe: &'static str,
    put: &'static str,
}

impl Kind {
    fn paths(self) -> Paths {
        match self {
            Self::Tonic => Paths {
                echo: peer::ECHO_BLOB,
                subscribe: tonic_streams::SUBSCRIBE_BLOB,
                put: tonic_puts::PUT,
            },
            Self::Gateway => Paths {
                echo: "/verbline.bench.Bench/EchoBlob",
                subscribe: "/verbline.bench.BenchStreams/SubscribeBlob",
                put: "/verbline.bulk.Bulk/Put",
            },
        }
    }
}

/// What is measured of a server.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    calls_per_second: f64,
    p50_us: f64,
    cpu_us_per_call: f64,
    short_per_second: f64,
    long_per_second: f64,
    puts_per_second: f64,
}

/// A row: what it is, its value, and whether more is better.
type Row = (&'static str, fn(&Figures) -> f64);

const ROWS: [Row; 6] = [
    ("calls/s, 32 in flight", |figures| figures.calls_per_second),
    ("p50 of a call alone, µs", |figures| figures.p50_us),
    ("server's processor time of a call, µs", |figures| {
        figures.cpu_us_per_call
    }),
    ("stream of 64 bytes, messages/s", |figures| {
        figures.short_per_second
    }),
    ("stream of 1 MiB, messages/s", |figures| {
        figures.long_per_second
    }),
    ("requests of 1 MiB, one at a time, calls/s", |figures| {
        figures.puts_per_second
    }),
];

fn serve(kind: Kind, waiting: Waiting) -> Outcome<()> {
    child::end_with_parent()?;
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = format!("http://{}", listener.local_addr()?);
        match kind {
            Kind::Tonic => {
                child::write_line_to_parent(&address)?;
                let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
                let mut server = TonicServer::builder()
                    .initial_stream_window_size(1 << 20)
                    .initial_connection_window_size(1 << 20);
                let server = server.add_service(peer::Methods);
                server.serve_with_incoming(incoming).await?;
            }
            Kind::Gateway => {
                let device = Device::open("soft")?;
                let server = Server::builder(&device)
                    .waiting(waiting)
                    .add_service(BenchServer::per_poller(Echo::default))
                    .add_service(BenchStreamsServer::per_poller(Streams::default))
                    .add_service(BulkServer::per_poller(Bulk::default))
                    .bind("127.0.0.1:0")?
                    .spawn();
                let server_address = server.local_addr().to_string();
                let channel = Channel::builder(&device, &server_address)
                    .waiting(waiting)
                    .connect()
                    .await?;
                child::write_line_to_parent(&address)?;
                Gateway::builder(channel)
                    .serve_on(listener, pending())
                    .await;
            }
        }
        Ok(())
    })
}

async fn echo(client: &mut Grpc<TonicChannel>, path: &'static str) -> Outcome<()> {
    let request = Blob {
        payload: vec![0; SHORT],
    };
    let reply: Blob = unary(client, path, request).await?;
    assert_eq!(
        reply.payload.len(),
        SHORT,
        "the server must echo the request"
    );
    Ok(())
}

/// Makes calls one after the other, and returns the time of each.
async fn calls_until(
    channel: TonicChannel,
    path: &'static str,
    end: Instant,
) -> Outcome<Vec<Duration>> {
    let mut client = Grpc::new(channel);
    let mut times = Vec::new();
    let mut now = Instant::now();
    while now < end {
        let begun = now;
        echo(&mut client, path).await?;
        now = Instant::now();
        times.push(now - begun);
    }
    Ok(times)
}

/// Reads a stream, and returns its messages per second.
async fn stream(
    channel: &TonicChannel,
    path: &'static str,
    payload_len: usize,
    time: Duration,
) -> Outcome<f64> {
    let mut client = Grpc::new(channel.clone());
    client.ready().await?;
    let request = Request::new(SubscribeRequest {
        count: u64::MAX,
        payload_len: u32::try_from(payload_len)?,
    });
    let path = PathAndQuery::from_static(path);
    let codec = ProstCodec::<SubscribeRequest, Blob>::default();
    let mut messages = client
        .server_streaming(request, path, codec)
        .await?
        .into_inner();
    messages.message().await?;
    let begun = Instant::now();
    let mut count = 0_u64;
    while begun.elapsed() < time {
        let message: Option<Blob> = messages.message().await?;
        let len = message.map(|blob| blob.payload.len());
        assert_eq!(len, Some(payload_len), "a message of the stream");
        count += 1;
    }
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}

/// Sends long requests one after the other, and returns how many per second.
async fn puts(channel: &TonicChannel, path: &'static str, time: Duration) -> Outcome<f64> {
    let mut client = Grpc::new(channel.clone());
    let data = payload(LONG);
    let begun = Instant::now();
    let mut count = 0_u64;
    while begun.elapsed() < time {
        let request = PutRequest { data: data.clone() };
        let _: PutReply = unary(&mut client, path, request).await?;
        count += 1;
    }
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}

fn measure(kind: Kind, waiting: &str, runtime: &Runtime, time: Duration) -> Outcome<Figures> {
    let name = kind.to_possible_value().ok_or("a kind has a name")?;
    let arguments = ["--serve", name.get_name(), "--waiting", waiting].map(str::to_owned);
    let mut server = Process::start_as(None, &arguments)?;
    let address = server.read_line()?;
    let cpu = server.cpu_time();
    let paths = kind.paths();
    runtime.block_on(async {
        let endpoint = Endpoint::from_shared(address)?
            .tcp_nodelay(true)
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(1 << 20);
        let channel = endpoint.connect().await?;
        // The first calls pay for what is set up once.
        calls_until(channel.clone(), paths.echo, Instant::now() + time / 5).await?;

        let mut times = calls_until(channel.clone(), paths.echo, Instant::now() + time).await?;
        times.sort_unstable();
        let p50 = times[times.len() / 2];

        let (begun, cpu_before) = (Instant::now(), cpu.read()?);
        let tasks: Vec<_> = (0..IN_FLIGHT)
            .map(|_| {
                let calls = calls_until(channel.clone(), paths.echo, begun + time);
                tokio::spawn(async { calls.await.map_err(|error| error.to_string()) })
            })
            .collect();
        let mut calls = 0;
        for task in tasks {
            calls += task.await??.len();
        }
        let (elapsed, used) = (begun.elapsed(), cpu.read()? - cpu_before);
        Ok(Figures {
            calls_per_second: calls as f64 / elapsed.as_secs_f64(),
            p50_us: p50.as_secs_f64() * 1e6,
            cpu_us_per_call: used.as_secs_f64() * 1e6 / calls as f64,
            short_per_second: stream(&channel, paths.subscribe, SHORT, time).await?,
            long_per_second: stream(&channel, paths.subscribe, LONG, time).await?,
            puts_per_second: puts(&channel, paths.put, time).await?,
        })
    })
}

fn median(rounds: &[Figures], value: fn(&Figures) -> f64) -> f64 {
    let mut values: Vec<_> = rounds.iter().map(value).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn run(arguments: &Arguments) -> Outcome<()> {
    if let Some(kind) = arguments.serve {
        return serve(kind, waiting_of(&arguments.waiting));
    }
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let time = Duration::from_millis(arguments.millis);
    let (mut tonic, mut gateway) = (Vec::new(), Vec::new());
    for _ in 0..arguments.rounds.max(1) {
        tonic.push(measure(Kind::Tonic, &arguments.waiting, &runtime, time)?);
        gateway.push(measure(Kind::Gateway, &arguments.waiting, &runtime, time)?);
    }
    println!(
        "{:<42} {:>10} {:>10} {:>8}",
        "", "tonic", "gateway", "ratio"
    );
    for (what, value) in ROWS {
        let (tonic, gateway) = (median(&tonic, value), median(&gateway, value));
        println!(
            "{what:<42} {tonic:>10.1} {gateway:>10.1} {:>8.2}",
            gateway / tonic
        );
    }
    Ok(())
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gateway: {error}");
            ExitCode::FAILURE
        }
    }
}
