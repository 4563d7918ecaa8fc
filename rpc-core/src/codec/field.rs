//! The types of fields: how a field of each type is measured, written and read.
//!
//! A tag is the encoded key of a field, its number and its wire type.

mod nested;

use std::marker::PhantomData;

use prost::encoding::encoded_len_varint;

pub use self::nested::{Extern, ExternGroup, FlatExtern, Group, Map, Message};
use super::budget::Work;
use super::reader::{Reader, count_packed};
use super::scan::{Scan, Stop};
use super::writer::Writer;

/// A type of field. The names are Protobuf's.
#[expect(
    clippy::missing_errors_doc,
    reason = "`Writer` has the errors of all methods"
)]
pub trait Field {
    /// The Rust type of the field.
    type Value: Default;

    /// The number of the type's encoding, in the last three bits of a key.
    const WIRE_TYPE: u8;

    /// Returns the length of the value, without the tag.
    fn len(value: &Self::Value) -> usize;

    /// Writes the tag and the value.
    fn encode<const T: usize, W: Writer>(
        tag: [u8; T],
        value: &Self::Value,
        out: &mut W,
    ) -> Result<(), W::Error>;

    /// Takes the value, if the tag precedes it.
    fn decode<const T: usize>(tag: [u8; T], fields: &mut Reader<'_>) -> Option<Self::Value> {
        fields.take_field(tag, Self::read)
    }

    /// Takes the value, without the tag.
    fn read(fields: &mut Reader<'_>) -> Option<Self::Value>;

    /// Returns the value that an entry of a `map` has if it contains none.
    fn default_value() -> Self::Value {
        Self::Value::default()
    }

    /// Returns the length of a repeated field whose tag has `tag_len` bytes.
    fn len_repeated(tag_len: usize, values: &[Self::Value]) -> usize {
        let len: usize = values.iter().map(Self::len).sum();
        tag_len * values.len() + len
    }

    /// Writes a repeated field.
    fn encode_repeated<const T: usize, W: Writer>(
        tag: [u8; T],
        values: &[Self::Value],
        out: &mut W,
    ) -> Result<(), W::Error> {
        values
            .iter()
            .try_for_each(|value| Self::encode(tag, value, out))
    }

    /// Takes all values of a repeated field that follow one another.
    fn decode_repeated<const T: usize>(tag: [u8; T], fields: &mut Reader<'_>) -> Vec<Self::Value> {
        let count = fields.count(tag, Self::WIRE_TYPE);
        if count == 0 || fields.charge(count, size_of::<Self::Value>()).is_none() {
            return Vec::new();
        }
        let mut values = Vec::with_capacity(count);
        while let Some(value) = Self::decode(tag, fields) {
            values.push(value);
        }
        values
    }

    /// Passes one occurrence of the field in a [`Scan`], outside of a repeated field.
    ///
    /// Takes from the budget what the value places on the heap, besides the bytes of the encoding.
    fn scan_value(fields: &mut Scan<'_>) -> Result<(), Stop> {
        fields.skip()
    }

    /// Passes one occurrence of an optional field, which `get` returns.
    fn scan<O>(fields: &mut Scan<'_>, get: fn(&O) -> &Option<Self::Value>) -> Result<(), Stop> {
        let _ = get;
        Self::scan_value(fields)
    }

    /// Passes one occurrence of a variant of a oneof.
    fn scan_variant<O>(fields: &mut Scan<'_>, new: fn(Self::Value) -> O) -> Result<(), Stop> {
        let _ = new;
        Self::scan_value(fields)
    }

    /// Passes one occurrence of a required field, which `get` returns.
    fn scan_required<O>(fields: &mut Scan<'_>, get: fn(&O) -> &Self::Value) -> Result<(), Stop> {
        let _ = get;
        Self::scan_value(fields)
    }

    /// Passes one occurrence of a repeated field, which `get` returns. It is packed or not, whatever
    /// the field's declaration says.
    fn scan_repeated<O>(
        fields: &mut Scan<'_>,
        get: fn(&O) -> &Vec<Self::Value>,
    ) -> Result<(), Stop> {
        let _ = get;
        let size = size_of::<Self::Value>();
        if fields.wire_type() == 2 && !matches!(Self::WIRE_TYPE, 2 | 3) {
            return fields.scan_packed(Self::WIRE_TYPE, size);
        }
        fields.charge(size)?;
        Self::scan_value(fields)
    }

    /// Returns the length of a packed field whose tag has `tag_len` bytes.
    fn len_packed(tag_len: usize, values: &[Self::Value]) -> usize {
        match Self::len_repeated(0, values) {
            0 => 0,
            len => tag_len + len_delimited(len),
        }
    }

    /// Writes a packed field.
    fn encode_packed<const T: usize, W: Writer>(
        tag: [u8; T],
        values: &[Self::Value],
        out: &mut W,
    ) -> Result<(), W::Error> {
        if values.is_empty() {
            return Ok(());
        }
        out.put_varint(tag, Self::len_repeated(0, values) as u64)?;
        Self::encode_repeated([], values, out)
    }

    /// Takes the values of a packed field.
    fn decode_packed<const T: usize>(tag: [u8; T], fields: &mut Reader<'_>) -> Vec<Self::Value> {
        let packed = |fields: &mut Reader<'_>| {
            let mut packed = Reader::new(fields.take_delimited()?, 0);
            let count = count_packed(packed.bytes(), Self::WIRE_TYPE);
            let size = size_of::<Self::Value>();
            // The budget has one byte for each encoded byte already.
            if let Some(more) = (count * size).checked_sub(packed.len()) {
                fields.charge(1, more)?;
            }
            let mut values = Vec::with_capacity(count);
            while !packed.is_empty() {
                values.push(Self::read(&mut packed)?);
            }
            Some(values)
        };
        fields.take_field(tag, packed).unwrap_or_default()
    }
}

