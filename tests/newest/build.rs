//! Generates code for each folder of `protos` whose files can be compiled without protoc.
// Printing is how a build script speaks to cargo.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// Folders whose files are refused: `src/lib.rs` tests with which error.
const REFUSED: [&str; 5] = [
    "05-edition-2023",
    "07-fields-same-after-snake",
    "17-methods-same-after-snake",
    "18-enum-values-same",
    "24-aliased-enum-proto3-json",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=protos");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let mut modules = String::new();
    let mut folders: Vec<_> = fs::read_dir("protos")?.collect::<Result<_, _>>()?;
    folders.sort_by_key(fs::DirEntry::file_name);
    for folder in folders {
        let name = folder.file_name().into_string().expect("names are ASCII");
        if REFUSED.contains(&name.as_str()) {
            continue;
        }
        let mut protos = Vec::new();
        find(&folder.path(), &mut protos)?;
        let dir = out.join(&name);
        rpc_codegen::configure()
            .codec_for_all_messages(true)
            .out_dir(&dir)
            .include_file("all.rs")
            .compile_protos(&protos, &[folder.path()])?;
        let module = name.replace('-', "_");
        modules += &format!(
            "pub mod case_{module} {{ include!({:?}); }}\n",
            dir.join("all.rs")
        );
    }
    fs::write(out.join("cases.rs"), modules)?;
    Ok(())
}

fn find(folder: &Path, protos: &mut Vec<PathBuf>) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            find(&path, protos)?;
        } else if path
            .extension()
            .is_some_and(|extension| extension == "proto")
        {
            protos.push(path);
        }
    }
    Ok(())
}
