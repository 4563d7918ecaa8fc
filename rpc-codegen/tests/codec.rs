//! Compares the generated codec with prost, for every message of `tests/protos` and of `proto/`: same
//! bytes, same values, same errors.
//!
//! A failure prints the choices from which the encodings were made, and proptest stores its seed.
//! `PROPTEST_CASES=1000` tries more encodings of each message; the fuzz target `codec` never ends.

#[path = "codec/budget.rs"]
mod budget;
#[path = "codec/encodings.rs"]
mod encodings;
#[path = "codec/lists.rs"]
mod lists;
#[path = "codec/stack.rs"]
mod stack;
#[path = "codec/work.rs"]
mod work;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use generated::sorted::verbline::echo::EchoRequest;
use generated::{Agreed, Checked, MESSAGES};
use proptest::collection::vec;
use proptest::prelude::*;
use rpc_core::Codec;
use rpc_core::codegen::v1::GeneratedCodec;
use rpc_core::codegen::v1::bytes::buf::UninitSlice;
use rpc_core::codegen::v1::bytes::{Buf, BufMut, Bytes};
use rpc_core::codegen::v1::prost::Message;

use self::encodings::{Choices, Schema, delimited, key, mutate};

/// Where files are, from the folder of `generated`: a package outside of the workspace has this test too.
const PROTOS: &str = "../protos";
const PROTO: &str = "../../../proto";
const CORPUS: &str = "../../../fuzz/corpus/codec";

fn path(relative: &str) -> PathBuf {
    Path::new(generated::DIRECTORY).join(relative)
}

/// Messages that are not always decoded without prost: they may have groups or foreign messages, or be
/// too deep.
const WITH_PROST: [&str; 19] = [
    ".deep.Tree",
    ".deep.Tree.Graft",
    ".deep.Tree.Graft.Bud",
    ".deep.Tree.Stone",
    ".each_well_known.WellKnown",
    ".fields.v2.EachMap",
    ".fields.v2.EachRepeated",
    ".fields.v2.EachSingle",
    ".fields.v2.EachVariant",
    ".fields.v2.Grouped",
    ".fields.v2.Groups",
    ".fields.v2.Groups.Many",
    ".fields.v2.Groups.One",
    ".fields.v3.Externs",
    ".fields.v3.Recursive",
    ".lists.Lists",
    ".types.common.Thing",
    ".types.v1.Outer",
    ".types.v1.Outer.Inner",
];

fn schema() -> Schema {
    let protos = |dir: &str| {
        let files = fs::read_dir(path(dir))
            .unwrap()
            .map(|entry| entry.unwrap().file_name());
        let names = files.map(|name| name.into_string().unwrap());
        names
            .filter(|name| name.ends_with(".proto"))
            .collect::<Vec<_>>()
    };
    // Both directories have a `greeter.proto`.
    let mut set = protox::compile(protos(PROTOS), [path(PROTOS)]).unwrap();
    let mut own = protos(PROTO);
    own.push("grpc/testing/test.proto".to_owned());
    set.file
        .extend(protox::compile(own, [path(PROTO)]).unwrap().file);
    Schema::new(&set)
}

fn named(name: &str) -> impl Iterator<Item = &'static Checked> {
    MESSAGES.iter().filter(move |message| message.name == name)
}

#[test]
fn every_message_is_checked() {
    let schema = schema();
    let expected: BTreeSet<_> = schema
        .names()
        .filter(|name| !name.starts_with(".google.protobuf."))
        .collect();
    let checked: BTreeSet<_> = MESSAGES.iter().map(|message| message.name).collect();
    let differing: Vec<_> = expected.symmetric_difference(&checked).collect();
    assert!(differing.is_empty(), "{differing:?}");
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn generated_code_agrees_with_prost(
        choices in vec(any::<u8>(), 0..700),
        others in vec(any::<u8>(), 0..100),
        mutations in vec(any::<u8>(), 12),
    ) {
        let schema = schema_once();
        for Checked { name, check, .. } in MESSAGES {
            let mut made = Choices(&choices);
            let fields = schema.fields(name, &mut made, 5);
            if let Agreed::Valid { encoded, straight } = check(&fields.concat()) {
                prop_assert!(straight || WITH_PROST.contains(name), "{name}: {encoded:02x?}");
                let again = check(&encoded);
                prop_assert!(!matches!(again, Agreed::Invalid), "{name}: {encoded:02x?}");
            }
            let other = schema.encoding(name, &mut Choices(&others));
            check(&mutate(fields, &other, &mut Choices(&mutations)));
        }
    }

    #[test]
    fn generated_code_agrees_with_prost_on_random_bytes(bytes in vec(any::<u8>(), 0..40)) {
        for Checked { check, .. } in MESSAGES {
            check(&bytes);
        }
    }
}

