//! [`Role`]: the processes that a campaign starts.

use std::hint;
use std::thread;
use std::time::Duration;

#[cfg(feature = "tls")]
use benches::service::ServerArgs;
use benches::{Outcome, child, role};
use serde::{Deserialize, Serialize};

use crate::attack::{Attack, Target};
use crate::devices::ClientDevice;
#[cfg(feature = "tls")]
use crate::devices::Pem;
use crate::victims::{good_client, new_client};

/// What a process of a campaign does.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Role {
    /// Attacks the server.
    Attacker {
        attack: Attack,
        target: Target,
        time: Duration,
    },
    /// Uses its share of a core for nothing.
    Idler,
    /// Makes a call each millisecond.
    Good {
        device: ClientDevice,
        address: String,
        time: Duration,
        reconnects: bool,
    },
    /// Makes one call on a new connection.
    New {
        device: ClientDevice,
        address: String,
    },
    /// Serves with TLS.
    #[cfg(feature = "tls")]
    Secured(ServerArgs, Pem),
    /// Serves.
    #[serde(untagged)]
    Server(role::Role),
}

impl Role {
    pub(crate) fn run(self) -> Outcome<()> {
        match self {
            Self::Attacker {
                attack,
                target,
                time,
            } => run_attack(attack, &target, time),
            Self::Idler => spin(),
            Self::Good {
                device,
                address,
                time,
                reconnects,
            } => good_client(&device, &address, time, reconnects),
            Self::New { device, address } => new_client(&device, &address),
            #[cfg(feature = "tls")]
            Self::Secured(args, pem) => args.serve_on(|name| pem.server(name)),
            Self::Server(role) => role.run(),
        }
    }
}

/// Runs the attack of an attacker's process, and prints what it saw.
fn run_attack(attack: Attack, target: &Target, time: Duration) -> Outcome<()> {
    child::end_with_parent()?;
    // A server that answers late must not keep the attacker for ever.
    thread::spawn(move || {
        thread::sleep(time + Duration::from_secs(20));
        std::process::exit(1);
    });
    let seen = match attack.run(target, time) {
        Ok(seen) => seen,
        Err(error) => format!("gave up: {error}"),
    };
    Ok(child::write_line_to_parent(&seen.replace('\n', " "))?)
}

/// Uses a core.
fn spin() -> Outcome<()> {
    child::end_with_parent()?;
    loop {
        hint::spin_loop();
    }
}
