//! Layout of a request in a slot of the ring: a request word beside the commit word, and a prefix
//! before the payload bytes.
//!
//! ```text
//!  63                     32 31    24 23         16 15          8 7       0
//! ┌─────────────────────────┬────────┬─────────────┬─────────────┬─────────┐
//! │ immediate, or key       │ 0      │ descriptors │ outstanding │ opcode  │  the word
//! └─────────────────────────┴────────┴─────────────┴─────────────┴─────────┘
//!  0          8       12
//! ┌──────────┬───────┬─────────────────────────────────┬───────────────────┐
//! │ address  │ key   │ of a READ: len, total, stage    │ bytes, or         │  the payload, little endian
//! │          │       │ of an atomic: two operands      │ descriptors       │
//! └──────────┴───────┴─────────────────────────────────┴───────────────────┘
//!   a SEND has no address and no key
//! ```
//!
//! The response to a READ or an atomic goes into the request's own slot, over its payload, before
//! the slot is acknowledged. A response that does not fit a slot goes into the ring's staging
//! memory, into the stage that the READ names.

use super::ring::MAX_IN_RING;
use crate::types::{RemoteKey, RemoteMemory, RemoteOperation};

/// Length in bytes of the longest READ whose response goes into its slot.
pub(crate) const MAX_READ_IN_SLOT: u32 = MAX_IN_RING as u32;
/// Value of `stage` in a READ whose response goes into its slot.
pub(crate) const IN_SLOT: u32 = u32::MAX;
/// Bytes in front of a WRITE's payload: remote address and key.
pub(crate) const REMOTE_LEN: usize = 12;
/// Length in bytes of the longest prefix, which is the prefix of an atomic.
pub(crate) const MAX_PREFIX: usize = 28;

/// A request as it appears in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestMessage {
    pub(crate) operation: RemoteOperation,
    /// The part of a READ that this requests; nothing for other operations.
    pub(crate) piece: ReadPiece,
    /// READs and atomics of the sender in flight, including this one.
    pub(crate) outstanding: u8,
    /// Descriptors after the prefix, in place of bytes; 0 if the bytes themselves follow.
    pub(crate) descriptors: u8,
}

/// A part of a READ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadPiece {
    pub(crate) len: u32,
    /// For a READ's first piece, the length of the whole READ: all of it is checked then. For later
    /// pieces, equal to `len`.
    pub(crate) total: u32,
    /// Index of the stage for the response, or [`IN_SLOT`].
    pub(crate) stage: u32,
}

impl RequestMessage {
    /// Creates a plain message: bytes only, or one descriptor for them.
    pub(crate) fn plain(is_descriptor: bool) -> Self {
        Self {
            operation: RemoteOperation::Send,
            piece: ReadPiece::default(),
            outstanding: 0,
            descriptors: is_descriptor.into(),
        }
    }

    /// Returns the request word, the prefix, and the prefix's length.
    pub(crate) fn encode(&self) -> (u64, [u8; MAX_PREFIX], usize) {
        let mut prefix = [0; MAX_PREFIX];
        let mut len = 0;
        let mut put = |bytes: &[u8]| {
            prefix[len..][..bytes.len()].copy_from_slice(bytes);
            len += bytes.len();
        };
        let mut put_memory = |memory: RemoteMemory| {
            put(&memory.addr.to_le_bytes());
            put(&memory.key.0.to_le_bytes());
        };
        let (opcode, data) = match self.operation {
            RemoteOperation::Send => (0, 0),
            RemoteOperation::SendWithImm(imm) => (1, imm),
            RemoteOperation::SendWithInvalidate(key) => (2, key.0),
            RemoteOperation::Write(memory) => {
                put_memory(memory);
                (3, 0)
            }
            RemoteOperation::WriteWithImm(memory, imm) => {
                put_memory(memory);
                (4, imm)
            }
            RemoteOperation::Read(memory) => {
                put_memory(memory);
                let piece = self.piece;
                put(&piece.len.to_le_bytes());
                put(&piece.total.to_le_bytes());
                put(&piece.stage.to_le_bytes());
                (5, 0)
            }
            RemoteOperation::CompareAndSwap {
                remote,
                expected,
                desired,
            } => {
                put_memory(remote);
                put(&expected.to_le_bytes());
                put(&desired.to_le_bytes());
                (6, 0)
            }
            RemoteOperation::FetchAndAdd { remote, addend } => {
                put_memory(remote);
                put(&addend.to_le_bytes());
                put(&0_u64.to_le_bytes());
                (7, 0)
            }
        };
        let word = u64::from(data) << 32
            | u64::from(self.descriptors) << 16
            | u64::from(self.outstanding) << 8
            | opcode;
        (word, prefix, len)
    }

