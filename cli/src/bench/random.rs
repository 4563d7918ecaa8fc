//! Random messages of a type: the same ones for the same seed.
//!
//! Most fields are set, each to a value of its kind. A message of a wanted length is filled up in its texts and
//! bytes, or with further elements of its lists.

use fastrand::Rng;
use prost_reflect::prost::Message as _;
use prost_reflect::{
    Cardinality, DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MapKey, MessageDescriptor,
    ReflectMessage, Value,
};
use verbline::message::bytes::Bytes;

/// Messages within messages, beyond which no message is set: a type may contain itself.
const DEPTH: u32 = 4;

/// The most elements of a list or a map whose message has no wanted length.
const ELEMENTS: usize = 4;

/// The most characters of a text whose message has no wanted length.
const TEXT: usize = 24;

/// Messages of one type.
#[derive(Debug)]
pub(crate) struct Random {
    of: MessageDescriptor,
    rng: Rng,
}

/// The message has no field that could make it as long as it should be.
#[derive(Debug)]
pub(crate) struct CannotGrow {
    /// The length in bytes that a message of this type has reached.
    pub(crate) reached: usize,
}

impl Random {
    pub(crate) fn new(of: MessageDescriptor, seed: u64) -> Self {
        let rng = Rng::with_seed(seed);
        Self { of, rng }
    }

    /// Returns an encoded message of any length.
    pub(crate) fn message(&mut self) -> Bytes {
        let of = self.of.clone();
        self.filled(&of, DEPTH).encode_to_vec().into()
    }

    /// Returns an encoded message of this many bytes. A few lengths cannot be reached exactly, because the
    /// encoding of a length takes one byte more from 128 on: such a message is one or two bytes shorter.
    pub(crate) fn message_of(&mut self, len: usize) -> Result<Bytes, CannotGrow> {
        let of = self.of.clone();
        // As much of the variety of fields as there is room for.
        let mut message = (0..=DEPTH)
            .rev()
            .map(|depth| self.filled(&of, depth))
            .find(|message| message.encoded_len() <= len)
            .unwrap_or_else(|| DynamicMessage::new(of));
        self.grow(&mut message, len, DEPTH);
        let reached = message.encoded_len();
        // What the encoding of lengths takes, at each level of a nested message.
        let slack = 2 * (DEPTH as usize + 1);
        if reached > len || reached + slack < len {
            return Err(CannotGrow { reached });
        }
        Ok(message.encode_to_vec().into())
    }

    fn filled(&mut self, of: &MessageDescriptor, depth: u32) -> DynamicMessage {
        let mut message = DynamicMessage::new(of.clone());
        if depth == 0 || self.fill_known(&mut message) {
            return message;
        }
        for field in of.fields() {
            let must = field.cardinality() == Cardinality::Required;
            // Of a oneof, the last field that is set stays.
            if must || self.rng.u8(..) < 224 {
                self.set(&mut message, &field, depth);
            }
        }
        message
    }

    fn set(&mut self, message: &mut DynamicMessage, field: &FieldDescriptor, depth: u32) {
        if is_message(field) && depth == 1 && field.cardinality() != Cardinality::Required {
            return;
        }
        let count = self.rng.usize(0..=ELEMENTS);
        let value = if let Kind::Message(entry) = field.kind()
            && field.is_map()
        {
            let entries = (0..count).filter_map(|_| self.entry(&entry, depth));
            Value::Map(entries.collect())
        } else if field.is_list() {
            let kind = field.kind();
            Value::List((0..count).map(|_| self.value(&kind, depth)).collect())
        } else {
            self.value(&field.kind(), depth)
        };
        message.set_field(field, value);
    }

    fn entry(&mut self, entry: &MessageDescriptor, depth: u32) -> Option<(MapKey, Value)> {
        let [key, value] = [1, 2].map(|number| entry.get_field(number));
        let key = match self.value(&key?.kind(), depth) {
            Value::Bool(key) => MapKey::Bool(key),
            Value::I32(key) => MapKey::I32(key),
            Value::I64(key) => MapKey::I64(key),
            Value::U32(key) => MapKey::U32(key),
            Value::U64(key) => MapKey::U64(key),
            Value::String(key) => MapKey::String(key),
            _ => return None,
        };
        Some((key, self.value(&value?.kind(), depth)))
    }

    fn value(&mut self, kind: &Kind, depth: u32) -> Value {
        let rng = &mut self.rng;
        match kind {
            Kind::Double => Value::F64(rng.f64() * 1000.0),
            Kind::Float => Value::F32(rng.f32() * 1000.0),
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => Value::I32(self.number() as i32),
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => Value::I64(self.number()),
            Kind::Uint32 | Kind::Fixed32 => Value::U32(self.number() as u32),
            Kind::Uint64 | Kind::Fixed64 => Value::U64(self.number() as u64),
            Kind::Bool => Value::Bool(rng.bool()),
            Kind::String => {
                let len = rng.usize(1..=TEXT);
                Value::String(self.text(len))
            }
            Kind::Bytes => {
                let len = rng.usize(1..=TEXT);
                Value::Bytes(self.bytes(len))
            }
            Kind::Message(of) => Value::Message(self.filled(of, depth - 1)),
            Kind::Enum(of) => Value::EnumNumber(self.choice(of)),
        }
    }

