//! Random messages of a type: the same ones for the same seed.
//!
//! Most fields are set, each to a value of its kind. A message of a wanted length is completed in one of its
//! fields, with a value of exactly the bytes that are left, or with further elements of a list.

use fastrand::Rng;
use prost_reflect::prost::Message as _;
use prost_reflect::{
    Cardinality, DescriptorPool, DynamicMessage, EnumDescriptor, FieldDescriptor, Kind,
    MessageDescriptor, ReflectMessage, Value,
};
use verbline::message::bytes::Bytes;
use verbline::message::prost_types::{DescriptorProto, FileDescriptorSet};

/// Messages within messages, beyond which no message is set: a type may contain itself.
const DEPTH: u32 = 4;

/// The most elements of a list whose message has no wanted length.
const ELEMENTS: usize = 4;

/// The most characters of a text whose message has no wanted length.
const TEXT: usize = 24;

/// Of 256 fields, those that are set.
const MOST: u8 = 224;

/// What a message of a wanted length begins with, until one can be completed: the depth, and how many of 256
/// fields are set. As much of the variety of fields as there is room for.
const BEGINNINGS: [(u32, u8); 9] = [
    (DEPTH, MOST),
    (3, MOST),
    (2, MOST),
    (1, MOST),
    (1, 128),
    (1, 64),
    (1, 32),
    (1, 16),
    (1, 0),
];

/// How often the beginnings are tried: other numbers in them leave other lengths to be completed.
const ROUNDS: usize = 4;

/// Messages within a message that are tried for one wanted length. A type of many messages without a text may
/// have no such message, and too many ways to look for one.
const TRIES: u32 = 2_000;

/// Values of a type with rules among which one of a wanted length is looked for.
const KNOWN: usize = 10;

/// How far from a wanted length another one is looked for, in bytes.
const NEAR: usize = 16;

/// Messages of one type.
#[derive(Debug)]
pub(crate) struct Random {
    of: MessageDescriptor,
    rng: Rng,
    /// The first of [`BEGINNINGS`] that has not been too long.
    first: usize,
    /// What is left of [`TRIES`].
    tries: u32,
}

/// No message of the wanted length was found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoSuchLength {
    /// The nearest length in bytes of a message that was found.
    pub(crate) nearest: usize,
}

impl Random {
    pub(crate) fn new(of: &MessageDescriptor, seed: u64) -> Self {
        Self {
            of: with_lists_for_maps(of),
            rng: Rng::with_seed(seed),
            first: 0,
            tries: TRIES,
        }
    }

    /// Returns an encoded message of any length.
    pub(crate) fn message(&mut self) -> Bytes {
        let of = self.of.clone();
        self.filled(&of, DEPTH, MOST).encode_to_vec().into()
    }

    /// Returns an encoded message of exactly this many bytes. Some lengths have no message: a text of 127
    /// bytes takes 129, and one of 128 takes 131, so 130 need another field.
    pub(crate) fn message_of(&mut self, len: usize) -> Result<Bytes, NoSuchLength> {
        if let Some(message) = self.whole(len) {
            return Ok(message.encode_to_vec().into());
        }
        let around = (1..=NEAR).flat_map(|by| [len.checked_sub(by), len.checked_add(by)]);
        let near = around.flatten().find(|&near| self.whole(near).is_some());
        let nearest = near.unwrap_or_else(|| {
            let of = self.of.clone();
            let shares = BEGINNINGS.iter().cycle().take(BEGINNINGS.len() * ROUNDS);
            let lens = shares.map(|&(depth, share)| self.filled(&of, depth, share).encoded_len());
            lens.min_by_key(|found| found.abs_diff(len)).unwrap_or(0)
        });
        Err(NoSuchLength { nearest })
    }

    fn whole(&mut self, len: usize) -> Option<DynamicMessage> {
        let of = self.of.clone();
        self.tries = TRIES;
        (0..ROUNDS).find_map(|_| self.exactly(&of, len, DEPTH))
    }

    fn filled(&mut self, of: &MessageDescriptor, depth: u32, share: u8) -> DynamicMessage {
        let mut message = DynamicMessage::new(of.clone());
        if depth == 0 {
            return message;
        }
        if let Some(known) = self.known(of) {
            return known;
        }
        for field in of.fields() {
            let must = field.cardinality() == Cardinality::Required;
            let is_too_deep = is_message(&field) && depth == 1;
            // Of a oneof, the last field that is set stays.
            if must || (self.rng.u8(..) < share && !is_too_deep) {
                let value = self.any(&field, depth);
                message.set_field(&field, value);
            }
        }
        message
    }

