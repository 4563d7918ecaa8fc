//! Says what the devices of this machine can do, which of them `Device::best` takes and why, and
//! what a poller with default settings gets there; then everything that each device says of itself, of
//! its ports, and of a queue pair that is ready to send:
//!
//! ```text
//! cargo run --release -p examples --features rdma --bin device_info
//! ```
//!
//! An argument names another device for the poller, as the environment variable `VERBLINE_DEVICE`
//! does: `device_info mlx5_0:1:3`. With `--json` all of it is one JSON value.
#![forbid(unsafe_code)]
// It shows its user what went wrong.
#![allow(clippy::print_stderr)]

mod details;
mod json;
mod text;

use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Parser;
use rpc_core::LocalPoller;
use rpc_transport_verbs::Device;

use details::Details;

/// Says what the devices of this machine can do, which of them is taken and why, and what a poller
/// with default settings gets there; then everything that each device says of itself.
#[derive(Parser)]
struct Arguments {
    /// The devices that the poller is to have: `mlx5_0`, `mlx5_0:1:3` with port and GID, `mlx5_0,soft`.
    /// Without it, what VERBLINE_DEVICE names, or the best.
    device: Option<String>,
    /// Print all of it as one JSON value: lengths in bytes, times in nanoseconds, rates in bits per second.
    #[arg(long)]
    json: bool,
}

/// What a poller gets, in words. It makes all that a poller needs, queues and registered memory, so that what is
/// missing shows.
fn limits_of_a_poller(device: Option<&str>) -> Result<String, Box<dyn Error>> {
    let device = match device {
        Some(names) => Device::open(names)?,
        None => Device::best()?,
    };
    Ok(LocalPoller::new(&device)?.limits().to_string())
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let survey = Device::survey();
    let devices: Vec<_> = survey.devices.iter().map(Details::gather).collect();
    let limits = limits_of_a_poller(arguments.device.as_deref());
    let said = if arguments.json {
        format!("{:#}\n", json::value(&survey, &devices, &limits))
    } else {
        let mut said = format!("{survey}\n");
        if let Ok(limits) = &limits {
            writeln!(
                said,
                "\nWhat a poller with default settings gets:\n\n{limits}"
            )?;
        }
        writeln!(said, "\nWhat the devices say of themselves:")?;
        for device in &devices {
            writeln!(said, "\n{}", text::Of(device))?;
        }
        said
    };
    // Whoever reads the first lines alone (`| head`) closes the pipe.
    match io::stdout().write_all(said.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error.into()),
        _ => {}
    }
    limits.map(drop)
}

fn main() -> ExitCode {
    // What the library has to say, at the level that the variable RUST_LOG names; where it cannot be
    // taken for the answer.
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(io::stderr)
        .init();
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("device_info: {error}");
            ExitCode::FAILURE
        }
    }
}
