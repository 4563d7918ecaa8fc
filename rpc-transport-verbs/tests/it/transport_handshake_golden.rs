//! The handshake's message structs are generated code that is committed, so building this crate
//! needs no build script. This test generates them again from `proto/handshake.proto` and compares.
//!
//! After a change of the `.proto` file, run `UPDATE_GOLDEN=1 cargo test -p rpc-transport-verbs
//! --test it transport_handshake_golden`.

use std::error::Error;
use std::path::Path;

#[test]
fn committed_messages_are_what_the_proto_generates() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let proto = root.join("../proto");
    let committed = root.join("src/connect/handshake/verbline.handshake.v1.rs");

    let descriptors = protox::compile(["handshake.proto"], [&proto])?;
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("handshake");
    std::fs::create_dir_all(&out)?;
    prost_build::Config::new()
        .out_dir(&out)
        .compile_fds(descriptors)?;
    let generated = std::fs::read_to_string(out.join("verbline.handshake.v1.rs"))?;

    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&committed, &generated)?;
    }
    assert!(
        generated == std::fs::read_to_string(&committed)?,
        "{} is not what proto/handshake.proto generates: run this test with UPDATE_GOLDEN=1",
        committed.display()
    );
    Ok(())
}
