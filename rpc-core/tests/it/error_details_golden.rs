//! The messages of `google.rpc` are generated code that is committed, so building this crate needs no
//! build script. This test generates them again from `proto/google/rpc` and compares.
//!
//! After a change of a `.proto` file, run `UPDATE_GOLDEN=1 cargo test -p rpc-core --test
//! error_details_golden`.

use std::error::Error;
use std::path::Path;

#[test]
fn committed_messages_are_what_the_protos_generate() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let committed = root.join("src/error_details/google.rpc.rs");

    let protos = ["google/rpc/status.proto", "google/rpc/error_details.proto"];
    let descriptors = protox::compile(protos, [root.join("../proto")])?;
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("error_details");
    std::fs::create_dir_all(&out)?;
    prost_build::Config::new()
        .enable_type_names()
        .type_name_domain(["."], "type.googleapis.com")
        // Ordered, so that equal messages have equal bytes.
        .btree_map(["."])
        .out_dir(&out)
        .compile_fds(descriptors)?;
    let generated = std::fs::read_to_string(out.join("google.rpc.rs"))?;

    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&committed, &generated)?;
    }
    assert!(
        generated == std::fs::read_to_string(&committed)?,
        "{} is not what proto/google/rpc generates: run this test with UPDATE_GOLDEN=1",
        committed.display()
    );
    Ok(())
}
