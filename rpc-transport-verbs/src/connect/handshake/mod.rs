//! The handshake as values and bytes, without sockets, clocks or devices.
//!
//! `proto/handshake.proto` draws the frames and the order of the messages; [`messages`] is
//! generated from it. From the bytes up:
//!
//! - [`frame`] splits the bytes of a socket into frames and rejects invalid ones as early as
//!   possible;
//! - [`Endpoint`] is the validated form of the message with that name: no value from a peer reaches
//!   a queue pair without a check;
//! - [`choice`] determines which devices of the two sides can connect;
//! - [`server::ServerHandshake`] and [`client::ClientHandshake`] determine the version, which message
//!   may come next, and which action it requests.
//!
//! `control_thread` reads the sockets of all servers of the process, and `connect::client` reads
//! the socket of a client.

pub(crate) mod choice;
pub(crate) mod client;
pub(crate) mod endpoint;
pub(crate) mod frame;
pub(crate) mod server;

pub(crate) use endpoint::{Challenge, Offer, Welcome};
pub(crate) use frame::Received;

pub(crate) use crate::transport::endpoint::Endpoint;

use std::time::Duration;

use rpc_core::transport::VersionRange;

/// The message structs, generated from `proto/handshake.proto`. They are committed so that no build
/// script is needed; a test checks that they are up to date.
#[allow(unreachable_pub)]
pub(crate) mod messages {
    include!("verbline.handshake.v1.rs");
}

/// The first bytes of every frame. They are the same in every version; the version follows them.
pub(crate) const MAGIC: [u8; 4] = *b"VBLN";

/// The versions of the protocol that this build speaks. They cover both the handshake and the
/// frames. Two builds use the newest version that both speak; if there is none, both sides report
/// both ranges.
pub(crate) const VERSIONS: VersionRange = VersionRange::only(2);

/// Maximum length of a message in bytes. A hello contains a few endpoints of about 50 bytes and the
/// core's method table; this leaves room for about a thousand method names.
pub(crate) const MAX_MESSAGE_LEN: usize = 64 * 1024;

/// Maximum length of a client's message in bytes: eight endpoints and a session fit, and have room to
/// grow. Strangers can hold as much in each handshake.
pub(crate) const MAX_HELLO_LEN: usize = 4 * 1024;

/// Time limit on the server of each stage in which it waits for the client: until the whole hello
/// has arrived, and from the welcome until `Ready` has. Between two running processes a stage takes
/// a network round trip and the setup of a queue pair of about a millisecond.
pub(crate) const STAGE_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a handshake failed: what was received, compared with what was expected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    /// The first bytes are not Verbline's magic.
    #[error("it began with {} instead of a Verbline handshake", .got.escape_ascii())]
    Magic {
        /// The received bytes at the position of the magic, possibly incomplete.
        got: Vec<u8>,
    },
    /// The two sides speak no version in common.
    #[error(
        "the client speaks {client} of the protocol, the server speaks {server}: upgrade the older side"
    )]
    Version {
        /// The client's versions.
        client: VersionRange,
        /// The server's versions.
        server: VersionRange,
    },
    /// A message does not have the version that the two sides use.
    #[error("it sent a message of version {got} where {wanted} was to be used")]
    MessageVersion {
        /// The version of the message.
        got: u32,
        /// The agreed version, or the versions that could have been chosen.
        wanted: VersionRange,
    },
    /// The message is longer than allowed.
    #[error("it announced a message of {len} bytes; at most {limit} are accepted")]
    TooLong {
        /// The announced length, or the length of this side's own message.
        len: usize,
        /// The most bytes that the receiver accepts.
        limit: usize,
    },
    /// The bytes cannot be decoded as a message.
    #[error("its message cannot be decoded: {0}")]
    Undecodable(#[from] prost::DecodeError),
    /// A message arrived that is not allowed in this state.
    #[error("it sent {got} where {wanted} was expected")]
    Unexpected {
        /// The expected message.
        wanted: &'static str,
        /// The received message.
        got: &'static str,
    },
    /// A field has an invalid value.
    #[error("its {field} is {value}, which is invalid: {why}")]
    Field {
        /// The field's name in the `.proto` file.
        field: &'static str,
        /// The received value.
        value: String,
        /// The constraint that it violates.
        why: &'static str,
    },
}