/// Returns the length of `len` bytes with their length before them.
fn len_delimited(len: usize) -> usize {
    encoded_len_varint(len as u64) + len
}

macro_rules! varint {
    ($($name:ident: $value:ty, $to:expr, $from:expr;)*) => {$(
        #[doc = concat!("`", stringify!($name), "` in the case of Protobuf, encoded as a varint.")]
        #[derive(Debug)]
        pub enum $name {}

        impl Field for $name {
            type Value = $value;

            const WIRE_TYPE: u8 = 0;

            #[inline]
            fn len(value: &$value) -> usize {
                encoded_len_varint($to(*value))
            }

            #[inline]
            fn encode<const T: usize, W: Writer>(
                tag: [u8; T],
                value: &$value,
                out: &mut W,
            ) -> Result<(), W::Error> {
                out.put_varint(tag, $to(*value))
            }

            #[inline]
            fn read(fields: &mut Reader<'_>) -> Option<$value> {
                fields.take_varint().map($from)
            }
        }
    )*};
}

varint! {
    Int32: i32, |value: i32| value as u64, |bits: u64| bits as i32;
    Int64: i64, |value: i64| value as u64, |bits: u64| bits as i64;
    Uint32: u32, |value: u32| u64::from(value), |bits: u64| bits as u32;
    Uint64: u64, |value: u64| value, |bits: u64| bits;
    Sint32: i32,
        |value: i32| u64::from(((value << 1) ^ (value >> 31)) as u32),
        |bits: u64| (bits as u32 >> 1) as i32 ^ -(bits as i32 & 1);
    Sint64: i64,
        |value: i64| ((value << 1) ^ (value >> 63)) as u64,
        |bits: u64| (bits >> 1) as i64 ^ -(bits as i64 & 1);
    Bool: bool, u64::from, |bits: u64| bits != 0;
}

/// An enum whose first value is not zero, as the value of a `map`. Other enums are [`Int32`].
#[derive(Debug)]
pub enum Enum<const DEFAULT: i32> {}

impl<const DEFAULT: i32> Field for Enum<DEFAULT> {
    type Value = i32;

    const WIRE_TYPE: u8 = 0;

    #[inline]
    fn len(value: &i32) -> usize {
        Int32::len(value)
    }

    #[inline]
    fn encode<const T: usize, W: Writer>(
        tag: [u8; T],
        value: &i32,
        out: &mut W,
    ) -> Result<(), W::Error> {
        Int32::encode(tag, value, out)
    }

    #[inline]
    fn read(fields: &mut Reader<'_>) -> Option<i32> {
        Int32::read(fields)
    }

    fn default_value() -> i32 {
        DEFAULT
    }
}

