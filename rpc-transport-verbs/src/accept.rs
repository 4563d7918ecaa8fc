//! The server's half of a connection's set-up, on the control thread.

use std::net::TcpStream;
use std::sync::Arc;

use rpc_core::transport::Admitted;

use crate::handshake::{HandshakeError, Offer};
use crate::mailbox::{LineKey, Mailbox, Notice, Prepared};
use crate::queue_pairs::{QueuePairError, QueuePairs};

/// How a listener gives connections to one poller's transport. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Port {
    queue_pairs: Arc<QueuePairs>,
    mailbox: Mailbox,
}

/// Why a client that the core had let in could not be prepared. What it says goes to the client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AcceptError {
    /// No device of one kind on both sides.
    #[error(
        "the two sides have no kind of device in common: the server has {server}, the client offers {client}"
    )]
    NoCommonDevice {
        /// This side's.
        server: String,
        /// The client's.
        client: String,
    },
    /// The server's device refused.
    #[error("the server's device: {0}")]
    QueuePair(#[from] QueuePairError),
    /// The poller's transport has been dropped.
    #[error("the server is shutting down")]
    Closed,
    /// The welcome cannot be sent.
    #[error("the server's welcome: {0}")]
    Welcome(#[from] HandshakeError),
}

impl Port {
    pub(crate) fn new(queue_pairs: Arc<QueuePairs>, mailbox: Mailbox) -> Self {
        Self {
            queue_pairs,
            mailbox,
        }
    }

    pub(crate) fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }

    /// Makes a queue pair for a client, brings it up, and tells the poller of it. Gives what the
    /// client is to be told.
    ///
    /// The poller knows of the connection before the client is told anything, so that a frame never
    /// comes before its connection.
    pub(crate) fn prepare(
        &self,
        client: &Offer,
        admitted: Admitted,
        line: Arc<TcpStream>,
        key: LineKey,
    ) -> Result<Offer, AcceptError> {
        let kind = self.queue_pairs.kind();
        let remote = client
            .endpoint(kind)
            .ok_or_else(|| AcceptError::NoCommonDevice {
                server: kind.to_owned(),
                client: client.kinds(),
            })?;
        let nascent = self.queue_pairs.create()?;
        let local = self.queue_pairs.endpoint(&nascent);
        let ready = self.queue_pairs.connect(nascent, remote)?;

        let slot_len = self.queue_pairs.plan().limits.slot_len;
        let welcome = Offer {
            endpoints: vec![local],
            max_frame_len: u32::try_from(slot_len).unwrap_or(u32::MAX),
            session: admitted.server_session.clone(),
        };
        let prepared = Prepared {
            ready,
            remote_frame_len: client.max_frame_len as usize,
            admitted,
            line,
            key,
        };
        self.mailbox
            .put(Notice::Prepared(Box::new(prepared)))
            .map_err(|_| AcceptError::Closed)?;
        Ok(welcome)
    }
}
