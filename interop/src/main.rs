//! Runs gRPC's interop test cases, by name: over every device of this machine, in one process and as
//! two processes, through local and shared channels. Prints a line for each, with the sizes that it
//! used, and ends with exit code 1 if any has failed:
//!
//! ```text
//! make interop
//! cargo run -p interop -- --device soft ping_pong
//! ```
//!
//! Between two hosts, start the server on one, and name it on the other:
//!
//! ```text
//! cargo run -p interop --features rdma -- --device mlx5_0 --serve 192.0.2.1:50051
//! cargo run -p interop --features rdma -- --device mlx5_0 --server 192.0.2.1:50051
//! ```
//!
//! A gRPC server of any kind, or a gateway:
//!
//! ```text
//! cargo run -p interop --features grpc -- --grpc 127.0.0.1:50052
//! ```
//!
//! `proto/grpc/testing/` has the services. The sizes of the payloads are gRPC's.
#![forbid(unsafe_code)]
// Printing the outcomes is the purpose of this program.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod cases;
mod client;
mod process;
mod service;

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use proto::interop::TestServiceServer;
use rpc_core::{Server, ServerError, Shutdown, StatsReader};
use rpc_transport_verbs::Device;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use verbline::health::{Health, ServingStatus};
use verbline::reflection::Reflection;

use cases::{Client, NAMES};
use client::{Failure, Flavor, Local, Shared};
use process::ServerProcess;
use service::TestServer;

/// The name of the service in the `.proto`.
const SERVICE: &str = "grpc.testing.TestService";

/// Runs gRPC's interop test cases over every device of this machine.
#[derive(Parser)]
struct Arguments {
    /// Run only these cases.
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(NAMES))]
    cases: Vec<String>,
    /// Use only this device: `soft`, `mlx5_0`, `mlx5_0:1:3`. Default: the one that VERBLINE_DEVICE
    /// names, or else every device of this machine.
    #[arg(long)]
    device: Option<String>,
    /// Run the cases against the server at this address, which `--serve` has started.
    #[arg(long, conflicts_with = "serve", requires = "device")]
    server: Option<String>,
    /// Run the cases against the gRPC server at this address, over HTTP/2.
    #[cfg(feature = "grpc")]
    #[arg(long, conflicts_with_all = ["server", "serve", "device"])]
    grpc: Option<String>,
    /// Serve at this address until SIGTERM. Then print how the calls have ended.
    #[arg(long, requires = "device")]
    serve: Option<String>,
    /// Calls of `concurrent_large_unary` and of `rpc_soak`: gRPC's number takes an emulated machine
    /// many minutes.
    #[arg(long, default_value_t = 1_000)]
    calls: usize,
}

/// The cases of one run, and how they have ended.
struct Run {
    /// Their names. All cases if empty.
    cases: Vec<String>,
    calls: usize,
    passed: u32,
    failed: u32,
}

impl Run {
    /// Runs the cases through both flavors of channels.
    fn run(&mut self, at: &str, device: &Device, address: &str, server: Option<StatsReader>) {
        let local = Local::new(device, address);
        self.run_flavor(&format!("{at}, local "), local, server.clone());
        let shared = Ok(Shared::new(device, address));
        self.run_flavor(&format!("{at}, shared"), shared, server);
    }

    fn run_flavor<F: Flavor>(
        &mut self,
        at: &str,
        flavor: Result<F, Failure>,
        server: Option<StatsReader>,
    ) {
        let calls = self.calls;
        let client = match flavor.and_then(|flavor| Client::connect(flavor, server, calls)) {
            Ok(client) => client,
            Err(failure) => {
                println!("FAILED  {at}  {failure}");
                self.failed += 1;
                return;
            }
        };
        for (name, case) in NAMES.into_iter().zip(Client::<F>::CASES) {
            if !self.cases.is_empty() && !self.cases.iter().any(|wanted| wanted == name) {
                continue;
            }
            let begun = Instant::now();
            let outcome = case(&client);
            let took = begun.elapsed();
            match outcome {
                Ok(sizes) => {
                    println!("passed  {at}  {name:28} {took:>8.1?}  {sizes}");
                    self.passed += 1;
                }
                Err(failure) => {
                    println!("FAILED  {at}  {name:28} {took:>8.1?}  {failure}");
                    self.failed += 1;
                }
            }
        }
    }
}

