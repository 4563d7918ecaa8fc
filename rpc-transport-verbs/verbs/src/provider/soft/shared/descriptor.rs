//! The descriptor that stands in the ring for a message that does not fit a slot.

/// Location of a message in its sender's arenas. It comes from a peer: the receiver validates every
/// field.
///
/// ```text
///  0        8        16       20
/// ┌────────┬────────┬────────┐
/// │ arena  │ offset │ len    │  little endian
/// └────────┴────────┴────────┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    /// The arena's number in the sending process.
    pub(crate) arena: u64,
    /// Bytes from the arena's start to the message.
    pub(crate) offset: u64,
    /// Length of the message in bytes.
    pub(crate) len: u32,
}

/// Bytes of a descriptor.
pub(crate) const DESCRIPTOR_LEN: usize = 20;

impl Descriptor {
    pub(crate) fn encode(self) -> [u8; DESCRIPTOR_LEN] {
        let mut bytes = [0; DESCRIPTOR_LEN];
        bytes[0..8].copy_from_slice(&self.arena.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    /// Parses a descriptor; `None` if `bytes` does not have exactly a descriptor's length.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; DESCRIPTOR_LEN] = bytes.try_into().ok()?;
        let (arena, rest) = bytes.split_first_chunk()?;
        let (offset, rest) = rest.split_first_chunk()?;
        let (len, _) = rest.split_first_chunk()?;
        Some(Self {
            arena: u64::from_le_bytes(*arena),
            offset: u64::from_le_bytes(*offset),
            len: u32::from_le_bytes(*len),
        })
    }

    /// Returns the offset if the whole message lies inside an arena of `arena_len` bytes.
    pub(crate) fn offset_within(self, arena_len: usize) -> Option<usize> {
        let offset = usize::try_from(self.offset).ok()?;
        let end = offset.checked_add(self.len as usize)?;
        (end <= arena_len).then_some(offset)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_was_emitted_is_parsed(arena: u64, offset: u64, len: u32) {
            let descriptor = Descriptor { arena, offset, len };
            prop_assert_eq!(Descriptor::parse(&descriptor.encode()), Some(descriptor));
        }

        #[test]
        fn garbage_is_refused_or_bounded(
            bytes in proptest::collection::vec(any::<u8>(), 0..40),
            arena_len: usize,
        ) {
            match Descriptor::parse(&bytes) {
                None => prop_assert_ne!(bytes.len(), DESCRIPTOR_LEN),
                Some(descriptor) => {
                    if let Some(offset) = descriptor.offset_within(arena_len) {
                        prop_assert!(offset as u128 + u128::from(descriptor.len) <= arena_len as u128);
                    }
                }
            }
        }
    }
}
