//! [`ChannelError`]: the reasons that a channel, or its pollers, could not be created.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::transport::{Attempt, ConnectError, FORKED, FabricError, Remedy};

/// The reason that a channel, or its pollers, could not be created.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// The device failed.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// A poller's thread could not be started.
    #[error("cannot start a poller thread: {0}{remedy}", remedy = Remedy(Attempt::Local, .0))]
    Thread(io::Error),
    /// The first attempt to connect failed.
    #[error(transparent)]
    Connect(Arc<ConnectError>),
    /// The pollers that channels share have no connection left for another one.
    #[error(
        "all {connections} connections of each poller are in use: raise `connections` of the pollers, or drop channels that are not used"
    )]
    NoConnection {
        /// The number of connections that each poller supports.
        connections: u32,
    },
    /// The process was forked after the device was opened.
    #[error("{FORKED}")]
    Forked,
    /// A poller's thread has panicked, because of a bug in this library or in the device's.
    #[error("a poller thread has panicked. This is a bug in Verbline or in the device's library")]
    PollerPanicked,
}

impl From<io::Error> for ChannelError {
    fn from(error: io::Error) -> Self {
        Self::Thread(error)
    }
}

/// Prints the same sentence as `Display`, because a `main` that returns an error prints it with
/// `Debug`.
impl fmt::Debug for ChannelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
