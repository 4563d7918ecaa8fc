//! [`Metadata`]: key-value pairs that travel beside a message, as in gRPC.
//!
//! Keys are lower-case ASCII. The value of a key that ends in `-bin` may hold any bytes; every
//! other value is printable ASCII. Empty metadata is one null pointer and takes no bytes in a
//! frame.

mod key;
mod value;

use std::fmt;
use std::slice;

use bytes::Bytes;
use prost::Message;

pub use self::key::{IntoMetadataKey, MetadataKey};
pub use self::value::IntoMetadataValue;

/// Key-value pairs in insertion order. A key may have several values.
///
/// ```
/// use rpc_core::{Metadata, MetadataError, MetadataKey};
///
/// // Checked when this is compiled.
/// const TRACE_ID: MetadataKey = MetadataKey::from_static("trace-id");
///
/// let mut metadata = Metadata::new();
/// metadata.insert(TRACE_ID, "4bf92f3577b34da6")?;
/// metadata.append("role", "reader")?;
/// metadata.append("role", "writer")?;
/// metadata.insert("token-bin", vec![0, 255])?;
///
/// assert_eq!(metadata.get(TRACE_ID), Some("4bf92f3577b34da6"));
/// assert_eq!(metadata.get_all("role").collect::<Vec<_>>(), ["reader", "writer"]);
/// assert_eq!(metadata.get_bin("token-bin"), Some(&[0, 255][..]));
/// # Ok::<_, MetadataError>(())
/// ```
#[derive(Clone, Default)]
pub struct Metadata(
    // The box makes empty metadata a null pointer. Every request and response has this field.
    #[allow(clippy::box_collection)] Option<Box<Vec<Entry>>>,
);

#[derive(Clone, PartialEq, Eq)]
struct Entry {
    key: MetadataKey,
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
    Undecodable(prost::DecodeError),
}

/// Length of the length that precedes initial metadata in a section with both kinds.
const INITIAL_PREFIX_LEN: usize = 2;

/// The section of a response's frame that holds both kinds of metadata: the length of the initial
/// metadata (two bytes, little-endian), the initial and the trailing metadata.
pub(crate) mod section {
    use super::{INITIAL_PREFIX_LEN, Metadata};

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

    /// Sets the value of a key, and removes its earlier values.
    ///
    /// # Errors
    ///
    /// Returns [`MetadataError`] if the key or the value contains a character that is not allowed.
    /// Nothing is changed then.
    pub fn insert(
        &mut self,
        key: impl IntoMetadataKey,
        value: impl IntoMetadataValue,
    ) -> Result<(), MetadataError> {
        let entry = Entry::new(key, value)?;
        let entries = self.0.get_or_insert_default();
        entries.retain(|other| other.key != entry.key);
        entries.push(entry);
        Ok(())
    }

    /// Adds a value to a key, after its earlier values.
    ///
    /// # Errors
    ///
    /// Returns [`MetadataError`] if the key or the value contains a character that is not allowed.
    /// Nothing is changed then.
    pub fn append(
        &mut self,
        key: impl IntoMetadataKey,
        value: impl IntoMetadataValue,
    ) -> Result<(), MetadataError> {
        let entry = Entry::new(key, value)?;
        self.0.get_or_insert_default().push(entry);
        Ok(())
    }

    /// Removes all values of a key, and returns the first one, or `None` if the key is absent.
    pub fn remove(&mut self, key: impl AsRef<str>) -> Option<Bytes> {
        let key = key.as_ref();
        let entries = self.0.as_mut()?;
        let first = entries.iter().position(|entry| entry.key.as_str() == key)?;
        let removed = entries.remove(first).value;
        entries.retain(|entry| entry.key.as_str() != key);
        Some(removed)
    }

    /// Removes all pairs whose keys begin with `prefix`.
    pub(crate) fn remove_prefix(&mut self, prefix: &str) {
        if let Some(entries) = &mut self.0 {
            entries.retain(|entry| !entry.key.as_str().starts_with(prefix));
        }
    }

    /// Removes all pairs.
    pub fn clear(&mut self) {
        self.0 = None;
    }

    /// Returns true if the key has a value.
    #[must_use]
    pub fn contains(&self, key: impl AsRef<str>) -> bool {
        self.get_bin(key).is_some()
    }

    /// Returns the first value of a key as text, or `None` if the key is absent or ends in `-bin`.
    #[must_use]
    pub fn get(&self, key: impl AsRef<str>) -> Option<&str> {
        let key = key.as_ref();
        text(
            self.entries()
                .iter()
                .find(|entry| entry.key.as_str() == key)?,
        )
    }

    /// Returns the first value of a key as bytes, or `None` if the key is absent.
    #[must_use]
    pub fn get_bin(&self, key: impl AsRef<str>) -> Option<&[u8]> {
        let key = key.as_ref();
        let entry = self
            .entries()
            .iter()
            .find(|entry| entry.key.as_str() == key);
        entry.map(|entry| &entry.value[..])
    }

    /// Iterates over all values of a key as text, in insertion order. The values of a key that ends
    /// in `-bin` are left out.
    pub fn get_all<'a>(&'a self, key: impl AsRef<str> + 'a) -> impl Iterator<Item = &'a str> {
        self.entries()
            .iter()
            .filter(move |entry| entry.key.as_str() == key.as_ref())
            .filter_map(text)
    }

