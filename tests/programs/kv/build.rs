fn main() -> Result<(), rpc_codegen::Error> {
    rpc_codegen::configure()
        .bytes(".acme.kv.v1.Entry.value")
        // For `Any`.
        .enable_type_names()
        .type_name_domain(".", "type.googleapis.com")
        // A method that a server does not write is UNIMPLEMENTED.
        .generate_default_stubs(true)
        .include_file("protos.rs")
        .compile_protos(&["proto/acme/kv/v1/kv.proto"], &["proto", "vendor"])
}
