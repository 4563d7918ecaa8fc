//! The methods that prost's derive gives to a message: accessors of its fields.

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorProto};

use crate::{messages, names};

/// Returns the names of the methods for `field`, which is not in a oneof. `message` is the message of
/// the field, `full_name` its name in Protobuf.
///
/// An empty name stands for a method that prost's derive fails to name.
pub(super) fn of(
    field: &FieldDescriptorProto,
    message: &DescriptorProto,
    full_name: &str,
    file: &FileDescriptorProto,
) -> Vec<String> {
    let name = names::snake(field.name());
    let plain = name.trim_start_matches("r#");
    let path = format!(".{full_name}");
    if let Some(entry) = messages::entry(field, &message.nested_type, &path) {
        let mut members = entry.field.iter();
        let is_value = |member: &&FieldDescriptorProto| member.number() == 2;
        return match members.find(is_value).map(FieldDescriptorProto::r#type) {
            // `get_r#type` is no identifier.
            Some(Type::Enum) if plain != name => vec![String::new()],
            Some(Type::Enum) => vec![format!("get_{name}"), format!("insert_{name}")],
            _ => Vec::new(),
        };
    }
    let is_repeated = field.label() == Label::Repeated;
    let has_presence =
        field.proto3_optional() || field.label() == Label::Optional && file.syntax() != "proto3";
    match field.r#type() {
        Type::Enum if is_repeated => vec![plain.to_owned(), format!("push_{plain}")],
        Type::Enum => vec![plain.to_owned(), format!("set_{plain}")],
        Type::Message | Type::Group => Vec::new(),
        _ if has_presence => vec![plain.to_owned()],
        _ => Vec::new(),
    }
}
