//! The default path of the runtime, for packages with different manifests.
//!
//! A build script finds its manifest through environment variables, so each package is generated in a
//! process of its own: this program again, with the test `generates`.

use std::env;
use std::fs;
use std::process::Command;

use tempfile::TempDir;

const PROTO: &str =
    "syntax = \"proto3\"; package a; message M {} service S { rpc Go(M) returns (M); }";

/// Generates the code of a package as its build script does.
#[test]
#[ignore = "the other tests run it, in the place of a build script"]
fn generates() {
    let dir = env::var("OUT_DIR").expect("the other tests set it");
    rpc_codegen::compile_protos(format!("{dir}/a.proto")).unwrap();
}

/// Checks that the code of a package with these dependencies names the runtime by this path.
#[track_caller]
fn finds(dependencies: &str, path: &str) {
    let dir = TempDir::new().unwrap();
    let manifest = dir.path().join("Cargo.toml");
    let package = "[package]\nname = \"user\"\nversion = \"0.1.0\"\n";
    fs::write(&manifest, format!("{package}{dependencies}\n[workspace]\n")).unwrap();
    let (code, output) = generated(&dir);
    let import = format!("use {path}::codegen::v1::{{");
    assert!(code.contains(&import), "no {import} in:\n{code}");
    let prost = format!("#[prost(prost_path = \"{path}::codegen::v1::prost\")]");
    assert!(code.contains(&prost), "no {prost} in:\n{code}");
    // Renaming the dependency has to run the build script again.
    let watched = format!("cargo:rerun-if-changed={}", manifest.display());
    assert!(output.contains(&watched), "no {watched} in:\n{output}");
}

/// Returns the generated code and the output of the build script.
#[track_caller]
fn generated(dir: &TempDir) -> (String, String) {
    fs::write(dir.path().join("a.proto"), PROTO).unwrap();
    let output = Command::new(env::current_exe().unwrap())
        .args(["generates", "--exact", "--ignored", "--nocapture"])
        .env("CARGO_MANIFEST_DIR", dir.path())
        .env("OUT_DIR", dir.path())
        .env("TARGET", "any")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    let code = fs::read_to_string(dir.path().join("a.rs")).unwrap();
    (code, text)
}

#[test]
fn either_crate_has_the_runtime_and_the_facade_is_preferred() {
    finds("[dependencies]\nrpc-core = \"0.1\"", "::rpc_core");
    finds("[dependencies]\nverbline = \"0.1\"", "::verbline");
    let both = "[dependencies]\nrpc-core = \"0.1\"\nverbline = \"0.1\"";
    finds(both, "::verbline");
    let of_linux = "[target.'cfg(target_os = \"linux\")'.dependencies]\nverbline = \"0.1\"";
    finds(of_linux, "::verbline");
}

#[test]
fn a_renamed_dependency_is_found() {
    let rpc = "[dependencies]\nmy-rpc = { package = \"rpc-core\", version = \"0.1\" }";
    finds(rpc, "::my_rpc");
    let facade = "[dependencies.rpc]\npackage = \"verbline\"\nversion = \"0.1\"";
    finds(facade, "::rpc");
}

#[test]
fn without_the_dependency_the_compiler_reports_that_it_is_missing() {
    finds("[dependencies]\nprost = \"0.14\"", "::rpc_core");
}

#[test]
fn a_path_that_is_set_needs_no_manifest() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("a.proto"), PROTO).unwrap();
    rpc_codegen::configure()
        .crate_path("::elsewhere")
        .out_dir(dir.path())
        .compile_protos(&[dir.path().join("a.proto")], &[dir.path()])
        .unwrap();
    let code = fs::read_to_string(dir.path().join("a.rs")).unwrap();
    assert!(code.contains("use ::elsewhere::codegen::v1::{"), "{code}");
}
