//! What was expected, and what was found, in words.

use prost_reflect::Kind;
use serde_json::Value;

/// The most values of an enum that are shown.
const SHOWN_VALUES: usize = 8;

/// The most characters of a value that are shown.
const SHOWN_CHARS: usize = 60;

/// Says what the JSON of a value is.
pub(super) fn expected(kind: &Kind) -> String {
    match kind {
        Kind::Double => "a number, \"NaN\", \"Infinity\" or \"-Infinity\"".to_owned(),
        Kind::Float => {
            "a number of single precision, \"NaN\", \"Infinity\" or \"-Infinity\"".to_owned()
        }
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => {
            format!("an integer from {} to {}", i32::MIN, i32::MAX)
        }
        Kind::Uint32 | Kind::Fixed32 => format!("an integer from 0 to {}", u32::MAX),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => {
            "an integer of 64 bits, in quotes or without".to_owned()
        }
        Kind::Uint64 | Kind::Fixed64 => {
            "an integer of 64 bits from 0 on, in quotes or without".to_owned()
        }
        Kind::Bool => "true or false".to_owned(),
        Kind::String => "a string".to_owned(),
        Kind::Bytes => "a string of base64".to_owned(),
        Kind::Enum(of) => {
            // As they are in the file.
            let mut values: Vec<_> = of.values().collect();
            values.sort_by_key(|value| value.path().last().copied());
            let names: Vec<&str> = values.iter().map(|value| value.name()).collect();
            let (shown, more) = match names.get(..SHOWN_VALUES) {
                Some(shown) => (shown, ", …"),
                None => (&names[..], ""),
            };
            format!("a value of {}: {}{more}", of.full_name(), shown.join(", "))
        }
        Kind::Message(message) => match message.full_name() {
            "google.protobuf.Timestamp" => "a time such as \"2026-01-31T12:00:00.5Z\"".to_owned(),
            "google.protobuf.Duration" => "seconds such as \"1.5s\"".to_owned(),
            "google.protobuf.FieldMask" => "paths such as \"name,address.city\"".to_owned(),
            "google.protobuf.Any" => {
                "an object with \"@type\": \"type.googleapis.com/package.Message\" and the fields of that \
                 message"
                    .to_owned()
            }
            "google.protobuf.Struct" => "an object".to_owned(),
            "google.protobuf.ListValue" => "an array".to_owned(),
            name => format!("an object with the fields of {name}"),
        },
    }
}

/// Says what is there instead.
pub(super) fn found(json: &Value) -> String {
    let text = json.to_string();
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
