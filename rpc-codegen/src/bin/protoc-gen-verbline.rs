//! The `protoc` plugin, for `protoc --verbline_out=src/generated`, `buf generate` and Bazel.
//!
//! See [`rpc_codegen::protoc_plugin`] for its options.
#![forbid(unsafe_code)]

use std::io::{self, IsTerminal, Read, Write};

fn main() -> io::Result<()> {
    let mut stdin = io::stdin();
    if stdin.is_terminal() || std::env::args_os().len() > 1 {
        writeln!(
            io::stderr(),
            "protoc-gen-verbline {}: protoc and buf run this program, which reads what they write. For example:\n\n  \
             mkdir -p src/generated\n  \
             protoc --verbline_out=src/generated --verbline_opt=include_file=mod.rs -I proto proto/greeter.proto",
            env!("CARGO_PKG_VERSION")
        )?;
        std::process::exit(2);
    }
    let mut request = Vec::new();
    stdin.read_to_end(&mut request)?;
    io::stdout().write_all(&rpc_codegen::protoc_plugin(&request))
}
