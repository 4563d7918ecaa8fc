//! Generates the stubs of every service in this directory.

fn main() -> Result<(), rpc_codegen::Error> {
    // One package per file, so each is the one-line case; cargo reruns this only when one of the three has changed.
    rpc_codegen::compile_protos("greeter.proto")?;
    rpc_codegen::compile_protos("echo.proto")?;
    rpc_codegen::compile_protos("bench.proto")
}
