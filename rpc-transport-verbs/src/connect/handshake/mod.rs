//! The handshake as values and bytes, without sockets, clocks or devices.
//!
//! `proto/handshake.proto` draws the frames and the order of the messages; [`messages`] is what it
//! generates. From the bytes up:
//!
//! - [`frame`] cuts what a socket gave into frames, and refuses early what cannot become one;
//! - [`Endpoint`] is the checked form of the message of that name: nothing a peer sent reaches a
//!   queue pair unchecked;
//! - [`choice`] says which device of both sides meet;
//! - [`server::ServerHandshake`] and [`client::ClientHandshake`] say which message may come next,
//!   and what it asked for.
//!
//! Who reads the sockets: `control` for all servers of the process, `connect` for a client.

pub(crate) mod choice;
pub(crate) mod client;
pub(crate) mod endpoint;
pub(crate) mod frame;
pub(crate) mod server;

pub(crate) use endpoint::{Offer, Welcome};

pub(crate) use crate::transport::endpoint::Endpoint;

use std::time::Duration;

/// The message structs, generated from `proto/handshake.proto` and committed: building needs no
/// build script, and a test compares.
#[allow(unreachable_pub)]
pub(crate) mod messages {
    include!("verbline.handshake.v1.rs");
}

/// The first bytes of every frame. Not the name of a version: that follows.
pub(crate) const MAGIC: [u8; 4] = *b"VBLN";

/// The version of the protocol, handshake and frames together, that this build speaks.
pub(crate) const VERSION: u16 = 1;

/// The most that one message may measure, in bytes. A hello holds a few endpoints of about 50 bytes
/// and the core's table of methods, for which this leaves room for about a thousand names.
pub(crate) const MAX_MESSAGE_LEN: usize = 64 * 1024;

/// How long a server waits for the whole handshake. Between two live processes it takes a few
/// network round trips and two queue-pair set-ups, of about a millisecond each.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);

/// Why a handshake ended: what came, in terms of what was wanted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    /// The first bytes are not ours.
    #[error("it began with {}, not with a Verbline handshake", .got.escape_ascii())]
    Magic {
        /// What came in the magic's place, as far as it had come.
        got: Vec<u8>,
    },
    /// The other side speaks another version.
    #[error("it speaks version {remote} of the protocol, this side speaks {VERSION}")]
    Version {
        /// The other side's.
        remote: u16,
    },
    /// The length word promises more than is taken.
    #[error("it announced a message of {len} bytes; at most {MAX_MESSAGE_LEN} are taken")]
    TooLong {
        /// As announced, or as it would have to be.
        len: usize,
    },
    /// The bytes are no message.
    #[error("its message cannot be decoded: {0}")]
    Undecodable(#[from] prost::DecodeError),
    /// A message came that has no place here.
    #[error("it sent {got} where {wanted} was expected")]
    Unexpected {
        /// What would have been right.
        wanted: &'static str,
        /// What came.
        got: &'static str,
    },
    /// A field's value cannot be.
    #[error("its {field} is {value}, which cannot be: {why}")]
    Field {
        /// Its name in the `.proto`.
        field: &'static str,
        /// What was sent.
        value: String,
        /// What it should have been.
        why: &'static str,
    },
}
