//! Requests a greeting from a running `greeter_server`:
//!
//! ```text
//! cargo run --release -p examples --bin greeter_client -- Ada
//! ```
//!
//! `--help` lists the arguments. The device is the first of the server's that this side has too: by
//! default RDMA or shared memory. The environment variable `VERBLINE_DEVICE` names others. For a server
//! on another host or in another container, both programs have to allow TCP: `--allow-plaintext`.
#![forbid(unsafe_code)]
// Printing the response is the purpose of this program.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use proto::greeter::{GreeterClient, HelloRequest};
use verbline::{Device, LocalPoller, Request};

/// Requests a greeting from a running greeter_server
#[derive(Parser)]
#[command(after_help = "Next: make many calls at once with shared_client, on tokio")]
struct Arguments {
    /// The name to greet.
    #[arg(default_value = "Ada")]
    name: String,
    /// The server's address.
    #[arg(default_value = "127.0.0.1:50051")]
    address: String,
    /// Connect over TCP if neither RDMA nor shared memory leads to the server. The calls are then not
    /// encrypted, and whoever listens at the address gets them: docs/deploy.md.
    #[arg(long)]
    allow_plaintext: bool,
}

fn run(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let Arguments { name, address, .. } = arguments;
    let mut device = Device::best()?;
    if arguments.allow_plaintext {
        device = device.allow_plaintext();
    }
    // A local client: this thread itself polls the device while it waits, without a second thread.
    let poller = LocalPoller::new(&device)?;
    let greeter = GreeterClient::new(poller.connect(&address)?);

    // A bare message works too. A `Request` adds options, such as a timeout.
    let request = Request::new(HelloRequest { name }).with_timeout(Duration::from_secs(1));
    let reply = poller.block_on(greeter.say_hello(request))?;
    println!("{}", reply.into_inner().message);
    Ok(())
}

fn main() -> ExitCode {
    // The library logs at the level that the environment variable RUST_LOG names.
    tracing_subscriber::fmt::init();
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("greeter_client: {error}");
            ExitCode::FAILURE
        }
    }
}
