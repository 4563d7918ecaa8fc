//! The `protoc` plugin: a request of `protoc` or `buf` in, the generated files out.
//!
//! The protocol is that of `google/protobuf/compiler/plugin.proto`. The options are the settings of
//! [`Builder`], under their names.

use std::collections::BTreeMap;
use std::path::PathBuf;

use prost::Message;
use prost_build::Config;
use prost_types::FileDescriptorSet;
use prost_types::compiler::CodeGeneratorRequest;

use crate::builder::{Builder, configure};
use crate::compile::Compiled;
use crate::editions::{self, EditionsInRequest, KNOWN};
use crate::error::Error;
use crate::reflection::EncodedSet;

/// `CodeGeneratorResponse`, with the editions, for which that of prost-types has no field.
#[derive(Clone, PartialEq, Message)]
struct Response {
    #[prost(string, optional, tag = "1")]
    error: Option<String>,
    #[prost(uint64, tag = "2")]
    supported_features: u64,
    #[prost(int32, tag = "3")]
    minimum_edition: i32,
    #[prost(int32, tag = "4")]
    maximum_edition: i32,
    #[prost(message, repeated, tag = "15")]
    files: Vec<ResponseFile>,
}

#[derive(Clone, PartialEq, Message)]
struct ResponseFile {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "15")]
    content: String,
}

/// `CodeGeneratorRequest`, with files that stay encoded: their custom options are not lost.
#[derive(Clone, PartialEq, Message)]
struct EncodedRequest {
    #[prost(bytes = "vec", repeated, tag = "15")]
    files: Vec<Vec<u8>>,
}

/// `FEATURE_PROTO3_OPTIONAL` and `FEATURE_SUPPORTS_EDITIONS`.
const SUPPORTED_FEATURES: u64 = 1 | 2;

/// Answers a request of `protoc` (an encoded `CodeGeneratorRequest`) with an encoded
/// `CodeGeneratorResponse`: the generated files, or what is wrong with the `.proto` files or the
/// options.
///
/// The program `protoc-gen-verbline` does so between its standard input and output. Its parameter is a
/// list of `name=value`, separated by commas, of these settings of [`Builder`]:
///
/// - `build_client`, `build_server`, `build_codec`, `codec_for_all_messages`,
///   `compile_well_known_types`, `generate_default_stubs`, `use_arc_self`, `reflection`,
///   `retain_enum_prefix` and `enable_type_names`: `true`, which may be left out, or `false`;
/// - `crate_path` (the default is `::verbline`), `include_file`, `bytes`, `btree_map`, `boxed`,
///   `disable_comments` and `skip_debug`: a value;
/// - `extern_path`, `type_name_domain`, `decode_budget`, `max_request_len` and `max_response_len`: a
///   path and a value, as in `extern_path=.google.type=::googleapis::r#type`.
///
/// What is given several times is set several times. The output is that of a build script with the
/// same settings.
pub fn protoc_plugin(request: &[u8]) -> Vec<u8> {
    let mut response = Response {
        supported_features: SUPPORTED_FEATURES,
        minimum_edition: KNOWN[0],
        maximum_edition: KNOWN[KNOWN.len() - 1],
        ..Default::default()
    };
    match answer(request) {
        Ok(files) => response.files = files,
        Err(error) => response.error = Some(error),
    }
    response.encode_to_vec()
}

fn answer(request: &[u8]) -> Result<Vec<ResponseFile>, String> {
    let undecodable = |error| format!("the input is no CodeGeneratorRequest: {error}");
    let decoded = CodeGeneratorRequest::decode(request).map_err(undecodable)?;
    let editions = EditionsInRequest::decode(request).map_err(undecodable)?;
    let EncodedRequest { files } = EncodedRequest::decode(request).map_err(undecodable)?;
    let builder = settings(decoded.parameter())?;
    let mut set = FileDescriptorSet {
        file: decoded.proto_file,
    };
    editions::lower(&editions.files, &mut set, &BTreeMap::new())
        .map_err(|error| error.to_string())?;
    let compiled = Compiled {
        bytes: EncodedSet { files }.encode_to_vec(),
        set,
        roots: decoded.file_to_generate,
        read: BTreeMap::new(),
    };
    response_files(&builder, &compiled).map_err(|error| error.to_string())
}

fn response_files(builder: &Builder, compiled: &Compiled) -> Result<Vec<ResponseFile>, Error> {
    let (runtime, _) = builder.runtime();
    let files = builder.files(compiled, Config::new(), runtime, false)?;
    let file = |(path, content): (PathBuf, String)| ResponseFile {
        name: path.to_string_lossy().into_owned(),
        content,
    };
    Ok(files.into_iter().map(file).collect())
}

/// Returns the settings that a parameter names.
fn settings(parameter: &str) -> Result<Builder, String> {
    let mut builder = configure().crate_path("::verbline");
    for option in parameter.split(',').map(str::trim) {
        if option.is_empty() {
            continue;
        }
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        builder =
            set(builder, name, value).map_err(|why| format!("the option `{option}` {why}"))?;
    }
    Ok(builder)
}

/// `value` is empty if there is none.
fn set(builder: Builder, name: &str, value: &str) -> Result<Builder, String> {
    let is_enabled = || match value {
        "" | "true" => Ok(true),
        "false" => Ok(false),
        _ => Err("takes `true` or `false`".to_owned()),
    };
    let text = || match value {
        "" => Err("takes a value: `name=value`".to_owned()),
        value => Ok(value),
    };
    let pair = || {
        value
            .split_once('=')
            .ok_or_else(|| "takes a path and a value: `name=path=value`".to_owned())
    };
    let number = |text: &str| {
        text.parse::<u32>()
            .map_err(|_| "takes a path and a number: `name=path=number`".to_owned())
    };
    Ok(match name {
        "build_client" => builder.build_client(is_enabled()?),
        "build_server" => builder.build_server(is_enabled()?),
        "build_codec" => builder.build_codec(is_enabled()?),
        "codec_for_all_messages" => builder.codec_for_all_messages(is_enabled()?),
        "compile_well_known_types" => builder.compile_well_known_types(is_enabled()?),
        "generate_default_stubs" => builder.generate_default_stubs(is_enabled()?),
        "use_arc_self" => builder.use_arc_self(is_enabled()?),
        "reflection" => builder.reflection(is_enabled()?),
        "retain_enum_prefix" if is_enabled()? => builder.retain_enum_prefix(),
        "enable_type_names" if is_enabled()? => builder.enable_type_names(),
        "retain_enum_prefix" | "enable_type_names" => builder,
        "crate_path" => builder.crate_path(text()?),
        "include_file" => builder.include_file(text()?),
        "bytes" => builder.bytes(text()?),
        "btree_map" => builder.btree_map(text()?),
        "boxed" => builder.boxed(text()?),
        "disable_comments" => builder.disable_comments(text()?),
        "skip_debug" => builder.skip_debug(text()?),
        "extern_path" => {
            let (path, rust) = pair()?;
            builder.extern_path(path, rust)
        }
        "type_name_domain" => {
            let (path, domain) = pair()?;
            builder.type_name_domain(path, domain)
        }
        "decode_budget" => {
            let (path, bytes) = pair()?;
            builder.decode_budget(path, number(bytes)? as usize)
        }
        "max_request_len" => {
            let (path, len) = pair()?;
            builder.max_request_len(path, number(len)?)
        }
        "max_response_len" => {
            let (path, len) = pair()?;
            builder.max_response_len(path, number(len)?)
        }
        _ => return Err("does not exist: see `rpc_codegen::protoc_plugin`".to_owned()),
    })
}
