//! [`Admission`]: decides which clients may connect.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Peer;

/// The core's part of a handshake on the server's side. Called by the listener's thread.
pub trait Admission: Send + Sync {
    /// Decides whether a client may connect, and to which poller it goes.
    ///
    /// `session` is what the client's core passed to
    /// [`Transport::connect`](super::Transport::connect): bytes from a peer.
    ///
    /// # Errors
    ///
    /// Returns [`Refusal`] if the client is rejected. Its reason is sent to the client.
    fn admit(&self, session: &[u8]) -> Result<Admitted, Refusal>;

    /// Returns false if every client is rejected now because there are as many connections as the
    /// server takes. The listener may then end the handshake of another client, and ask again when
    /// its [`ConnectionQuota`] is back.
    fn has_room(&self) -> bool {
        true
    }
}

/// A client that was accepted.
#[derive(Debug)]
pub struct Admitted {
    /// Index of the port, among those given to [`Fabric::listen`](super::Fabric::listen).
    pub poller: usize,
    /// The session parameters that the client's core sent.
    pub client_session: Vec<u8>,
    /// The session parameters to send to the client's core.
    pub server_session: Vec<u8>,
    /// What is known of the client's process. The core leaves it empty, and the transport fills it.
    pub peer: Option<Arc<Peer>>,
    /// Held for as long as the connection, or the attempt to establish it, lives.
    pub quota: ConnectionQuota,
}

/// One unit of a poller's connection limit. Dropping it returns the unit.
#[derive(Debug)]
pub struct ConnectionQuota(Arc<AtomicUsize>);

impl ConnectionQuota {
    /// Takes a unit: increments the count.
    #[must_use]
    pub fn acquire(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for ConnectionQuota {
    fn drop(&mut self) {
        // Release, because whoever finds room in this count relies on what was freed before.
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// The reason that a client was rejected, in one sentence to display to its user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Refusal {
    /// One sentence: what is wrong and how to fix it.
    pub reason: String,
}
