//! [`Metadata`]: key-value pairs that travel beside a message, as in gRPC.
//!
//! Keys are lower-case ASCII. The value of a key that ends in `-bin` may hold any bytes; every
//! other value is printable ASCII. Empty metadata is one null pointer and takes no bytes in a
//! frame.

use std::fmt;

use bytes::Bytes;
use prost::Message;

/// Key-value pairs in insertion order. A key may appear more than once.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Metadata(
    // The box makes empty metadata a null pointer. Every request and response has this field.
    #[allow(clippy::box_collection)] Option<Box<Vec<Entry>>>,
);

#[derive(Clone, PartialEq, Eq)]
struct Entry {
    key: String,
    value: Bytes,
}

/// The reason that a pair is not valid metadata.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataError {
    /// The key is empty or contains a character that is not allowed.
    #[error("'{key}' is not a metadata key: only a-z, 0-9, '-', '_' and '.' may be used")]
    Key {
        /// The key.
        key: String,
    },
    /// The key lacks the `-bin` suffix and its value is not printable ASCII.
    #[error(
        "the value of '{key}' is not printable ASCII: give the key the suffix '-bin' for bytes"
    )]
    Value {
        /// The key.
        key: String,
    },
    /// The bytes received from a peer do not decode as metadata.
    #[error("the metadata of a frame cannot be decoded: {0}")]
    Undecodable(#[from] prost::DecodeError),
}

/// Length of the length that precedes initial metadata in a section with both kinds.
const INITIAL_PREFIX_LEN: usize = 2;

/// A field that encoded metadata does not have, so that decoders skip it: number 15, varint 0.
const UNKNOWN_FIELD: [u8; INITIAL_PREFIX_LEN] = [15 << 3, 0];

/// The section of a response's frame that holds both kinds of metadata: the length of the initial
/// metadata (two bytes, little-endian), the initial and the trailing metadata.
pub(crate) mod section {
    use super::{INITIAL_PREFIX_LEN, Metadata, UNKNOWN_FIELD};

    /// Returns the length of the section in bytes.
    pub(crate) fn encoded_len(initial: &Metadata, trailing: &Metadata) -> usize {
        INITIAL_PREFIX_LEN + initial.encoded_len() + trailing.encoded_len()
    }

    /// Encodes the section into `out`, whose length must be its encoded length, 65,535 at most.
    pub(crate) fn encode(initial: &Metadata, trailing: &Metadata, out: &mut [u8]) {
        let initial_len = initial.encoded_len();
        let (prefix, rest) = out.split_at_mut(INITIAL_PREFIX_LEN);
        prefix.copy_from_slice(&(initial_len as u16).to_le_bytes());
        let (initial_out, trailing_out) = rest.split_at_mut(initial_len);
        initial.encode(initial_out);
        trailing.encode(trailing_out);
    }

    /// Converts an encoded section to the metadata of one kind, for a peer that knows one kind: the
    /// trailing metadata follows the initial metadata as if it was part of it.
    pub(crate) fn merge(section: &mut [u8]) {
        // Both are encoded as repeated fields, so the concatenation of the encodings is the encoding
        // of the concatenation.
        if let Some(prefix) = section.first_chunk_mut() {
            *prefix = UNKNOWN_FIELD;
        }
    }
}

impl Metadata {
    /// Creates empty metadata, without allocating.
    #[must_use]
    pub const fn new() -> Self {
        Self(None)
    }

    /// Returns true if there are no pairs.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.as_ref().is_none_or(|entries| entries.is_empty())
    }

    /// Returns the number of pairs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |entries| entries.len())
    }

    /// Appends a pair. Existing pairs with the same key are kept.
    ///
    /// # Errors
    ///
    /// Returns [`MetadataError`] if the key or the value contains a character that is not allowed.
    pub fn insert(
        &mut self,
        key: impl Into<String>,
        value: impl Into<Bytes>,
    ) -> Result<(), MetadataError> {
        let (key, value) = (key.into(), value.into());
        check(&key, &value)?;
        self.0.get_or_insert_default().push(Entry { key, value });
        Ok(())
    }

    /// Returns the first value of a key as text, or `None` if the key is absent or ends in `-bin`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        if is_binary(key) {
            return None;
        }
        self.get_bin(key)
            .and_then(|value| std::str::from_utf8(value).ok())
    }

    /// Returns the first value of a key as bytes, or `None` if the key is absent.
    #[must_use]
    pub fn get_bin(&self, key: &str) -> Option<&[u8]> {
        self.iter()
            .find(|(name, _)| *name == key)
            .map(|(_, value)| value)
    }

    /// Iterates over all pairs in insertion order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0
            .iter()
            .flat_map(|entries| entries.iter())
            .map(|entry| (entry.key.as_str(), &entry.value[..]))
    }

    /// Returns the encoded length in bytes: 0 when empty.
    #[inline]
    pub(crate) fn encoded_len(&self) -> usize {
        if self.is_empty() { 0 } else { self.wire_len() }
    }

    // This and the functions below are out of line, so that a call without metadata only pays for
    // the emptiness check.
    #[inline(never)]
    fn wire_len(&self) -> usize {
        self.to_wire().encoded_len()
    }

    /// Encodes the metadata into `out`, whose length must be [`encoded_len`](Self::encoded_len).
    #[inline]
    pub(crate) fn encode(&self, out: &mut [u8]) {
        if !self.is_empty() {
            self.encode_wire(out);
        }
    }

    #[inline(never)]
    fn encode_wire(&self, mut out: &mut [u8]) {
        let wire = self.to_wire();
        debug_assert_eq!(wire.encoded_len(), out.len());
        // The only possible error is a buffer that is too short, and this one has the encoded
        // length.
        let _ = wire.encode(&mut out);
    }

    /// Decodes metadata that a peer sent.
    #[inline]
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, MetadataError> {
        if bytes.is_empty() {
            return Ok(Self::new());
        }
        Self::decode_wire(bytes)
    }

    #[inline(never)]
    fn decode_wire(bytes: &[u8]) -> Result<Self, MetadataError> {
        let mut metadata = Self::new();
        for pair in WireMetadata::decode(bytes)?.pairs {
            metadata.insert(pair.key, pair.value)?;
        }
        Ok(metadata)
    }

    fn to_wire(&self) -> WireMetadata {
        let pairs = self.iter().map(|(key, value)| WirePair {
            key: key.to_owned(),
            value: Bytes::copy_from_slice(value),
        });
        WireMetadata {
            pairs: pairs.collect(),
        }
    }
}

