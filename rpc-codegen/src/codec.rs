//! Emits the codec of messages: straight-line code for their known fields.

use crate::emit::Runtime;
use crate::messages::{Field, Member, Message, Oneof, Presence, Tag, ZeroValue};
use crate::paths;

/// Emits the private module with the codec of `messages`, which are those of one package.
///
/// No message, service or package gets a name with a leading underscore from prost.
///
/// `budgets` has the budgets of decoding, by the paths of messages.
pub(crate) fn emit(messages: &[Message], budgets: &[(String, usize)], rt: &Runtime) -> String {
    let runtime = &rt.path;
    let impls: String = messages
        .iter()
        .map(|each| message(each, paths::last(budgets, &each.name)))
        .collect();
    format!(
        r#"/// Encodes and decodes the known fields of messages, to the same bytes and values as prost.
mod _codec {{
use {runtime}::field::{{self, Field}};
use {runtime}::{{GeneratedMessage, Reader, Scan, Stop, Writer}};
{impls}}}
"#
    )
}

fn message(message: &Message, budget: Option<usize>) -> String {
    let path = &message.path;
    let members = &message.fields;
    let full = full(members).unwrap_or_default();
    let budget = budget.map(|n| format!("const DECODED_PER_BYTE: Option<usize> = Some({n});\n"));
    let parts = [
        full.len,
        budget.unwrap_or_default(),
        encoded_len(members),
        encode(members),
        full.encode,
        decode(members),
        full.decode,
        scan(members),
    ]
    .concat();
    format!("impl GeneratedMessage for super::{path} {{\n{parts}}}\n")
}

fn encoded_len(members: &[Member]) -> String {
    if members.is_empty() {
        return "fn encoded_len(&self) -> usize { 0 }\n".to_owned();
    }
    let lens: String = members
        .iter()
        .map(|member| match member {
            Member::Field(field) => field_len(field),
            Member::Oneof(oneof) => match_variants(oneof, |ty, tag| {
                format!("len += {} + field::{ty}::len(value)", tag.len())
            }),
        })
        .collect();
    format!("fn encoded_len(&self) -> usize {{\nlet mut len = 0;\n{lens}len\n}}\n")
}

fn field_len(field: &Field) -> String {
    let Field { name, ty, tag, .. } = field;
    let (ty, tag_len) = (&ty.path, tag.len());
    match field.presence {
        Presence::Implicit(default) => format!(
            "if {} {{ len += {tag_len} + field::{ty}::len(&self.{name}); }}\n",
            is_set(name, default)
        ),
        Presence::Optional => format!(
            "if let Some(value) = &self.{name} {{ len += {tag_len} + field::{ty}::len(value); }}\n"
        ),
        Presence::Required => format!("len += {tag_len} + field::{ty}::len(&self.{name});\n"),
        Presence::Repeated => {
            format!("len += field::{ty}::len_repeated({tag_len}, &self.{name});\n")
        }
        Presence::Packed => format!("len += field::{ty}::len_packed({tag_len}, &self.{name});\n"),
        Presence::Map => format!("len += field::{ty}::len({tag_len}, &self.{name});\n"),
    }
}

fn encode(members: &[Member]) -> String {
    let out = if members.is_empty() { "out" } else { "mut out" };
    let fields: String = members
        .iter()
        .map(|member| match member {
            Member::Field(field) => encode_field(field),
            Member::Oneof(oneof) => match_variants(oneof, |ty, tag| {
                format!("field::{ty}::encode({}, value, &mut out)?", array(tag))
            }),
        })
        .collect();
    format!(
        "fn encode<W: Writer>(&self, {out}: W) -> Result<W, W::Error> {{\n{fields}Ok(out)\n}}\n"
    )
}