    fn any(&mut self, field: &FieldDescriptor, depth: u32) -> Value {
        let kind = field.kind();
        if !field.is_list() {
            return self.value(&kind, depth);
        }
        let count = self.rng.usize(0..=ELEMENTS);
        Value::List((0..count).map(|_| self.value(&kind, depth)).collect())
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
            Kind::Message(of) => Value::Message(self.filled(of, depth.saturating_sub(1), MOST)),
            Kind::Enum(of) => Value::EnumNumber(self.choice(of, |_| true).unwrap_or_default()),
        }
    }

    /// Numbers of all encoded lengths, small ones as often as large ones.
    fn number(&mut self) -> i64 {
        self.number_to(i64::MAX)
    }

    fn number_to(&mut self, most: i64) -> i64 {
        let shorter_by = self.rng.u32(0..i64::BITS - most.leading_zeros());
        self.rng.i64(0..=most >> shorter_by)
    }

    fn choice(&mut self, of: &EnumDescriptor, fits: impl Fn(i32) -> bool) -> Option<i32> {
        let numbers = of.values().map(|value| value.number());
        let numbers: Vec<i32> = numbers.filter(|number| fits(*number)).collect();
        self.rng.choice(numbers)
    }

    fn text(&mut self, len: usize) -> String {
        (0..len).map(|_| self.rng.alphanumeric()).collect()
    }

    fn bytes(&mut self, len: usize) -> Bytes {
        let mut bytes = vec![0; len];
        self.rng.fill(&mut bytes);
        bytes.into()
    }

    /// Returns a message of a type whose values have rules of their own.
    fn known(&mut self, of: &MessageDescriptor) -> Option<DynamicMessage> {
        let most_seconds = match of.full_name() {
            // Up to the year 2100, and ten years.
            "google.protobuf.Timestamp" => 4_102_444_800,
            "google.protobuf.Duration" => 315_360_000,
            // What is in it needs a type that is known, and the path of a mask needs a message.
            "google.protobuf.Any" | "google.protobuf.FieldMask" => {
                return Some(DynamicMessage::new(of.clone()));
            }
            _ => return None,
        };
        let mut message = DynamicMessage::new(of.clone());
        let [seconds, nanos] = [most_seconds, 999_999_999].map(|most| self.number_to(most));
        message.set_field_by_number(1, Value::I64(seconds));
        message.set_field_by_number(2, Value::I32(nanos as i32));
        Some(message)
    }

    /// Returns a message of exactly this many encoded bytes, if one is found.
    fn exactly(
        &mut self,
        of: &MessageDescriptor,
        len: usize,
        depth: u32,
    ) -> Option<DynamicMessage> {
        if self.known(of).is_some() {
            // Their values have rules, so none of them is completed.
            let mut known = (0..KNOWN).filter_map(|_| self.known(of));
            let found = known.find(|known| known.encoded_len() == len);
            return found.or_else(|| (len == 0).then(|| DynamicMessage::new(of.clone())));
        }
        let is_whole = depth == DEPTH;
        let first = if is_whole { self.first } else { 0 };
        for (index, (of_beginning, share)) in BEGINNINGS.into_iter().enumerate().skip(first) {
            // Within a message, two beginnings are enough: the outer message has many.
            if of_beginning > depth || (!is_whole && share != MOST && share != 0) {
                continue;
            }
            self.tries = self.tries.checked_sub(1)?;
            let mut message = self.filled(of, of_beginning, share);
            if message.encoded_len() < len {
                self.complete(&mut message, len, depth);
            }
            if message.encoded_len() == len {
                return Some(message);
            }
            if is_whole && message.encoded_len() > len {
                self.first = (index + 1).min(BEGINNINGS.len() - 1);
            }
        }
        (len == 0).then(|| DynamicMessage::new(of.clone()))
    }

    /// Sets one field so that the message is this long, if it finds one.
    fn complete(&mut self, message: &mut DynamicMessage, len: usize, depth: u32) {
        let is_free = |field: &FieldDescriptor| {
            message.has_field(field)
                || field.containing_oneof().is_none_or(|oneof| {
                    oneof.is_synthetic() || !oneof.fields().any(|one| message.has_field(&one))
                })
        };
        let fields = message.descriptor();
        let mut fields: Vec<_> = fields.fields().filter(is_free).collect();
        self.rng.shuffle(&mut fields);
        // A list of numbers takes much memory for its length.
        fields.sort_by_key(|field| match (field.kind(), field.is_list()) {
            (Kind::String | Kind::Bytes, is_list) => u8::from(is_list),
            (Kind::Message(_), is_list) => 2 + u8::from(is_list),
            (_, is_list) => 4 + u8::from(is_list),
        });
        for field in fields {
            let before = message.take_field(&field);
            let left = len - message.encoded_len();
            let value = match field.is_list() {
                true => self.list_of(&field, left, depth).map(Value::List),
                false => left
                    .checked_sub(tag_len(&field))
                    .and_then(|room| self.value_of(&field, room, depth)),
            };
            if let Some(value) = value {
                message.set_field(&field, value);
                if message.encoded_len() == len {
                    return;
                }
                message.clear_field(&field);
            }
            if let Some(before) = before {
                message.set_field(&field, before);
            }
        }
    }

    /// Returns a value that takes this many bytes after its tag.
    fn value_of(&mut self, field: &FieldDescriptor, room: usize, depth: u32) -> Option<Value> {
        Some(match field.kind() {
            Kind::String => Value::String(self.text(content_len(room)?)),
            Kind::Bytes => Value::Bytes(self.bytes(content_len(room)?)),
            Kind::Message(of) => {
                let len = match field.is_group() {
                    // A tag ends it.
                    true => room.checked_sub(tag_len(field))?,
                    false => content_len(room)?,
                };
                Value::Message(self.exactly(&of, len, depth.checked_sub(1)?)?)
            }
            kind => self.scalar(&kind, room)?,
        })
    }

    /// Returns a number, a bool or a value of an enum that is encoded in this many bytes. It is not zero,
    /// which a field without presence would not encode.
    fn scalar(&mut self, kind: &Kind, len: usize) -> Option<Value> {
        if !(1..=10).contains(&len) {
            return None;
        }
        let most = match kind {
            Kind::Double | Kind::Fixed64 | Kind::Sfixed64 => {
                return (len == 8).then(|| self.value(kind, 0));
            }
            Kind::Float | Kind::Fixed32 | Kind::Sfixed32 => {
                return (len == 4).then(|| self.value(kind, 0));
            }
            Kind::Bool => return (len == 1).then_some(Value::Bool(true)),
            Kind::Enum(of) => {
                let fits = |number| varint_len(i64::from(number) as u64) == len;
                return self.choice(of, fits).map(Value::EnumNumber);
            }
            Kind::String | Kind::Bytes | Kind::Message(_) => return None,
            // Negative numbers of these take ten bytes.
            Kind::Int32 if len == 10 => return Some(Value::I32(self.rng.i32(..0))),
            Kind::Int64 if len == 10 => return Some(Value::I64(self.rng.i64(..0))),
            Kind::Int32 => i32::MAX as u64,
            Kind::Int64 => i64::MAX as u64,
            Kind::Uint32 | Kind::Sint32 => u64::from(u32::MAX),
            Kind::Uint64 | Kind::Sint64 => u64::MAX,
        };
        let least_of = |len: usize| 1_u64.checked_shl(7 * (len as u32 - 1));
        let least = least_of(len).filter(|least| *least <= most)?;
        let most = most.min(least_of(len + 1).map_or(u64::MAX, |next| next - 1));
        let number = self.rng.u64(least..=most);
        // Each second one of zigzag numbers is negative.
        let zigzag = (number >> 1) as i64 ^ -((number & 1) as i64);
        Some(match kind {
            Kind::Int32 => Value::I32(number as i32),
            Kind::Int64 => Value::I64(number as i64),
            Kind::Uint32 => Value::U32(number as u32),
            Kind::Uint64 => Value::U64(number),
            Kind::Sint32 => Value::I32(zigzag as i32),
            _ => Value::I64(zigzag),
        })
    }

    /// Returns the elements of a list that takes this many bytes.
    fn list_of(&mut self, field: &FieldDescriptor, len: usize, depth: u32) -> Option<Vec<Value>> {
        let (kind, tag) = (field.kind(), tag_len(field));
        let lens: Vec<usize> = (1..=10)
            .filter(|&len| self.scalar(&kind, len).is_some())
            .collect();
        if !lens.is_empty() {
            let (room, each) = match field.is_packed() {
                true => (content_len(len.checked_sub(tag)?)?, 0),
                false => (len, tag),
            };
            let parts = self.parts(
                room,
                &lens.into_iter().map(|len| len + each).collect::<Vec<_>>(),
            );
            let parts = parts?.into_iter();
            return parts.map(|part| self.scalar(&kind, part - each)).collect();
        }
        let (mut left, mut elements) = (len, Vec::new());
        // An element that does not fit may be a long one.
        let mut misses = 0;
        while misses < 8 {
            let element = self.value(&kind, depth);
            match left.checked_sub(element_len(field, &element)) {
                Some(rest) => {
                    left = rest;
                    elements.push(element);
                }
                None => misses += 1,
            }
        }
        // The last one takes what is left, if need be with the room of some others.
        for _ in 0..8 {
            if left == 0 {
                break;
            }
            let room = left.checked_sub(tag);
            if let Some(last) = room.and_then(|room| self.value_of(field, room, depth)) {
                elements.push(last);
                break;
            }
            left += element_len(field, &elements.pop()?);
        }
        Some(elements)
    }

    /// Returns random lengths out of `lens`, none of which is over 64, whose sum is this.
    fn parts(&mut self, sum: usize, lens: &[usize]) -> Option<Vec<usize>> {
        let (mut left, mut parts) = (sum, Vec::new());
        while left > 64 {
            let part = self.rng.choice(lens.iter().copied())?;
            left -= part;
            parts.push(part);
        }
        // What can end each smaller sum.
        let mut last = vec![None; left + 1];
        for sum in 1..=left {
            let ends = |len: &usize| *len == sum || (*len < sum && last[sum - len].is_some());
            let fitting: Vec<usize> = lens.iter().copied().filter(ends).collect();
            last[sum] = self.rng.choice(fitting);
        }
        while left > 0 {
            let part = last[left]?;
            left -= part;
            parts.push(part);
        }
        Some(parts)
    }
}