/// Random encodings rarely get to the last fields of a message with many.
#[test]
fn each_field_agrees_with_prost() {
    let schema = schema_once();
    for Checked { name, check, .. } in MESSAGES {
        for field in schema.each_field(name) {
            let Agreed::Valid { encoded, .. } = check(&field) else {
                panic!("{name}: {field:02x?}");
            };
            let again = check(&encoded);
            let is_straight = matches!(again, Agreed::Valid { straight: true, .. });
            assert!(
                is_straight || WITH_PROST.contains(name),
                "{name}: {encoded:02x?}"
            );
        }
    }
}

/// Returns a configuration with fewer cases than proptest's: each has an encoding of every message.
fn config() -> ProptestConfig {
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => ProptestConfig::default(),
        None => ProptestConfig::with_cases(100),
    }
}

fn schema_once() -> &'static Schema {
    static SCHEMA: std::sync::OnceLock<Schema> = std::sync::OnceLock::new();
    SCHEMA.get_or_init(schema)
}

/// Beyond prost's recursion limit, both fail; below it, neither does.
#[test]
fn the_recursion_limit_is_that_of_prost() {
    let child = |inner: Vec<u8>| delimited(1, &inner);
    let in_map = |inner: Vec<u8>| delimited(3, &delimited(2, &inner));
    let in_oneof = |inner: Vec<u8>| delimited(4, &inner);
    // An unknown group, inside of a message that prost decodes for the generated code.
    let in_group = |inner: Vec<u8>| [key(9, 3), inner, key(9, 4)].concat();
    let wraps: [&dyn Fn(Vec<u8>) -> Vec<u8>; 3] = [&child, &in_map, &in_oneof];
    // Around the depths that generated code and prost decode, and a few others: deep messages take
    // long to compare.
    let is_checked = |depth: usize| {
        let is_near = |limit: &usize| depth.abs_diff(*limit) <= 4;
        depth.is_multiple_of(10) || [16, 32, 50, 100].iter().any(is_near)
    };
    for wrap in wraps {
        let mut valid = BTreeSet::new();
        let mut invalid = BTreeSet::new();
        let mut bytes = Vec::new();
        for depth in 0..120 {
            for message in named(".fields.v3.Recursive").filter(|_| is_checked(depth)) {
                match (message.check)(&bytes) {
                    Agreed::Invalid => invalid.insert(depth),
                    Agreed::Valid { .. } => valid.insert(depth),
                };
            }
            bytes = wrap(bytes);
        }
        let (deepest, first) = (valid.last().unwrap(), invalid.first().unwrap());
        assert!(deepest < first && *deepest >= 49, "{deepest}, {first}");
    }
    for outer in 0..40 {
        let mut outcomes = [0; 2];
        // Around the limit.
        for groups in 94 - outer..105 - outer {
            let unknown = (0..groups).fold(Vec::new(), |inner, _| in_group(inner));
            let bytes = (0..outer).fold(delimited(1, &unknown), |inner, _| child(inner));
            for name in [
                ".fields.v3.Externs",
                ".fields.v3.Recursive",
                ".types.v1.Outer",
            ] {
                for message in named(name) {
                    let is_valid = (message.check)(&bytes) != Agreed::Invalid;
                    outcomes[usize::from(is_valid)] += 1;
                }
            }
        }
        assert!(!outcomes.contains(&0), "{outer}: {outcomes:?}");
    }
}

/// A buffer that could take `Bytes` without a copy: it records from where the bytes are given.
#[derive(Default)]
struct Sharing {
    bytes: Vec<u8>,
    given: Vec<*const u8>,
}

// SAFETY: the methods are those of `Vec<u8>`, which fulfils the contract of `BufMut`.
unsafe impl BufMut for Sharing {
    fn remaining_mut(&self) -> usize {
        self.bytes.remaining_mut()
    }

    unsafe fn advance_mut(&mut self, len: usize) {
        // SAFETY: the caller has initialized `len` bytes of the same `chunk_mut`.
        unsafe { self.bytes.advance_mut(len) }
    }

    fn chunk_mut(&mut self) -> &mut UninitSlice {
        self.bytes.chunk_mut()
    }

    fn put<T: Buf>(&mut self, source: T) {
        self.given.push(source.chunk().as_ptr());
        self.bytes.put(source);
    }
}

#[test]
fn a_buffer_is_given_bytes_as_they_are() {
    let payload = Bytes::from(vec![7; 5000]);
    let message = EchoRequest {
        payload: payload.clone(),
    };
    let mut out = Sharing::default();
    GeneratedCodec::encode_to(&message, &mut out).unwrap();
    assert_eq!(out.given, [payload.as_ptr()]);
    assert_eq!(out.bytes, message.encode_to_vec());
}

/// The inputs that the fuzz target found, as it uses them.
#[test]
fn the_fuzzed_inputs_agree() {
    for entry in fs::read_dir(path(CORPUS)).unwrap() {
        let input = fs::read(entry.unwrap().path()).unwrap();
        generated::fuzz(&input);
    }
}
