//! What prost says about a field: its attributes `#[prost(…)]`.

use syn::punctuated::Punctuated;
use syn::{Attribute, Expr, ExprLit, Lit, Meta, Token};

use crate::messages::{Presence, ZeroValue};

/// The attributes of one field of a message, or of one variant of a oneof.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attributes {
    /// As prost wrote them, for errors.
    text: String,
    kind: Option<Kind>,
    label: Option<Label>,
    packed: Option<bool>,
    has_default: bool,
    /// `tag`, or all of `tags`.
    numbers: Vec<u32>,
}

/// The kinds of fields that prost's derive tells apart.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Scalar(Scalar),
    Message,
    Group,
    /// The kinds of the keys and of the values.
    Map(Scalar, Value),
    /// The path of the Rust type.
    Oneof(String),
}

/// The values of a map.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value {
    Scalar(Scalar),
    Enumeration,
    Message,
}

/// A type of values without fields.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scalar {
    /// `int32`.
    name: &'static str,
    pub(crate) wire_type: u64,
    zero: ZeroValue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Label {
    Optional,
    Required,
    Repeated,
}

/// An enum is encoded as its number.
const ENUMERATION: Scalar = scalar("int32", 0, ZeroValue::Zero);

const SCALARS: [Scalar; 15] = [
    scalar("double", 1, ZeroValue::FloatZero),
    scalar("float", 5, ZeroValue::FloatZero),
    scalar("int32", 0, ZeroValue::Zero),
    scalar("int64", 0, ZeroValue::Zero),
    scalar("uint32", 0, ZeroValue::Zero),
    scalar("uint64", 0, ZeroValue::Zero),
    scalar("sint32", 0, ZeroValue::Zero),
    scalar("sint64", 0, ZeroValue::Zero),
    scalar("fixed32", 5, ZeroValue::Zero),
    scalar("fixed64", 1, ZeroValue::Zero),
    scalar("sfixed32", 5, ZeroValue::Zero),
    scalar("sfixed64", 1, ZeroValue::Zero),
    scalar("bool", 0, ZeroValue::False),
    scalar("string", 2, ZeroValue::Empty),
    scalar("bytes", 2, ZeroValue::Empty),
];

const fn scalar(name: &'static str, wire_type: u64, zero: ZeroValue) -> Scalar {
    Scalar {
        name,
        wire_type,
        zero,
    }
}

impl Scalar {
    fn named(name: &str) -> Option<Scalar> {
        SCALARS.into_iter().find(|scalar| scalar.name == name)
    }

    /// Returns the type's name in the runtime's module `field`: `Int32`.
    pub(crate) fn path(self) -> String {
        let (first, rest) = self.name.split_at(1);
        format!("{}{rest}", first.to_ascii_uppercase())
    }

    /// Returns the length of a value, if all values have the same.
    pub(crate) fn fixed_len(self) -> Option<usize> {
        match self.wire_type {
            1 => Some(8),
            5 => Some(4),
            _ => None,
        }
    }

    fn is_number(self) -> bool {
        self.wire_type != 2
    }
}

