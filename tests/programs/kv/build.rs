fn main() -> Result<(), rpc_codegen::Error> {
    rpc_codegen::configure()
        .bytes(".acme.kv.v1.Entry.value")
        .include_file("protos.rs")
        .compile_protos(&["proto/acme/kv/v1/kv.proto"], &["proto", "vendor"])
}
