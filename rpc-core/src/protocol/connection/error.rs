//! [`ProtocolError`]: a rule that the peer violated.

use super::Role;
use crate::protocol::credit::CreditError;
use crate::protocol::frame::{CallId, FrameError, FrameKind, TransferId};

/// A rule that the peer violated. Every violation closes the connection, with this error as the
/// reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// The bytes are not a valid frame.
    #[error("the peer sent {0}")]
    Frame(#[from] FrameError),
    /// The peer violated the credit rules.
    #[error("the peer violated the credit rules: {0}")]
    Credit(#[from] CreditError),
    /// The peer sent a request to a client, or a response to a server.
    #[error("the peer sent a {kind:?} frame to a {role:?}")]
    WrongDirection {
        /// The kind of frame received.
        kind: FrameKind,
        /// The role of this side.
        role: Role,
    },
    /// The peer has more unary calls in flight than agreed.
    #[error("the peer exceeded the agreed limit of {limit} calls in flight")]
    TooManyCalls {
        /// The agreed limit.
        limit: u32,
    },
    /// The peer has more streams open than agreed.
    #[error("the peer exceeded the agreed limit of {limit} open streams")]
    TooManyStreams {
        /// The agreed limit.
        limit: u32,
    },
    /// The peer set a flag that it must not set in such a frame: a client set a server's flag, a
    /// server set a client's flag, or the flag belongs to other kinds of frames.
    #[error("the peer set the flag '{flag}' in a {kind:?} frame to a {role:?}")]
    WrongFlag {
        /// The name of the flag.
        flag: &'static str,
        /// The kind of frame received.
        kind: FrameKind,
        /// The role of this side.
        role: Role,
    },
    /// The peer sent a frame without a flag that it must have: an acknowledgement that acknowledges
    /// nothing, or a request that opens something other than a stream.
    #[error("the peer sent a {kind:?} frame without the flag '{flag}'")]
    MissingFlag {
        /// The name of the flag.
        flag: &'static str,
        /// The kind of frame received.
        kind: FrameKind,
    },
    /// A client sent metadata in a message frame. It sends its metadata in the request.
    #[error("the peer sent {metadata_len} bytes of metadata in a message frame to a server")]
    MessageMetadata {
        /// Bytes of metadata.
        metadata_len: u16,
    },
    /// The peer responded to a call that is not in flight.
    #[error("the peer responded to a call that is not in flight (id {:#010x})", call.0)]
    UnknownCall {
        /// The id received.
        call: CallId,
    },
    /// The client used the id of a stream that is open for another one.
    #[error("the peer opened a stream twice (id {:#010x})", call.0)]
    DuplicateCall {
        /// The id received.
        call: CallId,
    },
    /// The client sent a message after it had ended its messages.
    #[error("the peer sent a message after its last one (id {:#010x})", call.0)]
    AfterHalfClose {
        /// The call's id.
        call: CallId,
    },
    /// The body of a message frame contradicts its selector.
    #[error("the peer sent {len} bytes in a message frame without messages")]
    NoMessages {
        /// Bytes received.
        len: usize,
    },
    /// The peer sent more bytes of messages than the stream's window allows.
    #[error("the peer sent {sent} bytes on a stream whose window has {available} left (id {:#010x})", call.0)]
    StreamWindow {
        /// The call's id.
        call: CallId,
        /// Bytes received.
        sent: usize,
        /// The rest of the window.
        available: u32,
    },
    /// The peer's grants add up to more than a window can have.
    #[error("the peer granted more than a stream's window can have (id {:#010x})", call.0)]
    GrantTooLarge {
        /// The call's id.
        call: CallId,
    },
    /// The peer began a long message under the number of one that is not complete.
    #[error("the peer began a long message twice (transfer {:#010x})", transfer.0)]
    DuplicateTransfer {
        /// The number received.
        transfer: TransferId,
    },
    /// The peer named a long message that is not being transferred.
    #[error("the peer named a long message that is not being transferred (transfer {:#010x})", transfer.0)]
    UnknownTransfer {
        /// The number received.
        transfer: TransferId,
    },
    /// The peer has more long messages under way than the protocol permits.
    #[error("the peer exceeded the limit of {limit} long messages under way")]
    TooManyTransfers {
        /// The limit.
        limit: u32,
    },
    /// A piece of a long message is invalid: all pieces together are longer than the message, the piece
    /// is empty, has another form than the first frame has stated, or describes memory on a connection
    /// without READs; or too many segments wait to be fetched; or the peer abandoned the message
    /// although it must not, or with a body.
    #[error("the peer sent an invalid piece of its long message of {len} bytes (transfer {:#010x})", transfer.0)]
    WrongPiece {
        /// The message's number.
        transfer: TransferId,
        /// Length of the message in bytes.
        len: u32,
    },
    /// The peer sent more of a long message in fragments than it may before this side accepts it.
    #[error("the peer sent {sent} bytes of a long message that was not accepted (transfer {:#010x})", transfer.0)]
    NotAccepted {
        /// The message's number.
        transfer: TransferId,
        /// Bytes received.
        sent: u32,
    },
    /// The peer has released more segments of a long message than are exposed to it (none, if the
    /// message is in fragments), or has accepted a message twice or one that needs no acceptance.
    #[error("the peer released segments of a long message that are not exposed to it, or accepted it more often than it may (transfer {:#010x})", transfer.0)]
    ReleasedTwice {
        /// The message's number.
        transfer: TransferId,
    },
    /// A server cancelled a call. It responds instead.
    #[error("the peer, a server, cancelled a call (id {:#010x})", call.0)]
    CancelFromServer {
        /// The id received.
        call: CallId,
    },
}
