//! Calls a running server at a rate, prints what its callers wait, and draws it in `load.html`:
//! `cargo run --bin load -- --help`. Control-C ends it with what it has measured by then. Build both
//! ends with `--release` for figures to trust. docs/load.md of verbline explains them.

use std::error::Error;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use tokio::signal;
use tracing::level_filters::LevelFilter;
use @CRATE@::greeter::{GreeterClient, HelloRequest};
use verbline::{Channel, Device, Request};
use verbline_load::OpenLoop;
use verbline_load::report::{Report, Run};

/// Asks a server for greetings at a rate, and measures what its callers wait
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Calls per second
    #[arg(default_value_t = 1000.0, value_parser = rate)]
    rate: f64,
    /// The server's address
    #[arg(default_value = "127.0.0.1:50051")]
    address: String,
    /// Seconds to record, after a warm-up of one
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// The most calls in flight
    #[arg(long, value_name = "CALLS", default_value_t = 64)]
    in_flight: u16,
    /// The file to write the report to
    #[arg(long, value_name = "FILE", default_value = "load.html")]
    report: PathBuf,
    /// The least important events to log: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "warn")]
    log: LevelFilter,
}

fn rate(text: &str) -> Result<f64, &'static str> {
    match text.parse() {
        Ok(rate) if rate > 0.0 && f64::is_finite(rate) => Ok(rate),
        _ => Err("expected a number above zero, such as 1000"),
    }
}

// The thread of `main` sends the calls and never sleeps: tokio's own threads do the rest.
#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    tracing_subscriber::fmt()
        .with_max_level(arguments.log)
        .with_writer(io::stderr)
        .init();
    let device = Device::best()?;
    let channel = Channel::connect(&device, &arguments.address).await?;
    let greeter = &GreeterClient::new(channel);
    let callers = (0..arguments.in_flight.max(1)).map(|_| {
        async || {
            let name = "Ada".to_owned();
            // Without a deadline, a call to a server that hangs would not end.
            let request = Request::new(HelloRequest { name }).with_timeout(Duration::from_secs(10));
            greeter.say_hello(request).await.map(drop)
        }
    });
    let record = OpenLoop::at(arguments.rate)
        .poisson()
        .time(Duration::from_secs(arguments.seconds))
        .until(signal::ctrl_c())
        .run(callers)
        .await;
    print!("{record}");

    let run = Run::new("SayHello", record)
        .fact("server", &arguments.address)
        .fact("device", &device)
        .fact("client", "Channel");
    let report = Report::new("@NAME@").run(run);
    fs::write(&arguments.report, report.to_html())?;
    println!("report: {}", arguments.report.display());
    Ok(())
}
