//! Messages from JSON, by proto3's rules.
//!
//! prost-reflect does this, too, and is asked for types whose JSON is no object of fields. The rest is here for
//! three reasons: an error says where a value does not fit and what was expected there; a key that is there
//! twice is refused; and an `Any` may be empty, or have an `Empty` in it.

mod expected;
mod unique;

use std::collections::HashMap;
use std::fmt;

use base64::Engine;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use prost_reflect::prost::Message as _;
use prost_reflect::{
    DynamicMessage, ExtensionDescriptor, FieldDescriptor, Kind, MapKey, MessageDescriptor, Value,
};
use serde::de::DeserializeSeed;
use serde_json::Value as Json;

use self::expected::{expected, found};
use crate::nearest::{did_you_mean, nearest};
use crate::to_json::{has_form_of_its_own, name_in};

pub(crate) use self::unique::Unique;

/// Where JSON does not fit, and why.
#[derive(Debug)]
pub(crate) struct Misfit {
    /// From the outside to the inside.
    path: Vec<String>,
    why: String,
}

impl Misfit {
    fn new(why: impl Into<String>) -> Self {
        Self {
            path: Vec::new(),
            why: why.into(),
        }
    }

    fn expected(what: impl fmt::Display, json: &Json) -> Self {
        Self::new(format!("expected {what}, found {}", found(json)))
    }

    fn within(mut self, outside: impl Into<String>) -> Self {
        self.path.insert(0, outside.into());
        self
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            let path = self.path.join(".").replace(".[", "[");
            write!(f, "at {path}: ")?;
        }
        f.write_str(&self.why)
    }
}

/// Makes a message.
pub(crate) fn message(json: &Json, of: &MessageDescriptor) -> Result<DynamicMessage, Misfit> {
    let kind = || expected(&Kind::Message(of.clone()));
    let name = of.full_name();
    if name == "google.protobuf.Any" {
        return any(json, of);
    }
    if let Some(field) = wrapped(of) {
        let mut message = DynamicMessage::new(of.clone());
        message.set_field(&field, value(json, &field.kind())?);
        return Ok(message);
    }
    if has_form_of_its_own(name) {
        let made = of.clone().deserialize(json);
        return made.map_err(|error| {
            let Misfit { why, .. } = Misfit::expected(kind(), json);
            Misfit::new(format!("{why} ({error})"))
        });
    }
    let Json::Object(members) = json else {
        return Err(Misfit::expected(kind(), json));
    };
    fields(members.iter(), of)
}

/// Returns the field of a wrapper.
fn wrapped(of: &MessageDescriptor) -> Option<FieldDescriptor> {
    let is_wrapper = of.parent_file().name() == "google/protobuf/wrappers.proto";
    of.get_field(1)
        .filter(|_| is_wrapper && has_form_of_its_own(of.full_name()))
}

/// Makes a message of its fields.
fn fields<'a>(
    members: impl Iterator<Item = (&'a String, &'a Json)>,
    of: &MessageDescriptor,
) -> Result<DynamicMessage, Misfit> {
    let mut message = DynamicMessage::new(of.clone());
    for (name, json) in members {
        if let Some(field) = field_named(of, name) {
            let value = field_value(json, &Form::of(&field)).map_err(|error| error.within(name))?;
            let Some(value) = value else { continue };
            if message.has_field(&field) {
                let why = "the field is there twice, by its JSON name and by that of the file";
                return Err(Misfit::new(why).within(name));
            }
            let oneof = field.containing_oneof();
            let other = oneof.and_then(|oneof| oneof.fields().find(|one| message.has_field(one)));
            if let Some(other) = other {
                let why = format!("the oneof has another field already, {}", other.json_name());
                return Err(Misfit::new(why).within(name));
            }
            message.set_field(&field, value);
        } else if let Some(extension) = of.get_extension_by_json_name(name) {
            let form = Form::of_extension(&extension);
            let value = field_value(json, &form).map_err(|error| error.within(name))?;
            if let Some(value) = value {
                message.set_extension(&extension, value);
            }
        } else {
            let names = of.fields().map(|field| field.json_name().to_owned());
            let near = did_you_mean(&nearest(name, names));
            let why = format!("{} has no field {name}{near}", of.full_name());
            return Err(Misfit::new(why));
        }
    }
    Ok(message)
}

