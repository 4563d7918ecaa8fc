//! What makes a connection one that nobody else can read or take part in, such as TLS: its handshake, as
//! a state machine over bytes, and the records that follow.
//!
//! The control thread and dialing threads use these traits. So they, and what they are tested with, are
//! the same in builds without TLS, which has them in [`device::tls`](crate::device).

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use rpc_core::PeerCertificate;
use verbline_verbs::for_transport::{MAX_RECORD, RecordLayer};

/// The first byte of a connection that begins with such a handshake: a record of TLS with a message of
/// the handshake. Verbline's own begin with another one.
pub(crate) const FIRST_BYTE: u8 = 0x16;

/// Maximum number of bytes that may wait until they are a message of the handshake: a record of TLS.
pub(crate) const MAX_WAITING: usize = MAX_RECORD;

/// Why a connection is not secured. It prints as a sentence for the people who set up both sides.
pub(crate) type SecurityError = Box<dyn Error + Send + Sync>;

/// Who this side is, as a server, and which clients it takes.
pub(crate) trait ServerSecurity: fmt::Debug + Send + Sync {
    /// Begins the handshake of a connection.
    ///
    /// # Errors
    ///
    /// If the system lacks something.
    fn begin(&self) -> Result<Box<dyn SecurityHandshake>, SecurityError>;

    /// Returns true if clients have to prove who they are.
    fn demands_certificates(&self) -> bool;

    /// Returns when the certificate of this side expires that is in use at the moment.
    fn expires(&self) -> SystemTime;
}

/// Which servers this side believes, as a client, and who it is.
pub(crate) trait ClientSecurity: fmt::Debug + Send + Sync {
    /// Begins the handshake of a connection to the server that was dialed at `host`, a name or an
    /// address without its port.
    ///
    /// # Errors
    ///
    /// If no server can prove that it is `host`, or the system lacks something.
    fn begin(&self, host: &str) -> Result<Box<dyn SecurityHandshake>, SecurityError>;
}

/// A handshake in progress.
pub(crate) trait SecurityHandshake: Send {
    /// Handles what has `arrived`, takes it out as far as it was used, and appends what is `to_send`.
    /// Takes some processor time, such as that of a signature.
    ///
    /// # Errors
    ///
    /// If the peer is not who it has to be, or breaks the protocol. Then `to_send` tells the peer.
    fn advance(
        self: Box<Self>,
        arrived: &mut Vec<u8>,
        to_send: &mut Vec<u8>,
    ) -> Result<SecurityProgress, SecurityError>;
}

/// What a handshake needs next.
#[cfg_attr(
    not(any(feature = "tls", test)),
    expect(dead_code, reason = "there are no handshakes")
)]
pub(crate) enum SecurityProgress {
    /// Further bytes.
    Waits(Box<dyn SecurityHandshake>),
    /// Nothing.
    Done(Secured),
}

/// A connection whose handshake is complete on this side.
pub(crate) struct Secured {
    /// The records that follow.
    pub(crate) layer: Box<dyn RecordLayer>,
    /// What the peer has proved to be.
    pub(crate) certificate: Option<Arc<PeerCertificate>>,
}
