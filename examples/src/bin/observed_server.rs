//! A greeter that prints its statistics: on SIGUSR1, those since the last report, and the text that
//! Prometheus would scrape; at the end, on SIGTERM or Control-C, the totals. Run it, and then run
//! `greeter_client` in another terminal:
//!
//! ```text
//! cargo run --release -p examples --bin observed_server
//! pkill -USR1 observed_server
//! ```
//!
//! `--help` lists the arguments.
#![forbid(unsafe_code)]
// Printing is the purpose of this program.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::process::ExitCode;
use std::task::Poll;

use clap::Parser;
use proto::greeter::{Greeter, GreeterServer, HelloReply, HelloRequest};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use verbline::server::StatsReader;
use verbline::stats::{PrometheusText, Stats};
use verbline::{Device, Request, Response, Server, Status};

struct MyGreeter;

impl Greeter for MyGreeter {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        let HelloRequest { name } = request.into_inner();
        if name.is_empty() {
            return Err(Status::invalid_argument("a greeting needs a name"));
        }
        let message = format!("Hello, {name}!");
        Ok(Response::new(HelloReply { message }))
    }
}

/// Prints the statistics since the last report.
struct Report {
    stats_reader: StatsReader,
    latest: Stats,
}

impl Report {
    fn new(stats_reader: StatsReader) -> Self {
        Self {
            latest: stats_reader.stats(),
            stats_reader,
        }
    }

    fn print(&mut self) {
        let stats = self.stats_reader.stats();
        println!("{}", stats.since(&self.latest));
        // A server that Prometheus scrapes would send this text from its HTTP endpoint.
        let mut text = PrometheusText::new();
        text.add(&stats, &[]);
        println!("{text}");
        self.latest = stats;
    }
}

/// Serves greetings, and prints its statistics on SIGUSR1 and at its end
#[derive(Parser)]
#[command(after_help = "Next: greet with greeter_client, then run `pkill -USR1 observed_server`")]
struct Arguments {
    /// The address to listen at. With port 0, the system chooses a port.
    #[arg(default_value = "127.0.0.1:50051")]
    address: String,
    /// One call in this many is timed; 1 times every call
    #[arg(long, default_value_t = 32)]
    latency_sampling: u32,
}

fn run(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let device = Device::best()?;
    let server = Server::builder(&device)
        .latency_sampling(arguments.latency_sampling)
        .add_service(GreeterServer::new(MyGreeter))
        .bind(&arguments.address)?
        .spawn();
    // This thread handles the signals. The pollers have threads of their own.
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut asked = signal(SignalKind::user_defined1())?;
        let mut interrupted = signal(SignalKind::interrupt())?;
        let mut terminated = signal(SignalKind::terminate())?;
        println!("listening at {}", server.local_addr());
        let mut report = Report::new(server.stats_reader());
        tokio::spawn(async move {
            while asked.recv().await.is_some() {
                report.print();
            }
        });
        poll_fn(|cx| {
            // Poll both, so that both wake this task.
            let stops = [&mut interrupted, &mut terminated];
            if stops.map(|signal| signal.poll_recv(cx).is_ready()) == [false; 2] {
                Poll::Pending
            } else {
                Poll::Ready(())
            }
        })
        .await;
        Ok::<_, io::Error>(())
    })?;
    let stats_reader = server.stats_reader();
    server.shutdown()?;
    println!("total:\n{}", stats_reader.stats());
    Ok(())
}

fn main() -> ExitCode {
    // The library logs at the level that the environment variable RUST_LOG names.
    tracing_subscriber::fmt::init();
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("observed_server: {error}");
            ExitCode::FAILURE
        }
    }
}