/// Returns a field by its JSON name, or by that of the file.
fn field_named(of: &MessageDescriptor, name: &str) -> Option<FieldDescriptor> {
    let by_json_name = of.get_field_by_json_name(name);
    by_json_name.or_else(|| of.get_field_by_name(name))
}

/// What a field consists of.
enum Form {
    List(Kind),
    /// Of entries of this type.
    Map(MessageDescriptor),
    One(Kind),
}

impl Form {
    fn of(field: &FieldDescriptor) -> Self {
        match field.kind() {
            Kind::Message(entry) if field.is_map() => Self::Map(entry),
            kind if field.is_list() => Self::List(kind),
            kind => Self::One(kind),
        }
    }

    fn of_extension(field: &ExtensionDescriptor) -> Self {
        match field.is_list() {
            true => Self::List(field.kind()),
            false => Self::One(field.kind()),
        }
    }
}

/// Returns true if null is a value of the type.
fn is_nullable(kind: &Kind) -> bool {
    match kind {
        Kind::Message(message) => message.full_name() == "google.protobuf.Value",
        Kind::Enum(of) => of.full_name() == "google.protobuf.NullValue",
        _ => false,
    }
}

/// Makes the value of a field. `None` for null, which leaves the field out.
fn field_value(json: &Json, form: &Form) -> Result<Option<Value>, Misfit> {
    match (json, form) {
        (Json::Null, Form::One(kind)) if is_nullable(kind) => value(json, kind).map(Some),
        (Json::Null, _) => Ok(None),
        (json, Form::One(kind)) => value(json, kind).map(Some),
        (Json::Array(elements), Form::List(kind)) => {
            let elements = elements.iter().enumerate().map(|(index, element)| {
                value(element, kind).map_err(|error| error.within(format!("[{index}]")))
            });
            Ok(Some(Value::List(elements.collect::<Result<_, _>>()?)))
        }
        (json, Form::List(kind)) => {
            let what = format!("an array, each element {}", expected(kind));
            Err(Misfit::expected(what, json))
        }
        (Json::Object(members), Form::Map(entry)) => {
            let key_kind = entry.map_entry_key_field().kind();
            let kind = entry.map_entry_value_field().kind();
            let mut map = HashMap::new();
            for (name, json) in members {
                let key = map_key(name, &key_kind).map_err(|error| error.within(name))?;
                let value = value(json, &kind).map_err(|error| error.within(name))?;
                if map.insert(key, value).is_some() {
                    return Err(Misfit::new("the key is there twice").within(name));
                }
            }
            Ok(Some(Value::Map(map)))
        }
        (json, Form::Map(entry)) => {
            let of = expected(&entry.map_entry_value_field().kind());
            let what = format!("an object, each value {of}");
            Err(Misfit::expected(what, json))
        }
    }
}

fn map_key(name: &str, kind: &Kind) -> Result<MapKey, Misfit> {
    let json = Json::String(name.to_owned());
    let key = match (kind, name) {
        (Kind::Bool, "true") => Some(MapKey::Bool(true)),
        (Kind::Bool, "false") => Some(MapKey::Bool(false)),
        (Kind::Bool, _) => None,
        (kind, _) => match value(&json, kind)? {
            Value::I32(key) => Some(MapKey::I32(key)),
            Value::I64(key) => Some(MapKey::I64(key)),
            Value::U32(key) => Some(MapKey::U32(key)),
            Value::U64(key) => Some(MapKey::U64(key)),
            Value::String(key) => Some(MapKey::String(key)),
            _ => None,
        },
    };
    key.ok_or_else(|| Misfit::expected(expected(kind), &json))
}

