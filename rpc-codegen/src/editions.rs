//! Writes files with an edition as files of proto3, which is what prost-build reads.
//!
//! An edition sets by *features* what `proto2` and `proto3` set by their name, for a file or a part of
//! it (<https://protobuf.dev/editions/features>). Those that decide about encodings and types all have
//! a form in proto3's descriptors: explicit presence is `optional`, the encoding of a repeated field
//! is its option `packed`, and a delimited message is a group. The others (`enum_type`,
//! `utf8_validation`, `json_format`) make no difference to what prost generates.
//!
//! The descriptors of prost-types have no field for features, so they are read apart.

use std::collections::BTreeMap;
use std::path::PathBuf;

use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet};

use crate::error::Error;
use crate::paths::qualified;

/// The editions whose features are known, by their numbers in `descriptor.proto`.
pub(crate) const KNOWN: [i32; 2] = [1000, 1001];

/// The part of an encoded `FileDescriptorSet` that prost-types does not have.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Editions {
    #[prost(message, repeated, tag = "1")]
    files: Vec<File>,
}

/// The same part of an encoded `CodeGeneratorRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct EditionsInRequest {
    #[prost(message, repeated, tag = "15")]
    files: Vec<File>,
}

#[derive(Clone, PartialEq, Message)]
struct File {
    #[prost(message, repeated, tag = "4")]
    messages: Vec<MessageType>,
    #[prost(message, optional, tag = "8")]
    options: Option<FileOptions>,
    #[prost(int32, tag = "14")]
    edition: i32,
}

#[derive(Clone, PartialEq, Message)]
struct MessageType {
    #[prost(message, repeated, tag = "2")]
    fields: Vec<Field>,
    #[prost(message, repeated, tag = "3")]
    nested: Vec<MessageType>,
    #[prost(message, optional, tag = "7")]
    options: Option<MessageOptions>,
    #[prost(message, repeated, tag = "8")]
    oneofs: Vec<Oneof>,
}

#[derive(Clone, PartialEq, Message)]
struct Field {
    #[prost(message, optional, tag = "8")]
    options: Option<FieldOptions>,
}

#[derive(Clone, PartialEq, Message)]
struct Oneof {
    #[prost(message, optional, tag = "2")]
    options: Option<OneofOptions>,
}

#[derive(Clone, PartialEq, Message)]
struct FileOptions {
    #[prost(message, optional, tag = "50")]
    features: Option<Features>,
}

#[derive(Clone, PartialEq, Message)]
struct MessageOptions {
    #[prost(message, optional, tag = "12")]
    features: Option<Features>,
}

#[derive(Clone, PartialEq, Message)]
struct FieldOptions {
    #[prost(message, optional, tag = "21")]
    features: Option<Features>,
}

#[derive(Clone, PartialEq, Message)]
struct OneofOptions {
    #[prost(message, optional, tag = "1")]
    features: Option<Features>,
}

/// The features that decide about what is generated; 0 is not set.
#[derive(Clone, Copy, PartialEq, Message)]
struct Features {
    #[prost(int32, tag = "1")]
    field_presence: i32,
    #[prost(int32, tag = "3")]
    repeated_field_encoding: i32,
    #[prost(int32, tag = "5")]
    message_encoding: i32,
}

const EXPLICIT: i32 = 1;
const IMPLICIT: i32 = 2;
const LEGACY_REQUIRED: i32 = 3;
const PACKED: i32 = 1;
const EXPANDED: i32 = 2;
const LENGTH_PREFIXED: i32 = 1;
const DELIMITED: i32 = 2;

/// The defaults of the known editions.
const DEFAULTS: Features = Features {
    field_presence: EXPLICIT,
    repeated_field_encoding: PACKED,
    message_encoding: LENGTH_PREFIXED,
};

impl Features {
    /// Returns these features, with those that `inner` sets.
    fn with(self, inner: Option<Features>) -> Features {
        let inner = inner.unwrap_or_default();
        let set = |outer, inner| if inner == 0 { outer } else { inner };
        Features {
            field_presence: set(self.field_presence, inner.field_presence),
            repeated_field_encoding: set(
                self.repeated_field_encoding,
                inner.repeated_field_encoding,
            ),
            message_encoding: set(self.message_encoding, inner.message_encoding),
        }
    }

    /// Returns the feature whose value is not known.
    fn unknown(self) -> Option<String> {
        let known = |value, most| (1..=most).contains(&value);
        let [name, value] = if !known(self.field_presence, LEGACY_REQUIRED) {
            ["field_presence".to_owned(), self.field_presence.to_string()]
        } else if !known(self.repeated_field_encoding, EXPANDED) {
            let value = self.repeated_field_encoding.to_string();
            ["repeated_field_encoding".to_owned(), value]
        } else if !known(self.message_encoding, DELIMITED) {
            [
                "message_encoding".to_owned(),
                self.message_encoding.to_string(),
            ]
        } else {
            return None;
        };
        Some(format!("{name} = {value}"))
    }
}

