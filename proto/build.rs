//! Generates the stubs of every service in this directory, and the messages of a session.

fn main() -> Result<(), rpc_codegen::Error> {
    // Each package needs one line. Cargo reruns this script only if a file has changed.
    rpc_codegen::compile_protos("echo.proto")?;
    rpc_codegen::compile_protos("bench.proto")?;
    rpc_codegen::compile_protos("chat.proto")?;
    rpc_codegen::compile_protos("watch.proto")?;
    // Their `bytes` fields are `Bytes`, which are sent and received without copying.
    for proto in ["bulk.proto", "blobs.proto"] {
        rpc_codegen::configure()
            .bytes(".")
            .compile_protos(&[proto], &["."])?;
    }
    // Their servers offer reflection.
    for proto in ["greeter.proto", "routeguide.proto"] {
        rpc_codegen::configure()
            .reflection(true)
            .compile_protos(&[proto], &["."])?;
    }
    // Imports name files from this directory on. Tests of reflection serve methods that nobody calls.
    rpc_codegen::configure()
        .reflection(true)
        .generate_default_stubs(true)
        .compile_protos(&["grpc/testing/test.proto"], &["."])?;
    // Messages only. A test compares them with the types in rpc-core.
    rpc_codegen::compile_protos("session.proto")
}
