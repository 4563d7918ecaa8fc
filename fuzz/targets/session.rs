#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    rpc_core_testing::hostile::session(bytes);
});
