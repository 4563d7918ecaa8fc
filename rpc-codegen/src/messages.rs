//! The model of messages from which their codec is emitted.
//!
//! It repeats decisions of prost-build and of prost's derive: Rust names, the order of fields, and
//! which fields are optional, packed or left out.

use std::collections::HashMap;

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
    FileDescriptorSet, OneofDescriptorProto,
};

use crate::model::ExternPaths;
use crate::names;

/// One message.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    /// Its name with a leading dot: `.demo.Outer.Inner`.
    pub(crate) name: String,
    /// The path of its Rust type from the package's module: `outer::Inner`.
    pub(crate) path: String,
    /// In the order in which prost encodes them.
    pub(crate) fields: Vec<Member>,
}

/// A field of a message's Rust type.
#[derive(Clone, Debug)]
pub(crate) enum Member {
    Field(Field),
    Oneof(Oneof),
}

/// One field that is not in a `oneof`.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    /// `name`, `r#type`.
    pub(crate) name: String,
    pub(crate) presence: Presence,
    pub(crate) ty: FieldType,
    /// The key that precedes the field.
    pub(crate) tag: Tag,
}

/// One `oneof`.
#[derive(Clone, Debug)]
pub(crate) struct Oneof {
    /// `body`.
    pub(crate) name: String,
    /// The path of its Rust type from the package's module: `handshake::Body`.
    pub(crate) path: String,
    pub(crate) variants: Vec<Variant>,
}

/// One field of a `oneof`.
#[derive(Clone, Debug)]
pub(crate) struct Variant {
    /// `ClientHello`.
    pub(crate) name: String,
    pub(crate) ty: FieldType,
    pub(crate) tag: Tag,
}

/// When a field is encoded, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Unless it has the default value: a field of proto3 without a label.
    Implicit(ZeroValue),
    /// If it has a value: an `Option`.
    Optional,
    Required,
    Repeated,
    Packed,
    /// A `map`, whose type is that of its entries.
    Map,
}

/// The default values of fields of proto3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ZeroValue {
    Zero,
    FloatZero,
    False,
    Empty,
}

/// The type of a field.
#[derive(Clone, Debug)]
pub(crate) struct FieldType {
    /// The type in the runtime's module `field`: `Int32`, `Map::<String, Int32>`.
    pub(crate) path: String,
    /// The length of a value, if all values have the same.
    pub(crate) fixed_len: Option<usize>,
    /// Whether a value has fields.
    pub(crate) is_message: bool,
}

/// The key of a field: its number and its wire type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag(u64);

impl Tag {
    fn new(number: i32, wire_type: u64) -> Tag {
        Tag((number as u64) << 3 | wire_type)
    }

    /// Returns the encoded key.
    pub(crate) fn bytes(self) -> Vec<u8> {
        let mut bytes = Vec::new();
        prost::encoding::encode_varint(self.0, &mut bytes);
        bytes
    }

    /// Returns the field's number.
    pub(crate) fn number(self) -> u64 {
        self.0 >> 3
    }

    fn is_group(self) -> bool {
        self.0 & 7 == 3
    }

    /// Returns the number of bytes that are encoded besides the value. The runtime does not count
    /// the key at the end of a group either.
    pub(crate) fn len(self) -> usize {
        let len = self.bytes().len();
        if self.is_group() { 2 * len } else { len }
    }
}

/// Returns the messages of `file` that prost generates, those nested in others too.
pub(crate) fn messages(
    file: &FileDescriptorProto,
    enums: &EnumDefaults,
    externs: &ExternPaths,
) -> Vec<Message> {
    let mut scope = Scope {
        proto3: file.syntax() == "proto3",
        enums,
        externs,
        messages: Vec::new(),
    };
    let package = package_path(file);
    for message in &file.message_type {
        scope.add(message, &package, "");
    }
    scope.messages
}

/// Returns the Protobuf path of the file's package, with a leading dot unless it is empty.
fn package_path(file: &FileDescriptorProto) -> String {
    match file.package() {
        "" => String::new(),
        package => format!(".{package}"),
    }
}

/// The number of the first value of each enum, by its Protobuf path.
pub(crate) struct EnumDefaults(HashMap<String, i32>);

