//! [`HandshakeError`]: why a handshake has failed, as sentences for the people who set it up.

use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

use rustls::pki_types::UnixTime;
use rustls::{CertificateError, Error, PeerIncompatible};

use crate::alert;
use crate::certificate::utc;
use crate::records::RecordError;

/// Why a handshake has failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The first byte is not one of TLS.
    #[error("it answered without TLS, which this side demands: does the other side have TLS, too?")]
    NotTls,
    /// The peer speaks TLS, and another protocol in it.
    #[error("it speaks TLS, but is no Verbline server: check the address")]
    NotVerbline,
    /// The peer speaks TLS, and not HTTP/2 in it.
    #[error("{}", not_http2(*.role))]
    NotHttp2 {
        /// What this side is.
        role: Role,
    },
    /// A message of the peer is longer than any that is needed.
    #[error("it sent a message of TLS that is longer than any that is needed")]
    TooLong,
    /// The peer has ended the connection.
    #[error("it ended the connection in the middle of the handshake of TLS")]
    Closed,
    /// The peer's certificate was verified, and cannot be read.
    #[error("its certificate cannot be read: {0}")]
    Certificate(Box<dyn std::error::Error + Send + Sync>),
    /// The keys of the connection cannot be used.
    #[error(transparent)]
    Records(#[from] RecordError),
    /// TLS has failed on this side.
    #[error("{}", Sentence(*.role, .source))]
    Tls {
        /// What this side is.
        role: Role,
        /// The error of the library.
        source: Error,
    },
}

/// What this side of a handshake is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It has dialed.
    Client,
    /// It was dialed.
    Server,
}

impl Role {
    fn of_peer(self) -> &'static str {
        match self {
            Self::Client => "server",
            Self::Server => "client",
        }
    }
}

fn not_http2(role: Role) -> &'static str {
    match role {
        Role::Client => {
            "the server speaks TLS, but not HTTP/2 over it (ALPN `h2`): check the address"
        }
        Role::Server => {
            "the client does not offer HTTP/2 over TLS (ALPN `h2`): call with gRPC, or check what has \
             dialed this port"
        }
    }
}

/// The error of a handshake, with what to do about it.
struct Sentence<'a>(Role, &'a Error);

impl fmt::Display for Sentence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(role, error) = self;
        let peer = role.of_peer();
        match error {
            Error::AlertReceived(alert) => f.write_str(alert::sentence(*alert)),
            Error::NoCertificatesPresented => write!(
                f,
                "the {peer} has presented no certificate, which this side demands: give the {peer} an identity"
            ),
            Error::InvalidCertificate(certificate) => of_certificate(f, peer, certificate),
            Error::PeerIncompatible(
                PeerIncompatible::SupportedVersionsExtensionRequired
                | PeerIncompatible::Tls12NotOffered
                | PeerIncompatible::Tls12NotOfferedOrEnabled
                | PeerIncompatible::ServerDoesNotSupportTls12Or13
                | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig,
            ) => write!(
                f,
                "the {peer} does not speak TLS 1.3, the only version here: upgrade it"
            ),
            Error::PeerIncompatible(what) => write!(
                f,
                "the two sides have no algorithm in common ({what:?}): the {peer} has to take TLS 1.3 with AES-GCM or ChaCha20, and certificates with ECDSA, Ed25519 or RSA keys"
            ),
            Error::NoApplicationProtocol => write!(
                f,
                "the {peer} wants to speak another protocol than Verbline over TLS: check what has dialed this port"
            ),
            Error::DecryptError => write!(
                f,
                "what the {peer} sent cannot be decrypted: it was altered on its way"
            ),
            Error::InvalidMessage(_)
            | Error::InappropriateMessage { .. }
            | Error::InappropriateHandshakeMessage { .. }
            | Error::PeerMisbehaved(_)
            | Error::PeerSentOversizedRecord => {
                write!(f, "what the {peer} sent is no handshake of TLS: {error}")
            }
            other => write!(f, "TLS failed: {other}"),
        }
    }
}

/// Says what is wrong with the certificate of the peer, and what to do about it.
fn of_certificate(f: &mut fmt::Formatter<'_>, peer: &str, error: &CertificateError) -> fmt::Result {
    match error {
        CertificateError::ExpiredContext { not_after, .. } => write!(
            f,
            "the {peer}'s certificate has expired ({}): renew it, and compare the clocks of both hosts",
            at(*not_after)
        ),
        CertificateError::NotValidYetContext { not_before, .. } => write!(
            f,
            "the {peer}'s certificate is not valid before {}: compare the clocks of both hosts",
            at(*not_before)
        ),
        CertificateError::Revoked => {
            write!(
                f,
                "the {peer}'s certificate was revoked: give it another one"
            )
        }
        CertificateError::UnknownIssuer => write!(
            f,
            "the {peer}'s certificate is of an authority that this side does not trust: add the authority to this side's roots, or let the {peer} send the certificates in between, too"
        ),
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            write!(
                f,
                "the {peer}'s certificate is for other names: dial one of them, or expect the name that it has ({error})"
            )
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            write!(
                f,
                "the {peer}'s certificate is not made for a {peer}: its extended key usage is another one ({error})"
            )
        }
        CertificateError::BadSignature => write!(
            f,
            "the signature of the {peer}'s certificate, or of its handshake, is wrong: it was altered, or the key does not match"
        ),
        CertificateError::BadEncoding => write!(f, "the {peer}'s certificate is malformed"),
        CertificateError::Other(reason) => {
            write!(f, "the {peer}'s certificate is refused: {}", reason.0)
        }
        other => write!(f, "the {peer}'s certificate is refused: {other}"),
    }
}

fn at(time: UnixTime) -> String {
    utc(UNIX_EPOCH + Duration::from_secs(time.as_secs()))
}
