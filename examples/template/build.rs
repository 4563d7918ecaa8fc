fn main() -> Result<(), rpc_codegen::Error> {
    rpc_codegen::compile_protos("proto/greeter.proto")
}