    /// Iterates over all values of a key as bytes, in insertion order.
    pub fn get_all_bin<'a>(&'a self, key: impl AsRef<str> + 'a) -> impl Iterator<Item = &'a [u8]> {
        self.entries()
            .iter()
            .filter(move |entry| entry.key.as_str() == key.as_ref())
            .map(|entry| &entry.value[..])
    }

    /// Iterates over all pairs in insertion order.
    pub fn iter(&self) -> MetadataIter<'_> {
        MetadataIter(self.entries().iter())
    }

    fn entries(&self) -> &[Entry] {
        self.0.as_deref().map_or(&[], Vec::as_slice)
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
        for pair in WireMetadata::decode(bytes)
            .map_err(MetadataError::Undecodable)?
            .pairs
        {
            metadata.append(pair.key, pair.value)?;
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

impl Entry {
    fn new(
        key: impl IntoMetadataKey,
        value: impl IntoMetadataValue,
    ) -> Result<Self, MetadataError> {
        let (key, value) = (key.into_metadata_key()?, value.into_metadata_value());
        if !key.is_binary() && !value.iter().all(|byte| (0x20..=0x7e).contains(byte)) {
            return Err(MetadataError::Value {
                key: key.as_str().to_owned(),
            });
        }
        Ok(Self { key, value })
    }
}

fn text(entry: &Entry) -> Option<&str> {
    if entry.key.is_binary() {
        return None;
    }
    std::str::from_utf8(&entry.value).ok()
}

/// Iterates over the pairs of [`Metadata`] in insertion order.
#[derive(Clone)]
pub struct MetadataIter<'a>(slice::Iter<'a, Entry>);

impl<'a> Iterator for MetadataIter<'a> {
    type Item = (&'a str, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let Entry { key, value } = self.0.next()?;
        Some((key.as_str(), value))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for MetadataIter<'_> {}

impl fmt::Debug for MetadataIter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MetadataIter")
    }
}

impl<'a> IntoIterator for &'a Metadata {
    type Item = (&'a str, &'a [u8]);
    type IntoIter = MetadataIter<'a>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Equal if the pairs are, in their order.
impl PartialEq for Metadata {
    fn eq(&self, other: &Self) -> bool {
        self.entries() == other.entries()
    }
}

impl Eq for Metadata {}

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
        metadata.append("trace-id", "abc").unwrap();
        metadata.append("key-bin", vec![0, 255]).unwrap();
        metadata.append("trace-id", "def").unwrap();
        let mut wire = vec![0; metadata.encoded_len()];
        metadata.encode(&mut wire);
        let decoded = Metadata::decode(&wire).unwrap();
        assert_eq!(decoded, metadata);
        assert_eq!(decoded.get("trace-id"), Some("abc"));
        assert_eq!(decoded.get_bin("key-bin"), Some(&[0, 255][..]));
        assert_eq!(decoded.get("key-bin"), None);
        let values: Vec<_> = decoded.get_all("trace-id").collect();
        assert_eq!(values, ["abc", "def"]);
    }

    #[test]
    fn inserting_replaces_and_appending_adds() {
        const KEY: MetadataKey = MetadataKey::from_static("a");
        let mut metadata = Metadata::new();
        metadata.append("a", "1").unwrap();
        metadata.append("b-bin", vec![9]).unwrap();
        metadata.append(KEY, "2").unwrap();
        assert_eq!(metadata.get_all("a").collect::<Vec<_>>(), ["1", "2"]);
        metadata.insert("a".to_owned(), "3").unwrap();
        assert_eq!(metadata.get_all(KEY).collect::<Vec<_>>(), ["3"]);
        let keys: Vec<_> = (&metadata).into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, ["b-bin", "a"]);
        assert_eq!(metadata.get_all("b-bin").count(), 0);
        let bytes: Vec<_> = metadata.get_all_bin("b-bin").collect();
        assert_eq!(bytes, [[9]]);
    }

    #[test]
    fn a_refused_pair_changes_nothing() {
        let mut metadata = Metadata::new();
        metadata.insert("a", "1").unwrap();
        assert!(metadata.insert("a", "\n").is_err());
        assert_eq!(metadata.get("a"), Some("1"));
    }

    #[test]
    fn removing_takes_every_value_of_a_key() {
        let mut metadata = Metadata::new();
        for (key, value) in [("a", "1"), ("b", "2"), ("a", "3")] {
            metadata.append(key, value).unwrap();
        }
        assert_eq!(metadata.remove("a").as_deref(), Some(&b"1"[..]));
        assert!(!metadata.contains("a"));
        assert!(metadata.contains("b"));
        assert_eq!(metadata.remove("a"), None);
        assert!(metadata.remove("b").is_some());
        assert_eq!(metadata, Metadata::new());
        metadata.insert("b", "2").unwrap();
        metadata.clear();
        assert!(metadata.is_empty());
        assert_eq!(metadata.remove("b"), None);
    }

    #[test]
    fn a_section_holds_both_kinds_of_metadata() {
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
