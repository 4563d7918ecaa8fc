//! The model of messages from which their codec is emitted.

use std::collections::BTreeSet;

use prost_types::{DescriptorProto, FieldDescriptorProto};

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

impl Message {
    /// Returns the numbers of its fields.
    pub(crate) fn numbers(&self) -> BTreeSet<u32> {
        let numbers = |member: &Member| match member {
            Member::Field(field) => vec![field.tag.number()],
            Member::Oneof(oneof) => oneof.variants.iter().map(|it| it.tag.number()).collect(),
        };
        self.fields.iter().flat_map(numbers).collect()
    }
}

/// A message of which prost generates a struct.
#[derive(Debug)]
pub(crate) struct Generated {
    /// Its name with a leading dot.
    pub(crate) name: String,
    /// Those that are nested in it.
    pub(crate) nested: Vec<Generated>,
}

impl Generated {
    /// Returns true if a struct with this name may be that of the message: the cases of letters and the
    /// underscores may differ.
    pub(crate) fn may_be(&self, name: &syn::Ident) -> bool {
        let plain = |name: &str| name.replace('_', "").to_lowercase();
        let own = self.name.rsplit('.').next().unwrap_or_default();
        plain(own) == plain(name.to_string().trim_start_matches("r#"))
    }

    /// Returns true if this message or one that is nested in it is in `names`.
    pub(crate) fn is_any_of(&self, names: &BTreeSet<String>) -> bool {
        names.contains(&self.name) || self.nested.iter().any(|nested| nested.is_any_of(names))
    }
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
    /// Whether a scan has to know the type: a value has fields, or may be long and copied.
    pub(crate) is_scanned: bool,
}

/// The key of a field: its number and its wire type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag(u64);

impl Tag {
    pub(crate) fn new(number: u32, wire_type: u64) -> Tag {
        Tag(u64::from(number) << 3 | wire_type)
    }

    /// Returns the encoded key.
    pub(crate) fn bytes(self) -> Vec<u8> {
        let mut bytes = Vec::new();
        prost::encoding::encode_varint(self.0, &mut bytes);
        bytes
    }

    /// Returns the field's number.
    pub(crate) fn number(self) -> u32 {
        (self.0 >> 3) as u32
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

/// Returns true if the message is the type of a map's entries.
pub(crate) fn is_entry(message: &DescriptorProto) -> bool {
    message
        .options
        .as_ref()
        .is_some_and(|options| options.map_entry())
}

/// Returns the type of the entries if the field is a map. `nested` are the messages that are nested in
/// that of the field, and `path` is the name of the latter with a leading dot.
pub(crate) fn entry<'a>(
    field: &FieldDescriptorProto,
    nested: &'a [DescriptorProto],
    path: &str,
) -> Option<&'a DescriptorProto> {
    let name = field.type_name().strip_prefix(path)?.strip_prefix('.')?;
    let mut nested = nested.iter();
    nested.find(|nested| nested.name() == name && is_entry(nested))
}
