#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| verbline_verbs::testing::soft_link(bytes));
