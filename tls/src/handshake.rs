//! [`Handshake`]: the beginning of a connection, as a state machine over bytes. It knows no socket.

use std::fmt;
use std::sync::Arc;

use rpc_core::PeerCertificate;
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, InsufficientSizeError, UnbufferedStatus,
};
use rustls::{AlertDescription, ClientConfig, ServerConfig};

use crate::certificate;
use crate::client_tls::ClientTls;
use crate::configs::ALPN;
use crate::error::TlsError;
use crate::handshake_error::{HandshakeError, Role};
use crate::records::{Connection, MAX_RECORD, Records};
use crate::server_tls::ServerTls;

/// Most bytes that may wait for [`Handshake::advance`]: one record, or the beginning of a message of
/// several ones. A chain of certificates has to fit.
pub const MAX_WAITING: usize = MAX_RECORD;

/// The first byte of each TLS connection: the type of a record with a message of the handshake.
const FIRST_BYTE: u8 = 0x16;

/// The first byte of a server that refuses the handshake: the type of a record with an alert.
const ALERT: u8 = 0x15;

/// A handshake in progress.
pub struct Handshake {
    side: Side,
    has_heard: bool,
    /// Bytes of whole records that rustls has seen, and still needs.
    seen: usize,
}

enum Side {
    Client(Box<UnbufferedClientConnection>),
    Server(Box<UnbufferedServerConnection>),
}

/// What a handshake needs next.
#[derive(Debug)]
pub enum Progress {
    /// Further bytes from the peer.
    Waits(Handshake),
    /// Nothing. The last bytes to send may still have to be sent.
    Done(Box<Secured>),
}

/// A connection whose handshake is complete on this side. A client learns from its first record that
/// the server has taken its certificate.
#[derive(Debug)]
pub struct Secured {
    /// The records that follow.
    pub records: Records,
    /// The certificate of the peer, which was verified; `None` if a client has presented none.
    pub peer: Option<Arc<PeerCertificate>>,
}

impl Handshake {
    /// Begins a handshake as the server, with the configuration of this moment.
    ///
    /// # Errors
    ///
    /// If the system has no random bytes.
    pub fn of_server(tls: &ServerTls) -> Result<Self, HandshakeError> {
        Self::of_server_config(tls.config())
    }

    /// Begins a handshake as a server with this configuration, for tests.
    #[doc(hidden)]
    pub fn of_server_config(config: Arc<ServerConfig>) -> Result<Self, HandshakeError> {
        let connection =
            UnbufferedServerConnection::new(config).map_err(|source| HandshakeError::Tls {
                role: Role::Server,
                source,
            })?;
        Ok(Self {
            side: Side::Server(Box::new(connection)),
            has_heard: false,
            seen: 0,
        })
    }

    /// Begins a handshake as the client of the server that was dialed at `host`, a name or an address.
    ///
    /// # Errors
    ///
    /// If no certificate can be for `host`, or the system has no random bytes.
    pub fn of_client(tls: &ClientTls, host: &str) -> Result<Self, BeginError> {
        let name = tls.server_name(host)?;
        Ok(Self::of_client_config(tls.config(), name)?)
    }

    /// Begins a handshake as a client with this configuration, for tests.
    #[doc(hidden)]
    pub fn of_client_config(
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> Result<Self, HandshakeError> {
        let connection = UnbufferedClientConnection::new(config, name).map_err(|source| {
            HandshakeError::Tls {
                role: Role::Client,
                source,
            }
        })?;
        Ok(Self {
            side: Side::Client(Box::new(connection)),
            has_heard: false,
            seen: 0,
        })
    }

    /// Handles what has `arrived`, takes it out as far as it was used, and appends what is `to_send`.
    ///
    /// This is where keys are agreed on, signed with, and verified: it takes tens of microseconds of
    /// processor time, and milliseconds with RSA keys.
    ///
    /// # Errors
    ///
    /// If the peer is not who it has to be, or breaks the protocol. Then `to_send` tells the peer why,
    /// before the connection is closed.
    pub fn advance(
        mut self,
        arrived: &mut Vec<u8>,
        to_send: &mut Vec<u8>,
    ) -> Result<Progress, HandshakeError> {
        if !self.has_heard
            && let Some(first) = arrived.first()
        {
            self.has_heard = true;
            if ![FIRST_BYTE, ALERT].contains(first) {
                return Err(HandshakeError::NotTls);
            }
        }
        let arriving = (&mut *arrived, &mut self.seen);
        let (role, is_done) = match &mut self.side {
            Side::Client(connection) => {
                let is_done = handle(&mut **connection, arriving, to_send);
                (Role::Client, is_done)
            }
            Side::Server(connection) => {
                let is_done = handle(&mut **connection, arriving, to_send);
                (Role::Server, is_done)
            }
        };
        let failed = |source| HandshakeError::Tls { role, source };
        let is_done = is_done.map_err(|failure| match failure {
            Failure::Tls(error) => failed(error),
            Failure::Closed => HandshakeError::Closed,
        })?;
        if !is_done {
            if arrived.len() >= MAX_WAITING {
                return Err(HandshakeError::TooLong);
            }
            return Ok(Progress::Waits(self));
        }
        let (peer, secrets, connection) = match self.side {
            Side::Client(connection) => {
                let peer = match connection.alpn_protocol() {
                    Some(ALPN) => leaf(connection.peer_certificates()),
                    _ => Err(HandshakeError::NotVerbline),
                };
                let (secrets, kernel) = connection
                    .dangerous_into_kernel_connection()
                    .map_err(failed)?;
                (peer, secrets, Connection::Client(kernel))
            }
            Side::Server(connection) => {
                let peer = leaf(connection.peer_certificates());
                let (secrets, kernel) = connection
                    .dangerous_into_kernel_connection()
                    .map_err(failed)?;
                (peer, secrets, Connection::Server(kernel))
            }
        };
        let mut records = Records::new(connection, secrets)?;
        let peer = peer.or_else(|error| {
            let alert = match error {
                HandshakeError::NotVerbline => AlertDescription::NoApplicationProtocol,
                _ => AlertDescription::BadCertificate,
            };
            records.seal_failure(alert, to_send)?;
            Err(error)
        })?;
        Ok(Progress::Done(Box::new(Secured { records, peer })))
    }
}

/// Why a client's handshake cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    /// No certificate can be for the name.
    #[error(transparent)]
    Name(#[from] TlsError),
    /// The handshake has failed before its first byte.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
}

/// A connection of rustls, of either side.
trait Unbuffered {
    type Data;

