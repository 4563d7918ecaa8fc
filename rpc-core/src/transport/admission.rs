//! [`Admission`]: decides which clients may connect.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fmt, mem};

use super::{ConnectionId, Host, Peer};
use crate::peer::TrustForwarded;

/// The core's part of a handshake on the server's side. Called by the listener's thread.
pub trait Admission: Send + Sync {
    /// Decides whether a client may be admitted at all, by what is known of it: where it has connected
    /// from, and its certificate. Called once for each client, before it takes or waits for a place.
    ///
    /// # Errors
    ///
    /// As for [`admit`](Self::admit).
    fn permits(&self, _peer: &Peer) -> Result<(), Refusal> {
        Ok(())
    }

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
    /// What is known of the client's process: see [`set_peer`](Self::set_peer).
    pub peer: Option<Arc<Peer>>,
    /// Whether the client is believed when it names clients of its own.
    pub(crate) trust_forwarded: TrustForwarded,
    /// Held for as long as the connection, or the attempt to establish it, lives.
    pub quota: ConnectionQuota,
}

impl Admitted {
    /// Accepts a client, of which nothing is known yet. It cannot name clients of its own.
    #[must_use]
    pub fn new(
        poller: usize,
        client_session: Vec<u8>,
        server_session: Vec<u8>,
        quota: ConnectionQuota,
    ) -> Self {
        Self {
            poller,
            client_session,
            server_session,
            peer: None,
            trust_forwarded: TrustForwarded::default(),
            quota,
        }
    }

    /// Sets what is known of the client's process. The core leaves it out, and the transport calls this.
    pub fn set_peer(&mut self, peer: Peer) {
        self.peer = Some(Arc::new(self.trust_forwarded.decide(peer)));
    }
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

/// A listener's request to a poller of a server that has as many connections as it takes: to end some
/// that are not in use, in favor of new clients. It is answered once, also if it is dropped.
pub struct RoomWanted {
    clients: Vec<Host>,
    places: HashMap<Host, usize>,
    looks: u32,
    answer: Option<Box<dyn FnOnce(RoomMade) + Send>>,
}

/// The answer to [`RoomWanted`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoomMade {
    /// Connections that are being ended.
    pub ended: usize,
    /// Other connections may be ended soon.
    pub may_follow: bool,
}

impl RoomWanted {
    /// Creates a request for these clients, by their hosts, the one that has waited longest first.
    /// `places` are the connections of the server that each host has. The clients wait for a connection
    /// that may be ended soon if `looks` requests before this one have found that, too.
    #[must_use]
    pub fn new(
        clients: Vec<Host>,
        places: HashMap<Host, usize>,
        looks: u32,
        answer: impl FnOnce(RoomMade) + Send + 'static,
    ) -> Self {
        Self {
            clients,
            places,
            looks,
            answer: Some(Box::new(answer)),
        }
    }

    /// Takes the hosts of the clients that wait, and the connections of the server that each host has.
    #[must_use]
    pub fn take_hosts(&mut self) -> (Vec<Host>, HashMap<Host, usize>) {
        (mem::take(&mut self.clients), mem::take(&mut self.places))
    }

    /// Returns the number of requests before this one that have to have found that a connection may be
    /// ended soon, if the clients are to wait for it.
    #[must_use]
    pub fn looks(&self) -> u32 {
        self.looks
    }

    /// Answers the request.
    pub fn answer(mut self, made: RoomMade) {
        if let Some(answer) = self.answer.take() {
            answer(made);
        }
    }
}

impl Drop for RoomWanted {
    fn drop(&mut self) {
        if let Some(answer) = self.answer.take() {
            answer(RoomMade::default());
        }
    }
}

impl fmt::Debug for RoomWanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RoomWanted")
            .field("clients", &self.clients)
            .finish_non_exhaustive()
    }
}

/// The connections whose peers keep this side waiting: for the rest of a message, or for the
/// acknowledgement of a frame.
#[derive(Debug, Default)]
pub struct Stalled {
    /// Those that have done so for a while.
    pub connections: Vec<ConnectionId>,
    /// Others may be among them soon.
    pub may_follow: bool,
}

/// The reason that a client was rejected, in one sentence to display to its user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Refusal {
    /// One sentence: what is wrong and how to fix it.
    pub reason: String,
}
