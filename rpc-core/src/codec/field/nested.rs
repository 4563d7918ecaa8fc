//! The types of fields that contain fields.

use std::marker::PhantomData;

use prost::Message as ProstMessage;

use super::{Field, len_delimited};
use crate::codec::reader::Reader;
use crate::codec::scan::{Scan, Stop, decoded_len_of_any, scan_any};
use crate::codec::writer::Writer;
use crate::codec::{GeneratedMessage, decode_known, levels};

/// A message with generated code, possibly in a `Box`.
#[derive(Debug)]
pub struct Message<M>(PhantomData<M>);

impl<M: GeneratedMessage> Field for Message<M> {
    type Value = M;

    const WIRE_TYPE: u8 = 2;

    #[inline]
    fn len(message: &M) -> usize {
        len_delimited(GeneratedMessage::encoded_len(message))
    }

    #[inline]
    fn encode<const T: usize, W: Writer>(
        tag: [u8; T],
        message: &M,
        out: &mut W,
    ) -> Result<(), W::Error> {
        let len = GeneratedMessage::encoded_len(message);
        out.put_varint(tag, len as u64)?;
        out.put_message(message, len)
    }

    #[inline]
    fn read(fields: &mut Reader<'_>) -> Option<M> {
        let levels = const { levels(size_of::<M>() + M::BOXED_LEN) };
        decode_known(fields.take_nested(levels)?)
    }

    fn scan_value(fields: &mut Scan<'_>) -> Result<(), Stop> {
        fields.charge(M::BOXED_LEN)?;
        fields.scan_message(Self::WIRE_TYPE, size_of::<M>(), M::scan_field)
    }
}

/// A group. Its tag is the one at its start. It is not decoded: prost does that.
#[derive(Debug)]
pub struct Group<M>(PhantomData<M>);

impl<M: GeneratedMessage> Field for Group<M> {
    type Value = M;

    const WIRE_TYPE: u8 = 3;

    #[inline]
    fn len(message: &M) -> usize {
        GeneratedMessage::encoded_len(message)
    }

    fn encode<const T: usize, W: Writer>(
        tag: [u8; T],
        message: &M,
        out: &mut W,
    ) -> Result<(), W::Error> {
        out.put_slice(&tag)?;
        out.put_message(message, GeneratedMessage::encoded_len(message))?;
        out.put_slice(&end_tag(tag))
    }

    fn read(_: &mut Reader<'_>) -> Option<M> {
        None
    }

    fn scan_value(fields: &mut Scan<'_>) -> Result<(), Stop> {
        fields.charge(M::BOXED_LEN)?;
        fields.scan_message(Self::WIRE_TYPE, size_of::<M>(), M::scan_field)
    }
}

/// Returns the tag at the end of a group, whose wire type is 4 instead of 3.
fn end_tag<const T: usize>(mut tag: [u8; T]) -> [u8; T] {
    tag[0] += 1;
    tag
}

/// A message of a foreign type, which prost encodes. It is not decoded: prost counts the levels of
/// nested messages, and would count from this message on instead of from the outermost one.
#[derive(Debug)]
pub struct Extern<M>(PhantomData<M>);

impl<M: ProstMessage + Default> Field for Extern<M> {
    type Value = M;

    const WIRE_TYPE: u8 = 2;

    fn len(message: &M) -> usize {
        len_delimited(message.encoded_len())
    }

    fn encode<const T: usize, W: Writer>(
        tag: [u8; T],
        message: &M,
        out: &mut W,
    ) -> Result<(), W::Error> {
        let len = message.encoded_len();
        out.put_varint(tag, len as u64)?;
        out.put_prost(message, len)
    }

    fn read(_: &mut Reader<'_>) -> Option<M> {
        None
    }

    fn scan_value(fields: &mut Scan<'_>) -> Result<(), Stop> {
        fields.scan_message(Self::WIRE_TYPE, size_of::<M>(), scan_any)
    }
}

/// A group of a foreign type. Its tag is the one at its start.
#[derive(Debug)]
pub struct ExternGroup<M>(PhantomData<M>);

impl<M: ProstMessage + Default> Field for ExternGroup<M> {
    type Value = M;

    const WIRE_TYPE: u8 = 3;

    fn len(message: &M) -> usize {
        message.encoded_len()
    }

    fn encode<const T: usize, W: Writer>(
        tag: [u8; T],
        message: &M,
        out: &mut W,
    ) -> Result<(), W::Error> {
        out.put_slice(&tag)?;
        out.put_prost(message, message.encoded_len())?;
        out.put_slice(&end_tag(tag))
    }

    fn read(_: &mut Reader<'_>) -> Option<M> {
        None
    }

    fn scan_value(fields: &mut Scan<'_>) -> Result<(), Stop> {
        fields.scan_message(Self::WIRE_TYPE, size_of::<M>(), scan_any)
    }
}

/// An [`Extern`] whose fields are not messages. prost decodes it as well.
#[derive(Debug)]
pub struct FlatExtern<M>(PhantomData<M>);

impl<M: ProstMessage + Default> Field for FlatExtern<M> {
    type Value = M;

    const WIRE_TYPE: u8 = 2;

    fn len(message: &M) -> usize {
        Extern::len(message)
    }

    fn encode<const T: usize, W: Writer>(
        tag: [u8; T],
        message: &M,
        out: &mut W,
    ) -> Result<(), W::Error> {
        Extern::encode(tag, message, out)
    }

