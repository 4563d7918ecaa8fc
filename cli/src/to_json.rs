//! Messages to JSON, by proto3's rules.
//!
//! prost-reflect does this, too, and is asked for types whose JSON is a string. The rest is here for three
//! reasons: entries of maps are in the order of their keys, so that one message has one text; `NaN` is kept
//! in wrappers; and an `Any` whose type is not known is printed as its bytes, as `grpcurl` does, instead of
//! failing the whole message.

use std::collections::BTreeSet;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use prost_reflect::{DynamicMessage, Kind, MapKey, MessageDescriptor, ReflectMessage, Value};
use serde::ser::{Error, Serialize, SerializeMap, SerializeSeq, Serializer};

/// A message, to be serialized.
pub(crate) struct Json<'a>(pub(crate) &'a DynamicMessage);

impl Serialize for Json<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let message = self.0;
        match message.descriptor().full_name() {
            "google.protobuf.Any" => any(message, serializer),
            // Wrappers are their value, and it may be the default one.
            "google.protobuf.DoubleValue"
            | "google.protobuf.FloatValue"
            | "google.protobuf.Int64Value"
            | "google.protobuf.UInt64Value"
            | "google.protobuf.Int32Value"
            | "google.protobuf.UInt32Value"
            | "google.protobuf.BoolValue"
            | "google.protobuf.StringValue"
            | "google.protobuf.BytesValue"
            | "google.protobuf.Struct"
            | "google.protobuf.ListValue" => match message.descriptor().get_field(1) {
                Some(field) => {
                    Element(&message.get_field(&field), &field.kind()).serialize(serializer)
                }
                None => Err(Error::custom("a type of Google's lacks its field")),
            },
            "google.protobuf.Value" => match message.fields().next() {
                Some((_, Value::F64(number))) if !number.is_finite() => Err(Error::custom(
                    format!("google.protobuf.Value has the number {number}"),
                )),
                Some((field, value)) => Element(value, &field.kind()).serialize(serializer),
                None => serializer.serialize_none(),
            },
            "google.protobuf.Timestamp"
            | "google.protobuf.Duration"
            | "google.protobuf.FieldMask" => message.serialize(serializer),
            _ => {
                let mut map = serializer.serialize_map(None)?;
                fields(message, &mut map)?;
                map.end()
            }
        }
    }
}

fn fields<M: SerializeMap>(message: &DynamicMessage, map: &mut M) -> Result<(), M::Error> {
    for (field, value) in message.fields() {
        map.serialize_entry(field.json_name(), &Element(value, &field.kind()))?;
    }
    for (extension, value) in message.extensions() {
        let name = format!("[{}]", extension.full_name());
        map.serialize_entry(&name, &Element(value, &extension.kind()))?;
    }
    Ok(())
}

fn any<S: Serializer>(message: &DynamicMessage, serializer: S) -> Result<S::Ok, S::Error> {
    let (url, bytes) = parts_of_any(message);
    let mut map = serializer.serialize_map(None)?;
    if url.is_empty() && bytes.is_empty() {
        return map.end();
    }
    map.serialize_entry("@type", &url)?;
    match type_of_any(message) {
        Some(descriptor) => {
            let inner = DynamicMessage::decode(descriptor, &bytes[..])
                .map_err(|error| Error::custom(format!("an Any is not a {url}: {error}")))?;
            if has_form_of_its_own(inner.descriptor().full_name()) {
                map.serialize_entry("value", &Json(&inner))?;
            } else {
                fields(&inner, &mut map)?;
            }
        }
        None => {
            map.serialize_entry("@error", "the type is not known")?;
            map.serialize_entry("@value", &BASE64_STANDARD.encode(&bytes))?;
        }
    }
    map.end()
}

/// Returns true if the JSON of a message is not an object with its fields.
pub(crate) fn has_form_of_its_own(name: &str) -> bool {
    name.strip_prefix("google.protobuf.").is_some_and(|name| {
        matches!(
            name,
            "Any" | "Timestamp" | "Duration" | "FieldMask" | "Struct" | "Value" | "ListValue"
        ) || name.ends_with("Value") && !name.contains('.')
    })
}

fn parts_of_any(message: &DynamicMessage) -> (String, Vec<u8>) {
    let url = message.get_field_by_number(1);
    let value = message.get_field_by_number(2);
    let url = url.and_then(|url| url.as_str().map(str::to_owned));
    let value = value.and_then(|value| value.as_bytes().map(|bytes| bytes.to_vec()));
    (url.unwrap_or_default(), value.unwrap_or_default())
}