fn is_binary(key: &str) -> bool {
    key.ends_with("-bin")
}

fn check(key: &str, value: &[u8]) -> Result<(), MetadataError> {
    let allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.');
    if key.is_empty() || !key.bytes().all(allowed) {
        return Err(MetadataError::Key {
            key: key.to_owned(),
        });
    }
    if !is_binary(key) && !value.iter().all(|byte| (0x20..=0x7e).contains(byte)) {
        return Err(MetadataError::Value {
            key: key.to_owned(),
        });
    }
    Ok(())
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        f.debug_map()
            .entries(self.iter().map(|(key, value)| (key, text(value))))
            .finish()
    }
}

#[derive(Clone, PartialEq, Message)]
struct WireMetadata {
    #[prost(message, repeated, tag = "1")]
    pairs: Vec<WirePair>,
}

#[derive(Clone, PartialEq, Message)]
struct WirePair {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_metadata_is_a_null_pointer_and_no_bytes() {
        assert_eq!(size_of::<Metadata>(), size_of::<usize>());
        assert_eq!(Metadata::new().encoded_len(), 0);
        assert!(Metadata::decode(&[]).unwrap().is_empty());
    }

    #[test]
    fn pairs_survive_the_wire_in_order() {
        let mut metadata = Metadata::new();
        metadata.insert("trace-id", "abc").unwrap();
        metadata.insert("key-bin", vec![0, 255]).unwrap();
        metadata.insert("trace-id", "def").unwrap();
        let mut wire = vec![0; metadata.encoded_len()];
        metadata.encode(&mut wire);
        let decoded = Metadata::decode(&wire).unwrap();
        assert_eq!(decoded, metadata);
        assert_eq!(decoded.get("trace-id"), Some("abc"));
        assert_eq!(decoded.get_bin("key-bin"), Some(&[0, 255][..]));
        assert_eq!(decoded.get("key-bin"), None);
    }

    #[test]
    fn a_section_holds_both_kinds_of_metadata_and_becomes_one_kind() {
        let (mut initial, mut trailing) = (Metadata::new(), Metadata::new());
        initial.insert("initial", "1").unwrap();
        trailing.insert("trailing", "22").unwrap();
        let none = Metadata::new();
        for (initial, trailing) in [(&initial, &trailing), (&none, &trailing), (&initial, &none)] {
            let mut wire = vec![0; section::encoded_len(initial, trailing)];
            section::encode(initial, trailing, &mut wire);
            let (first, second) = wire[2..].split_at(wire[0].into());
            assert_eq!(&Metadata::decode(first).unwrap(), initial);
            assert_eq!(&Metadata::decode(second).unwrap(), trailing);

            section::merge(&mut wire);
            let merged = Metadata::decode(&wire).unwrap();
            assert!(merged.iter().eq(initial.iter().chain(trailing.iter())));
        }
    }

    #[test]
    fn wrong_keys_and_values_are_named() {
        let mut metadata = Metadata::new();
        assert!(
            matches!(metadata.insert("Upper", "x"), Err(MetadataError::Key { key }) if key == "Upper")
        );
        assert!(matches!(
            metadata.insert("", "x"),
            Err(MetadataError::Key { .. })
        ));
        assert!(
            matches!(metadata.insert("text", vec![7]), Err(MetadataError::Value { key }) if key == "text")
        );
        assert!(metadata.is_empty());
        assert!(Metadata::decode(&[0xff, 0xff]).is_err());
    }
}
