//! TLS 1.3 for Verbline: who a server and its clients are, whom they believe, and records that nobody else
//! can read or change.
//!
//! Programs name these types through `verbline::tls`, and give them to a device or a gateway:
//!
//! - [`Identity`] is the certificate and the key of this process, [`Roots`] are the authorities that it
//!   believes. Both follow their files.
//! - [`ServerTls`] and [`ClientTls`] combine them for each role.
//!
//! The transport uses the rest. A [`Handshake`] is a state machine over bytes, and ends with [`Records`]. The
//! protocol, the keys and the verification of certificates are rustls'; see `records` for why the records are
//! sealed here. Under HTTP/2 there is no need for that, and a library does TLS: see `http2`.
//!
//! ```text
//!  files ──▶ Identity, Roots ──▶ ServerTls, ClientTls ──▶ Handshake ──▶ Records, PeerCertificate
//! ```
#![forbid(unsafe_code)]

mod alert;
mod certificate;
mod client_tls;
mod configs;
mod error;
mod expect;
mod handshake;
mod handshake_error;
mod http2;
mod identity;
mod pem;
mod provider;
mod records;
mod roots;
mod server_tls;
mod source;
#[cfg(test)]
mod tests;
mod verification;
mod watch;

pub use self::certificate::UnreadableCertificate;
pub use self::client_tls::ClientTls;
pub use self::configs::ALPN;
pub use self::error::{Origin, PemProblem, TlsError};
pub use self::expect::{Expect, UnexpectedServer};
pub use self::handshake::{BeginError, Handshake, MAX_WAITING, Progress, Secured};
pub use self::handshake_error::{HandshakeError, Role};
pub use self::http2::http2_peer;
pub use self::identity::Identity;
#[doc(hidden)]
pub use self::records::{KEYS_AT_ONCE, RECORDS_PER_KEY};
pub use self::records::{MAX_PLAIN, MAX_RECORD, Opened, RecordError, Records};
pub use self::roots::Roots;
pub use self::server_tls::{ClientAuth, ServerTls};
