//! [`Reader`]: from where generated code takes the fields of an encoded message.

use bytes::Bytes;

use super::budget::Decoding;

/// The fields of an encoded message that are still to be decoded, and how deep messages may be
/// nested in them.
///
/// A field that cannot be decoded is not taken. No later field has its tag, so the end is not
/// reached either. The generated code therefore checks only at the end, with
/// [`is_empty`](Self::is_empty).
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    depth: u32,
    decoding: Option<&'a Decoding<'a>>,
}

impl<'a> Reader<'a> {
    /// Reads `bytes`, in which messages may be nested up to `depth` levels. They have no budget, so
    /// fields that place values on the heap are not taken, except for `string` and `bytes`.
    #[inline]
    #[must_use]
    pub fn new(bytes: &'a [u8], depth: u32) -> Self {
        Self {
            bytes,
            depth,
            decoding: None,
        }
    }

    /// Reads `bytes` as a part of what `decoding` decodes.
    #[inline]
    pub(super) fn within(bytes: &'a [u8], depth: u32, decoding: &'a Decoding<'a>) -> Self {
        Self {
            bytes,
            depth,
            decoding: Some(decoding),
        }
    }

    /// Returns true if nothing is left.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the number of bytes that are left.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    /// Takes a field: the tag, and the value that `read` takes. Takes nothing if the next tag is
    /// another one or if `read` returns `None`.
    #[inline]
    pub(super) fn take_field<const T: usize, V>(
        &mut self,
        tag: [u8; T],
        read: impl FnOnce(&mut Self) -> Option<V>,
    ) -> Option<V> {
        let (found, bytes) = self.bytes.split_first_chunk()?;
        if *found != tag {
            return None;
        }
        let mut rest = Self { bytes, ..*self };
        let value = read(&mut rest)?;
        *self = rest;
        Some(value)
    }

    /// Takes a value of fixed length.
    #[inline]
    pub(super) fn take_fixed<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (value, rest) = self.bytes.split_first_chunk()?;
        self.bytes = rest;
        Some(*value)
    }

    /// Takes a varint.
    #[inline]
    pub(super) fn take_varint(&mut self) -> Option<u64> {
        match self.bytes {
            [value @ ..0x80, rest @ ..] => {
                self.bytes = rest;
                Some(u64::from(*value))
            }
            [low, high @ ..0x80, rest @ ..] => {
                self.bytes = rest;
                Some(u64::from(*low & 0x7f) | u64::from(*high) << 7)
            }
            _ => self.take_long_varint(),
        }
    }

    fn take_long_varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for (index, byte) in self.bytes.iter().take(10).enumerate() {
            value |= u64::from(byte & 0x7f) << (7 * index);
            if *byte < 0x80 {
                // The tenth byte contains the highest bit alone.
                if index == 9 && *byte > 1 {
                    return None;
                }
                self.bytes = &self.bytes[index + 1..];
                return Some(value);
            }
        }
        None
    }

    /// Takes a length and as many bytes.
    #[inline]
    pub(super) fn take_delimited(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.take_varint()?).ok()?;
        let (taken, rest) = self.bytes.split_at_checked(len)?;
        self.bytes = rest;
        Some(taken)
    }

    /// Takes a length and as many bytes, which may be shared.
    #[inline]
    pub(super) fn take_bytes(&mut self) -> Option<Bytes> {
        let taken = self.take_delimited()?;
        Some(match self.decoding {
            Some(decoding) => decoding.field(taken),
            None => Bytes::copy_from_slice(taken),
        })
    }

    /// Takes a length and as many bytes, which are fields some levels deeper.
    #[inline]
    pub(super) fn take_nested(&mut self, levels: u32) -> Option<Reader<'a>> {
        let depth = self.depth.checked_sub(levels)?;
        let bytes = self.take_delimited()?;
        Some(Reader {
            bytes,
            depth,
            ..*self
        })
    }

    /// Takes what `count` values of `size` bytes take on the heap from the message's budget.
    pub(super) fn charge(&self, count: usize, size: usize) -> Option<()> {
        self.decoding?.charge(count, size)
    }

    /// Counts the values of a field that come next: they have the same tag. `wire_type` is the one
    /// in the tag.
    #[inline(never)]
    pub(super) fn count<const T: usize>(mut self, tag: [u8; T], wire_type: u8) -> usize {
        let mut count = 0;
        let skip = |fields: &mut Self| match wire_type {
            0 => fields.take_varint().map(drop),
            1 => fields.take_fixed::<8>().map(drop),
            2 => fields.take_delimited().map(drop),
            5 => fields.take_fixed::<4>().map(drop),
            _ => None,
        };
        while self.take_field(tag, skip).is_some() {
            count += 1;
        }
        count
    }

    pub(super) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

/// Returns the number of values in the bytes of a packed field.
pub(super) fn count_packed(packed: &[u8], wire_type: u8) -> usize {
    match wire_type {
        1 => packed.len() / 8,
        5 => packed.len() / 4,
        // The last byte of each varint.
        _ => packed.iter().filter(|byte| **byte < 0x80).count(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
        let mut reader = Reader::new(bytes, 0);
        let value = reader.take_varint()?;
        Some((value, bytes.len() - reader.len()))
    }

    #[test]
    fn varints_are_those_that_prost_decodes() {
        for first in [0, 1, 0x7f, 0x80, 0xff] {
            for last in [0, 1, 2, 0x7f, 0x80, 0xff] {
                for continued in 0..11 {
                    let mut bytes = vec![first];
                    bytes.extend(std::iter::repeat_n(0x85, continued));
                    bytes.push(last);
                    let mut rest = &bytes[..];
                    let expected = prost::encoding::decode_varint(&mut rest).ok();
                    let expected = expected.map(|value| (value, bytes.len() - rest.len()));
                    assert_eq!(varint(&bytes), expected, "{bytes:02x?}");
                }
            }
        }
    }

    #[test]
    fn a_field_that_cannot_be_decoded_is_not_taken() {
        let mut reader = Reader::new(&[0x0a, 3, 1, 2], 1);
        assert_eq!(reader.take_field([0x0a], Reader::take_delimited), None);
        assert_eq!(reader.take_field([0x12], Reader::take_delimited), None);
        assert_eq!(reader.len(), 4);
        let mut reader = Reader::new(&[0x0a, 2, 1, 2], 1);
        let expected = Some(&[1, 2][..]);
        assert_eq!(reader.take_field([0x0a], Reader::take_delimited), expected);
        assert!(reader.is_empty());
    }

    #[test]
    fn depth_is_bounded() {
        let mut reader = Reader::new(&[1, 0], 1);
        let mut nested = reader.take_nested(1).unwrap();
        assert!(nested.take_nested(1).is_none());
    }
}