fn bind(device: &Device, address: &str, shutdown: Shutdown) -> Result<Server, ServerError> {
    let health = Health::new();
    health.set(SERVICE, ServingStatus::Serving);
    Server::builder(device)
        .shutdown(shutdown)
        .add_service(TestServiceServer::new(TestServer))
        .add_service(health.service())
        .add_service(Reflection::service())
        .bind(address)
}

/// Serves until SIGTERM. Then prints how the calls have ended: a line for each method and code.
fn serve(device: &Device, address: &str) -> Result<(), Box<dyn Error>> {
    let server = bind(
        device,
        address,
        Shutdown {
            // For clients that look at the health first.
            lame_duck: Duration::from_secs(1),
            ..Shutdown::default()
        },
    )?;
    let stats_reader = server.stats_reader();
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut terminated = signal(SignalKind::terminate())?;
        println!("listening at {}", server.local_addr());
        server.serve_with_shutdown(terminated.recv()).await?;
        Ok::<_, Box<dyn Error>>(())
    })?;
    for method in stats_reader.stats().total().served {
        for (code, count) in method.codes() {
            println!("served {} {code} {count}", method.path);
        }
    }
    Ok(())
}

/// Returns the devices that can be used, and says loudly which cannot and whether there is an RDMA
/// device.
fn devices() -> Vec<String> {
    let survey = Device::survey();
    if let Some(named) = survey.named {
        return vec![named];
    }
    let mut usable = Vec::new();
    for device in &survey.devices {
        match &device.verdict {
            Ok(_) => usable.push(device.name.clone()),
            Err(reason) => eprintln!("!! NOT RUN on {}: {reason}", device.name),
        }
    }
    if survey.devices.iter().all(|device| device.is_soft()) {
        eprintln!("!! NOT RUN on any RDMA device: this machine has none");
    }
    usable
}

fn run(arguments: Arguments) -> Result<bool, Box<dyn Error>> {
    if let (Some(address), Some(device)) = (&arguments.serve, &arguments.device) {
        serve(&Device::open(device)?, address)?;
        return Ok(true);
    }
    let mut run = Run {
        cases: arguments.cases,
        calls: arguments.calls,
        passed: 0,
        failed: 0,
    };
    #[cfg(feature = "grpc")]
    if let Some(address) = &arguments.grpc {
        let flavor = client::Grpc::new(address)?;
        run.run_flavor(&format!("gRPC, {address}"), Ok(flavor), None);
        println!("{} passed, {} failed", run.passed, run.failed);
        return Ok(run.failed == 0);
    }
    for name in arguments.device.map_or_else(devices, |name| vec![name]) {
        let device = Device::open(&name)?;
        if let Some(address) = &arguments.server {
            run.run(&format!("{name}, {address}"), &device, address, None);
            continue;
        }
        let server = bind(&device, "127.0.0.1:0", Shutdown::default())?.spawn();
        let address = server.local_addr().to_string();
        let stats_reader = Some(server.stats_reader());
        run.run(
            &format!("{name}, one process  "),
            &device,
            &address,
            stats_reader,
        );
        server.shutdown()?;
        let server = ServerProcess::start(&name)?;
        run.run(
            &format!("{name}, two processes"),
            &device,
            server.address(),
            None,
        );
    }
    println!("{} passed, {} failed", run.passed, run.failed);
    Ok(run.failed == 0)
}

fn main() -> ExitCode {
    // The library logs at the level that the environment variable RUST_LOG names.
    tracing_subscriber::fmt::init();
    match run(Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("interop: {error}");
            ExitCode::FAILURE
        }
    }
}
