//! Generates the messages of `../protos` and of the workspace's `proto`, with several settings.
// Printing is how a build script speaks to cargo.
#![allow(clippy::print_stdout)]

use std::path::{Path, PathBuf};
use std::{env, fs};

const PROTOS: &str = "../protos";
const OPTIONS: &str = "../protos/options";
const PROTO: &str = "../../../proto";

fn main() -> Result<(), rpc_codegen::Error> {
    for dir in [PROTOS, PROTO] {
        println!("cargo:rerun-if-changed={dir}");
    }
    rpc_codegen::configure()
        .codec_for_all_messages(true)
        .out_dir(out("plain"))
        .include_file("packages.rs")
        .compile_protos(&protos(PROTOS), &[PROTOS])?;

    let fields = ["fields", "fields2", "each_kind", "each_kind2"];
    let mut messages: Vec<_> = fields
        .map(|name| PathBuf::from(format!("{name}.proto")))
        .into();
    messages.extend(protos(PROTO));
    messages.push("grpc/testing/test.proto".into());
    rpc_codegen::configure()
        .build_server(false)
        .codec_for_all_messages(true)
        .bytes(".")
        .btree_map(".")
        .boxed("EachSingle.message")
        .boxed("EachSingle.message_optional")
        .boxed("EachSingle.message_required")
        .boxed("EachSingle.message_repeated")
        .boxed("EachVariant.kind.fixed")
        .boxed("EachVariant.kind.grouped")
        .out_dir(out("sorted"))
        .include_file("packages.rs")
        .compile_protos(&messages, &[PROTO, PROTOS])?;

    let trait_attribute = r#"#[diagnostic::on_unimplemented(message = "no $Shop")]"#;
    rpc_codegen::configure()
        .enable_type_names()
        .type_name_domain(".Shop.V1.Order", "type.example.com")
        .trait_attribute("Shop", trait_attribute)
        .client_attribute(".Shop.V1.Shop", "#[derive(PartialEq)]")
        .server_attribute(".", "#[must_use]")
        .generate_default_stubs(true)
        .use_arc_self(true)
        .disable_comments("Order.color")
        .disable_comments("Shop.Watch")
        .disable_comments(".Shop.V1.Quiet")
        .skip_debug("Secret")
        .retain_enum_prefix()
        .out_dir(out("options"))
        .compile_protos(&["options.proto"], &[OPTIONS])
}

/// Returns a directory for the code that is generated with the same settings.
fn out(name: &str) -> PathBuf {
    let out = env::var_os("OUT_DIR").expect("cargo sets it");
    Path::new(&out).join(name)
}

/// Returns the `.proto` files of `dir`, without those in its folders.
fn protos(dir: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap_or_else(|error| panic!("cannot read {dir}: {error}"));
    let names = entries.filter_map(|entry| Some(PathBuf::from(entry.ok()?.file_name())));
    let mut protos: Vec<_> = names
        .filter(|name| name.extension().is_some_and(|found| found == "proto"))
        .collect();
    protos.sort();
    protos
}
