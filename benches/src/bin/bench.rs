//! Measures Verbline: `bench <what>`. `bench --help` lists what can be measured, and `bench <what>
//! --help` the options. The measurements are in `benches::measurements`.
#![forbid(unsafe_code)]
// Printing is the purpose of a benchmark.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

use benches::measurements::*;
use benches::role::{self, Role};
use benches::setup::{Bench, Measurement, SetupArgs};
use benches::{Outcome, allocations};
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::COUNTING;

/// Measures Verbline's calls, streams and messages. docs/benchmarks.md says what each figure means.
#[derive(Parser)]
#[command(
    name = "bench",
    after_help = "The two sides of a measurement are processes that are pinned to two cores. What is \
                  compared takes turns within one run: quote ratios, not times of different runs."
)]
struct Cli {
    #[command(subcommand)]
    what: What,
    #[command(flatten)]
    setup: SetupArgs,
}

/// Lists what can be measured, in the order of the help page.
macro_rules! measurements {
    ($($(#[$attribute:meta])* $name:ident($module:ident::$options:ident),)+) => {
        #[derive(Subcommand)]
        enum What {
            $($(#[$attribute])* $name($module::$options),)+
        }

        impl What {
            fn measurement(&self) -> &dyn Measurement {
                match self {
                    $($(#[$attribute])* Self::$name(measurement) => measurement,)+
                }
            }
        }
    };
}

measurements! {
    Latency(latency::Latency),
    Open(open::Open),
    Idle(idle::Idle),
    Pinning(pinning::Pinning),
    Throughput(throughput::Throughput),
    Connections(connections::Connections),
    Curves(curves::Curves),
    Channels(channels::Channels),
    #[cfg(feature = "stream")]
    Stream(stream::Streams),
    Bandwidth(bandwidth::Bandwidth),
    Puts(bandwidth::PutsArgs),
    Neighbour(bandwidth::Neighbour),
    IdleMemory(bandwidth::IdleMemory),
    Copies(copies::Copies),
    Overload(overload::Overload),
    Unfair(unfair::Unfair),
    #[cfg(feature = "stream")]
    OverTcp(over_tcp::OverTcp),
    #[cfg(feature = "tls")]
    OverTls(over_tls::OverTls),
    Ratios(ratios::Ratios),
    Rdma(rdma::Rdma),
    #[cfg(feature = "peers")]
    Peers(peers::Peers),
    Tool(tool::Tool),
    Compare(compare::Compare),
    Summary(summary::Summary),
}

/// Says on Ctrl-C what is missing now. The processes of the other side end with this one.
#[cfg(feature = "stream")]
fn explain_interruption() -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    std::thread::spawn(move || {
        if runtime.block_on(tokio::signal::ctrl_c()).is_ok() {
            eprintln!("\nbench: interrupted: there is no report, since all rows are of one run");
            std::process::exit(130);
        }
    });
    Ok(())
}

fn run() -> Outcome<()> {
    let matches = Cli::command().get_matches();
    let cli = Cli::from_arg_matches(&matches)?;
    #[cfg(feature = "stream")]
    explain_interruption()?;
    let name = matches.subcommand_name().unwrap_or_default();
    Bench::run(name, &cli.setup, cli.what.measurement())
}

fn main() -> ExitCode {
    let outcome = match role::played::<Role>() {
        Some(role) => role.and_then(Role::run),
        None => run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}
