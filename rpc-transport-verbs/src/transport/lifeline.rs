//! [`Lifeline`]: what tells a connection's two processes of each other's end.

use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
#[cfg(feature = "test-util")]
use std::sync::atomic::{AtomicBool, Ordering};

/// A connection's TCP connection, which stays open for as long as both sides live.
#[derive(Debug)]
pub(crate) enum Lifeline {
    /// It is watched by the control thread.
    Tcp(Arc<TcpStream>),
    /// It is watched by the simulation.
    #[cfg(feature = "test-util")]
    Simulated(SimulatedLine),
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

/// One connection's lifeline. It ends at once, and either side learns of it when the world says so.
#[cfg(feature = "test-util")]
#[derive(Clone, Debug, Default)]
pub struct SimulatedLine {
    has_ended: Arc<AtomicBool>,
}

#[cfg(feature = "test-util")]
impl SimulatedLine {
    /// Ends it for both sides.
    pub(crate) fn hang_up(&self) {
        // One thread: atomic only because a lifeline may go from thread to thread elsewhere.
        self.has_ended.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }
}
