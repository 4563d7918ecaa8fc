//! The fault campaign: random calls between simulated processes with injected faults, from seeds.
//!
//! ```sh
//! make faults                # 10,000 seeds
//! SEEDS=200000 make faults   # more
//! FIRST=10000 make faults    # 10,000 fresh ones
//! SEED=17 make faults        # one, replayed exactly; RUST_LOG=debug logs its events
//! ```
//!
//! Every seed is a separate world on one thread. `rpc_transport_verbs::testing::simulation` defines
//! what is simulated; [`conditions`], [`topology`] and [`long`] what is random in a world; [`calls`]
//! and [`mixed`] the calls; [`outcomes`] and [`seed`] the properties that have to hold. Each core
//! runs its share of the seeds in a process of its own, so a seed that crashes its process is
//! known, and files that are left open are counted exactly.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program that is run by a person"
)]

mod calls;
mod campaign;
mod conditions;
mod long;
mod mixed;
mod outcomes;
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
