//! Prints the capabilities of this machine's devices, which of them `Device::best` chooses and why,
//! and the limits of a poller with default settings on that device. Then prints all attributes of
//! each device, of its ports, and of a queue pair in RTS:
//!
//! ```text
//! cargo run --release -p examples --features rdma --bin device_info
//! ```
//!
//! An argument selects another device for the poller, like the environment variable
//! `VERBLINE_DEVICE`: `device_info mlx5_0:1:3`. With `--json` the output is one JSON value.
#![forbid(unsafe_code)]
// Errors go to the user on standard error.
#![allow(clippy::print_stderr)]

mod details;
mod json;
mod text;

use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Parser;
use verbline::{Device, LocalPoller};

use details::Details;

/// Prints the capabilities of this machine's devices, which of them is chosen and why, and the
/// limits of a poller with default settings there; then all attributes of each device.
#[derive(Parser)]
#[command(
    after_help = "Next: read docs/rdma.md, or exchange messages over a device with verbs_tutorial"
)]
struct Arguments {
    /// The devices of the poller: `mlx5_0`, `mlx5_0:1:3` with port and GID index, `@eth0` or
    /// `@192.0.2.0/24` by network device or address, `mlx5_0,soft`.
    /// Default: the devices that VERBLINE_DEVICE names, or else the best device.
    device: Option<String>,
    /// Print everything as one JSON value: lengths in bytes, times in nanoseconds, rates in bits
    /// per second.
    #[arg(long)]
    json: bool,
}

/// Returns the limits of a poller as text. Creates a whole poller, with its queues and registered
/// memory, so that a missing permission or resource shows up as an error.
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
    let output = if arguments.json {
        format!("{:#}\n", json::value(&survey, &devices, &limits))
    } else {
        let mut output = format!("{survey}\n");
        if let Ok(limits) = &limits {
            writeln!(
                output,
                "\nLimits of a poller with default settings:\n\n{limits}"
            )?;
        }
        writeln!(output, "\nAll attributes of the devices:")?;
        for device in &devices {
            writeln!(output, "\n{}", text::Of(device))?;
        }
        output
    };
    // If the reader takes only the first lines (`| head`), it closes the pipe.
    match io::stdout().write_all(output.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error.into()),
        _ => {}
    }
    limits.map(drop)
}

fn main() -> ExitCode {
    // The library logs at the level that the environment variable RUST_LOG names, to standard
    // error, so that logs do not mix with the report.
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
