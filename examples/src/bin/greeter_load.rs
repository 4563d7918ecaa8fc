//! Calls a running `greeter_server` at a rate, and prints what its callers wait:
//!
//! ```text
//! cargo run --release -p examples --bin greeter_load -- 20000
//! ```
//!
//! Ctrl-C ends it with what it has measured by then. `--help` lists the arguments, such as `--report FILE`
//! for pictures; `docs/load.md` explains the table. To load a service of your own, copy this file and change
//! the client and the call.
#![forbid(unsafe_code)]
// Printing the table is the purpose of this program.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::error::Error;
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use proto::greeter::{GreeterClient, HelloRequest};
use verbline::{Channel, Device, Request};
use verbline_load::report::{Report, Run};
use verbline_load::{OpenLoop, hgrm};

/// Calls a running greeter_server at a rate, and prints what its callers wait
#[derive(Parser)]
#[command(after_help = "Next: read docs/load.md, which says what the table means")]
struct Arguments {
    /// Calls per second.
    #[arg(default_value_t = 1000.0, value_parser = rate)]
    rate: f64,
    /// The server's address.
    #[arg(default_value = "127.0.0.1:50051")]
    address: String,
    /// Seconds to record, after a warm-up of one.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// The most calls in flight.
    #[arg(long, default_value_t = 64)]
    in_flight: u16,
    /// Write the response times to this file, for HdrHistogram's plotter.
    #[arg(long)]
    hgrm: Option<PathBuf>,
    /// Write a report with pictures to this file, as HTML.
    #[arg(long)]
    report: Option<PathBuf>,
}

fn rate(text: &str) -> Result<f64, &'static str> {
    match text.parse() {
        Ok(rate) if rate > 0.0 && f64::is_finite(rate) => Ok(rate),
        _ => Err("expected a number above zero, such as 20000"),
    }
}

async fn load(arguments: Arguments) -> Result<(), Box<dyn Error>> {
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
        .until(tokio::signal::ctrl_c())
        .run(callers)
        .await;
    print!("{record}");
    if let Some(path) = arguments.hgrm {
        hgrm::write(&record.response, &mut BufWriter::new(File::create(path)?))?;
    }
    if let Some(path) = arguments.report {
        let run = Run::new("SayHello", record)
            .fact("server", &arguments.address)
            .fact("device", &device)
            .fact("client", "Channel");
        fs::write(&path, Report::new("greeter_load").run(run).to_html())?;
        println!("report: {}", path.display());
    }
    Ok(())
}

fn main() -> ExitCode {
    // The library logs at the level that the environment variable RUST_LOG names.
    tracing_subscriber::fmt::init();
    let runtime = tokio::runtime::Runtime::new().map_err(Into::into);
    match runtime.and_then(|runtime| runtime.block_on(load(Arguments::parse()))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("greeter_load: {error}");
            ExitCode::FAILURE
        }
    }
}