/// Why a file with an edition cannot be written as one of proto3.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Unsupported {
    /// An edition that is not known, by its number in `descriptor.proto`.
    #[error("the edition with the number {0}")]
    Edition(i32),
    /// A feature with a value that is not known, such as `field_presence = 4`.
    #[error("the feature `{0}`")]
    Feature(String),
}

impl Editions {
    /// Writes the files of `set` that have an edition as files of proto3. `read` has the paths of
    /// files by their names.
    ///
    /// # Errors
    ///
    /// Returns [`Error::UnknownFeature`] if a file has an edition or a feature that is not known.
    pub(crate) fn lower(
        &self,
        set: &mut FileDescriptorSet,
        read: &BTreeMap<String, PathBuf>,
    ) -> Result<(), Error> {
        lower_files(&self.files, set, read)
    }
}

impl EditionsInRequest {
    /// See [`Editions::lower`].
    pub(crate) fn lower(
        &self,
        set: &mut FileDescriptorSet,
        read: &BTreeMap<String, PathBuf>,
    ) -> Result<(), Error> {
        lower_files(&self.files, set, read)
    }
}

fn lower_files(
    parts: &[File],
    set: &mut FileDescriptorSet,
    read: &BTreeMap<String, PathBuf>,
) -> Result<(), Error> {
    for (file, part) in set.file.iter_mut().zip(parts) {
        lower_file(file, part).map_err(|unsupported| {
            let on_disk = read.get(file.name()).cloned();
            Error::UnknownFeature {
                file: on_disk.unwrap_or_else(|| PathBuf::from(file.name())),
                what: unsupported.to_string(),
            }
        })?;
    }
    Ok(())
}

fn lower_file(file: &mut FileDescriptorProto, part: &File) -> Result<(), Unsupported> {
    if file.syntax() != "editions" {
        return Ok(());
    }
    if !KNOWN.contains(&part.edition) {
        return Err(Unsupported::Edition(part.edition));
    }
    let options = part.options.as_ref();
    let features = DEFAULTS.with(options.and_then(|options| options.features));
    let package = file.package().to_owned();
    for (message, part) in file.message_type.iter_mut().zip(&part.messages) {
        let full_name = qualified(&package, message.name());
        lower_message(message, &full_name, part, features)?;
    }
    file.syntax = Some("proto3".to_owned());
    Ok(())
}

fn lower_message(
    message: &mut DescriptorProto,
    full_name: &str,
    part: &MessageType,
    features: Features,
) -> Result<(), Unsupported> {
    let options = part.options.as_ref();
    let features = features.with(options.and_then(|options| options.features));
    let is_entry = message.options.as_ref().is_some_and(|it| it.map_entry());
    let entries: Vec<_> = message
        .nested_type
        .iter()
        .filter(|nested| nested.options.as_ref().is_some_and(|it| it.map_entry()))
        .map(|nested| format!(".{full_name}.{}", nested.name()))
        .collect();
    for (field, own) in message.field.iter_mut().zip(&part.fields) {
        let oneof = field
            .oneof_index
            .and_then(|index| part.oneofs.get(index as usize));
        let of_oneof = oneof.and_then(|oneof| oneof.options.as_ref()?.features);
        let of_field = own.options.as_ref().and_then(|options| options.features);
        let features = features.with(of_oneof).with(of_field);
        if let Some(feature) = features.unknown() {
            return Err(Unsupported::Feature(feature));
        }
        let is_map = entries.iter().any(|entry| field.type_name() == entry);
        lower_field(field, features, is_entry || is_map);
    }
    for (nested, part) in message.nested_type.iter_mut().zip(&part.nested) {
        let full_name = qualified(full_name, nested.name());
        lower_message(nested, &full_name, part, features)?;
    }
    Ok(())
}

/// `is_of_map`: the field is a map, or the key or value of one.
fn lower_field(field: &mut FieldDescriptorProto, features: Features, is_of_map: bool) {
    let ty = field.r#type();
    let is_group = ty == Type::Message && features.message_encoding == DELIMITED && !is_of_map;
    if is_group {
        field.set_type(Type::Group);
    }
    if field.label() == Label::Repeated {
        let is_long = matches!(ty, Type::String | Type::Bytes | Type::Message | Type::Group);
        if !is_long {
            let options = field.options.get_or_insert_default();
            options.packed = Some(features.repeated_field_encoding == PACKED);
        }
    } else if field.oneof_index.is_none() && !is_of_map {
        match features.field_presence {
            LEGACY_REQUIRED => field.set_label(Label::Required),
            // Without a synthetic oneof, which only reflection needs.
            EXPLICIT if ty != Type::Message => field.proto3_optional = Some(true),
            // In proto3, prost-build takes no group for optional that is not marked so.
            _ if is_group => field.proto3_optional = Some(true),
            EXPLICIT | IMPLICIT => {}
            other => unreachable!("the value {other} was checked"),
        }
    }
}

#[cfg(test)]
mod tests {
    use prost_types::{FieldOptions as StandardOptions, MessageOptions as OptionsOfMessage};

    use super::*;

    fn features(
        field_presence: i32,
        repeated_field_encoding: i32,
        message_encoding: i32,
    ) -> Features {
        Features {
            field_presence,
            repeated_field_encoding,
            message_encoding,
        }
    }

