//! Errors say why a transport could not do what was asked of it, and why a connection ended.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Why a connection ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum CloseReason {
    /// This side closed it.
    Local,
    /// The peer closed it, or its process ended.
    PeerGone,
    /// The peer, a server, shuts down: no more calls are begun on the connection. Those under way may
    /// still be answered before it ends.
    GoingAway,
    /// The device failed the connection.
    Failed(Arc<dyn Error + Send + Sync>),
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("closed by this side"),
            Self::PeerGone => f.write_str("the peer closed the connection or its process ended"),
            Self::GoingAway => f.write_str("the server is shutting down"),
            Self::Failed(error) => write!(f, "the connection failed: {error}"),
        }
    }
}

/// Why no buffer could be reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReserveError {
    /// Every send slot, or every slot of this connection's send queue, is in flight. Some come
    /// back as the device completes sends: poll, then try again.
    #[error("no send slot is free at the moment")]
    NoSlot,
    /// The frame is longer than a slot. Never worth another try.
    #[error("a frame of {len} bytes is longer than the {limit} bytes of a slot")]
    TooLong {
        /// Bytes asked for.
        len: usize,
        /// The most that this connection takes: the smaller of both sides' slots.
        limit: usize,
    },
    /// The connection has ended, or is about to be reported as such.
    #[error("the connection has ended")]
    Closed,
}

/// The connection ended before the frame could be given to the device: it was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the connection has ended; the frame was not sent")]
pub struct SendError;

/// Why a connection could not be made. Nothing was sent, so every such call is safe to repeat.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address could not be read or resolved.
    #[error("'{address}' is not an address to connect to (wanted host:port): {source}")]
    Address {
        /// As it was given.
        address: String,
        /// What the resolver said.
        source: io::Error,
    },
    /// Nobody listens there, or it cannot be reached.
    #[error("no server answers at {address}: {source}. Is it running, and is this its port?")]
    Unreachable {
        /// As it was given.
        address: String,
        /// What the socket said.
        source: io::Error,
    },
    /// Something answered, but not as a Verbline server does.
    #[error("{address} does not answer as a Verbline server: {reason}")]
    NotVerbline {
        /// As it was given.
        address: String,
        /// What was wrong with its answer.
        reason: String,
    },
    /// The two sides speak different protocol versions.
    #[error(
        "{address} speaks version {remote} of the protocol, this side speaks {local}: upgrade the older one"
    )]
    Version {
        /// As it was given.
        address: String,
        /// This side's.
        local: u32,
        /// The server's.
        remote: u32,
    },
    /// The server answered and said no.
    #[error("{address} refused the connection: {reason}")]
    Refused {
        /// As it was given.
        address: String,
        /// The server's sentence.
        reason: String,
    },
    /// The server did not answer in time.
    #[error(
        "{address} accepted the connection but did not finish the handshake within {timeout:?}"
    )]
    TimedOut {
        /// As it was given.
        address: String,
        /// How long was waited.
        timeout: Duration,
    },
    /// This side's device could not set the connection up.
    #[error("the device could not connect to {address}: {source}")]
    Device {
        /// As it was given.
        address: String,
        /// What the device said.
        source: Box<dyn Error + Send + Sync>,
    },
}

/// The sentence: a `main` that returns an error prints it with `Debug`.
impl fmt::Debug for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a device could not do what was asked at set-up.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// The listening socket could not be opened.
    #[error(
        "cannot listen at {address}: {source} (wanted host:port of this machine, with a port that no other server has; 0 lets the system choose)"
    )]
    Listen {
        /// As it was given.
        address: String,
        /// What the socket said.
        source: io::Error,
    },
    /// The device refused.
    #[error("the device '{device}' {action}: {source}")]
    Device {
        /// The device's name.
        device: String,
        /// What could not be done: "cannot register 4 MiB".
        action: String,
        /// What it said.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The intents do not fit the device, or each other.
    #[error("{setting} = {value} does not fit: {reason}")]
    Intent {
        /// The name of the setter.
        setting: &'static str,
        /// What it was set to.
        value: u64,
        /// Why not, with the limit.
        reason: String,
    },
}

/// The sentence: a `main` that returns an error prints it with `Debug`.
impl fmt::Debug for FabricError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
