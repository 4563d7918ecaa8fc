//! Serves until SIGTERM or Control-C, then lets the calls in flight finish: `cargo run -- --help`.

use std::error::Error;
use std::io;
use std::time::Duration;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use clap::Parser;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tracing::level_filters::LevelFilter;
use @CRATE@::MyGreeter;
use @CRATE@::greeter::GreeterServer;
use verbline::server::StatsReader;
use verbline::stats::PrometheusText;
use verbline::{Device, Server, Shutdown, TokioExecutor};

/// Greets people by name
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The address to listen at. With port 0, the system chooses a port.
    #[arg(default_value = "127.0.0.1:50051")]
    address: String,
    /// The address of the endpoint /metrics for Prometheus, such as 127.0.0.1:9464 [default: none]
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<String>,
    /// The least important events to log: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log: LevelFilter,
    /// Seconds that calls in flight have to finish when the server stops
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    grace: u64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    tracing_subscriber::fmt()
        .with_max_level(arguments.log)
        .with_writer(io::stderr)
        .init();
    // Before the server accepts anything: until then, the signals end the process at once.
    let mut terminated = signal(SignalKind::terminate())?;
    let mut interrupted = signal(SignalKind::interrupt())?;

    // An RDMA device if there is one and the feature `rdma` is on, and shared memory otherwise. Add
    // `.allow_plaintext()` for clients of other hosts and containers: docs/deploy.md of verbline.
    let device = Device::best()?;
    let server = Server::builder(&device)
        // Handlers may wait for sockets, files and timers of tokio.
        .executor(TokioExecutor::current())
        .shutdown(Shutdown {
            finish: Duration::from_secs(arguments.grace),
            ..Shutdown::default()
        })
        .add_service(GreeterServer::new(MyGreeter))
        .bind(&arguments.address)?;
    println!("listening at {}", server.local_addr());
    if let Some(address) = &arguments.metrics {
        let listener = TcpListener::bind(address)
            .await
            .map_err(|error| format!("cannot serve metrics at {address}: {error}"))?;
        println!("metrics at http://{}/metrics", listener.local_addr()?);
        tokio::spawn(serve_metrics(listener, server.stats_reader()));
    }
    let stop = async {
        tokio::select! {
            _ = terminated.recv() => (),
            _ = interrupted.recv() => (),
        }
        tracing::info!("stopping: calls in flight have {} s to finish", arguments.grace);
    };
    server.serve_with_shutdown(stop).await?;
    tracing::info!("stopped");
    Ok(())
}

/// Serves the server's statistics, until the process ends.
async fn serve_metrics(listener: TcpListener, stats_reader: StatsReader) {
    let metrics = async move || {
        let mut text = PrometheusText::new();
        text.add(&stats_reader.stats(), &[]);
        (
            [(CONTENT_TYPE, "text/plain; version=0.0.4")],
            text.to_string(),
        )
    };
    let routes = Router::new().route("/metrics", get(metrics));
    if let Err(error) = axum::serve(listener, routes).await {
        tracing::warn!(%error, "metrics are not served any more");
    }
}
