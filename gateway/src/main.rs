//! The program `verbline-gateway`: a gateway beside its server, in a process of its own.
#![forbid(unsafe_code)]
// The program prints its address for the user, and for who has started it.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use verbline::{Channel, Device};
use verbline_gateway::Gateway;

const AFTER_HELP: &str = "\
On SIGTERM or Control-C, the gateway takes no further connections and calls, lets the calls in flight \
finish, and exits with 0.

The first line of its output is `listening at ADDRESS`. It logs to standard error, at the level that the \
environment variable RUST_LOG names: `RUST_LOG=verbline_gateway=debug` tells why connections end.

Clients of the gateway are not authenticated: listen at an address that only clients reach who may call \
the server. The gateway is the server's only peer for all of them; a server that trusts it knows their \
addresses. HTTP/2 is plain text.

Examples:
  verbline-gateway --listen 127.0.0.1:50052 --server 127.0.0.1:50051
  verbline-gateway --listen 0.0.0.0:50052 --server storage-7:50051 --device mlx5_0 --max-age 1800";

/// Serves HTTP/2 gRPC in front of a Verbline server, so that stock gRPC clients and tools can call it
#[derive(Parser)]
#[command(version, after_help = AFTER_HELP)]
struct Arguments {
    /// The address to listen at. With port 0, the system chooses a port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:50052")]
    listen: String,
    /// The Verbline server, as host:port. It need not run yet: the gateway connects when it does
    #[arg(long, value_name = "HOST:PORT")]
    server: String,
    /// The device to the server: soft, tcp, or an RDMA device (mlx5_0, mlx5_0:1:3, @eth0).
    /// Default: the best one, or the one that VERBLINE_DEVICE names
    #[arg(long)]
    device: Option<String>,
    /// Call servers of other hosts, containers and users, too, over TCP, in plain text
    #[arg(long)]
    allow_plaintext: bool,
    /// Connections that may be open at a time
    #[arg(long, value_name = "N", default_value_t = 1024)]
    max_connections: usize,
    /// Calls that may be open at a time, on all connections
    #[arg(long, value_name = "N", default_value_t = 8192)]
    max_calls: usize,
    /// Bytes of the longest message
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 20)]
    max_message_len: usize,
    /// Bytes for messages of 16 KiB and more, of requests; and as many for those of responses
    #[arg(long, value_name = "BYTES", default_value_t = 256 << 20)]
    message_memory: u64,
    /// Seconds after which a connection is told to end, ± 10 %, so that clients find new gateways
    #[arg(long, value_name = "SECONDS")]
    max_age: Option<u64>,
    /// Seconds for which calls in flight may go on at the end
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    drain: u64,
}

async fn serve(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    // Before the address is printed: who reads it may send a signal.
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut terminated = signal(SignalKind::terminate())?;
    let mut device = match &arguments.device {
        Some(name) => Device::open(name)?,
        None => Device::best()?,
    };
    if arguments.allow_plaintext {
        device = device.allow_plaintext();
    }
    let channel = Channel::builder(&device, &arguments.server)
        .max_message_len(arguments.max_message_len)
        .message_memory(arguments.message_memory)
        .connect_lazy()?;
    let drain_time = Duration::from_secs(arguments.drain);
    let mut gateway = Gateway::builder(channel)
        .max_connections(arguments.max_connections)
        .max_calls(arguments.max_calls)
        .max_message_len(arguments.max_message_len)
        .message_memory(arguments.message_memory)
        .drain_time(drain_time);
    if let Some(age) = arguments.max_age {
        gateway = gateway.max_connection_age(Duration::from_secs(age), drain_time);
    }
    let listener = TcpListener::bind(&arguments.listen)
        .await
        .map_err(|error| format!("cannot listen at {}: {error}", arguments.listen))?;
    println!("listening at {}", listener.local_addr()?);
    println!("{}", gateway.limits());
    let shutdown = async {
        tokio::select! {
            _ = interrupted.recv() => {}
            _ = terminated.recv() => {}
        }
        tracing::info!("shutting down");
    };
    gateway.serve_on(listener, shutdown).await;
    Ok(())
}

fn run(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(arguments))
}

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::builder()
                .with_default_directive(tracing_subscriber::filter::LevelFilter::INFO.into())
                .from_env_lossy(),
        )
        .with_writer(std::io::stderr)
        .init();
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("verbline-gateway: {error}");
            ExitCode::FAILURE
        }
    }
}
