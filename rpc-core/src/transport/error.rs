//! Errors: the reasons that a transport operation failed, and that a connection ended.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::VersionRange;
use super::fabric::FORKED;
use super::remedy::{Attempt, Remedy};
use crate::limits::Bytes;

/// The reason that a connection ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum CloseReason {
    /// This side closed it.
    Local,
    /// The peer closed it, or its process ended.
    PeerGone,
    /// The peer, a server, is shutting down, or ends this connection because of its age. No more calls are
    /// started on the connection. Calls in flight may still receive responses before it ends.
    GoingAway,
    /// The peer, a server that had no connection left, has given this one to a new client.
    Evicted,
    /// The connection failed. The error comes from the device, or reports a silent peer or a
    /// protocol violation.
    Failed(Arc<dyn Error + Send + Sync>),
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("closed by this side"),
            Self::PeerGone => f.write_str("the peer closed the connection or its process ended"),
            Self::GoingAway => f.write_str(
                "the server is shutting down, or the connection has reached its `max_connection_age`",
            ),
            Self::Evicted => f.write_str(
                "the server has no connection left, and has given this one, which was not in use, to a new \
                 client: raise `connections` on the server",
            ),
            Self::Failed(error) => write!(f, "the connection failed: {error}"),
        }
    }
}

/// The reason that no buffer could be reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReserveError {
    /// All send slots, or all slots of this connection's send queue, are in flight. Slots become
    /// free as the device completes sends: poll, then try again.
    #[error("no send slot is free; retry after the next poll")]
    NoSlot,
    /// The frame is longer than a slot. A retry cannot succeed.
    #[error("a frame of {len} bytes exceeds the slot length of {limit} bytes")]
    TooLong {
        /// Bytes requested.
        len: usize,
        /// The longest frame on this connection: the smaller of both sides' slots.
        limit: usize,
    },
    /// The connection has ended, even if the event has not been reported yet.
    #[error("the connection has ended")]
    Closed,
}

/// The connection ended before the frame was posted to the device. The frame was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the connection has ended; the frame was not sent")]
pub struct SendError;

/// The reason that no connection could be established. No request was sent, so every affected call
/// is safe to retry. It prints as one sentence, with the reason of the layer below.
#[non_exhaustive]
pub enum ConnectError {
    /// The address is not a host and a port.
    Address {
        /// The address as the application specified it.
        address: String,
        /// What is wrong with it.
        source: io::Error,
    },
    /// The host's name could not be resolved.
    Unresolved {
        /// The address as the application specified it.
        address: String,
        /// The resolver's error.
        source: io::Error,
    },
    /// Nothing listens at the address, or it is unreachable.
    Unreachable {
        /// The address as the application specified it.
        address: String,
        /// The socket's error.
        source: io::Error,
    },
    /// The peer's replies are not those of a compatible Verbline server.
    NotVerbline {
        /// The address as the application specified it.
        address: String,
        /// What is wrong with the peer's reply.
        reason: String,
    },
    /// The two sides speak no version of the protocol in common.
    Version {
        /// The address as the application specified it.
        address: String,
        /// The versions that this side speaks.
        local: VersionRange,
        /// The versions that the server speaks.
        remote: VersionRange,
    },
    /// The server rejected the connection.
    Refused {
        /// The address as the application specified it.
        address: String,
        /// The server's reason, in one sentence.
        reason: String,
    },
    /// The server has not proved who it is, or does not believe this side, or a connection cannot be
    /// secured at all: TLS has failed.
    Security {
        /// The address as the application specified it.
        address: String,
        /// What has failed, and what to do about it.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The server did not complete the handshake in time.
    TimedOut {
        /// The address as the application specified it.
        address: String,
        /// The time limit.
        timeout: Duration,
        /// The stage of the handshake that was reached, as part of a sentence.
        reached: String,
    },
    /// This side's device could not set up the connection.
    Device {
        /// The address as the application specified it.
        address: String,
        /// The device's error.
        source: Box<dyn Error + Send + Sync>,
    },
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address { address, source } => {
                write!(
                    f,
                    "'{address}' is not a valid address (expected host:port): {source}"
                )
            }
            Self::Unresolved { address, source } => write!(
                f,
                "the host name in '{address}' could not be resolved: {source}{}",
                Remedy(Attempt::Resolve, source)
            ),
            Self::Unreachable { address, source } => write!(
                f,
                "cannot reach a server at {address}: {source}{}",
                Remedy(Attempt::Connect, source)
            ),
            Self::NotVerbline { address, reason } => write!(
                f,
                "{address} did not complete the handshake as a Verbline server does: {reason}. Check that \
                 the address is a Verbline server's, that its process has not ended, and that both sides run \
                 compatible versions"
            ),
            Self::Version {
                address,
                local,
                remote,
            } => write!(
                f,
                "{address} speaks {remote} of the protocol, this side speaks {local}: upgrade the older \
                 side"
            ),
            Self::Refused { address, reason } => {
                write!(f, "{address} refused the connection: {reason}")
            }
            Self::Security { address, source } => {
                write!(f, "no secure connection with {address}: {source}")
            }
            Self::TimedOut {
                address,
                timeout,
                reached,
            } => write!(
                f,
                "{address} accepted the TCP connection but did not complete the handshake within \
                 {timeout:?}, the `connect_timeout`: {reached}. Check that it is a Verbline server whose \
                 process runs"
            ),
            Self::Device { address, source } => write!(
                f,
                "the local device could not set up the connection to {address}: {source}{}",
                Remedy(Attempt::Local, &**source)
            ),
        }
    }
}

