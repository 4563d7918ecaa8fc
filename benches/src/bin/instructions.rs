//! Makes calls for callgrind to count: client and server on one thread, stepped in turn, over the
//! loopback transport of core's tests, so that the count is the same in every run.
//!
//! ```text
//! make count
//! ```
//!
//! runs it under valgrind for two numbers of calls; the difference is the cost of a call through
//! all of core, both sides, with encoding and decoding, and with the loopback that stands in for the
//! device.
#![forbid(unsafe_code)]
// A benchmark's product is what it prints.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

use benches::Outcome;
use benches::message::{FIXED_SIZE, Load, Shape};
use benches::service::Echo;
use clap::Parser;
use proto::bench::{BenchClient, BenchServer};
use rpc_core::Service;
use rpc_core::testing::Pair;

/// Makes calls over the loopback of core's tests, for callgrind to count.
#[derive(Parser)]
struct Cli {
    /// Calls to make
    #[arg(long, default_value_t = 10_000)]
    calls: usize,
}

fn run(calls: usize) -> Outcome<()> {
    let pair = Pair::new(|methods| BenchServer::per_poller(Echo::default).register(methods));
    let client = BenchClient::new(pair.connect());
    let mut load = Load::new(Shape::Fixed64, FIXED_SIZE)?;
    pair.run(async {
        for _ in 0..calls {
            load.exchange(&client).await?;
        }
        Ok::<_, rpc_core::CallError>(())
    })?;
    println!("{calls} calls made");
    Ok(())
}

fn main() -> ExitCode {
    match run(Cli::parse().calls) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("instructions: {error}");
            ExitCode::FAILURE
        }
    }
}
