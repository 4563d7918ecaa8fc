//! Generates the stubs of every service in this directory, and the messages of a session.

fn main() -> Result<(), rpc_codegen::Error> {
    // One package per file, so each is the one-line case; cargo reruns this only when one of them has changed.
    rpc_codegen::compile_protos("greeter.proto")?;
    rpc_codegen::compile_protos("echo.proto")?;
    rpc_codegen::compile_protos("bench.proto")?;
    // Messages only: a test compares them with what rpc-core has of them.
    rpc_codegen::compile_protos("session.proto")
}
