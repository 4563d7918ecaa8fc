#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    rpc_transport_verbs::testing::hostile::first_bytes(bytes);
    verbline_verbs::testing::greetings(bytes);
});
