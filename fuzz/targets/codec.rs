//! Compares the generated codec with prost.
#![no_main]

#[allow(dead_code, reason = "tests use the names of the messages")]
#[path = "../../rpc-codegen/tests/codec/messages.rs"]
mod messages;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| messages::fuzz(bytes));
