//! Encodings of messages, valid ones and mutated ones, that a list of choices determines.

use std::collections::BTreeMap;

use prost::encoding::encode_varint;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorSet};

/// The messages of a descriptor set, by their Protobuf paths.
pub(crate) struct Schema(BTreeMap<String, DescriptorProto>);

impl Schema {
    pub(crate) fn new(set: &FileDescriptorSet) -> Schema {
        let mut schema = Schema(BTreeMap::new());
        for file in &set.file {
            let package = match file.package() {
                "" => String::new(),
                package => format!(".{package}"),
            };
            schema.add(&package, &file.message_type);
        }
        schema
    }

    fn add(&mut self, parent: &str, messages: &[DescriptorProto]) {
        for message in messages {
            let path = format!("{parent}.{}", message.name());
            self.add(&path, &message.nested_type);
            self.0.insert(path, message.clone());
        }
    }

    /// Returns the paths of all messages except the entries of maps.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let is_entry = |message: &DescriptorProto| {
            message
                .options
                .as_ref()
                .is_some_and(|options| options.map_entry())
        };
        self.0
            .iter()
            .filter(move |(_, message)| !is_entry(message))
            .map(|(path, _)| path.as_str())
    }

    /// Returns an encoding of the message, which is mostly as prost would encode it.
    pub(crate) fn encoding(&self, name: &str, choices: &mut Choices<'_>) -> Vec<u8> {
        self.fields(name, choices, 5).concat()
    }

    /// Returns the encodings of the fields of a message.
    pub(crate) fn fields(&self, name: &str, choices: &mut Choices<'_>, depth: u32) -> Vec<Vec<u8>> {
        let mut fields: Vec<_> = self.0[name].field.iter().collect();
        fields.sort_by_key(|field| field.number());
        let mut out = Vec::new();
        for field in fields {
            let times = match field.label() {
                Label::Repeated => choices.below(4),
                _ => usize::from(choices.below(8) > 1),
            };
            let is_packed = times > 0 && field.label() == Label::Repeated && {
                let packable = !matches!(
                    field.r#type(),
                    Type::String | Type::Bytes | Type::Message | Type::Group
                );
                packable && choices.below(4) > 0
            };
            if is_packed {
                let values = (0..times)
                    .map(|_| self.value(field, choices, depth))
                    .collect::<Vec<_>>();
                out.push(delimited(field.number(), &values.concat()));
                continue;
            }
            for _ in 0..times {
                out.push(self.field(field, choices, depth));
            }
        }
        if choices.below(30) == 1 {
            out.push(unknown_field(choices));
        }
        out
    }

    /// Returns for each field of a message the encodings of two values, not packed.
    pub(crate) fn each_field(&self, name: &str) -> Vec<Vec<u8>> {
        let mut choices = Choices(&[5; 1000]);
        let twice = |field| [0, 0].map(|_| self.field(field, &mut choices, 1)).concat();
        self.0[name].field.iter().map(twice).collect()
    }

    fn field(
        &self,
        field: &FieldDescriptorProto,
        choices: &mut Choices<'_>,
        depth: u32,
    ) -> Vec<u8> {
        let value = self.value(field, choices, depth);
        match field.r#type() {
            Type::String | Type::Bytes | Type::Message => delimited(field.number(), &value),
            Type::Group => {
                let mut out = key(field.number(), 3);
                out.extend(value);
                out.extend(key(field.number(), 4));
                out
            }
            ty => {
                let mut out = key(field.number(), wire_type(ty));
                out.extend(value);
                out
            }
        }
    }

    fn value(
        &self,
        field: &FieldDescriptorProto,
        choices: &mut Choices<'_>,
        depth: u32,
    ) -> Vec<u8> {
        match field.r#type() {
            Type::Message | Type::Group if depth == 0 => Vec::new(),
            Type::Message | Type::Group => {
                self.fields(field.type_name(), choices, depth - 1).concat()
            }
            Type::String => match choices.below(20) {
                0 => vec![0xff, 0xfe],
                1 => "é, ü and 語".into(),
                len => vec![b'a'; len],
            },
            Type::Bytes => {
                let len = choices.below(200);
                (0..len).map(|byte| byte as u8).collect()
            }
            Type::Double | Type::Fixed64 | Type::Sfixed64 => match choices.below(6) {
                0 => vec![0; 8],
                1 => f64::NAN.to_le_bytes().into(),
                2 => (-0.0f64).to_le_bytes().into(),
                _ => (0..8).map(|_| choices.byte()).collect(),
            },
            Type::Float | Type::Fixed32 | Type::Sfixed32 => match choices.below(6) {
                0 => vec![0; 4],
                1 => f32::NAN.to_le_bytes().into(),
                2 => (-0.0f32).to_le_bytes().into(),
                _ => (0..4).map(|_| choices.byte()).collect(),
            },
            Type::Bool => varint(u64::from(choices.byte() & 1)),
            _ => match choices.below(9) {
                0 => vec![0],
                1 => varint(u64::MAX),
                // An encoding that is longer than necessary.
                2 => vec![0x83, 0x80, 0],
                bytes => {
                    let value =
                        (0..bytes).fold(0, |value, _| value << 7 | u64::from(choices.byte()));
                    varint(value)
                }
            },
        }
    }
}

