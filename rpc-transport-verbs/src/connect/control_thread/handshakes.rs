//! The stages of a handshake, and how many there may be.
//!
//! The accounts are those of [`Strangers`], by host: a client that is in its handshake is a stranger.
//! Until its GID is proven, it is as old as its connection: a hello costs a stranger nothing. Only a
//! complete message is progress. All users of a host count as one host, so over loopback, a user can
//! end the handshakes of another.
//!
//! A stage that waits for this side has no deadline, with two exceptions: the wait for a connection of
//! the server (`places.rs`), and the handshake of TLS, which belongs to the first stage.

use rpc_core::transport::Host;
use verbline_verbs::for_transport::strangers::{self, Limits, Rank, Strangers};

use crate::connect::handshake::frame::PROLOGUE_LEN;
use crate::connect::handshake::{MAX_HELLO_LEN, STAGE_TIMEOUT};
use crate::transport::security;

/// The limits if the process may open enough files. A thousand clients of one host that start
/// together fit. Over TCP, half as many do: the connection for a client's calls counts, too, until
/// its first bytes have come. Each handshake takes a socket, and at most the memory of a hello and of
/// one read after it: 17 MiB in all. With TLS, as much as one record of it may wait before that: 42 MiB,
/// and what the state of TLS takes.
const MAX_HANDSHAKES: usize = 2048;
const _: () = assert!(MAX_HANDSHAKES * (PROLOGUE_LEN + MAX_HELLO_LEN + READ_LEN) <= 17 << 20);
const _: () = assert!(MAX_HANDSHAKES * (security::MAX_WAITING + READ_LEN) <= 42 << 20);

/// The most bytes that are read from a client at a time.
pub(super) const READ_LEN: usize = 4096;

/// The clients that are in their handshake.
pub(super) type Handshakes = Strangers<Host, Stage>;

/// Returns the limits of a process that may open this many files. Handshakes take at most half of them,
/// and those of one host a quarter.
pub(super) fn limits_for_files(files: Option<u64>) -> Limits {
    let half = files.map_or(MAX_HANDSHAKES, |files| {
        usize::try_from(files / 2).unwrap_or(MAX_HANDSHAKES)
    });
    let total = half.clamp(4, MAX_HANDSHAKES);
    Limits {
        total,
        of_one: total / 2,
        time: STAGE_TIMEOUT,
    }
}

/// A stage of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The client was rejected and has not closed its socket yet.
    Rejected,
    /// The client has connected, and its hello has not arrived completely.
    Incoming,
    /// The client has to prove that the GID that it offers is its own.
    Challenged,
    /// The client was welcomed, and its `Ready` has not arrived.
    Welcomed,
    /// The client may be admitted as soon as the server has a connection left for it.
    Waiting,
    /// The client is admitted, and waits for its queue pair.
    Admitted,
}

impl strangers::Stage for Stage {
    fn rank(self) -> Rank {
        match self {
            Self::Rejected => Rank::Rejected,
            Self::Incoming | Self::Challenged => Rank::Unproven,
            Self::Welcomed => Rank::Welcomed,
            // Both wait for this side.
            Self::Waiting | Self::Admitted => Rank::Admitted,
        }
    }

    fn has_deadline(self) -> bool {
        self != Self::Admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_leave_half_of_the_files_to_others() {
        let limits = |files| {
            let Limits { total, of_one, .. } = limits_for_files(files);
            (total, of_one)
        };
        assert_eq!(limits(None), (2048, 1024));
        assert_eq!(limits(Some(1 << 40)), (2048, 1024));
        assert_eq!(limits(Some(1024)), (512, 256));
        assert_eq!(limits(Some(0)), (4, 2));
    }
}
