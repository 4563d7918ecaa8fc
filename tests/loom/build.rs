//! Selects loom's atomics in the pieces that this package compiles.

fn main() {
    println!("cargo::rustc-cfg=loom");
    println!("cargo::rerun-if-changed=build.rs");
}
