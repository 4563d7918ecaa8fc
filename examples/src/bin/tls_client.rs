//! Requests a greeting from a running `tls_server`, once it has proved who it is:
//!
//! ```text
//! cargo run --release -p examples --features tls --bin tls_client -- \
//!     --ca ca.pem --cert client.pem --key client.key Ada
//! ```
//!
//! `--help` lists the arguments. The server's certificate has to be for the address, or, with `--spiffe`,
//! for that SPIFFE id.
#![forbid(unsafe_code)]
// Printing the response is the purpose of this program.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use proto::greeter::{GreeterClient, HelloRequest};
use verbline::tls::{ClientTls, Expect, Identity, Roots};
use verbline::{Device, LocalPoller, Request};

/// Requests a greeting from a running tls_server
#[derive(Parser)]
struct Arguments {
    /// The authorities of the server.
    #[arg(long)]
    ca: PathBuf,
    /// The client's certificate, for servers that demand one.
    #[arg(long, requires = "key")]
    cert: Option<PathBuf>,
    /// The key of the certificate.
    #[arg(long, requires = "cert")]
    key: Option<PathBuf>,
    /// The SPIFFE id that the server has to have, whatever its address.
    #[arg(long)]
    spiffe: Option<String>,
    /// The device, such as `tcp`, over which calls are encrypted [default: the best available one].
    #[arg(long)]
    device: Option<String>,
    /// The name to greet.
    #[arg(default_value = "Ada")]
    name: String,
    /// The server's address.
    #[arg(default_value = "127.0.0.1:50051")]
    address: String,
}

fn run(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let mut tls = ClientTls::new(Roots::from_file(arguments.ca)?);
    if let (Some(certificate), Some(key)) = (arguments.cert, arguments.key) {
        tls = tls.identity(Identity::from_files(certificate, key)?);
    }
    if let Some(id) = arguments.spiffe {
        tls = tls.server(Expect::Spiffe(id))?;
    }
    let device = match arguments.device {
        Some(name) => Device::open(&name)?,
        None => Device::best()?,
    };
    let name = arguments.name;
    let poller = LocalPoller::new(&device.with_client_tls(tls))?;
    let greeter = GreeterClient::new(poller.connect(&arguments.address)?);
    let request = Request::new(HelloRequest { name }).with_timeout(Duration::from_secs(5));
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
            eprintln!("tls_client: {error}");
            ExitCode::FAILURE
        }
    }
}
