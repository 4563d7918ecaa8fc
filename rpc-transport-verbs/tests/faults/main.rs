//! The fault campaign: random calls between simulated processes, on which things go wrong, from seeds.
//!
//! ```sh
//! make faults                # 10,000 seeds
//! SEEDS=200000 make faults   # more
//! SEED=17 make faults        # one, replayed exactly; RUST_LOG=debug tells its story
//! ```
//!
//! Every seed is a world of its own on one thread: what is simulated is in `rpc_transport_verbs::testing::simulation`,
//! what is done in it, and what has to hold of it, in [`seed`]. Each core gets a process of its own
//! for its share of the seeds, so that a seed that takes its process down is known by name,
//! and files that are left open are counted exactly.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program that is run by a person"
)]

mod campaign;
mod seed;
mod services;
mod topology;

use std::process::ExitCode;

fn main() -> ExitCode {
    if std::env::var_os("RUST_LOG").is_some() {
        tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .without_time()
            .with_writer(std::io::stderr)
            .init();
    }
    campaign::run()
}