    fn read(fields: &mut Reader<'_>) -> Option<M> {
        let nested = fields.take_nested(const { levels(size_of::<M>()) })?;
        nested.charge(1, decoded_len_of_any(nested.bytes())?)?;
        let message = M::decode(nested.bytes()).ok()?;
        // The encoding of the known fields is shorter if there are unknown ones. Those may be nested
        // groups.
        (message.encoded_len() == nested.len()).then_some(message)
    }

    fn scan_value(fields: &mut Scan<'_>) -> Result<(), Stop> {
        fields.scan_message(Self::WIRE_TYPE, size_of::<M>(), scan_any)
    }
}

/// A `map` with keys of type `K` and values of type `V`.
#[derive(Debug)]
pub struct Map<K, V>(PhantomData<(K, V)>);

impl<K: Field, V: Field> Map<K, V>
where
    K::Value: PartialEq,
    V::Value: PartialEq,
{
    /// Returns the length of the field, whose tag has `tag_len` bytes.
    pub fn len<'a, C>(tag_len: usize, map: &'a C) -> usize
    where
        &'a C: IntoIterator<Item = (&'a K::Value, &'a V::Value)>,
        K::Value: 'a,
        V::Value: 'a,
    {
        let defaults = (K::default_value(), V::default_value());
        let entries = map.into_iter();
        entries
            .map(|entry| tag_len + len_delimited(Self::entry_len(entry, &defaults)))
            .sum()
    }

    /// Writes the field.
    ///
    /// # Errors
    ///
    /// Returns the error of [`Writer`].
    pub fn encode<'a, const T: usize, C, W: Writer>(
        tag: [u8; T],
        map: &'a C,
        out: &mut W,
    ) -> Result<(), W::Error>
    where
        &'a C: IntoIterator<Item = (&'a K::Value, &'a V::Value)>,
        K::Value: 'a,
        V::Value: 'a,
    {
        let defaults = (K::default_value(), V::default_value());
        for (key, value) in map {
            out.put_varint(tag, Self::entry_len((key, value), &defaults) as u64)?;
            if *key != defaults.0 {
                K::encode([0x08 | K::WIRE_TYPE], key, out)?;
            }
            if *value != defaults.1 {
                V::encode([0x10 | V::WIRE_TYPE], value, out)?;
            }
        }
        Ok(())
    }

    /// Takes all entries that follow one another.
    pub fn decode<const T: usize, C>(tag: [u8; T], fields: &mut Reader<'_>) -> C
    where
        C: Default + Extend<(K::Value, V::Value)>,
    {
        let entry = |fields: &mut Reader<'_>| {
            let levels = const { levels(size_of::<(K::Value, V::Value)>()) };
            let mut entry = fields.take_nested(levels)?;
            let key = K::decode([0x08 | K::WIRE_TYPE], &mut entry);
            let value = V::decode([0x10 | V::WIRE_TYPE], &mut entry);
            let both = || {
                (
                    key.unwrap_or_else(K::default_value),
                    value.unwrap_or_else(V::default_value),
                )
            };
            entry.is_empty().then(both)
        };
        let mut map = C::default();
        let count = fields.count(tag, 2);
        if count == 0
            || fields
                .charge(count, size_of::<(K::Value, V::Value)>())
                .is_none()
        {
            return map;
        }
        while let Some(entry) = fields.take_field(tag, entry) {
            map.extend([entry]);
        }
        map
    }

    /// Passes one entry in a [`Scan`] of the field, which `get` returns.
    ///
    /// # Errors
    ///
    /// Returns the reason to stop: the entry is malformed, or the budget is used up.
    pub fn scan<O, C>(fields: &mut Scan<'_>, get: fn(&O) -> &C) -> Result<(), Stop>
    where
        C: IntoIterator<Item = (K::Value, V::Value)>,
    {
        let _ = get;
        fields.charge(size_of::<(K::Value, V::Value)>())?;
        fields.scan_entry(|number, fields| match number {
            1 => K::scan_value(fields),
            2 => V::scan_value(fields),
            _ => fields.skip(),
        })
    }

    /// Returns the length of an entry. prost leaves out a key or a value that is the default.
    fn entry_len((key, value): (&K::Value, &V::Value), defaults: &(K::Value, V::Value)) -> usize {
        let key_len = if *key == defaults.0 {
            0
        } else {
            1 + K::len(key)
        };
        let value_len = if *value == defaults.1 {
            0
        } else {
            1 + V::len(value)
        };
        key_len + value_len
    }
}

#[cfg(test)]
mod tests {
    use prost_types::Timestamp;

    use super::*;
    use crate::codec::writer::BufWriter;

    #[derive(Clone, PartialEq, ProstMessage)]
    struct Outer {
        #[prost(group, tag = "1")]
        group: Option<Timestamp>,
    }

    #[test]
    fn a_foreign_group_is_encoded_as_by_prost() {
        let group = Timestamp {
            seconds: -1,
            nanos: 7,
        };
        let mut bytes = Vec::new();
        ExternGroup::encode([0x0b], &group, &mut BufWriter::new(&mut bytes)).unwrap();
        assert_eq!(2 + ExternGroup::len(&group), bytes.len());
        let group = Some(group);
        assert_eq!(bytes, Outer { group }.encode_to_vec());
    }
}
