//! [`Lifeline`]: what tells a connection's two processes of each other's end.

use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

/// A connection's TCP connection, which stays open for as long as both sides live.
#[derive(Debug)]
pub(crate) enum Lifeline {
    /// It is watched by the control thread.
    Tcp(Arc<TcpStream>),
    /// It is watched by the simulation.
    #[cfg(feature = "test-util")]
    Simulated(crate::testing::simulation::SimulatedLine),
}

impl Lifeline {
    /// Ends it, for the peer to see and for whoever watches it to take it out.
    pub(crate) fn hang_up(&self) {
        match self {
            // An error means that it has ended already.
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
