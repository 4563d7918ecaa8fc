//! Messages that are longer than a slot: how they travel, and the memory that they need.

use std::fmt;

/// How long messages travel between the two sides of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LongMessages {
    /// In fragments, through the slots.
    Fragments,
    /// The receiver reads them (RDMA READ) from memory that the sender exposes.
    Read,
}

impl fmt::Display for LongMessages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fragments => "fragments",
            Self::Read => "RDMA READ",
        })
    }
}

/// Memory of the sender that the receiver may read. The numbers come from a peer, and only the
/// transport uses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteSegment {
    /// The address of the first byte.
    pub address: u64,
    /// The remote key.
    pub key: u32,
    /// Length in bytes.
    pub len: u32,
}

impl RemoteSegment {
    /// Length of an encoded segment in bytes.
    pub const ENCODED_LEN: usize = 16;

    /// Encodes the segment, little-endian.
    #[must_use]
    pub fn encode(self) -> [u8; Self::ENCODED_LEN] {
        let bits =
            u128::from(self.address) | u128::from(self.key) << 64 | u128::from(self.len) << 96;
        bits.to_le_bytes()
    }

    /// Decodes a segment.
    #[must_use]
    pub fn decode(bytes: [u8; Self::ENCODED_LEN]) -> Self {
        let bits = u128::from_le_bytes(bytes);
        Self {
            address: bits as u64,
            key: (bits >> 64) as u32,
            len: (bits >> 96) as u32,
        }
    }
}

/// Identifies a segment that this side exposes, in its transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExposureKey(pub u32);

/// Identifies a message that this side fetches, in its transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FetchKey(pub u32);

/// The next piece of a message, which the peer may read from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exposed {
    /// The description for the peer.
    pub segment: RemoteSegment,
    /// The name for [`Transport::conceal`](super::Transport::conceal).
    pub key: ExposureKey,
    /// The bytes were copied into registered memory first.
    pub was_copied: bool,
}

/// The reason that no piece was exposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExposeError {
    /// There is no registered memory, window or entry of the send queue at the moment.
    #[error("no registered memory, memory window or entry of the send queue is free")]
    NotNow,
    /// The device gives no more memory windows, and none is free. A message that has not begun is sent
    /// in fragments. One that has begun waits while one `may_come`: another message gives it back, or
    /// the device gives one later. Otherwise its connection is closed.
    #[error("the device gives no more memory windows, and none is free")]
    NoWindow {
        /// False if the device has just refused one, and all that it gave before are gone.
        may_come: bool,
    },
    /// The connection has ended, or does not use READs.
    #[error("the connection has ended")]
    Closed,
}

/// The reason that there is no memory for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocateError {
    /// More memory is being registered. The transport's waker is used when there may be more.
    #[error("memory for messages is being registered")]
    NotNow,
    /// All memory that may be registered is in use. The transport's waker is used when there may be
    /// more.
    #[error("all memory that may be registered for messages is in use")]
    InUse,
    /// The message is longer than all memory that may be registered.
    #[error(
        "a message of {len} bytes exceeds the {limit} bytes that may be registered for messages"
    )]
    TooLong {
        /// Length of the message in bytes.
        len: usize,
        /// Bytes that may be registered.
        limit: usize,
    },
}

/// Bytes of registered memory for messages, by their owner at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryByOwner {
    /// All that is registered.
    pub registered: u64,
    /// Exposed to peers.
    pub exposed: u64,
    /// Being fetched into.
    pub fetching: u64,
    /// Held by the application, in messages that it has received or made.
    pub held: u64,
}
