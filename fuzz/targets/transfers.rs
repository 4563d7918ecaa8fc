#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| drop(rpc_core::testing::hostile::transfers(bytes)));
