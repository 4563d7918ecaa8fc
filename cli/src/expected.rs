//! What JSON was expected where a value does not fit.

use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};
use serde_json::Value;
use serde_path_to_error::{Path, Segment};

use crate::nearest::{did_you_mean, nearest};

/// The most values of an enum that are shown.
const SHOWN: usize = 8;

/// Says what was expected at a path of a message.
pub(crate) fn at(path: &Path, message: &MessageDescriptor, text: &str) -> String {
    let mut place = Place::One(Kind::Message(message.clone()));
    let json: Value = serde_json::from_str(text).unwrap_or_default();
    let mut here = Some(&json);
    for segment in path.iter() {
        let (next, value) = match segment {
            Segment::Map { key } => (place.member(key), here.and_then(|value| value.get(key))),
            Segment::Seq { index } => (place.element(), here.and_then(|value| value.get(index))),
            Segment::Enum { .. } | Segment::Unknown => (None, None),
        };
        match next {
            Some(next) => place = next,
            // A part of a value that is not described by fields, such as a Struct.
            None => break,
        }
        here = value;
    }
    match (&place, here) {
        (Place::One(Kind::Message(message)), Some(Value::Object(members)))
            if !is_googles(message) =>
        {
            let is_field = |name: &str| field_of(message, name).is_some();
            match members.keys().find(|name| !is_field(name)) {
                Some(unknown) => {
                    let names = message.fields().map(|field| field.json_name().to_owned());
                    let names: Vec<String> = names.collect();
                    let near = did_you_mean(&nearest(unknown, &names));
                    format!("{} has no field {unknown}{near}", message.full_name())
                }
                None => format!("expected {}", place.what()),
            }
        }
        _ => format!("expected {}", place.what()),
    }
}

/// A field, or what it consists of.
enum Place {
    List(Kind),
    /// Of an entry.
    Map(MessageDescriptor),
    One(Kind),
}

impl Place {
    fn of(field: &FieldDescriptor) -> Self {
        match field.kind() {
            Kind::Message(entry) if field.is_map() => Self::Map(entry),
            kind if field.is_list() => Self::List(kind),
            kind => Self::One(kind),
        }
    }

    fn member(&self, name: &str) -> Option<Self> {
        match self {
            Self::Map(entry) => Some(Self::One(entry.map_entry_value_field().kind())),
            Self::One(Kind::Message(message)) => {
                field_of(message, name).map(|field| Self::of(&field))
            }
            _ => None,
        }
    }

    fn element(&self) -> Option<Self> {
        match self {
            Self::List(kind) => Some(Self::One(kind.clone())),
            _ => None,
        }
    }

    fn what(&self) -> String {
        match self {
            Self::List(kind) => format!("an array, each element {}", value(kind)),
            Self::Map(entry) => {
                let key = entry.map_entry_key_field().kind();
                let of = value(&entry.map_entry_value_field().kind());
                format!("an object whose keys are {key:?} in quotes, and each value {of}")
            }
            Self::One(kind) => value(kind),
        }
    }
}

fn field_of(message: &MessageDescriptor, name: &str) -> Option<FieldDescriptor> {
    let by_json_name = message.get_field_by_json_name(name);
    by_json_name.or_else(|| message.get_field_by_name(name))
}

/// Returns true if the JSON of a message is not an object with its fields.
fn is_googles(message: &MessageDescriptor) -> bool {
    message.package_name() == "google.protobuf"
}

/// Says what the JSON of one value is.
fn value(kind: &Kind) -> String {
    match kind {
        Kind::Double | Kind::Float => {
            "a number, \"NaN\", \"Infinity\" or \"-Infinity\"".to_owned()
        }
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => {
            "an integer from -2147483648 to 2147483647".to_owned()
        }
        Kind::Uint32 | Kind::Fixed32 => "an integer from 0 to 4294967295".to_owned(),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => {
            "a 64-bit integer, in quotes or without".to_owned()
        }
        Kind::Uint64 | Kind::Fixed64 => {
            "a 64-bit integer from 0 on, in quotes or without".to_owned()
        }
        Kind::Bool => "true or false".to_owned(),
        Kind::String => "a string".to_owned(),
        Kind::Bytes => "a string of base64".to_owned(),
        Kind::Enum(found) => {
            let count = found.values().len();
            // As they are in the file.
            let mut values: Vec<_> = found.values().collect();
            values.sort_by_key(|value| value.path().last().copied());
            let values = values.iter().take(SHOWN);
            let names: Vec<&str> = values.map(|value| value.name()).collect();
            let more = if count > SHOWN { ", …" } else { "" };
            format!("a value of {}: {}{more}", found.full_name(), names.join(", "))
        }
        Kind::Message(message) => match message.full_name() {
            "google.protobuf.Timestamp" => {
                "a time such as \"2026-01-31T12:00:00.5Z\"".to_owned()
            }
            "google.protobuf.Duration" => "seconds such as \"1.5s\"".to_owned(),
            "google.protobuf.FieldMask" => "paths such as \"name,address.city\"".to_owned(),
            "google.protobuf.Any" => {
                "an object with \"@type\": \"type.googleapis.com/package.Message\", whose .proto the \
                 server knows, and the fields of that message"
                    .to_owned()
            }
            "google.protobuf.Struct" => "an object".to_owned(),
            "google.protobuf.ListValue" => "an array".to_owned(),
            name => match (is_googles(message), message.get_field(1)) {
                (true, Some(field)) if name.ends_with("Value") && message.fields().len() == 1 => {
                    format!("{}, or null", value(&field.kind()))
                }
                _ => format!("an object with the fields of {name}"),
            },
        },
    }
}