    /// Parses a request. Returns it and the offset of its bytes or descriptors; `None` if no
    /// software device sends this.
    pub(crate) fn parse(word: u64, payload: &[u8]) -> Option<(Self, usize)> {
        let [opcode, outstanding, descriptors, reserved, data @ ..] = word.to_le_bytes();
        let data = u32::from_le_bytes(data);
        let mut rest = payload;
        let memory = |rest: &mut &[u8]| {
            let addr = u64::from_le_bytes(take(rest)?);
            let key = RemoteKey(u32::from_le_bytes(take(rest)?));
            Some(RemoteMemory { addr, key })
        };
        let mut piece = ReadPiece::default();
        let operation = match opcode {
            0 => RemoteOperation::Send,
            1 => RemoteOperation::SendWithImm(data),
            2 => RemoteOperation::SendWithInvalidate(RemoteKey(data)),
            3 => RemoteOperation::Write(memory(&mut rest)?),
            4 => RemoteOperation::WriteWithImm(memory(&mut rest)?, data),
            5 => {
                let memory = memory(&mut rest)?;
                piece = ReadPiece {
                    len: u32::from_le_bytes(take(&mut rest)?),
                    total: u32::from_le_bytes(take(&mut rest)?),
                    stage: u32::from_le_bytes(take(&mut rest)?),
                };
                RemoteOperation::Read(memory)
            }
            6 => RemoteOperation::CompareAndSwap {
                remote: memory(&mut rest)?,
                expected: u64::from_le_bytes(take(&mut rest)?),
                desired: u64::from_le_bytes(take(&mut rest)?),
            },
            7 => {
                let remote = memory(&mut rest)?;
                let addend = u64::from_le_bytes(take(&mut rest)?);
                let _: [u8; 8] = take(&mut rest)?;
                RemoteOperation::FetchAndAdd { remote, addend }
            }
            _ => return None,
        };
        let message = Self {
            operation,
            piece,
            outstanding,
            descriptors,
        };
        let has_payload = operation.has_payload();
        let is_whole = reserved == 0 && (has_payload || (rest.is_empty() && descriptors == 0));
        is_whole.then_some((message, payload.len() - rest.len()))
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*taken)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::types::operation::any_operation;

    fn any_request() -> impl Strategy<Value = (RemoteOperation, ReadPiece)> {
        (any_operation(), any::<[u32; 3]>()).prop_map(|(operation, [len, total, stage])| {
            let piece = match operation {
                RemoteOperation::Read(_) => ReadPiece { len, total, stage },
                _ => ReadPiece::default(),
            };
            (operation, piece)
        })
    }

    proptest! {
        #[test]
        fn what_was_emitted_is_parsed(
            (operation, piece) in any_request(),
            outstanding: u8,
        ) {
            let message = RequestMessage { operation, piece, outstanding, descriptors: 0 };
            let (word, prefix, len) = message.encode();
            prop_assert_eq!(RequestMessage::parse(word, &prefix[..len]), Some((message, len)));
            for short in 0..len {
                prop_assert_eq!(RequestMessage::parse(word, &prefix[..short]), None);
            }
        }

        #[test]
        fn garbage_is_refused_or_is_what_it_would_have_been_emitted_as(
            word: u64,
            payload in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            if let Some((message, start)) = RequestMessage::parse(word, &payload) {
                let (_, prefix, len) = message.encode();
                prop_assert_eq!(start, len);
                // The last eight bytes of a fetch-and-add are ignored.
                if !matches!(message.operation, RemoteOperation::FetchAndAdd { .. }) {
                    prop_assert_eq!(&prefix[..len], &payload[..len]);
                }
            }
        }
    }
}