impl EnumDefaults {
    pub(crate) fn new(set: &FileDescriptorSet) -> EnumDefaults {
        let mut defaults = EnumDefaults(HashMap::new());
        for file in &set.file {
            defaults.add(&package_path(file), &file.enum_type, &file.message_type);
        }
        defaults
    }

    fn add(&mut self, path: &str, enums: &[EnumDescriptorProto], messages: &[DescriptorProto]) {
        for found in enums {
            let first = found.value.first().map_or(0, |value| value.number());
            self.0.insert(format!("{path}.{}", found.name()), first);
        }
        for message in messages {
            let path = format!("{path}.{}", message.name());
            self.add(&path, &message.enum_type, &message.nested_type);
        }
    }
}

/// What the messages of a file have in common.
struct Scope<'a> {
    proto3: bool,
    enums: &'a EnumDefaults,
    externs: &'a ExternPaths,
    messages: Vec<Message>,
}

impl Scope<'_> {
    /// Adds a message and those nested in it. `parent` is its Protobuf path, `module` its Rust
    /// module, which ends with `::` if it is not the package's.
    fn add(&mut self, message: &DescriptorProto, parent: &str, module: &str) {
        let path = format!("{parent}.{}", message.name());
        if self.externs.contains(&path) {
            return;
        }
        let nested = format!("{module}{}::", names::snake(message.name()));
        self.messages.push(Message {
            path: format!("{module}{}", names::upper_camel(message.name())),
            fields: self.members(message, &path, &nested),
            name: path.clone(),
        });
        for inner in message.nested_type.iter().filter(|inner| !is_entry(inner)) {
            self.add(inner, &path, &nested);
        }
    }

    /// Returns the fields of a message, in the order of prost: by number, a oneof by its lowest.
    fn members(&self, message: &DescriptorProto, path: &str, nested: &str) -> Vec<Member> {
        let is_in = |field: &&FieldDescriptorProto, index: usize| {
            field.oneof_index == Some(index as i32) && !field.proto3_optional()
        };
        let mut members = Vec::new();
        for field in &message.field {
            if field.oneof_index.is_none() || field.proto3_optional() {
                let member = Member::Field(self.field(field, message, path));
                members.push((field.number(), member));
            }
        }
        for (index, oneof) in message.oneof_decl.iter().enumerate() {
            let fields: Vec<_> = message
                .field
                .iter()
                .filter(|field| is_in(field, index))
                .collect();
            // The oneof of an `optional` field has no field of its own.
            let Some(lowest) = fields.iter().map(|field| field.number()).min() else {
                continue;
            };
            let variants = fields
                .into_iter()
                .map(|field| self.variant(field))
                .collect();
            let oneof = Oneof {
                name: names::snake(oneof.name()),
                path: format!("{nested}{}", oneof_type(message, oneof)),
                variants,
            };
            members.push((lowest, Member::Oneof(oneof)));
        }
        members.sort_by_key(|(number, _)| *number);
        members.into_iter().map(|(_, member)| member).collect()
    }

    fn variant(&self, field: &FieldDescriptorProto) -> Variant {
        Variant {
            name: names::upper_camel(field.name()),
            ty: self.field_type(field),
            tag: Tag::new(field.number(), wire_type(field.r#type())),
        }
    }

    fn field(&self, field: &FieldDescriptorProto, message: &DescriptorProto, path: &str) -> Field {
        let entry = message.nested_type.iter().find(|nested| {
            is_entry(nested) && field.type_name() == format!("{path}.{}", nested.name())
        });
        let presence = match entry {
            Some(_) => Presence::Map,
            None => self.presence(field),
        };
        let wire_type = match presence {
            Presence::Packed => 2,
            _ => wire_type(field.r#type()),
        };
        Field {
            name: names::snake(field.name()),
            presence,
            ty: match entry {
                Some(entry) => self.map_type(entry),
                None => self.field_type(field),
            },
            tag: Tag::new(field.number(), wire_type),
        }
    }

    fn presence(&self, field: &FieldDescriptorProto) -> Presence {
        let packs = || match &field.options {
            // Like prost, which takes any options for `packed = false`.
            Some(options) => options.packed(),
            None => self.proto3,
        };
        match field.label() {
            Label::Required => Presence::Required,
            Label::Repeated if is_number(field.r#type()) && packs() => Presence::Packed,
            Label::Repeated => Presence::Repeated,
            Label::Optional if field.proto3_optional() || !self.proto3 => Presence::Optional,
            Label::Optional => match field.r#type() {
                Type::Message | Type::Group => Presence::Optional,
                Type::Float | Type::Double => Presence::Implicit(ZeroValue::FloatZero),
                Type::Bool => Presence::Implicit(ZeroValue::False),
                Type::String | Type::Bytes => Presence::Implicit(ZeroValue::Empty),
                _ => Presence::Implicit(ZeroValue::Zero),
            },
        }
    }

    fn map_type(&self, entry: &DescriptorProto) -> FieldType {
        let [key, value] = [0, 1].map(|index| match &entry.field[index] {
            field if field.r#type() == Type::Enum => match self.enums.0.get(field.type_name()) {
                None | Some(0) => "field::Int32".to_owned(),
                Some(default) => format!("field::Enum<{default}>"),
            },
            // Without parameters, as inferred types are written in expressions.
            field => {
                let ty = self.field_type(field).path;
                let generic = matches!(field.r#type(), Type::Message | Type::Bytes);
                format!("field::{ty}{}", if generic { "<_>" } else { "" })
            }
        });
        FieldType {
            path: format!("Map::<{key}, {value}>"),
            fixed_len: None,
            is_message: false,
        }
    }

    fn field_type(&self, field: &FieldDescriptorProto) -> FieldType {
        let (path, fixed_len) = match field.r#type() {
            Type::Double => ("Double", Some(8)),
            Type::Float => ("Float", Some(4)),
            Type::Fixed64 => ("Fixed64", Some(8)),
            Type::Fixed32 => ("Fixed32", Some(4)),
            Type::Sfixed64 => ("Sfixed64", Some(8)),
            Type::Sfixed32 => ("Sfixed32", Some(4)),
            Type::Int64 => ("Int64", None),
            Type::Uint64 => ("Uint64", None),
            Type::Int32 | Type::Enum => ("Int32", None),
            Type::Uint32 => ("Uint32", None),
            Type::Sint32 => ("Sint32", None),
            Type::Sint64 => ("Sint64", None),
            Type::Bool => ("Bool", None),
            Type::String => ("String", None),
            Type::Bytes => ("Bytes", None),
            Type::Group => ("Group", None),
            Type::Message if !self.externs.contains(field.type_name()) => ("Message", None),
            Type::Message if self.externs.is_flat(field.type_name()) => ("FlatExtern", None),
            Type::Message => ("Extern", None),
        };
        FieldType {
            path: path.to_owned(),
            fixed_len,
            is_message: matches!(field.r#type(), Type::Message | Type::Group),
        }
    }
}

/// Returns true if the message is the type of a map's entries.
pub(crate) fn is_entry(message: &DescriptorProto) -> bool {
    message
        .options
        .as_ref()
        .is_some_and(|options| options.map_entry())
}

/// Returns the Rust type of a oneof, to which prost adds a suffix if a nested type has its name.
fn oneof_type(message: &DescriptorProto, oneof: &OneofDescriptorProto) -> String {
    let name = names::upper_camel(oneof.name());
    let messages = message.nested_type.iter().map(DescriptorProto::name);
    let mut types = messages.chain(message.enum_type.iter().map(EnumDescriptorProto::name));
    if types.any(|ty| names::upper_camel(ty) == name) {
        format!("{name}OneOf")
    } else {
        name
    }
}

fn wire_type(ty: Type) -> u64 {
    match ty {
        Type::Double | Type::Fixed64 | Type::Sfixed64 => 1,
        Type::String | Type::Bytes | Type::Message => 2,
        Type::Group => 3,
        Type::Float | Type::Fixed32 | Type::Sfixed32 => 5,
        _ => 0,
    }
}

fn is_number(ty: Type) -> bool {
    !matches!(ty, Type::String | Type::Bytes | Type::Message | Type::Group)
}
