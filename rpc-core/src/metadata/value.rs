//! [`IntoMetadataValue`]: what a value of metadata is made from.

use bytes::Bytes;

/// Text or bytes, to convert into a value of [`Metadata`](super::Metadata). Borrowed ones are copied.
pub trait IntoMetadataValue {
    /// Converts `self` into the bytes of a value.
    fn into_metadata_value(self) -> Bytes;
}

macro_rules! by_into {
    ($($owned:ty),*) => {$(
        impl IntoMetadataValue for $owned {
            fn into_metadata_value(self) -> Bytes {
                self.into()
            }
        }
    )*};
}

by_into!(Bytes, String, Vec<u8>);

impl IntoMetadataValue for &str {
    fn into_metadata_value(self) -> Bytes {
        self.as_bytes().into_metadata_value()
    }
}

impl IntoMetadataValue for &String {
    fn into_metadata_value(self) -> Bytes {
        self.as_str().into_metadata_value()
    }
}

impl IntoMetadataValue for &[u8] {
    fn into_metadata_value(self) -> Bytes {
        Bytes::copy_from_slice(self)
    }
}

impl<const N: usize> IntoMetadataValue for &[u8; N] {
    fn into_metadata_value(self) -> Bytes {
        self.as_slice().into_metadata_value()
    }
}
