//! Asks a running `greeter_server` for a greeting:
//!
//! ```text
//! cargo run --release -p examples --bin greeter_client -- Ada
//! ```
//!
//! A second argument names another address than 127.0.0.1:50051. The device must be one that the
//! server has too: the best there is, or the one named by the environment variable
//! `VERBLINE_DEVICE`.
#![forbid(unsafe_code)]
// It shows its user the answer: printing is what it is for.
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

    // A local client: no other thread is asked, this one polls the device while it waits.
    let poller = LocalPoller::new(&Device::best()?)?;
    let greeter = GreeterClient::new(poller.connect(&address)?);

    // A bare message would do as well; a request can say more, such as how long it may take.
    let request = Request::new(HelloRequest { name }).with_timeout(Duration::from_secs(1));
    let reply = poller.block_on(greeter.say_hello(request))?;
    println!("{}", reply.into_inner().message);
    Ok(())
}

fn main() -> ExitCode {
    // What the library has to say, at the level that the variable RUST_LOG names.
    tracing_subscriber::fmt::init();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("greeter_client: {error}");
            ExitCode::FAILURE
        }
    }
}
