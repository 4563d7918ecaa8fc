//! [`Attack`]: the attacks by name, who makes each, and against which server.

use std::fmt;
use std::time::Duration;

use benches::Outcome;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::tcp_peer::TcpPeer;
use crate::{dead_calls, neighbours, over_tcp, peer, strangers};

/// An attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Attack {
    /// A stranger offers the name of a socket whose backlog is full
    Block,
    /// A stranger takes all connections by offering the server's own GID
    Slots,
    /// A stranger opens links until the server has no files left
    Files,
    /// A neighbour fills the wake file that the server writes, and makes it block
    Blockwake,
    /// A neighbour makes the server's own wake files block, and empties them before the server does
    Blockread,
    /// Honest calls whose deadline passes while the server's poller is blocked
    Deadcalls,
    /// A neighbour clears its announcements to the server's context, and the context's sleep note
    ClearPage,
    /// Peers that never read their links fill the kernel's quota of files in flight
    Refs,
    /// A neighbour announces large arenas that have no memory
    Sparse,
    /// A neighbour announces as many arenas as a process may have mappings
    Maps,
    /// A stranger takes the last files of a server, while an honest client attaches
    Fewfiles,
    /// A stranger opens TCP connections and sends nothing
    Halfopen,
    /// A neighbour passes a regular file where the server expects a wake file
    Notafile,
    /// A stranger begins handshakes over TCP whose links it never dials, and guesses secrets
    Unclaimed,
    /// A stranger sends messages over TCP that no honest peer sends
    Lies,
    /// A stranger stops in the middle of messages over TCP
    Halves,
    /// Peers over TCP that read no response
    Deaf,
    /// A stranger connects over TCP by the rules, and makes no call
    Silent,
    /// A stranger on another host connects over TCP by the rules, and makes one call on each connection
    Onecall,
    /// A stranger stops in the middle of the first message of TLS, on 10,000 connections
    #[cfg(feature = "tls")]
    Halfhello,
    /// A stranger begins 1000 handshakes of TLS a second, and hears nothing of the answer
    #[cfg(feature = "tls")]
    Hellos,
}

/// The user and group of strangers: `nobody`, which has no rights.
pub(crate) const NOBODY: u32 = 65534;

impl Attack {
    /// The attacks on the device `soft`.
    pub(crate) const ON_SOFT: &[Self] = &[
        Self::Block,
        Self::Slots,
        Self::Files,
        Self::Blockwake,
        Self::Blockread,
        Self::Deadcalls,
        Self::ClearPage,
        Self::Refs,
        Self::Sparse,
        Self::Maps,
        Self::Fewfiles,
        Self::Halfopen,
        Self::Notafile,
    ];

    /// The attacks on the device `tcp`.
    pub(crate) const ON_TCP: &[Self] = &[
        Self::Halfopen,
        Self::Unclaimed,
        Self::Lies,
        Self::Halves,
        Self::Deaf,
        Self::Silent,
        Self::Onecall,
        Self::Deadcalls,
        Self::Fewfiles,
    ];

    /// The attacks on a server with TLS.
    #[cfg(feature = "tls")]
    pub(crate) const ON_TLS: &[Self] = &[Self::Halfhello, Self::Hellos];

    /// Returns the user of the attacker; `None` for the user of this process.
    #[must_use]
    pub(crate) fn attacker(self) -> Option<u32> {
        match self {
            Self::Block
            | Self::Slots
            | Self::Files
            | Self::Refs
            | Self::Fewfiles
            | Self::Halfopen
            | Self::Unclaimed
            | Self::Lies
            | Self::Halves
            | Self::Deaf
            | Self::Silent
            | Self::Onecall => Some(NOBODY),
            #[cfg(feature = "tls")]
            Self::Halfhello | Self::Hellos => Some(NOBODY),
            Self::Blockwake
            | Self::Blockread
            | Self::Deadcalls
            | Self::ClearPage
            | Self::Sparse
            | Self::Maps
            | Self::Notafile => None,
        }
    }

    /// Returns the user of the server and of its clients; `None` for the user of this process. The
    /// kernel does not limit the files in flight of root.
    #[must_use]
    pub(crate) fn server(self) -> Option<u32> {
        (self == Self::Refs).then_some(NOBODY)
    }

    /// Returns the number of files that the server may open, if the attack needs a limit.
    #[must_use]
    pub(crate) fn server_files(self) -> Option<u64> {
        match self {
            // A usual limit.
            Self::Files => Some(1024),
            Self::Refs => Some(256),
            Self::Fewfiles => Some(64),
            _ => None,
        }
    }

    /// Attacks for the given time. Returns what the attacker saw, for people.
    ///
    /// # Errors
    ///
    /// Fails if the attack could not be tried at all.
    pub(crate) fn run(self, target: &Target, time: Duration) -> Outcome<String> {
        match self {
            Self::Block => strangers::block(target, time),
            Self::Slots => strangers::slots(target, time),
            Self::Files => strangers::files(target, time),
            Self::Refs => strangers::refs(target, time),
            Self::Fewfiles => strangers::few_files(target, time),
            Self::Halfopen => strangers::half_open(target, time),
            Self::Blockwake => neighbours::block_wake(target, time),
            Self::Blockread => neighbours::block_read(target, time),
            Self::Deadcalls => dead_calls::run(target),
            Self::ClearPage => neighbours::clear(target, time),
            Self::Sparse => neighbours::sparse(target, time),
            Self::Maps => neighbours::maps(target, time),
            Self::Notafile => neighbours::not_a_file(target, time),
            Self::Unclaimed => over_tcp::unclaimed(target, time),
            Self::Lies => over_tcp::lies(target, time),
            Self::Halves => over_tcp::halves(target, time),
            Self::Deaf => over_tcp::deaf(target, time),
            #[cfg(feature = "tls")]
            Self::Halfhello => crate::over_tls::half_hellos(target, time),
            #[cfg(feature = "tls")]
            Self::Hellos => crate::over_tls::hellos(target, time),
            Self::Silent => {
                let silent = || TcpPeer::connect_silently(target, peer::tcp);
                let made = over_tcp::crowd(time, silent)?;
                Ok(format!("{made} connections without a call"))
            }
            Self::Onecall => {
                let one_call = || TcpPeer::connect(target, peer::tcp_from_another_host);
                let made = over_tcp::crowd(time, one_call)?;
                Ok(format!("{made} connections with one call"))
            }
        }
    }
}

impl fmt::Display for Attack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to_possible_value() {
            Some(value) => f.write_str(value.get_name()),
            None => Ok(()),
        }
    }
}

/// The attacked server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Target {
    /// Address of the server
    pub(crate) address: String,
    /// Name of the server's device
    pub(crate) device: String,
    /// Process id of the server
    pub(crate) pid: u32,
}
