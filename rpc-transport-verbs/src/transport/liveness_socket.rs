//! [`LivenessSocket`]: the liveness socket. Through it, each process of a connection learns that
//! the other process has ended.

use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
#[cfg(feature = "test-util")]
use std::sync::atomic::{AtomicBool, Ordering};

/// A connection's TCP connection, which stays open as long as both sides live.
#[derive(Debug)]
pub(crate) enum LivenessSocket {
    /// Watched by the control thread.
    Tcp(Arc<TcpStream>),
    /// Watched by the simulation.
    #[cfg(feature = "test-util")]
    Simulated(SimulatedSocket),
}

impl LivenessSocket {
    /// Shuts down the socket. The peer sees its end, and its watcher on this side removes it.
    pub(crate) fn shut_down(&self) {
        match self {
            // An error means that the socket is already closed.
            Self::Tcp(stream) => drop(stream.shutdown(Shutdown::Both)),
            #[cfg(feature = "test-util")]
            Self::Simulated(socket) => socket.shut_down(),
        }
    }
}

impl From<Arc<TcpStream>> for LivenessSocket {
    fn from(stream: Arc<TcpStream>) -> Self {
        Self::Tcp(stream)
    }
}

/// The liveness connection of one connection. It ends at once for both sides, but each side learns
/// of its end only when the world reports it.
#[cfg(feature = "test-util")]
#[derive(Clone, Debug, Default)]
pub struct SimulatedSocket {
    has_ended: Arc<AtomicBool>,
}

#[cfg(feature = "test-util")]
impl SimulatedSocket {
    /// Ends the connection for both sides.
    pub(crate) fn shut_down(&self) {
        // Relaxed: a simulation has one thread. The flag is atomic only because real liveness
        // sockets may move between threads.
        self.has_ended.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }
}
