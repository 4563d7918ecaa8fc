//! Lets the fields that prost decodes share the memory of the message.

use bytes::{Buf, Bytes};
use prost::Message;

use super::{DecodeError, Decoded};

/// Decodes a message with prost. See [`Codec::decode_shared`](super::Codec::decode_shared).
#[cold]
#[inline(never)]
pub(super) fn decode_sharing<M: Message + Default>(
    bytes: &Bytes,
    share_from: usize,
) -> Result<Decoded<M>, DecodeError> {
    let shared = Shared {
        bytes: bytes.clone(),
        share_from,
    };
    Ok(Decoded {
        message: M::decode(shared)?,
        // prost does not tell what it copied.
        copied_len: bytes.len(),
    })
}

/// The bytes of a message, of which only long parts are shared.
struct Shared {
    bytes: Bytes,
    share_from: usize,
}

impl Buf for Shared {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
    }

    /// prost calls this for each `bytes` field.
    fn copy_to_bytes(&mut self, len: usize) -> Bytes {
        let part = self.bytes.split_to(len);
        match len >= self.share_from {
            true => part,
            false => Bytes::copy_from_slice(&part),
        }
    }
}