    fn process<'c, 'i>(&'c mut self, arrived: &'i mut [u8])
    -> UnbufferedStatus<'c, 'i, Self::Data>;
}

impl Unbuffered for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn process<'c, 'i>(
        &'c mut self,
        arrived: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(arrived)
    }
}

impl Unbuffered for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn process<'c, 'i>(
        &'c mut self,
        arrived: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(arrived)
    }
}

/// Handles all that has arrived. Returns true if the handshake is complete.
fn handle<C: Unbuffered>(
    connection: &mut C,
    (arrived, seen): Arriving<'_>,
    to_send: &mut Vec<u8>,
) -> Result<bool, Failure> {
    loop {
        // One record more each time, so that none that follows the handshake is seen: rustls would answer
        // a new key with one of its own, and keep the message that tells of it.
        let next = *seen + whole_record(&arrived[*seen..]);
        let shown = match next > *seen {
            true => *seen,
            // The beginning of a record, which may be wrong.
            false => arrived.len(),
        };
        let UnbufferedStatus { discard, state, .. } = connection.process(&mut arrived[..shown]);
        let end = match state {
            Ok(ConnectionState::EncodeTlsData(message)) => {
                encode(message, to_send);
                None
            }
            Ok(ConnectionState::TransmitTlsData(sent)) => {
                sent.done();
                None
            }
            Ok(ConnectionState::BlockedHandshake) if next > *seen => {
                *seen = next;
                None
            }
            Ok(ConnectionState::BlockedHandshake) => Some(Ok(false)),
            Ok(ConnectionState::WriteTraffic(_)) => Some(Ok(true)),
            // Early data is not accepted, and what follows the handshake is not shown.
            Ok(_) => Some(Err(Failure::Closed)),
            Err(error) => Some(Err(error.into())),
        };
        arrived.drain(..discard);
        *seen = seen.saturating_sub(discard);
        match end {
            None => {}
            Some(Ok(is_done)) => return Ok(is_done),
            Some(Err(failure)) => {
                // What was to be said before comes first. After the alert, if there is one, the connection
                // must not be asked again.
                while let Ok(ConnectionState::EncodeTlsData(last)) =
                    connection.process(&mut arrived[..*seen]).state
                {
                    let start = to_send.len();
                    encode(last, to_send);
                    if is_alert(&to_send[start..]) {
                        break;
                    }
                }
                return Err(failure);
            }
        }
    }
}

/// What has arrived, and how much of it rustls has seen.
type Arriving<'a> = (&'a mut Vec<u8>, &'a mut usize);

/// Returns the length of the first record, or 0 if not all of it has arrived.
fn whole_record(arrived: &[u8]) -> usize {
    let Some([_, _, _, high, low]) = arrived.first_chunk() else {
        return 0;
    };
    let len = 5 + usize::from(u16::from_be_bytes([*high, *low]));
    if len <= arrived.len() { len } else { 0 }
}

/// Returns true if a record is one with an alert, which has two bytes: with its header, and, if it is
/// sealed, its type and the tag. No message of the handshake is as short.
fn is_alert(record: &[u8]) -> bool {
    match record.first() {
        Some(&ALERT) => true,
        Some(&FIRST_BYTE) | None => false,
        Some(_) => record.len() == 5 + 2 + 1 + 16,
    }
}

/// Why a connection of rustls does not go on.
enum Failure {
    Tls(rustls::Error),
    /// The peer has said its last.
    Closed,
}

impl From<rustls::Error> for Failure {
    fn from(error: rustls::Error) -> Self {
        Self::Tls(error)
    }
}

/// Appends a message that is to be sent.
fn encode<Data>(mut message: EncodeTlsData<'_, Data>, to_send: &mut Vec<u8>) {
    let start = to_send.len();
    if let Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) =
        message.encode(&mut [])
    {
        to_send.resize(start + required_size, 0);
        let encoded = message.encode(&mut to_send[start..]);
        debug_assert!(encoded.is_ok(), "it fits");
    }
}

/// Returns the certificate that a peer has proved to be its own.
fn leaf(
    chain: Option<&[CertificateDer<'_>]>,
) -> Result<Option<Arc<PeerCertificate>>, HandshakeError> {
    let leaf = chain.and_then(|chain| chain.first());
    let parsed = leaf.map(certificate::parse).transpose();
    let parsed = parsed.map_err(|error| HandshakeError::Certificate(error.into()))?;
    Ok(parsed.map(Arc::new))
}

impl fmt::Debug for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handshake")
    }
}