/// Makes one value.
fn value(json: &Json, kind: &Kind) -> Result<Value, Misfit> {
    let made = match (kind, json) {
        (Kind::Message(of), json) => return message(json, of).map(Value::Message),
        (Kind::Int32 | Kind::Sint32 | Kind::Sfixed32, json) => integer(json)
            .and_then(|n| n.try_into().ok())
            .map(Value::I32),
        (Kind::Int64 | Kind::Sint64 | Kind::Sfixed64, json) => integer(json)
            .and_then(|n| n.try_into().ok())
            .map(Value::I64),
        (Kind::Uint32 | Kind::Fixed32, json) => integer(json)
            .and_then(|n| n.try_into().ok())
            .map(Value::U32),
        (Kind::Uint64 | Kind::Fixed64, json) => integer(json)
            .and_then(|n| n.try_into().ok())
            .map(Value::U64),
        (Kind::Double, json) => number(json).map(Value::F64),
        (Kind::Float, json) => number(json).and_then(single).map(Value::F32),
        (Kind::Bool, Json::Bool(value)) => Some(Value::Bool(*value)),
        (Kind::String, Json::String(text)) => Some(Value::String(text.clone())),
        (Kind::Bytes, Json::String(text)) => bytes(text).map(|bytes| Value::Bytes(bytes.into())),
        (Kind::Enum(of), Json::Null) if of.full_name() == "google.protobuf.NullValue" => {
            Some(Value::EnumNumber(0))
        }
        (Kind::Enum(of), Json::String(name)) => {
            let named = of.get_value_by_name(name);
            named.map(|value| Value::EnumNumber(value.number()))
        }
        (Kind::Enum(_), Json::Number(_)) => {
            let number = integer(json).and_then(|n| n.try_into().ok());
            number.map(Value::EnumNumber)
        }
        _ => None,
    };
    made.ok_or_else(|| Misfit::expected(expected(kind), json))
}

/// Returns an integer, which may be written as a number with a fraction of zero, or in quotes.
fn integer(json: &Json) -> Option<i128> {
    match json {
        Json::String(text) => text.parse().ok(),
        Json::Number(number) => {
            let exact = number.as_i64().map(i128::from);
            exact
                .or_else(|| number.as_u64().map(i128::from))
                .or_else(|| {
                    let number = number.as_f64()?;
                    // Every integer of 64 bits is in the range, so nothing is rounded into it.
                    let is_integer = number.fract() == 0.0 && number.abs() < 2_f64.powi(100);
                    is_integer.then_some(number as i128)
                })
        }
        _ => None,
    }
}

fn number(json: &Json) -> Option<f64> {
    match json {
        Json::Number(number) => number.as_f64(),
        Json::String(text) => match text.as_str() {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            // Rust knows further names of these.
            text if text.contains(|c: char| c.is_ascii_alphabetic() && !matches!(c, 'e' | 'E')) => {
                None
            }
            text => text.parse().ok().filter(|number: &f64| number.is_finite()),
        },
        _ => None,
    }
}

/// Rounds to single precision. `None` if the number is too large for it.
fn single(number: f64) -> Option<f32> {
    let single = number as f32;
    (single.is_infinite() == number.is_infinite()).then_some(single)
}

/// Decodes base64 of either alphabet, with padding or without.
fn bytes(text: &str) -> Option<Vec<u8>> {
    let config = GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true);
    let alphabet = match text.contains(['-', '_']) {
        true => &URL_SAFE,
        false => &STANDARD,
    };
    GeneralPurpose::new(alphabet, config).decode(text).ok()
}

fn any(json: &Json, of: &MessageDescriptor) -> Result<DynamicMessage, Misfit> {
    let Json::Object(members) = json else {
        return Err(Misfit::expected(expected(&Kind::Message(of.clone())), json));
    };
    let mut any = DynamicMessage::new(of.clone());
    if members.is_empty() {
        return Ok(any);
    }
    let Some(Json::String(url)) = members.get("@type") else {
        return Err(Misfit::expected(expected(&Kind::Message(of.clone())), json));
    };
    let name = name_in(url);
    let Some(inner) = of.parent_pool().get_message_by_name(name) else {
        let why = format!("the type {name} is not known, neither to the server nor in --proto");
        return Err(Misfit::new(why).within("@type"));
    };
    let mut others = members.iter().filter(|(key, _)| *key != "@type");
    let is_empty = name == "google.protobuf.Empty" && members.contains_key("value");
    let message = if has_form_of_its_own(name) || is_empty {
        match (members.get("value"), members.len()) {
            (Some(json), 2) => message(json, &inner).map_err(|error| error.within("value"))?,
            _ => {
                let why = format!("expected \"@type\" and \"value\": {name} has a form of its own");
                return Err(Misfit::new(why));
            }
        }
    } else {
        fields(&mut others, &inner)?
    };
    any.set_field_by_number(1, Value::String(url.clone()));
    any.set_field_by_number(2, Value::Bytes(message.encode_to_vec().into()));
    Ok(any)
}
