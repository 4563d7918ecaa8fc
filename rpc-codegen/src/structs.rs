//! Reads the model of messages from the code that prost generates: which Rust items there are, and what
//! prost's derive makes of them, stands in that code.
//!
//! A struct does not say of which message it is. prost generates them in the order of the descriptors,
//! and the module of those that are nested in a message behind its struct, so the order tells.

use std::collections::BTreeSet;

use syn::punctuated::Punctuated;
use syn::{Attribute, Field, Fields, Item, ItemEnum, ItemStruct, Path, Token};

use crate::attributes::{Attributes, Kind, Scalar, Value};
use crate::descriptors::Descriptors;
use crate::error::Error;
use crate::messages::{self, FieldType, Generated, Member, Message, Oneof, Presence, Tag, Variant};
use crate::model::ExternPaths;

/// Reads the structs of messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Structs<'a> {
    pub(crate) descriptors: &'a Descriptors,
    pub(crate) externs: &'a ExternPaths,
    /// The messages to read.
    pub(crate) wanted: &'a BTreeSet<String>,
}

impl Structs<'_> {
    /// Returns the messages in the module of a package, in the order of its `items`. `generated` are all
    /// messages of the module, in that order.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NoCodec`] for each message that is not understood.
    pub(crate) fn read(
        self,
        items: &[Item],
        generated: &[Generated],
    ) -> Result<Vec<Message>, Error> {
        if !generated.iter().any(|found| found.is_any_of(self.wanted)) {
            return Ok(Vec::new());
        }
        let mut messages = Vec::new();
        let mut errors = Vec::new();
        for message in self.module(items, generated, "") {
            match message {
                Ok(message) => messages.push(message),
                Err(error) => errors.push(error),
            }
        }
        Error::any_of(errors)?;
        Ok(messages)
    }

    /// Reads a module, whose path ends with `::` unless it is that of the package.
    fn module(
        self,
        items: &[Item],
        generated: &[Generated],
        path: &str,
    ) -> Vec<Result<Message, Error>> {
        let no_codec = |name: &str, found: String| self.descriptors.no_codec(name, None, found);
        let mut messages = Vec::new();
        let mut generated = generated.iter().peekable();
        let mut nested: &[Generated] = &[];
        for (index, item) in items.iter().enumerate() {
            match item {
                Item::Struct(found) if is_message(&found.attrs) => {
                    let Some(next) = generated.next_if(|next| next.may_be(&found.ident)) else {
                        messages.push(Err(match generated.next() {
                            Some(missing) => no_codec(&missing.name, "no struct".to_owned()),
                            None => {
                                let found =
                                    format!("a struct `{path}{}` of no message", found.ident);
                                no_codec(path, found)
                            }
                        }));
                        return messages;
                    };
                    nested = &next.nested;
                    if self.wanted.contains(&next.name) {
                        messages.push(self.message(
                            found,
                            next.name.clone(),
                            &items[index..],
                            path,
                        ));
                    }
                }
                Item::Mod(module) if !nested.is_empty() => {
                    if let Some((_, items)) = &module.content {
                        let path = format!("{path}{}::", module.ident);
                        messages.extend(self.module(items, std::mem::take(&mut nested), &path));
                    }
                }
                _ => {}
            }
        }
        let missing = generated.map(|missing| Err(no_codec(&missing.name, "no struct".to_owned())));
        messages.extend(missing);
        messages
    }

    /// Reads a struct. `items` are those of its module from the struct on: the module with the types of
    /// its oneofs follows it directly.
    fn message(
        self,
        found: &ItemStruct,
        name: String,
        items: &[Item],
        module: &str,
    ) -> Result<Message, Error> {
        let no_codec = |field, found| self.descriptors.no_codec(&name, field, found);
        let Fields::Named(fields) = &found.fields else {
            return Err(no_codec(None, "a struct without named fields".to_owned()));
        };
        let mut members = Vec::new();
        for field in &fields.named {
            let field_name = field.ident.as_ref().map(ToString::to_string);
            let member = self
                .member(field, &name, items, module)
                .map_err(|found| no_codec(field_name, found))?;
            members.push(member);
        }
        // The order in which prost's derive encodes them.
        members.sort_by_key(|(number, _)| *number);
        Ok(Message {
            path: format!("{module}{}", found.ident),
            fields: members.into_iter().map(|(_, member)| member).collect(),
            name,
        })
    }

    /// Reads a field of a struct. Returns it with its number, or the lowest number of its oneof.
    fn member(
        self,
        field: &Field,
        message: &str,
        items: &[Item],
        module: &str,
    ) -> Result<(u32, Member), String> {
        let attributes = Attributes::read(&field.attrs)?;
        let name = field.ident.as_ref().ok_or("a field without a name")?;
        let name = name.to_string();
        if let Kind::Oneof(path) = attributes.kind()? {
            let oneof = find(items, path).ok_or_else(|| format!("no enum `{path}`"))?;
            let variants = self.variants(oneof, message)?;
            let mut numbers: Vec<_> = variants.iter().map(|it| it.tag.number()).collect();
            numbers.sort_unstable();
            let mut expected = attributes.numbers().to_vec();
            expected.sort_unstable();
            let lowest = *numbers.first().ok_or("a oneof without variants")?;
            if numbers != expected {
                return Err(format!(
                    "variants with the numbers {numbers:?} instead of {expected:?}"
                ));
            }
            let path = format!("{module}{path}");
            let oneof = Oneof {
                name,
                path,
                variants,
            };
            return Ok((lowest, Member::Oneof(oneof)));
        }
        let number = attributes.number()?;
        let presence = attributes.presence()?;
        let (ty, wire_type) = self.field_type(attributes.kind()?, message, number)?;
        let first = self.first_value(message, number);
        if matches!(presence, Presence::Implicit(_)) && first != 0 {
            return Err(format!(
                "an enum whose default is {first}, in a field of proto3"
            ));
        }
        let wire_type = match presence {
            Presence::Packed => 2,
            _ => wire_type,
        };
        let field = messages::Field {
            name,
            presence,
            ty,
            tag: Tag::new(number, wire_type),
        };
        Ok((number, Member::Field(field)))
    }

    fn variants(self, oneof: &ItemEnum, message: &str) -> Result<Vec<Variant>, String> {
        let variant = |variant: &syn::Variant| {
            let attributes = Attributes::read(&variant.attrs)?;
            attributes.check_variant()?;
            let number = attributes.number()?;
            let (ty, wire_type) = self.field_type(attributes.kind()?, message, number)?;
            match &variant.fields {
                Fields::Unnamed(fields) if fields.unnamed.len() == 1 => Ok(Variant {
                    name: variant.ident.to_string(),
                    ty,
                    tag: Tag::new(number, wire_type),
                }),
                _ => Err(format!("a variant `{}` without one value", variant.ident)),
            }
        };
        oneof.variants.iter().map(variant).collect()
    }

    /// Returns the type of a field, and its wire type unless the field is packed.
    fn field_type(
        self,
        kind: &Kind,
        message: &str,
        number: u32,
    ) -> Result<(FieldType, u64), String> {
        let (path, wire_type, fixed_len) = match kind {
            Kind::Scalar(scalar) => (scalar.path(), scalar.wire_type, scalar.fixed_len()),
            Kind::Message => (self.message_type(message, number)?.to_owned(), 2, None),
            Kind::Group => match self.message_type(message, number)? {
                "Message" => ("Group".to_owned(), 3, None),
                _ => ("ExternGroup".to_owned(), 3, None),
            },
            Kind::Map(key, value) => (self.map_type(*key, *value, message, number)?, 2, None),
            Kind::Oneof(path) => return Err(format!("a oneof `{path}` in a oneof")),
        };
        let is_scanned = match kind {
            Kind::Message | Kind::Group => true,
            _ => matches!(&*path, "String" | "Bytes"),
        };
        let ty = FieldType {
            path,
            fixed_len,
            is_scanned,
        };
        Ok((ty, wire_type))
    }

    /// Returns the type of messages in a field: those that are foreign are encoded by prost.
    fn message_type(self, message: &str, number: u32) -> Result<&'static str, String> {
        let ty = self.descriptors.type_of(message, number);
        let ty = ty.ok_or_else(|| format!("a message in field {number}, which has none"))?;
        Ok(match self.externs.contains(ty) {
            false => "Message",
            true if self.externs.is_flat(ty) => "FlatExtern",
            true => "Extern",
        })
    }

    /// Returns the type of a map, whose parameters are not inferred in expressions.
    fn map_type(
        self,
        key: Scalar,
        value: Value,
        message: &str,
        number: u32,
    ) -> Result<String, String> {
        let scalar = |scalar: Scalar| match scalar.path() {
            bytes if bytes == "Bytes" => "field::Bytes<_>".to_owned(),
            path => format!("field::{path}"),
        };
        let value = match value {
            Value::Scalar(value) => scalar(value),
            Value::Message => format!("field::{}<_>", self.message_type(message, number)?),
            Value::Enumeration => match self.first_value(message, number) {
                0 => "field::Int32".to_owned(),
                first => format!("field::Enum<{first}>"),
            },
        };
        Ok(format!("Map::<{}, {value}>", scalar(key)))
    }

    /// Returns the default of the field's enum, or of the enum that is a map's value. Returns zero if
    /// there is no enum.
    fn first_value(self, message: &str, number: u32) -> i32 {
        let ty = self.descriptors.type_of(message, number);
        ty.and_then(|ty| self.descriptors.first_value(ty))
            .unwrap_or(0)
    }
}

/// Returns true if these attributes are those of a struct that is a message.
fn is_message(attributes: &[Attribute]) -> bool {
    let derives = attributes.iter().filter(|it| it.path().is_ident("derive"));
    derives
        .filter_map(|it| {
            it.parse_args_with(Punctuated::<Path, Token![,]>::parse_terminated)
                .ok()
        })
        .flatten()
        .any(|path| {
            path.segments
                .last()
                .is_some_and(|last| last.ident == "Message")
        })
}

/// Returns the enum at `path` from the module with these items.
fn find<'a>(items: &'a [Item], path: &str) -> Option<&'a ItemEnum> {
    let Some((module, rest)) = path.split_once("::") else {
        return items.iter().find_map(|item| match item {
            Item::Enum(found) if found.ident == path => Some(found),
            _ => None,
        });
    };
    let items = items.iter().find_map(|item| match item {
        Item::Mod(found) if found.ident == module => found.content.as_ref(),
        _ => None,
    });
    find(&items?.1, rest)
}

#[cfg(test)]
mod tests;
