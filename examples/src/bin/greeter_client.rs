//! Requests a greeting from a running `greeter_server`:
//!
//! ```text
//! cargo run --release -p examples --bin greeter_client -- Ada
//! ```
//!
//! An optional second argument sets the server's address; the default is 127.0.0.1:50051. The
//! server must use the same kind of device: the best available one, or the one that the environment
//! variable `VERBLINE_DEVICE` names.
#![forbid(unsafe_code)]
// Printing the response is the purpose of this program.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use proto::greeter::{GreeterClient, HelloRequest};
use rpc_core::{LocalPoller, Request};
use rpc_transport_verbs::Device;

fn run() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let name = args.next().unwrap_or_else(|| "Ada".to_owned());
    let address = args.next().unwrap_or_else(|| "127.0.0.1:50051".to_owned());

    // A local client: this thread itself polls the device while it waits, without a second thread.
    let poller = LocalPoller::new(&Device::best()?)?;
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
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("greeter_client: {error}");
            ExitCode::FAILURE
        }
    }
}
