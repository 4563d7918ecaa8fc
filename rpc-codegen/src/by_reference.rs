//! Finds the fields that go by reference, to document them: `bytes` fields of type `Bytes`, in messages
//! with a generated codec.

use std::collections::BTreeSet;

use prost_types::field_descriptor_proto::Type;
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorSet};

use crate::{messages, paths};

/// The lines of documentation of such a field, after an empty one.
pub(crate) const DOCS: [&str; 3] = [
    "",
    " By reference: a long value is sent without a copy, and a received one is a slice of the memory",
    " that the message arrived in, which it keeps.",
];

/// Returns the paths, as prost's settings for fields take them, of the fields that are `Bytes`
/// because of the paths in `bytes`, in the messages `with_codec`.
pub(crate) fn fields(
    set: &FileDescriptorSet,
    bytes: &[String],
    with_codec: &BTreeSet<String>,
) -> Vec<String> {
    let mut found = Vec::new();
    for file in &set.file {
        let package = paths::with_dot(file.package());
        for message in &file.message_type {
            add(message, &package, bytes, with_codec, &mut found);
        }
    }
    found
}

/// Returns the paths in `bytes` that match no field, whatever the field's type. `.` may match nothing.
pub(crate) fn unmatched<'a>(
    set: &FileDescriptorSet,
    bytes: &'a [String],
) -> impl Iterator<Item = &'a str> {
    let matches_any = move |path: &str| {
        let mut files = set.file.iter();
        path == "."
            || files.any(|file| {
                let package = paths::with_dot(file.package());
                let mut messages = file.message_type.iter();
                messages.any(|message| has_field(message, &package, path))
            })
    };
    let paths = bytes.iter().map(String::as_str);
    paths.filter(move |path| !matches_any(path))
}

fn has_field(message: &DescriptorProto, parent: &str, path: &str) -> bool {
    let name = format!("{parent}.{}", message.name());
    let matches = |field: &str| paths::matches(path, &format!("{name}.{field}"));
    let mut nested = message.nested_type.iter();
    message.field.iter().any(|field| matches(field.name()))
        || nested.any(|nested| match messages::is_entry(nested) {
            // prost takes the field `value` of an entry for one of the message.
            true => matches("value"),
            false => has_field(nested, &name, path),
        })
}

fn add(
    message: &DescriptorProto,
    parent: &str,
    bytes: &[String],
    with_codec: &BTreeSet<String>,
    found: &mut Vec<String>,
) {
    let name = format!("{parent}.{}", message.name());
    let has_codec = with_codec.contains(&name);
    for field in &message.field {
        let path = format!("{name}.{}", field.name());
        let is_set = || has_codec && bytes.iter().any(|setting| paths::matches(setting, &path));
        if field.r#type() == Type::Bytes && is_set() {
            found.push(match oneof(field, message) {
                Some(oneof) => format!("{name}.{oneof}.{}", field.name()),
                None => path,
            });
        }
    }
    for nested in &message.nested_type {
        if !messages::is_entry(nested) {
            add(nested, &name, bytes, with_codec, found);
            continue;
        }
        // prost takes the field `value` of an entry for one of the message.
        let path = format!("{name}.value");
        let is_set = has_codec && bytes.iter().any(|setting| paths::matches(setting, &path));
        let mut values = nested.field.iter();
        if is_set && values.any(|value| value.r#type() == Type::Bytes) {
            let entry = format!("{name}.{}", nested.name());
            let mut fields = message.field.iter();
            let map = fields.find(|field| field.type_name() == entry);
            found.extend(map.map(|map| format!("{name}.{}", map.name())));
        }
    }
}

/// Returns the name of the oneof of which the field is a variant.
fn oneof<'a>(field: &FieldDescriptorProto, message: &'a DescriptorProto) -> Option<&'a str> {
    let index = field.oneof_index.filter(|_| !field.proto3_optional())?;
    Some(message.oneof_decl.get(usize::try_from(index).ok()?)?.name())
}
