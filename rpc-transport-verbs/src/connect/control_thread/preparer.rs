//! The threads that create queue pairs for clients.
//!
//! A device may be slow to connect one: for an address that does not answer, a kernel takes about a
//! second. On the control thread, that would stop all other handshakes and keepalives.

use std::net::TcpStream;
use std::sync::Arc;

use rpc_core::transport::Admitted;

use super::workers::Job;
use super::{Command, Token};
use crate::connect::handshake::Offer;
use crate::connect::server::{ClientInRts, Origin, Port};
use crate::transport::notices::{LivenessEnd, LivenessKey, Notice};
use crate::transport::queue_pairs::AwaitedClaim;

/// Number of threads: this many slow clients can be handled at a time before other clients have to
/// wait.
pub(super) const PREPARERS: usize = 4;

/// A client that needs a queue pair.
pub(super) struct Preparation {
    pub(super) token: Token,
    pub(super) port: Port,
    pub(super) offer: Offer,
    pub(super) origin: Origin,
    pub(super) admitted: Admitted,
    /// Keeps the device from dialing the client's process, which might not answer.
    pub(super) claim: Option<AwaitedClaim>,
    pub(super) stream: Arc<TcpStream>,
}

/// The result of a preparation.
pub(super) struct Prepared {
    pub(super) key: LivenessKey,
    /// The connection in RTS, or the reason to send to the client.
    pub(super) outcome: Result<ClientInRts, String>,
}

impl Prepared {
    /// Discards the result because its client is gone. The poller already knows the connection, so
    /// it is notified of the end.
    pub(super) fn discard(self) {
        if let Ok(client_in_rts) = self.outcome {
            let _ = client_in_rts
                .notice_sender
                .send(Notice::Ended(self.key, LivenessEnd::Gone));
        }
    }
}

impl Job for Preparation {
    fn token(&self) -> Token {
        self.token
    }

    fn run(self) -> Command {
        let (token, key) = (self.token, LivenessKey::next());
        // The only reference to a socket is that of the job if its client is gone.
        let outcome = if Arc::strong_count(&self.stream) == 1 {
            Err("the client is gone".to_owned())
        } else {
            self.port
                .create_queue_pair(
                    &self.offer,
                    Some(self.origin),
                    self.admitted,
                    self.stream,
                    key,
                )
                .map_err(|error| error.to_string())
        };
        drop(self.claim);
        Command::Prepared(token, Prepared { key, outcome })
    }
}