fn encode_field(field: &Field) -> String {
    let Field { name, ty, tag, .. } = field;
    let (ty, tag) = (&ty.path, array(*tag));
    match field.presence {
        Presence::Implicit(default) => format!(
            "if {} {{ field::{ty}::encode({tag}, &self.{name}, &mut out)?; }}\n",
            is_set(name, default)
        ),
        Presence::Optional => format!(
            "if let Some(value) = &self.{name} {{ field::{ty}::encode({tag}, value, &mut out)?; }}\n"
        ),
        Presence::Required | Presence::Map => {
            format!("field::{ty}::encode({tag}, &self.{name}, &mut out)?;\n")
        }
        Presence::Repeated => {
            format!("field::{ty}::encode_repeated({tag}, &self.{name}, &mut out)?;\n")
        }
        Presence::Packed => {
            format!("field::{ty}::encode_packed({tag}, &self.{name}, &mut out)?;\n")
        }
    }
}

fn decode(members: &[Member]) -> String {
    if members.is_empty() {
        return "fn decode_fields(fields: Reader<'_>) -> Option<Self> { fields.is_empty().then_some(Self {}) }\n"
            .to_owned();
    }
    let fields: String = members
        .iter()
        .map(|member| match member {
            Member::Field(field) => decode_field(field),
            Member::Oneof(oneof) => decode_oneof(oneof),
        })
        .collect();
    format!(
        r#"fn decode_fields(mut fields: Reader<'_>) -> Option<Self> {{
let message = Self {{ {fields} }};
fields.is_empty().then_some(message)
}}
"#
    )
}

fn decode_field(field: &Field) -> String {
    let Field { name, ty, tag, .. } = field;
    let (ty, tag) = (&ty.path, array(*tag));
    let decode = match field.presence {
        Presence::Repeated => "decode_repeated",
        Presence::Packed => "decode_packed",
        _ => "decode",
    };
    let otherwise = match field.presence {
        Presence::Implicit(_) => ".unwrap_or_default()".to_owned(),
        // A `required` field may have another default. `Self::default` may be prost's method for a field.
        Presence::Required => format!(".unwrap_or_else(|| <Self as Default>::default().{name})"),
        _ => String::new(),
    };
    format!("{name}: field::{ty}::{decode}({tag}, &mut fields){otherwise},\n")
}

fn decode_oneof(oneof: &Oneof) -> String {
    let Oneof {
        name,
        path,
        variants,
    } = oneof;
    let variants: Vec<_> = variants
        .iter()
        .map(|variant| {
            let (ty, tag) = (&variant.ty.path, array(variant.tag));
            format!(
                "field::{ty}::decode({tag}, &mut fields).map(super::{path}::{})",
                variant.name
            )
        })
        .collect();
    let (first, others) = variants
        .split_first()
        .map_or((String::new(), &[][..]), |(first, others)| {
            (first.clone(), others)
        });
    let others: String = others
        .iter()
        .map(|other| format!(".or_else(|| {other})"))
        .collect();
    format!("{name}: {first}{others},\n")
}

/// Emits the method that passes a field before the message is decoded. It names the fields that may place
/// more on the heap than their bytes, or whose bytes may be many and are copied.
fn scan(members: &[Member]) -> String {
    let fields: String = members
        .iter()
        .map(|member| match member {
            Member::Field(field) => scan_field(field).unwrap_or_default(),
            Member::Oneof(oneof) => scan_oneof(oneof),
        })
        .collect();
    if fields.is_empty() {
        return "fn scan_field(_: u32, fields: &mut Scan<'_>) -> Result<(), Stop> { fields.skip() }\n"
            .to_owned();
    }
    format!(
        r#"fn scan_field(number: u32, fields: &mut Scan<'_>) -> Result<(), Stop> {{
match number {{ {fields} _ => fields.skip() }}
}}
"#
    )
}

fn scan_field(field: &Field) -> Option<String> {
    let Field { name, ty, tag, .. } = field;
    let scan = match field.presence {
        Presence::Repeated | Presence::Packed => "scan_repeated",
        Presence::Map => "scan",
        Presence::Optional if ty.is_scanned => "scan",
        Presence::Required | Presence::Implicit(_) if ty.is_scanned => "scan_required",
        _ => return None,
    };
    Some(format!(
        "{} => field::{}::{scan}(fields, |message: &Self| &message.{name}),\n",
        tag.number(),
        ty.path
    ))
}