impl Attributes {
    /// Reads the attributes of a field, or returns those that are not understood.
    pub(crate) fn read(attributes: &[Attribute]) -> Result<Attributes, String> {
        let mut read = Attributes::default();
        for attribute in attributes {
            let Meta::List(list) = &attribute.meta else {
                continue;
            };
            if list.path.is_ident("prost") {
                read.text.push_str(&format!("#[prost({})]", list.tokens));
                let parts = attribute
                    .parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated)
                    .map_err(|_| read.text.clone())?;
                for part in &parts {
                    read.add(part).ok_or_else(|| read.text.clone())?;
                }
            } else if list.path.is_ident("cfg_attr") && list.tokens.to_string().contains("prost") {
                // Only the compiler knows whether this one counts.
                return Err(format!("#[cfg_attr({})]", list.tokens));
            }
        }
        Ok(read)
    }

    /// Adds one of the comma-separated parts of an attribute, or returns `None` if it is not
    /// understood.
    fn add(&mut self, part: &Meta) -> Option<()> {
        let name = part.path().get_ident()?.to_string();
        let value = match part {
            Meta::Path(_) => None,
            Meta::NameValue(pair) => match &pair.value {
                Expr::Lit(ExprLit {
                    lit: Lit::Str(text),
                    ..
                }) => Some(text.value()),
                _ => return None,
            },
            Meta::List(_) => return None,
        };
        match (name.as_str(), value.as_deref()) {
            ("optional", None) => set(&mut self.label, Label::Optional),
            ("required", None) => set(&mut self.label, Label::Required),
            ("repeated", None) => set(&mut self.label, Label::Repeated),
            // The codec takes a message in a `Box` as well.
            ("boxed", None) => Some(()),
            ("packed", Some(packed)) => set(&mut self.packed, packed.parse().ok()?),
            ("default", Some(_)) => {
                self.has_default = true;
                Some(())
            }
            ("tag" | "tags", Some(numbers)) if self.numbers.is_empty() => {
                let numbers = numbers.split(',').map(|number| number.trim().parse().ok());
                self.numbers = numbers.collect::<Option<_>>()?;
                Some(())
            }
            (name, value) => set(&mut self.kind, kind(name, value)?),
        }
    }

    /// Returns the kind of the field.
    pub(crate) fn kind(&self) -> Result<&Kind, String> {
        self.kind.as_ref().ok_or_else(|| self.not_understood())
    }

    /// Returns the field's number.
    pub(crate) fn number(&self) -> Result<u32, String> {
        match *self.numbers {
            [number] => Ok(number),
            _ => Err(self.not_understood()),
        }
    }

    /// Returns the numbers of the fields in a oneof.
    pub(crate) fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    /// Returns when the field is encoded. The rules are those of prost's derive.
    pub(crate) fn presence(&self) -> Result<Presence, String> {
        let presence = match (self.kind()?, self.label) {
            (Kind::Map(..), None) => Presence::Map,
            (Kind::Scalar(scalar), None) if !self.has_default => Presence::Implicit(scalar.zero),
            (Kind::Message | Kind::Group, None) => Presence::Optional,
            (Kind::Scalar(scalar), Some(Label::Repeated))
                if scalar.is_number() && self.packed != Some(false) =>
            {
                Presence::Packed
            }
            (Kind::Scalar(_) | Kind::Message | Kind::Group, Some(label)) => match label {
                Label::Optional => Presence::Optional,
                Label::Required => Presence::Required,
                Label::Repeated => Presence::Repeated,
            },
            _ => return Err(self.not_understood()),
        };
        Ok(presence)
    }

    /// Checks that these are attributes of a variant, which has no label.
    pub(crate) fn check_variant(&self) -> Result<(), String> {
        match (self.label, self.packed, self.has_default) {
            (None, None, false) => Ok(()),
            _ => Err(self.not_understood()),
        }
    }

    fn not_understood(&self) -> String {
        match self.text.as_str() {
            "" => "no `#[prost(…)]`".to_owned(),
            text => text.to_owned(),
        }
    }
}

/// Sets what is not set yet.
fn set<T>(option: &mut Option<T>, value: T) -> Option<()> {
    option.replace(value).is_none().then_some(())
}

fn kind(name: &str, value: Option<&str>) -> Option<Kind> {
    Some(match (name, value) {
        ("message", None) => Kind::Message,
        ("group", None) => Kind::Group,
        ("enumeration", Some(_)) => Kind::Scalar(ENUMERATION),
        // The types of the field's value: `Vec` and `Bytes`.
        ("bytes", Some("vec" | "bytes")) => Kind::Scalar(Scalar::named(name)?),
        ("map" | "hash_map" | "btree_map", Some(types)) => {
            let (key, value) = types.split_once(',')?;
            let value = match value.trim() {
                "message" => Value::Message,
                value if value.starts_with("enumeration(") => Value::Enumeration,
                value => Value::Scalar(Scalar::named(value)?),
            };
            Kind::Map(Scalar::named(key.trim())?, value)
        }
        ("oneof", Some(path)) => Kind::Oneof(path.to_owned()),
        (name, None) => Kind::Scalar(Scalar::named(name)?),
        _ => return None,
    })
}
