//! [`Lifeline`]: the liveness socket, which tells each process of a connection when the other one
//! ends.

use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

/// A connection's TCP connection, which stays open as long as both sides live.
#[derive(Debug)]
pub(crate) enum Lifeline {
    /// Watched by the control thread.
    Tcp(Arc<TcpStream>),
    /// Watched by the simulation.
    #[cfg(feature = "test-util")]
    Simulated(crate::sim::SimulatedLine),
}

impl Lifeline {
    /// Shuts down the socket. The peer sees its end, and its watcher on this side removes it.
    pub(crate) fn hang_up(&self) {
        match self {
            // An error means that the socket is already closed.
            Self::Tcp(stream) => drop(stream.shutdown(Shutdown::Both)),
            #[cfg(feature = "test-util")]
            Self::Simulated(line) => line.hang_up(),
        }
    }
}

impl From<Arc<TcpStream>> for Lifeline {
    fn from(stream: Arc<TcpStream>) -> Self {
        Self::Tcp(stream)
    }
}
