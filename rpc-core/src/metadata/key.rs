//! [`MetadataKey`]: a key of metadata that has been checked.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use super::MetadataError;

/// A key of [`Metadata`](super::Metadata): lower-case ASCII letters, digits, `-`, `_` and `.`.
///
/// [`from_static`](Self::from_static) makes a constant, which is checked when it is compiled and
/// used without an allocation. Every function that takes a key also takes a string.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MetadataKey(Cow<'static, str>);

impl MetadataKey {
    /// Creates a key from a string that is known at compile time.
    ///
    /// # Panics
    ///
    /// Panics if the string is not a key. In a constant, this is an error of the compiler.
    #[must_use]
    pub const fn from_static(key: &'static str) -> Self {
        assert!(
            is_key(key),
            "not a metadata key: only a-z, 0-9, '-', '_' and '.' may be used"
        );
        Self(Cow::Borrowed(key))
    }

    /// Returns the key as a string.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true if the values of the key may hold any bytes: it ends in `-bin`.
    #[must_use]
    pub fn is_binary(&self) -> bool {
        self.0.ends_with("-bin")
    }
}

impl AsRef<str> for MetadataKey {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for MetadataKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for MetadataKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// A [`MetadataKey`], or a string to convert into one.
pub trait IntoMetadataKey {
    /// Converts `self` into a key.
    ///
    /// # Errors
    ///
    /// Returns [`MetadataError::Key`] if it is empty or contains a character that is not allowed.
    fn into_metadata_key(self) -> Result<MetadataKey, MetadataError>;
}

impl IntoMetadataKey for MetadataKey {
    fn into_metadata_key(self) -> Result<MetadataKey, MetadataError> {
        Ok(self)
    }
}

impl IntoMetadataKey for &MetadataKey {
    fn into_metadata_key(self) -> Result<MetadataKey, MetadataError> {
        Ok(self.clone())
    }
}

impl IntoMetadataKey for String {
    fn into_metadata_key(self) -> Result<MetadataKey, MetadataError> {
        if is_key(&self) {
            Ok(MetadataKey(Cow::Owned(self)))
        } else {
            Err(MetadataError::Key { key: self })
        }
    }
}

impl IntoMetadataKey for &str {
    fn into_metadata_key(self) -> Result<MetadataKey, MetadataError> {
        self.to_owned().into_metadata_key()
    }
}

impl IntoMetadataKey for &String {
    fn into_metadata_key(self) -> Result<MetadataKey, MetadataError> {
        self.as_str().into_metadata_key()
    }
}

impl FromStr for MetadataKey {
    type Err = MetadataError;

    fn from_str(key: &str) -> Result<Self, MetadataError> {
        key.into_metadata_key()
    }
}

const fn is_key(key: &str) -> bool {
    // Iterators are not available in constants.
    let mut rest = key.as_bytes();
    while let Some((first, others)) = rest.split_first() {
        if !matches!(first, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.') {
            return false;
        }
        rest = others;
    }
    !key.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_static_key_equals_one_that_was_converted() {
        const KEY: MetadataKey = MetadataKey::from_static("a-b.c_9-bin");
        assert_eq!("a-b.c_9-bin".into_metadata_key(), Ok(KEY));
        assert_eq!((&KEY).into_metadata_key(), Ok(KEY));
        assert_eq!("a-b.c_9-bin".parse(), Ok(KEY));
        assert!(KEY.is_binary());
        assert_eq!(format!("{KEY} {KEY:?}"), "a-b.c_9-bin \"a-b.c_9-bin\"");
    }

    #[test]
    fn other_strings_are_no_keys() {
        for key in ["", "A", "a b", "a/b", "ä", "a\n"] {
            assert!(key.into_metadata_key().is_err(), "{key:?}");
        }
    }

    #[test]
    #[should_panic(expected = "not a metadata key")]
    fn a_wrong_static_key_panics() {
        let _ = MetadataKey::from_static("Upper");
    }
}
