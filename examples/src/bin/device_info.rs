//! Says what the devices of this machine can do, which of them `Device::best` takes and why, and
//! what a poller with default settings gets there:
//!
//! ```text
//! cargo run --release -p examples --features rdma --bin device_info
//! ```
//!
//! An argument names another device for the poller, as the environment variable `VERBLINE_DEVICE`
//! does: `device_info mlx5_0:1:3`.
#![forbid(unsafe_code)]
// It shows its user what it found: printing is what it is for.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::error::Error;
use std::process::ExitCode;

use rpc_core::LocalPoller;
use rpc_transport_verbs::Device;

fn run() -> Result<(), Box<dyn Error>> {
    println!("{}", Device::survey());

    let device = match std::env::args().nth(1) {
        Some(names) => Device::open(&names)?,
        None => Device::best()?,
    };
    // Makes all that a poller needs, queues and registered memory, so that what is missing shows.
    let poller = LocalPoller::new(&device)?;
    println!("\nWhat a poller with default settings gets:\n");
    println!("{}", poller.limits());
    Ok(())
}

fn main() -> ExitCode {
    // What the library has to say, at the level that the variable RUST_LOG names.
    tracing_subscriber::fmt::init();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("device_info: {error}");
            ExitCode::FAILURE
        }
    }
}
