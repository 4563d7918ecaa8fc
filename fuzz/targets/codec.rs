//! Compares the generated codec with prost.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| generated::fuzz(bytes));
