//! TLS under HTTP/2, which a library with sockets does by [`ServerTls::http2_config`] and
//! [`ClientTls::http2_config`]: what its errors mean, and who the peer is.
//!
//! [`ServerTls::http2_config`]: crate::ServerTls::http2_config
//! [`ClientTls::http2_config`]: crate::ClientTls::http2_config

use std::sync::Arc;

use rpc_core::PeerCertificate;
use rustls::{AlertDescription, CommonState, Error, InvalidMessage};

use crate::certificate;
use crate::configs::HTTP2;
use crate::handshake_error::{HandshakeError, Role};

impl HandshakeError {
    /// Converts an error of TLS under HTTP/2.
    #[must_use]
    pub fn of_http2(role: Role, source: Error) -> Self {
        match source {
            Error::NoApplicationProtocol
            | Error::AlertReceived(AlertDescription::NoApplicationProtocol) => {
                Self::NotHttp2 { role }
            }
            Error::InvalidMessage(InvalidMessage::InvalidContentType) => Self::NotTls,
            source => Self::Tls { role, source },
        }
    }
}

/// Returns the certificate of the peer of a handshake that is complete; `None` if a client has shown
/// none.
///
/// # Errors
///
/// If the two sides have not agreed on HTTP/2, or the names in the certificate cannot be read.
pub fn http2_peer(
    role: Role,
    connection: &CommonState,
) -> Result<Option<Arc<PeerCertificate>>, HandshakeError> {
    if connection.alpn_protocol() != Some(HTTP2) {
        return Err(HandshakeError::NotHttp2 { role });
    }
    let chain = connection.peer_certificates();
    let peer = chain.and_then(<[_]>::first).map(certificate::parse);
    let peer = peer.transpose();
    let peer = peer.map_err(|error| HandshakeError::Certificate(Box::new(error)))?;
    Ok(peer.map(Arc::new))
}