/// Numbers taken from a list, then zeros.
pub(crate) struct Choices<'a>(pub(crate) &'a [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        let number = usize::from(self.byte()) << 8 | usize::from(self.byte());
        number % limit
    }
}

/// Changes an encoding, which consists of these fields. `other` is another one of the same message.
pub(crate) fn mutate(mut fields: Vec<Vec<u8>>, other: &[u8], choices: &mut Choices<'_>) -> Vec<u8> {
    match choices.below(8) {
        // Out of order.
        0 => {
            for index in 0..fields.len() {
                let with = choices.below(fields.len());
                fields.swap(index, with);
            }
        }
        // A second time.
        1 if !fields.is_empty() => {
            let again = fields[choices.below(fields.len())].clone();
            fields.push(again);
        }
        2 => fields.push(unknown_field(choices)),
        _ => {}
    }
    let mut bytes = fields.concat();
    match choices.below(8) {
        // Merged.
        0 => bytes.extend_from_slice(other),
        1 => bytes.truncate(choices.below(bytes.len() + 1)),
        2 | 3 if !bytes.is_empty() => {
            let place = choices.below(bytes.len());
            bytes[place] = choices.byte();
        }
        4 => bytes.insert(choices.below(bytes.len() + 1), choices.byte()),
        5 if !bytes.is_empty() => {
            bytes.remove(choices.below(bytes.len()));
        }
        _ => {}
    }
    bytes
}

fn unknown_field(choices: &mut Choices<'_>) -> Vec<u8> {
    let number = 1 + choices.below(30) as i32;
    match choices.below(4) {
        0 => [key(number, 0), varint(u64::from(choices.byte()))].concat(),
        1 => delimited(number, &[1, 2, 3]),
        2 => [key(number, 3), key(2, 0), vec![1], key(number, 4)].concat(),
        _ => [key(number, 5), vec![1, 2, 3, 4]].concat(),
    }
}

pub(crate) fn delimited(number: i32, value: &[u8]) -> Vec<u8> {
    [key(number, 2), varint(value.len() as u64), value.to_vec()].concat()
}

pub(crate) fn key(number: i32, wire_type: u64) -> Vec<u8> {
    varint((number as u64) << 3 | wire_type)
}

fn varint(value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    encode_varint(value, &mut out);
    out
}

fn wire_type(ty: Type) -> u64 {
    match ty {
        Type::Double | Type::Fixed64 | Type::Sfixed64 => 1,
        Type::Float | Type::Fixed32 | Type::Sfixed32 => 5,
        _ => 0,
    }
}
