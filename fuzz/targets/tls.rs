#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    tls_testing::hostile::bytes(bytes);
});