/// Returns the type with lists of entries instead of maps, which are encoded alike. A map has another order
/// each time.
fn with_lists_for_maps(of: &MessageDescriptor) -> MessageDescriptor {
    fn change(message: &mut DescriptorProto) {
        if let Some(options) = &mut message.options {
            options.map_entry = None;
        }
        message.nested_type.iter_mut().for_each(change);
    }
    let files = of.parent_pool().file_descriptor_protos();
    let mut files: Vec<_> = files.cloned().collect();
    for file in &mut files {
        file.message_type.iter_mut().for_each(change);
    }
    DescriptorPool::from_file_descriptor_set(FileDescriptorSet { file: files })
        .ok()
        .and_then(|pool| pool.get_message_by_name(of.full_name()))
        // The files belong together, as they did before.
        .unwrap_or_else(|| of.clone())
}

fn is_message(field: &FieldDescriptor) -> bool {
    matches!(field.kind(), Kind::Message(_))
}

fn tag_len(field: &FieldDescriptor) -> usize {
    varint_len(u64::from(field.number()) << 3)
}

/// The bytes that a text, bytes or a message takes in a list.
fn element_len(field: &FieldDescriptor, element: &Value) -> usize {
    let len = match element {
        Value::String(text) => text.len(),
        Value::Bytes(bytes) => bytes.len(),
        Value::Message(message) => message.encoded_len(),
        _ => 0,
    };
    let frame = match field.is_group() {
        true => tag_len(field),
        false => varint_len(len as u64),
    };
    tag_len(field) + frame + len
}

/// The length of what takes this many bytes together with its length.
fn content_len(room: usize) -> Option<usize> {
    let lens = (1..=10).filter_map(|prefix| Some((prefix, room.checked_sub(prefix)?)));
    lens.filter(|(prefix, len)| varint_len(*len as u64) == *prefix)
        .map(|(_, len)| len)
        .next()
}

fn varint_len(number: u64) -> usize {
    (64 - (number | 1).leading_zeros() as usize).div_ceil(7)
}

#[cfg(test)]
mod tests;