impl Error for ConnectError {
    /// Returns what lies below the error that the sentence already contains.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Address { source, .. }
            | Self::Unresolved { source, .. }
            | Self::Unreachable { source, .. } => source.source(),
            Self::Device { source, .. } | Self::Security { source, .. } => source.source(),
            _ => None,
        }
    }
}

/// Prints the same sentence as `Display`, because a `main` that returns an error prints it with
/// `Debug`.
impl fmt::Debug for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The reason that a device could not be set up. It prints as one sentence, with the reason of the layer
/// below.
#[non_exhaustive]
pub enum FabricError {
    /// The listening socket could not be opened.
    Listen {
        /// The address as the application specified it.
        address: String,
        /// The socket's error.
        source: io::Error,
    },
    /// A socket that the application has bound cannot listen.
    Socket(io::Error),
    /// An operation of the device failed.
    Device {
        /// The device's name.
        device: String,
        /// The operation that failed: "cannot register 4 MiB".
        action: String,
        /// The device's error.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The intents exceed the device's limits or contradict each other, or a setting has a value with
    /// which nothing works.
    Intent {
        /// The name of the setter.
        setting: &'static str,
        /// The value it was set to.
        value: u64,
        /// The reason, with the limit.
        reason: String,
    },
    /// The memory for a poller's slots is not there. None of it was touched.
    Memory {
        /// Bytes that the poller would register.
        needed: u64,
        /// Bytes that are left.
        available: u64,
        /// The memory of the machine, or the limit of a control group.
        bound: String,
    },
    /// A poller cannot be pinned to the core that the application has named.
    Pin {
        /// The core.
        core: usize,
        /// The system's error.
        source: io::Error,
    },
    /// The process was forked after the device was opened.
    Forked,
}

impl fmt::Display for FabricError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen { address, source } => write!(
                f,
                "cannot listen at {address}: {source}{}",
                Remedy(Attempt::Listen, source)
            ),
            Self::Socket(source) => write!(
                f,
                "cannot listen on the socket that was passed to `listen_on`: {source}. Pass a TCP socket \
                 that is bound or listens, and is not connected"
            ),
            Self::Device {
                device,
                action,
                source,
            } => write!(
                f,
                "the device '{device}' {action}: {source}{}",
                Remedy(Attempt::Local, &**source)
            ),
            Self::Intent {
                setting,
                value,
                reason,
            } => write!(f, "{setting} = {value} does not fit: {reason}"),
            Self::Memory {
                needed,
                available,
                bound,
            } => write!(
                f,
                "a poller needs {} of memory for its slots, and {} are left of {bound}: lower `connections` or \
                 `max_in_flight`, set `max_memory`, use fewer pollers, or provide more memory",
                Bytes(*needed),
                Bytes(*available)
            ),
            Self::Pin { core, source } => write!(
                f,
                "cannot pin a poller to core {core}: {source}. Set `cores` to cores that this process may \
                 use, or to an empty list to disable pinning"
            ),
            Self::Forked => f.write_str(FORKED),
        }
    }
}

impl Error for FabricError {
    /// Returns what lies below the error that the sentence already contains.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Listen { source, .. } | Self::Socket(source) | Self::Pin { source, .. } => {
                source.source()
            }
            Self::Device { source, .. } => source.source(),
            Self::Intent { .. } | Self::Memory { .. } | Self::Forked => None,
        }
    }
}

/// Prints the same sentence as `Display`, because a `main` that returns an error prints it with
/// `Debug`.
impl fmt::Debug for FabricError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
