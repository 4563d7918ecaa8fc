//! Random messages of types with every kind of field, and of types that few lengths are possible for.

use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, Value};

use super::{NoSuchLength, Random, content_len};

/// Types of which some lengths are impossible, and those of proto2.
const LENGTHS: &str = r#"
    syntax = "proto2";
    package lengths;
    message Nothing {}
    message Bools { optional bool a = 1; optional bool b = 2; }
    message Text { optional string text = 1; }
    message Unpacked { repeated bool each = 1; }
    message Packed { repeated fixed32 each = 1 [packed = true]; }
    message Numbers { repeated sint64 packed = 1 [packed = true]; repeated int32 unpacked = 2000; }
    message Tree { optional Tree left = 1; repeated Tree right = 2; optional bool leaf = 3; }
    message Needs { required int64 number = 1; required Text text = 2; }
    message Groups {
        optional group One = 3 { optional bytes some = 1; }
        repeated group Each = 4 { optional uint32 number = 1; map<bool, Groups> by_bool = 2; }
    }
    message Chosen { oneof of { string text = 1; Text message = 2; fixed64 number = 3; } }
    message Maps { map<string, int32> numbers = 1; }
"#;

/// The types that are tried.
fn types(pool: &DescriptorPool) -> impl Iterator<Item = MessageDescriptor> {
    let types = pool.all_messages().filter(|of| !of.is_map_entry());
    // Those of descriptors are large, and like the others.
    types.filter(|of| of.parent_file().name() != "google/protobuf/descriptor.proto")
}

fn pool() -> DescriptorPool {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("lengths.proto"), LENGTHS).unwrap();
    let protos = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/protos");
    let files = ["kinds.proto", "old.proto", "lengths.proto"];
    let files = protox::compile(files, [protos.as_ref(), folder.path()]).unwrap();
    DescriptorPool::from_file_descriptor_set(files).unwrap()
}

/// Says which lengths have a message; `None` of the types that are too many-sided to say.
fn is_possible(name: &str, len: usize) -> Option<bool> {
    let text = |len: usize| len == 0 || len.checked_sub(1).and_then(content_len).is_some();
    Some(match name {
        "lengths.Nothing" | "google.protobuf.Any" => len == 0,
        "lengths.Bools" => [0, 2, 4].contains(&len),
        "lengths.Text" => text(len),
        // An empty text is not encoded.
        "google.protobuf.StringValue" => len != 2 && text(len),
        "lengths.Unpacked" => len.is_multiple_of(2),
        "lengths.Packed" => {
            let content = len.checked_sub(1).and_then(content_len);
            len == 0 || content.is_some_and(|content| content > 0 && content % 4 == 0)
        }
        "google.protobuf.DoubleValue" => [0, 9].contains(&len),
        "lengths.Numbers" => len == 0 || len > 2,
        "lengths.Maps" => ![1, 3].contains(&len),
        "verbline.kinds.EveryKind" => len != 1,
        _ => return None,
    })
}

/// Returns true if a message has fields that its type does not know.
fn has_unknown(message: &DynamicMessage) -> bool {
    fn of_value(value: &Value) -> bool {
        match value {
            Value::Message(message) => has_unknown(message),
            Value::List(values) => values.iter().any(of_value),
            Value::Map(values) => values.values().any(of_value),
            _ => false,
        }
    }
    message.unknown_fields().next().is_some() || message.fields().any(|(_, value)| of_value(value))
}

/// Makes a message twice, and checks what comes of it.
fn check(of: &MessageDescriptor, seed: u64, len: usize) {
    let what = format!("{} of {len} bytes, seed {seed}", of.full_name());
    let make = || Random::new(of, seed).message_of(len);
    let made = make();
    assert_eq!(made, make(), "{what}: the same seed makes the same message");
    let possible = is_possible(of.full_name(), len);
    match made {
        Ok(bytes) => {
            assert_eq!(bytes.len(), len, "{what}");
            let message = DynamicMessage::decode(of.clone(), bytes);
            assert!(!has_unknown(&message.expect(&what)), "{what}");
            assert_ne!(possible, Some(false), "{what}: made");
        }
        Err(NoSuchLength { nearest }) => {
            assert_ne!(possible, Some(true), "{what}: not made");
            assert_ne!(nearest, len, "{what}");
            if possible.is_some() {
                let near = Random::new(of, seed).message_of(nearest);
                assert_eq!(near.map(|bytes| bytes.len()), Ok(nearest), "{what}");
            }
        }
    }
}

#[test]
fn a_message_has_the_wanted_length_or_there_is_none() {
    let pool = pool();
    for of in types(&pool) {
        let seed = fastrand::u64(..);
        // Around 129, a length within takes a byte more.
        for len in (0..24).chain(124..136) {
            check(&of, seed.wrapping_add(len as u64), len);
        }
    }
    let every_kind = pool
        .get_message_by_name("verbline.kinds.EveryKind")
        .unwrap();
    for _ in 0..40 {
        let (seed, len) = (fastrand::u64(..), fastrand::usize(136..200_000));
        check(&every_kind, seed, len);
    }
}

#[test]
fn messages_of_any_length_are_those_of_their_seed() {
    for of in types(&pool()) {
        let seed = fastrand::u64(..);
        let what = format!("{}, seed {seed}", of.full_name());
        let mut twice = [0, 1].map(|_| Random::new(&of, seed));
        for _ in 0..20 {
            let [first, second] = twice.each_mut().map(Random::message);
            assert_eq!(first, second, "{what}");
            let message = DynamicMessage::decode(of.clone(), first);
            assert!(!has_unknown(&message.expect(&what)), "{what}");
        }
    }
}

#[test]
fn a_length_that_no_message_has_is_said_with_the_nearest() {
    let pool = pool();
    for (name, len, expected) in [
        ("lengths.Nothing", 7, &[0][..]),
        ("lengths.Bools", 1, &[0, 2]),
        ("lengths.Bools", 1_000, &[4]),
        ("lengths.Text", 130, &[129, 131]),
        ("lengths.Unpacked", 4_001, &[4_000, 4_002]),
        ("verbline.kinds.EveryKind", 1, &[0, 2]),
    ] {
        let of = pool.get_message_by_name(name).unwrap();
        let seed = fastrand::u64(..);
        let made = Random::new(&of, seed).message_of(len);
        let NoSuchLength { nearest } = made.expect_err(name);
        assert!(
            expected.contains(&nearest),
            "{name} of {len}, seed {seed}: {nearest}"
        );
    }
}