fn scan_oneof(oneof: &Oneof) -> String {
    let scanned = oneof
        .variants
        .iter()
        .filter(|variant| variant.ty.is_scanned);
    scanned
        .map(|variant| {
            format!(
                "{} => field::{}::scan_variant(fields, super::{}::{}),\n",
                variant.tag.number(),
                variant.ty.path,
                oneof.path,
                variant.name
            )
        })
        .collect()
}

/// Emits a `match` of a oneof with the same expression for each variant, which has the type and the
/// tag of the variant.
fn match_variants(oneof: &Oneof, expression: impl Fn(&str, Tag) -> String) -> String {
    let Oneof {
        name,
        path,
        variants,
    } = oneof;
    let arms: String = variants
        .iter()
        .map(|variant| {
            let expression = expression(&variant.ty.path, variant.tag);
            format!(
                "Some(super::{path}::{}(value)) => {expression},\n",
                variant.name
            )
        })
        .collect();
    format!("match &self.{name} {{\n{arms}None => {{}}\n}}\n")
}

/// The items for messages whose fields all have a fixed length.
#[derive(Default)]
struct Full {
    len: String,
    encode: String,
    decode: String,
}

/// Emits the items for messages whose fields all have a fixed length. In most of these messages all
/// fields are set, and their places are then known.
fn full(members: &[Member]) -> Option<Full> {
    let len = full_len(members)?;
    let fields = || {
        members.iter().filter_map(|member| match member {
            Member::Field(field) => Some((&field.name, &field.ty.path, array(field.tag))),
            Member::Oneof(_) => None,
        })
    };
    let encode: String = fields()
        .map(|(name, ty, tag)| format!("field::{ty}::encode({tag}, &self.{name}, &mut out)?;\n"))
        .collect();
    let decode: String = fields()
        .map(|(name, ty, tag)| format!("{name}: field::{ty}::decode({tag}, &mut fields)?,\n"))
        .collect();
    Some(Full {
        len: format!("const FULL_LEN: Option<usize> = Some({len});\n"),
        encode: format!(
            "#[inline]\nfn encode_full<W: Writer>(&self, mut out: W) -> Result<W, W::Error> {{\n{encode}Ok(out)\n}}\n"
        ),
        decode: format!(
            "#[inline]\nfn decode_full(mut fields: Reader<'_>) -> Option<Self> {{\nSome(Self {{ {decode} }})\n}}\n"
        ),
    })
}

/// Returns the length of the message if all fields are set, if it is then always the same.
fn full_len(members: &[Member]) -> Option<usize> {
    let lens: Option<Vec<_>> = members.iter().map(fixed_len).collect();
    // It isn't worth its code for a single field.
    Some(lens?.into_iter().sum()).filter(|_| members.len() > 1)
}

/// Returns the length of a field with its tag if it is set, if the length is then always the same.
fn fixed_len(member: &Member) -> Option<usize> {
    match member {
        Member::Field(field) if matches!(field.presence, Presence::Implicit(_)) => {
            Some(field.tag.len() + field.ty.fixed_len?)
        }
        _ => None,
    }
}

fn is_set(name: &str, default: ZeroValue) -> String {
    match default {
        ZeroValue::Zero => format!("self.{name} != 0"),
        ZeroValue::FloatZero => format!("self.{name} != 0.0"),
        ZeroValue::False => format!("self.{name}"),
        ZeroValue::Empty => format!("!self.{name}.is_empty()"),
    }
}

/// Emits the tag as an array of bytes.
fn array(tag: Tag) -> String {
    let bytes: Vec<_> = tag
        .bytes()
        .iter()
        .map(|byte| format!("{byte:#04x}"))
        .collect();
    format!("[{}]", bytes.join(", "))
}
