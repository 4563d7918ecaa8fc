//! What the codec takes from the descriptors, because prost's code does not say it: which types fields
//! have, and which messages the methods use.

use std::collections::{BTreeSet, HashMap, HashSet};

use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
    FileDescriptorSet,
};

use crate::error::Error;
use crate::messages::{self, Generated};
use crate::model::ExternPaths;
use crate::paths;

/// All messages and enums, by their Protobuf names with a leading dot.
#[derive(Debug, Default)]
pub(crate) struct Descriptors {
    messages: HashMap<String, Described>,
    /// The number of the first value of each enum.
    enums: HashMap<String, i32>,
}

/// One message.
#[derive(Debug)]
struct Described {
    file: String,
    /// The names of the types of its fields that are messages, enums, or maps to these, by the
    /// fields' numbers.
    types: HashMap<u32, String>,
    numbers: BTreeSet<u32>,
}

impl Descriptors {
    pub(crate) fn new(set: &FileDescriptorSet) -> Descriptors {
        let mut descriptors = Descriptors::default();
        for file in &set.file {
            let package = paths::with_dot(file.package());
            descriptors.add(file, &package, &file.enum_type, &file.message_type);
        }
        descriptors
    }

    fn add(
        &mut self,
        file: &FileDescriptorProto,
        path: &str,
        enums: &[EnumDescriptorProto],
        messages: &[DescriptorProto],
    ) {
        for found in enums {
            let first = found.value.first().map_or(0, |value| value.number());
            self.enums.insert(format!("{path}.{}", found.name()), first);
        }
        for message in messages.iter().filter(|found| !messages::is_entry(found)) {
            let path = format!("{path}.{}", message.name());
            self.add(file, &path, &message.enum_type, &message.nested_type);
            let described = Described {
                file: file.name().to_owned(),
                types: types(message, &path),
                numbers: numbers(message),
            };
            self.messages.insert(path, described);
        }
    }

    /// Returns the name of the file with the message.
    pub(crate) fn file(&self, message: &str) -> &str {
        self.messages.get(message).map_or("", |found| &found.file)
    }

    /// Returns the name of the message or enum that is the type of a field, or of a map's values.
    pub(crate) fn type_of(&self, message: &str, number: u32) -> Option<&str> {
        let types = &self.messages.get(message)?.types;
        types.get(&number).map(String::as_str)
    }

    /// Returns the number of the first value of an enum.
    pub(crate) fn first_value(&self, name: &str) -> Option<i32> {
        self.enums.get(name).copied()
    }

    /// Returns the messages that are not below `externs`.
    pub(crate) fn messages(&self, externs: &ExternPaths) -> BTreeSet<String> {
        let names = self.messages.keys();
        names
            .filter(|name| !externs.contains(name))
            .cloned()
            .collect()
    }

    /// Returns the messages of the requests and responses of all services in the files `wanted`, and
    /// those in their fields. Leaves out what is below `externs`.
    pub(crate) fn used(
        &self,
        set: &FileDescriptorSet,
        wanted: &HashSet<&str>,
        externs: &ExternPaths,
    ) -> BTreeSet<String> {
        let is_wanted = |file: &&FileDescriptorProto| wanted.contains(file.name());
        let services = set.file.iter().filter(is_wanted).flat_map(|it| &it.service);
        let methods = services.flat_map(|service| &service.method);
        let mut found: Vec<_> = methods
            .flat_map(|method| [method.input_type(), method.output_type()])
            .collect();
        let mut used = BTreeSet::new();
        while let Some(name) = found.pop() {
            if let Some(message) = self.messages.get(name)
                && !externs.contains(name)
                && used.insert(name.to_owned())
            {
                found.extend(message.types.values().map(String::as_str));
            }
        }
        used
    }

    /// Returns the numbers of the message's fields.
    pub(crate) fn numbers(&self, message: &str) -> BTreeSet<u32> {
        let found = self.messages.get(message);
        found.map_or_else(BTreeSet::new, |found| found.numbers.clone())
    }

    /// Returns the error of a message whose codec cannot be generated.
    pub(crate) fn no_codec(&self, message: &str, field: Option<String>, found: String) -> Error {
        Error::NoCodec {
            file: self.file(message).to_owned(),
            message: message.trim_start_matches('.').to_owned(),
            field,
            found,
        }
    }
}

/// Returns the messages of a file of which prost generates structs, in its order.
pub(crate) fn generated(file: &FileDescriptorProto, externs: &ExternPaths) -> Vec<Generated> {
    fn of(messages: &[DescriptorProto], path: &str, externs: &ExternPaths) -> Vec<Generated> {
        let messages = messages.iter().filter(|found| !messages::is_entry(found));
        let generated = |message: &DescriptorProto| {
            let name = format!("{path}.{}", message.name());
            let nested = of(&message.nested_type, &name, externs);
            (!externs.contains(&name)).then_some(Generated { name, nested })
        };
        messages.filter_map(generated).collect()
    }
    of(
        &file.message_type,
        &paths::with_dot(file.package()),
        externs,
    )
}

fn numbers(message: &DescriptorProto) -> BTreeSet<u32> {
    let fields = message.field.iter();
    fields
        .filter_map(|field| u32::try_from(field.number()).ok())
        .collect()
}

/// Returns the names of the types of the message's fields that have one.
fn types(message: &DescriptorProto, path: &str) -> HashMap<u32, String> {
    let named = |field: &FieldDescriptorProto| {
        let number = u32::try_from(field.number()).ok()?;
        let name = field.type_name.clone()?;
        match messages::entry(field, &message.nested_type, path) {
            Some(entry) => Some((number, entry.field.get(1)?.type_name.clone()?)),
            None => Some((number, name)),
        }
    };
    message.field.iter().filter_map(named).collect()
}