    /// Lowers a file with one message, whose fields have these types, labels and features.
    fn lowered(
        of_file: Features,
        of_message: Features,
        fields: &[(Type, Label, Features)],
    ) -> Result<Vec<FieldDescriptorProto>, Unsupported> {
        let field = |(index, (ty, label, _)): (usize, &(Type, Label, Features))| {
            let mut field = FieldDescriptorProto {
                name: Some(format!("f{index}")),
                number: Some(index as i32 + 1),
                ..Default::default()
            };
            field.set_type(*ty);
            field.set_label(*label);
            field
        };
        let mut file = FileDescriptorProto {
            syntax: Some("editions".to_owned()),
            message_type: vec![DescriptorProto {
                field: fields.iter().enumerate().map(field).collect(),
                ..Default::default()
            }],
            ..Default::default()
        };
        let of_field = |(.., features): &(Type, Label, Features)| Field {
            options: Some(FieldOptions {
                features: Some(*features),
            }),
        };
        let part = File {
            messages: vec![MessageType {
                fields: fields.iter().map(of_field).collect(),
                options: Some(MessageOptions {
                    features: Some(of_message),
                }),
                ..Default::default()
            }],
            options: Some(FileOptions {
                features: Some(of_file),
            }),
            edition: 1000,
        };
        lower_file(&mut file, &part)?;
        assert_eq!(file.syntax(), "proto3");
        Ok(file.message_type.remove(0).field)
    }

    #[test]
    fn defaults_are_those_of_2023() {
        let none = Features::default();
        let fields = lowered(
            none,
            none,
            &[
                (Type::Int32, Label::Optional, none),
                (Type::Int32, Label::Repeated, none),
                (Type::Message, Label::Optional, none),
                (Type::String, Label::Repeated, none),
            ],
        )
        .unwrap();
        assert!(fields[0].proto3_optional());
        assert_eq!(
            fields[1].options,
            Some(StandardOptions {
                packed: Some(true),
                ..Default::default()
            })
        );
        assert!(!fields[2].proto3_optional() && fields[2].r#type() == Type::Message);
        assert_eq!(fields[3].options, None);
    }

    #[test]
    fn a_part_inherits_what_it_does_not_set() {
        let none = Features::default();
        let fields = lowered(
            features(IMPLICIT, EXPANDED, DELIMITED),
            features(0, PACKED, 0),
            &[
                (Type::Int32, Label::Optional, none),
                (Type::Int32, Label::Repeated, none),
                (Type::Enum, Label::Repeated, features(0, EXPANDED, 0)),
                (Type::Message, Label::Optional, none),
                (
                    Type::Message,
                    Label::Optional,
                    features(0, 0, LENGTH_PREFIXED),
                ),
                (
                    Type::Bytes,
                    Label::Optional,
                    features(LEGACY_REQUIRED, 0, 0),
                ),
            ],
        )
        .unwrap();
        assert!(!fields[0].proto3_optional());
        let packed = |field: &FieldDescriptorProto| field.options.as_ref().unwrap().packed();
        assert!(packed(&fields[1]) && !packed(&fields[2]));
        assert_eq!(fields[3].r#type(), Type::Group);
        assert_eq!(fields[4].r#type(), Type::Message);
        assert_eq!(fields[5].label(), Label::Required);
    }

    #[test]
    fn a_type_with_the_name_of_entries_is_no_map() {
        let entry = DescriptorProto {
            name: Some("FooEntry".to_owned()),
            options: Some(OptionsOfMessage {
                map_entry: Some(true),
                ..Default::default()
            }),
            ..Default::default()
        };
        let field = |ty: &str| {
            let mut field = FieldDescriptorProto {
                type_name: Some(ty.to_owned()),
                ..Default::default()
            };
            field.set_type(Type::Message);
            field
        };
        let mut message = DescriptorProto {
            field: vec![field(".a.M.FooEntry"), field(".b.a.M.FooEntry")],
            nested_type: vec![entry],
            ..Default::default()
        };
        let part = MessageType {
            fields: vec![Field::default(), Field::default()],
            ..Default::default()
        };
        let delimited = DEFAULTS.with(Some(features(0, 0, DELIMITED)));
        lower_message(&mut message, "a.M", &part, delimited).unwrap();
        let types: Vec<_> = message.field.iter().map(|field| field.r#type()).collect();
        assert_eq!(types, [Type::Message, Type::Group]);
    }

    #[test]
    fn what_is_not_known_is_named() {
        let none = Features::default();
        let field = (Type::Int32, Label::Optional, features(4, 0, 0));
        let error = lowered(none, none, &[field]).unwrap_err();
        assert_eq!(error.to_string(), "the feature `field_presence = 4`");
        let mut file = FileDescriptorProto {
            syntax: Some("editions".to_owned()),
            ..Default::default()
        };
        let part = File {
            edition: 1002,
            ..Default::default()
        };
        let error = lower_file(&mut file, &part).unwrap_err();
        assert_eq!(error.to_string(), "the edition with the number 1002");
    }
}
