//! Attacks a server, and reports what its clients notice:
//!
//! ```text
//! make attacks
//! make attacks NAMES='block slots'
//! make attacks TCP=1
//! ```
//!
//! A *stranger* is a process of another user of the host. A *neighbour* is a process of the same
//! user that is hostile rather than mistaken. Neither uses Verbline's own transport: they write the
//! frames, the messages and the shared memory themselves, so that they can write them wrong. Root is
//! needed to start processes of another user, and to see where a server's threads wait.
//!
//! - [`campaign`]: attacks in turn with their controls;
//! - [`attack`]: the attacks by name;
//! - [`strangers`], [`neighbours`], [`over_tcp`], [`dead_calls`]: the attacks;
//! - [`formats`]: the bytes of the handshake, of the links and of shared memory, and nothing else;
//! - [`peer`]: a neighbour's connection that was set up by the rules; [`tcp_peer`]: the same over TCP;
//! - [`role`]: the processes of a campaign; [`limit`]: keeps an attacker to a share of a core;
//! - `over_tls`: attacks on a server with TLS, with the feature `tls`;
//! - [`devices`]: what the server and its clients open, with TLS or without;
//! - [`victims`]: clients that should not notice anything;
//! - [`watch`]: what the attacked process shows from outside.
#![forbid(unsafe_code)]
// Printing is the purpose of this program.
#![allow(clippy::print_stderr)]

mod attack;
mod campaign;
mod dead_calls;
mod devices;
mod formats;
mod limit;
mod neighbours;
mod over_tcp;
#[cfg(feature = "tls")]
mod over_tls;
mod peer;
mod role;
mod strangers;
mod tcp_peer;
mod victims;
mod watch;

use std::process::ExitCode;

use clap::Parser;

/// Attacks a server, and reports what its clients notice
#[derive(Parser)]
#[command(name = "attacks")]
struct Cli {
    #[command(flatten)]
    campaign: campaign::Campaign,
}

fn main() -> ExitCode {
    let outcome = match benches::role::played::<role::Role>() {
        Some(role) => role.and_then(|role| role.run()).map(|()| true),
        None => Cli::parse().campaign.run(),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("attacks: {error}");
            ExitCode::FAILURE
        }
    }
}
