//! [`Admission`] decides which clients may connect.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The core's part of a handshake, on the server's side. Called by the listener's thread.
pub trait Admission: Send + Sync {
    /// Decides whether a client may connect, and to which poller it goes.
    ///
    /// `session` is what the client's core passed to
    /// [`Transport::connect`](super::Transport::connect): bytes from a peer.
    fn admit(&self, session: &[u8]) -> Result<Admitted, Refusal>;
}

/// A client that was let in.
#[derive(Debug)]
pub struct Admitted {
    /// Index of the port, among those given to [`Fabric::listen`](super::Fabric::listen).
    pub poller: usize,
    /// What the client's core had sent.
    pub client_session: Vec<u8>,
    /// What the client's core is told.
    pub server_session: Vec<u8>,
    /// Held for as long as the connection, or its attempt, lives.
    pub permit: Permit,
}

/// A place among the connections that a poller admits; dropping it frees the place.
#[derive(Debug)]
pub struct Permit(Arc<AtomicUsize>);

impl Permit {
    /// Takes a place: adds one to the count.
    #[must_use]
    pub fn of(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        // A count and nothing else: no memory is published through it.
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Why a client was not let in, in one sentence that it will show to its user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Refusal {
    /// One sentence: what was wrong and what to change.
    pub reason: String,
}
