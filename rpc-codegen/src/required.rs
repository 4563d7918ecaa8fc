//! Messages of proto2 that require themselves, at once or through other messages.
//!
//! protoc takes them, though no message of that kind is ever complete. prost's `Default` creates a
//! message with all that it requires, and would never return. So fields that lead back to their own message become
//! `optional`, which is encoded alike.

use std::collections::{BTreeSet, HashMap};

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorSet};

use crate::paths::qualified;

/// Makes each field optional that requires a message which requires that of the field.
pub(crate) fn break_cycles(set: &mut FileDescriptorSet) {
    let mut required = Required::default();
    for file in &set.file {
        required.find(file.package(), &file.message_type);
    }
    if required.0.is_empty() {
        return;
    }
    for file in &mut set.file {
        let package = file.package().to_owned();
        required.make_optional(&package, &mut file.message_type);
    }
}

/// The messages that a message requires, by names with a leading dot.
#[derive(Default)]
struct Required(HashMap<String, Vec<String>>);

impl Required {
    fn find(&mut self, parent: &str, messages: &[DescriptorProto]) {
        for message in messages {
            let full_name = qualified(parent, message.name());
            let fields = message.field.iter().filter(|field| is_required(field));
            let types: Vec<_> = fields.map(|field| field.type_name().to_owned()).collect();
            if !types.is_empty() {
                self.0.insert(format!(".{full_name}"), types);
            }
            self.find(&full_name, &message.nested_type);
        }
    }

    fn make_optional(&self, parent: &str, messages: &mut [DescriptorProto]) {
        for message in messages {
            let full_name = qualified(parent, message.name());
            let fields = message.field.iter_mut().filter(|field| is_required(field));
            for field in fields {
                if self.leads(field.type_name(), &format!(".{full_name}")) {
                    field.set_label(Label::Optional);
                    // Without a mark, prost-build takes a group of proto3 for a repeated one.
                    field.proto3_optional = Some(true);
                }
            }
            self.make_optional(&full_name, &mut message.nested_type);
        }
    }

    /// Returns true if the message `from` requires `to`, or is it.
    fn leads(&self, from: &str, to: &str) -> bool {
        let mut seen = BTreeSet::new();
        let mut waiting = vec![from];
        while let Some(name) = waiting.pop() {
            if name == to {
                return true;
            }
            if seen.insert(name) {
                let types = self.0.get(name).into_iter().flatten();
                waiting.extend(types.map(String::as_str));
            }
        }
        false
    }
}

fn is_required(field: &FieldDescriptorProto) -> bool {
    field.label() == Label::Required && matches!(field.r#type(), Type::Message | Type::Group)
}
