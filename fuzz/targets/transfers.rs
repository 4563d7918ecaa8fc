#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| drop(rpc_core_testing::hostile::transfers(bytes)));