    /// Numbers of all encoded lengths, small ones as often as large ones.
    fn number(&mut self) -> i64 {
        let bits = self.rng.u32(1..63);
        self.rng.i64(0..1 << bits)
    }

    fn choice(&mut self, of: &EnumDescriptor) -> i32 {
        let values: Vec<i32> = of.values().map(|value| value.number()).collect();
        self.rng.choice(values).unwrap_or_default()
    }

    fn text(&mut self, len: usize) -> String {
        (0..len).map(|_| self.rng.alphanumeric()).collect()
    }

    fn bytes(&mut self, len: usize) -> Bytes {
        let mut bytes = vec![0; len];
        self.rng.fill(&mut bytes);
        bytes.into()
    }

    /// Fills a message whose values have rules of their own. Returns false for other messages.
    fn fill_known(&mut self, message: &mut DynamicMessage) -> bool {
        let name = message.descriptor().full_name().to_owned();
        let most_seconds = match name.as_str() {
            // Up to the year 2100, and ten years.
            "google.protobuf.Timestamp" => 4_102_444_800,
            "google.protobuf.Duration" => 315_360_000,
            // What is in it needs a type that is known, and the path of a mask needs a message.
            "google.protobuf.Any" | "google.protobuf.FieldMask" => return true,
            _ => return false,
        };
        let seconds = self.rng.i64(0..most_seconds);
        message.set_field_by_number(1, Value::I64(seconds));
        message.set_field_by_number(2, Value::I32(self.rng.i32(0..1_000_000_000)));
        true
    }

    /// Makes a message longer, up to this many encoded bytes.
    fn grow(&mut self, message: &mut DynamicMessage, len: usize, depth: u32) {
        let fields: Vec<FieldDescriptor> = message.descriptor().fields().collect();
        let is_text = |field: &&FieldDescriptor| {
            !field.is_list() && matches!(field.kind(), Kind::String | Kind::Bytes)
        };
        // Another field of a oneof would be removed, and be missing in the sum.
        let is_free = |message: &DynamicMessage, field: &FieldDescriptor| {
            message.has_field(field)
                || field.containing_oneof().is_none_or(|oneof| {
                    oneof.is_synthetic() || !oneof.fields().any(|one| message.has_field(&one))
                })
        };
        if let Some(text) = fields
            .iter()
            .find(|field| is_text(field) && is_free(message, field))
        {
            return self.grow_text(message, text, len);
        }
        let lists = fields.iter().filter(|field| field.is_list());
        for list in lists {
            self.grow_list(message, list, len, depth);
            if message.encoded_len() + 2 >= len {
                return;
            }
        }
        if depth == 0 {
            return;
        }
        let inner = fields.iter().find(|field| {
            is_message(field) && !field.is_list() && !field.is_map() && is_free(message, field)
        });
        if let Some(field) = inner
            && let Value::Message(mut within) = message.get_field(field).into_owned()
        {
            let rest = message.encoded_len() - within.encoded_len();
            // The tag and the length of the field, if it was not there.
            let new = if message.has_field(field) { 0 } else { 4 };
            self.grow(&mut within, len.saturating_sub(rest + new), depth - 1);
            message.set_field(field, Value::Message(within));
        }
    }

    fn grow_text(&mut self, message: &mut DynamicMessage, field: &FieldDescriptor, len: usize) {
        let mut text_len = match &*message.get_field(field) {
            Value::String(text) => text.len(),
            Value::Bytes(bytes) => bytes.len(),
            _ => return,
        };
        // The second round knows how long the field's length is encoded, and the third whether it then is.
        for _ in 0..3 {
            let now = message.encoded_len();
            text_len = (text_len + len).saturating_sub(now);
            let value = match field.kind() {
                Kind::String => Value::String(self.text(text_len)),
                _ => Value::Bytes(self.bytes(text_len)),
            };
            message.set_field(field, value);
        }
        if message.encoded_len() > len {
            let shorter = text_len.saturating_sub(message.encoded_len() - len);
            let value = match field.kind() {
                Kind::String => Value::String(self.text(shorter)),
                _ => Value::Bytes(self.bytes(shorter)),
            };
            message.set_field(field, value);
        }
    }

    /// Adds elements while there is room for them.
    fn grow_list(
        &mut self,
        message: &mut DynamicMessage,
        field: &FieldDescriptor,
        len: usize,
        depth: u32,
    ) {
        if is_message(field) && depth == 0 {
            return;
        }
        let kind = field.kind();
        // A packed list takes less than the sum of its elements alone, so there may be room for more.
        loop {
            let Value::List(mut elements) = message.get_field(field).into_owned() else {
                return;
            };
            let before = elements.len();
            let mut left = len.saturating_sub(message.encoded_len());
            // An element that does not fit may be a long one.
            let mut misses = 0;
            while misses < 8 {
                let element = self.value(&kind, depth.max(1));
                let mut one = DynamicMessage::new(message.descriptor());
                one.set_field(field, Value::List(vec![element.clone()]));
                match left.checked_sub(one.encoded_len()) {
                    Some(rest) if one.encoded_len() > 0 => {
                        left = rest;
                        elements.push(element);
                    }
                    _ => misses += 1,
                }
            }
            let has_grown = elements.len() > before;
            message.set_field(field, Value::List(elements));
            if !has_grown {
                return;
            }
        }
    }
}

fn is_message(field: &FieldDescriptor) -> bool {
    matches!(field.kind(), Kind::Message(_))
}
