//! Defaults of enum fields that are aliases: prost generates a variant for the first name of a number,
//! and takes any name for a default.

use std::collections::HashMap;

use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorSet};

use crate::paths::qualified;

/// Replaces each default that is an alias by the first name of its number.
pub(crate) fn replace_in_defaults(set: &mut FileDescriptorSet) {
    let mut aliases = Aliases::default();
    for file in &set.file {
        aliases.find(file.package(), &file.enum_type, &file.message_type);
    }
    if aliases.0.is_empty() {
        return;
    }
    for file in &mut set.file {
        for message in &mut file.message_type {
            aliases.replace(message);
        }
    }
}

/// The first name of an alias's number, by the full name of the enum and the alias.
#[derive(Default)]
struct Aliases(HashMap<(String, String), String>);

impl Aliases {
    fn find(&mut self, parent: &str, enums: &[EnumDescriptorProto], messages: &[DescriptorProto]) {
        for found in enums {
            let full_name = format!(".{}", qualified(parent, found.name()));
            let mut names = HashMap::new();
            for value in &found.value {
                let first = *names.entry(value.number()).or_insert(value.name());
                if first != value.name() {
                    let alias = (full_name.clone(), value.name().to_owned());
                    self.0.insert(alias, first.to_owned());
                }
            }
        }
        for message in messages {
            let full_name = qualified(parent, message.name());
            self.find(&full_name, &message.enum_type, &message.nested_type);
        }
    }

    fn replace(&self, message: &mut DescriptorProto) {
        for field in &mut message.field {
            let alias = (
                field.type_name().to_owned(),
                field.default_value().to_owned(),
            );
            if let Some(first) = self.0.get(&alias) {
                field.default_value = Some(first.clone());
            }
        }
        for nested in &mut message.nested_type {
            self.replace(nested);
        }
    }
}