macro_rules! fixed {
    ($($name:ident: $value:ty;)*) => {$(
        #[doc = concat!("`", stringify!($name), "` in the case of Protobuf, of fixed length.")]
        #[derive(Debug)]
        pub enum $name {}

        impl Field for $name {
            type Value = $value;

            const WIRE_TYPE: u8 = if size_of::<$value>() == 4 { 5 } else { 1 };

            #[inline]
            fn len(_: &$value) -> usize {
                size_of::<$value>()
            }

            #[inline]
            fn encode<const T: usize, W: Writer>(
                tag: [u8; T],
                value: &$value,
                out: &mut W,
            ) -> Result<(), W::Error> {
                out.put_fixed(tag, value.to_le_bytes())
            }

            #[inline]
            fn read(fields: &mut Reader<'_>) -> Option<$value> {
                fields.take_fixed().map(<$value>::from_le_bytes)
            }
        }
    )*};
}

fixed! {
    Fixed32: u32;
    Fixed64: u64;
    Sfixed32: i32;
    Sfixed64: i64;
    Float: f32;
    Double: f64;
}

/// `string`.
#[derive(Debug)]
pub enum String {}

impl Field for String {
    type Value = std::string::String;

    const WIRE_TYPE: u8 = 2;

    #[inline]
    fn len(value: &Self::Value) -> usize {
        len_delimited(value.len())
    }

    #[inline]
    fn encode<const T: usize, W: Writer>(
        tag: [u8; T],
        value: &Self::Value,
        out: &mut W,
    ) -> Result<(), W::Error> {
        out.put_varint(tag, value.len() as u64)?;
        out.put_slice(value.as_bytes())
    }

    #[inline]
    fn read(fields: &mut Reader<'_>) -> Option<Self::Value> {
        let text = str::from_utf8(fields.take_delimited()?).ok()?;
        Some(text.to_owned())
    }

    fn scan_value(fields: &mut Scan<'_>) -> Result<(), Stop> {
        fields.scan_copied(Work::TEXT)
    }
}

/// `bytes`, as a `Vec<u8>` or as `Bytes`.
#[derive(Debug)]
pub struct Bytes<B>(PhantomData<B>);

/// The Rust types of `bytes`.
pub trait BytesValue: AsRef<[u8]> + Default {
    /// Passes the bytes with their length in a [`Scan`].
    ///
    /// # Errors
    ///
    /// Returns the reason to stop.
    fn scan(fields: &mut Scan<'_>) -> Result<(), Stop>;

    /// Takes the bytes with their length.
    fn take(fields: &mut Reader<'_>) -> Option<Self>;

    /// Writes the bytes without their length.
    ///
    /// # Errors
    ///
    /// Returns the error of [`Writer`].
    fn put<W: Writer>(&self, out: &mut W) -> Result<(), W::Error>;
}

impl BytesValue for Vec<u8> {
    fn scan(fields: &mut Scan<'_>) -> Result<(), Stop> {
        fields.scan_copied(Work::COPIED)
    }

    #[inline]
    fn take(fields: &mut Reader<'_>) -> Option<Self> {
        fields.take_delimited().map(<[u8]>::to_vec)
    }

    #[inline]
    fn put<W: Writer>(&self, out: &mut W) -> Result<(), W::Error> {
        out.put_slice(self)
    }
}

impl BytesValue for bytes::Bytes {
    fn scan(fields: &mut Scan<'_>) -> Result<(), Stop> {
        fields.skip()
    }

    #[inline]
    fn take(fields: &mut Reader<'_>) -> Option<Self> {
        fields.take_bytes()
    }

    #[inline]
    fn put<W: Writer>(&self, out: &mut W) -> Result<(), W::Error> {
        out.put_bytes(self)
    }
}

impl<B: BytesValue> Field for Bytes<B> {
    type Value = B;

    const WIRE_TYPE: u8 = 2;

    #[inline]
    fn len(value: &B) -> usize {
        len_delimited(value.as_ref().len())
    }

    #[inline]
    fn encode<const T: usize, W: Writer>(
        tag: [u8; T],
        value: &B,
        out: &mut W,
    ) -> Result<(), W::Error> {
        out.put_varint(tag, value.as_ref().len() as u64)?;
        value.put(out)
    }

    #[inline]
    fn read(fields: &mut Reader<'_>) -> Option<B> {
        B::take(fields)
    }

    fn scan_value(fields: &mut Scan<'_>) -> Result<(), Stop> {
        B::scan(fields)
    }
}