/// Returns the full name of the message in an `Any`.
pub(crate) fn name_in(url: &str) -> &str {
    url.rsplit_once('/').map_or(url, |(_, name)| name)
}

fn type_of_any(message: &DynamicMessage) -> Option<MessageDescriptor> {
    let pool = message.descriptor().parent_pool().clone();
    pool.get_message_by_name(name_in(&parts_of_any(message).0))
}

/// Collects the names of types that values of `Any` have, and that are not known.
pub(crate) fn unknown_types(message: &DynamicMessage, names: &mut BTreeSet<String>) {
    if message.descriptor().full_name() == "google.protobuf.Any" {
        let (url, bytes) = parts_of_any(message);
        match type_of_any(message) {
            None if url.is_empty() => {}
            None => {
                names.insert(name_in(&url).to_owned());
            }
            // One that does not decode fails when it is printed.
            Some(descriptor) => {
                if let Ok(inner) = DynamicMessage::decode(descriptor, &bytes[..]) {
                    unknown_types(&inner, names);
                }
            }
        }
        return;
    }
    for (_, value) in message.fields() {
        unknown_types_in(value, names);
    }
    for (_, value) in message.extensions() {
        unknown_types_in(value, names);
    }
}

fn unknown_types_in(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::Message(message) => unknown_types(message, names),
        Value::List(values) => values
            .iter()
            .for_each(|value| unknown_types_in(value, names)),
        Value::Map(entries) => entries
            .values()
            .for_each(|value| unknown_types_in(value, names)),
        _ => {}
    }
}

/// The value of a field, or an element of it.
struct Element<'a>(&'a Value, &'a Kind);

impl Serialize for Element<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(value, kind) = self;
        match (value, kind) {
            (Value::Bool(value), _) => serializer.serialize_bool(*value),
            (Value::I32(value), _) => serializer.serialize_i32(*value),
            (Value::U32(value), _) => serializer.serialize_u32(*value),
            (Value::I64(value), _) => serializer.collect_str(value),
            (Value::U64(value), _) => serializer.collect_str(value),
            (Value::F32(value), _) if value.is_finite() => serializer.serialize_f32(*value),
            (Value::F32(value), _) => serializer.serialize_str(not_finite(f64::from(*value))),
            (Value::F64(value), _) if value.is_finite() => serializer.serialize_f64(*value),
            (Value::F64(value), _) => serializer.serialize_str(not_finite(*value)),
            (Value::String(value), _) => serializer.serialize_str(value),
            (Value::Bytes(value), _) => serializer.serialize_str(&BASE64_STANDARD.encode(value)),
            (Value::EnumNumber(number), Kind::Enum(of)) => {
                match (of.full_name(), of.get_value(*number)) {
                    ("google.protobuf.NullValue", _) => serializer.serialize_none(),
                    (_, Some(value)) => serializer.serialize_str(value.name()),
                    (_, None) => serializer.serialize_i32(*number),
                }
            }
            (Value::EnumNumber(number), _) => serializer.serialize_i32(*number),
            (Value::Message(message), _) => Json(message).serialize(serializer),
            (Value::List(values), kind) => {
                let mut list = serializer.serialize_seq(Some(values.len()))?;
                for value in values {
                    list.serialize_element(&Element(value, kind))?;
                }
                list.end()
            }
            (Value::Map(entries), kind) => {
                let Some(entry) = kind.as_message() else {
                    return Err(Error::custom("a map without a type"));
                };
                let kind = entry.map_entry_value_field().kind();
                let mut entries: Vec<_> = entries.iter().collect();
                entries.sort_by_key(|(key, _)| *key);
                let mut map = serializer.serialize_map(Some(entries.len()))?;
                for (key, value) in entries {
                    map.serialize_entry(&key_text(key), &Element(value, &kind))?;
                }
                map.end()
            }
        }
    }
}

fn not_finite(value: f64) -> &'static str {
    match value {
        value if value.is_nan() => "NaN",
        value if value > 0.0 => "Infinity",
        _ => "-Infinity",
    }
}

fn key_text(key: &MapKey) -> String {
    match key {
        MapKey::Bool(key) => key.to_string(),
        MapKey::I32(key) => key.to_string(),
        MapKey::I64(key) => key.to_string(),
        MapKey::U32(key) => key.to_string(),
        MapKey::U64(key) => key.to_string(),
        MapKey::String(key) => key.clone(),
    }
}
