//! Checks the instructions that this package's build script gave to cargo, as cargo recorded them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

#[test]
fn cargo_watches_the_proto_files_and_the_manifest_and_nothing_else() {
    let output = Path::new(env!("OUT_DIR")).with_file_name("output");
    let output = fs::read_to_string(output).unwrap();
    let watched: BTreeSet<&str> = output
        .lines()
        .filter_map(|line| line.strip_prefix("cargo:rerun-if-changed="))
        .collect();
    assert_eq!(
        watched,
        BTreeSet::from([
            concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
            "./bench.proto",
            "./blobs.proto",
            "./bulk.proto",
            "./chat.proto",
            "./echo.proto",
            "./greeter.proto",
            "./grpc/testing/empty.proto",
            "./grpc/testing/messages.proto",
            "./grpc/testing/test.proto",
            "./routeguide.proto",
            "./session.proto",
            "./watch.proto",
        ])
    );
}
