//! The settings, under the names that tonic uses.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use prost::Message;
use prost_types::FileDescriptorSet;

use crate::by_reference;
use crate::check;
use crate::compile::{Compiled, Sources};
use crate::emit::Runtime;
use crate::error::Error;
use crate::generate::{self, Stubs};
use crate::methods::MethodLimits;
use crate::model::ExternPaths;
use crate::output::{self, Output};

/// Compiles one `.proto` file into `OUT_DIR` with the default settings.
///
/// Imports are looked up in the file's directory. Include the code of package `demo` with
/// `rpc_core::include_proto!("demo")`. For other settings, see [`configure`].
///
/// # Errors
///
/// Returns an error if a `.proto` file cannot be read or compiled, or if the code cannot be
/// written. Each [`Error`] names the file and, if it is known, the line.
pub fn compile_protos(proto: impl AsRef<Path>) -> Result<(), Error> {
    let proto = proto.as_ref();
    let include = match proto.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    configure().compile_protos(&[proto], &[include])
}

/// Returns the default settings for compiling `.proto` files.
#[must_use = "nothing is generated until `compile_protos` or `compile_fds` is called"]
pub fn configure() -> Builder {
    Builder {
        build_client: true,
        build_server: true,
        build_codec: true,
        emit_rerun_if_changed: true,
        compile_well_known_types: false,
        crate_path: "::rpc_core".to_owned(),
        out_dir: None,
        include_file: None,
        file_descriptor_set_path: None,
        protoc: None,
        extern_paths: Vec::new(),
        type_attributes: Vec::new(),
        message_attributes: Vec::new(),
        enum_attributes: Vec::new(),
        field_attributes: Vec::new(),
        bytes: Vec::new(),
        limits: MethodLimits::default(),
        decode_budgets: Vec::new(),
        btree_map: Vec::new(),
        boxed: Vec::new(),
    }
}

/// Settings for compiling `.proto` files, returned by [`configure`].
///
/// # Paths
///
/// Some settings take a Protobuf path. With a leading dot, `.demo.HelloRequest.name` is a field,
/// `.demo.HelloRequest` a message with all its fields, `.demo` a package, and `.` everything. A
/// path without a leading dot matches the end of the full name.
#[derive(Clone, Debug)]
#[must_use = "nothing is generated until `compile_protos` or `compile_fds` is called"]
pub struct Builder {
    build_client: bool,
    build_server: bool,
    build_codec: bool,
    emit_rerun_if_changed: bool,
    compile_well_known_types: bool,
    crate_path: String,
    out_dir: Option<PathBuf>,
    include_file: Option<PathBuf>,
    file_descriptor_set_path: Option<PathBuf>,
    protoc: Option<PathBuf>,
    extern_paths: Vec<(String, String)>,
    type_attributes: Vec<(String, String)>,
    message_attributes: Vec<(String, String)>,
    enum_attributes: Vec<(String, String)>,
    field_attributes: Vec<(String, String)>,
    bytes: Vec<String>,
    limits: MethodLimits,
    decode_budgets: Vec<(String, usize)>,
    btree_map: Vec<String>,
    boxed: Vec<String>,
}

impl Builder {
    /// Compiles `protos` and the files that they import from the directories `includes`, and writes
    /// one Rust file per package.
    ///
    /// Generates clients and servers for the services in `protos`, and messages for the imported
    /// files as well, except below an [`extern_path`](Self::extern_path). In a build script, it
    /// prints the files that were read, and cargo runs the script again only if one of them has
    /// changed. A file whose contents would stay the same is not written.
    ///
    /// # Errors
    ///
    /// Returns an error if a `.proto` file cannot be read or compiled, or if the code cannot be
    /// written. Each [`Error`] names the file and, if it is known, the line.
    pub fn compile_protos(
        self,
        protos: &[impl AsRef<Path>],
        includes: &[impl AsRef<Path>],
    ) -> Result<(), Error> {
        let owned = |path: &Path| path.to_owned();
        let sources = Sources {
            protos: protos.iter().map(|path| owned(path.as_ref())).collect(),
            includes: includes.iter().map(|path| owned(path.as_ref())).collect(),
        };
        let compiled = match &self.protoc {
            Some(protoc) => sources.compile_with_protoc(protoc)?,
            None => sources.compile()?,
        };
        self.generate(compiled)
    }

    /// Generates code from a descriptor set, with clients and servers for all of its files.
    ///
    /// The set must contain the files that its files import, as `protoc --include_imports` writes
    /// it. Documentation needs `--include_source_info` as well.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`compile_protos`](Self::compile_protos), except those of reading
    /// `.proto` files, and [`Error::IncompleteDescriptorSet`] if an import is missing.
    pub fn compile_fds(self, set: FileDescriptorSet) -> Result<(), Error> {
        let roots = set.file.iter().map(|file| file.name().to_owned()).collect();
        self.generate(Compiled {
            bytes: set.encode_to_vec(),
            set,
            roots,
            read: BTreeMap::new(),
        })
    }

    fn generate(self, compiled: Compiled) -> Result<(), Error> {
        let Compiled {
            set,
            bytes,
            roots,
            read,
        } = compiled;
        let output = Output::new(self.out_dir.clone())?;
        let stubs = self.stubs();
        let wanted = if stubs.any() { roots } else { Vec::new() };
        check::check(&set, &wanted, &read)?;
        self.check_bytes(&set)?;
        let config = self.prost_config(&set);
        let packages = generate::generate(set, &wanted, config, stubs)?;
        output.write_packages(&packages)?;
        if let Some(path) = &self.include_file {
            output.write_include_file(path, &packages)?;
        }
        if let Some(path) = &self.file_descriptor_set_path {
            output::write_if_changed(path, &bytes)?;
        }
        if self.emit_rerun_if_changed {
            output::rerun_if_changed(read.values())?;
        }
        Ok(())
    }

    /// Rejects a path of [`bytes`](Self::bytes) that no field has: it is misspelled.
    fn check_bytes(&self, set: &FileDescriptorSet) -> Result<(), Error> {
        match by_reference::unmatched(set, &self.bytes) {
            None => Ok(()),
            Some(path) => Err(Error::Setting {
                message: format!(
                    "bytes: no field has the path `{path}`, for example `.package.Message.field`, and none \
                     is below it"
                ),
            }),
        }
    }

    fn stubs(&self) -> Stubs {
        let paths = self.extern_paths.iter().map(|(proto, _)| proto.clone());
        Stubs {
            client: self.build_client,
            server: self.build_server,
            codec: self.build_codec,
            runtime: Runtime::in_crate(&self.crate_path),
            externs: ExternPaths {
                paths: paths.collect(),
                well_known_types: !self.compile_well_known_types,
            },
            limits: self.limits.clone(),
            decode_budgets: self.decode_budgets.clone(),
        }
    }

    fn prost_config(&self, set: &FileDescriptorSet) -> prost_build::Config {
        let mut config = prost_build::Config::new();
        let runtime = Runtime::in_crate(&self.crate_path).path;
        config
            .prost_path(format!("{runtime}::prost"))
            .prost_types_path(format!("{runtime}::prost_types"));
        config.bytes(&self.bytes).btree_map(&self.btree_map);
        if self.compile_well_known_types {
            config.compile_well_known_types();
        }
        for path in &self.boxed {
            config.boxed(path);
        }
        for (proto_path, rust_path) in &self.extern_paths {
            config.extern_path(proto_path, rust_path);
        }
        for (path, attribute) in &self.type_attributes {
            config.type_attribute(path, attribute);
        }
        for (path, attribute) in &self.message_attributes {
            config.message_attribute(path, attribute);
        }
        for (path, attribute) in &self.enum_attributes {
            config.enum_attribute(path, attribute);
        }
        for (path, attribute) in &self.field_attributes {
            config.field_attribute(path, attribute);
        }
        // Only the generated codec sends by reference.
        if self.build_codec {
            for path in by_reference::fields(set, &self.bytes) {
                for line in by_reference::DOCS {
                    config.field_attribute(&path, format!("#[doc = {line:?}]"));
                }
            }
        }
        config
    }
}

/// Settings for what is generated.
impl Builder {
    /// Sets whether to generate clients. The default is true.
    pub fn build_client(mut self, enable: bool) -> Self {
        self.build_client = enable;
        self
    }

    /// Sets whether to generate the service traits and their servers. The default is true.
    pub fn build_server(mut self, enable: bool) -> Self {
        self.build_server = enable;
        self
    }

    /// Sets whether to generate a codec: straight-line code that encodes and decodes the messages
    /// faster than prost, to the same bytes and values. The default is true.
    ///
    /// It relies on the fields that prost gives to a message. Turn it off if an
    /// [attribute](Self::field_attribute) changes how prost encodes a field, or removes one.
    pub fn build_codec(mut self, enable: bool) -> Self {
        self.build_codec = enable;
        self
    }

    /// Sets whether to generate the messages of `google.protobuf` instead of using `prost-types`.
    /// The default is false.
    pub fn compile_well_known_types(mut self, enable: bool) -> Self {
        self.compile_well_known_types = enable;
        self
    }

    /// Sets the longest request that the methods below `path` take, in bytes. A method whose
    /// requests are streamed takes messages up to this length. The default is the connection's
    /// limit, which no method exceeds.
    ///
    /// `.demo.Blobs.Put` is a method, and `.demo.Blobs` all methods of a service. The last setting
    /// that matches a method counts.
    pub fn max_request_len(mut self, path: impl AsRef<str>, len: u32) -> Self {
        self.limits.requests.push((path.as_ref().to_owned(), len));
        self
    }

    /// Sets the longest response of the methods below `path`, in bytes, like
    /// [`max_request_len`](Self::max_request_len).
    pub fn max_response_len(mut self, path: impl AsRef<str>, len: u32) -> Self {
        self.limits.responses.push((path.as_ref().to_owned(), len));
        self
    }

    /// Sets how many bytes of memory each byte of the messages below `path` may take when a message
    /// is decoded, besides 64 KiB for the whole message. The default is 8. It applies to requests
    /// and responses, with everything nested in them.
    ///
    /// A message that would take more is refused with `RESOURCE_EXHAUSTED`: two bytes can be an
    /// element of a repeated field, so short messages could otherwise use up the memory. Set a higher
    /// limit for messages that consist of many small messages.
    pub fn decode_budget(mut self, path: impl AsRef<str>, bytes_per_byte: usize) -> Self {
        self.decode_budgets
            .push((path.as_ref().to_owned(), bytes_per_byte));
        self
    }

    /// Uses existing Rust types for the messages below a Protobuf path instead of generating them.
    ///
    /// The Rust path must be absolute: `(".demo.common", "crate::common")` or `(".b",
    /// "::other::b")`.
    pub fn extern_path(mut self, proto_path: impl AsRef<str>, rust_path: impl AsRef<str>) -> Self {
        self.extern_paths.push(pair(proto_path, rust_path));
        self
    }

    /// Sets the path of the crate `rpc-core` in generated code: an absolute path, or one from
    /// `crate`. The default is `::rpc_core`.
    pub fn crate_path(mut self, path: impl AsRef<str>) -> Self {
        self.crate_path = path.as_ref().to_owned();
        self
    }
}

/// Settings for messages.
impl Builder {
    /// Adds an attribute to the messages, enums and oneofs below `path`.
    pub fn type_attribute(mut self, path: impl AsRef<str>, attribute: impl AsRef<str>) -> Self {
        self.type_attributes.push(pair(path, attribute));
        self
    }

    /// Adds an attribute to the messages below `path`.
    pub fn message_attribute(mut self, path: impl AsRef<str>, attribute: impl AsRef<str>) -> Self {
        self.message_attributes.push(pair(path, attribute));
        self
    }

    /// Adds an attribute to the enums and oneofs below `path`.
    pub fn enum_attribute(mut self, path: impl AsRef<str>, attribute: impl AsRef<str>) -> Self {
        self.enum_attributes.push(pair(path, attribute));
        self
    }

    /// Adds an attribute to the fields below `path`.
    pub fn field_attribute(mut self, path: impl AsRef<str>, attribute: impl AsRef<str>) -> Self {
        self.field_attributes.push(pair(path, attribute));
        self
    }

    /// Uses `bytes::Bytes` instead of `Vec<u8>` for the `bytes` fields below `path`.
    ///
    /// Such a field goes by reference. A long value is sent without a copy, and a received one is a
    /// slice of the memory that the message arrived in. Short values are copied.
    ///
    /// A path that matches no field is an error of the build, unless it is `.`.
    pub fn bytes(mut self, path: impl AsRef<str>) -> Self {
        self.bytes.push(path.as_ref().to_owned());
        self
    }

    /// Uses `BTreeMap` instead of `HashMap` for the `map` fields below `path`.
    pub fn btree_map(mut self, path: impl AsRef<str>) -> Self {
        self.btree_map.push(path.as_ref().to_owned());
        self
    }

    /// Boxes the message fields below `path`.
    pub fn boxed(mut self, path: impl AsRef<str>) -> Self {
        self.boxed.push(path.as_ref().to_owned());
        self
    }
}

/// Settings for input and output.
impl Builder {
    /// Sets the directory to write to, which is created if it does not exist. The default is
    /// cargo's `OUT_DIR`.
    pub fn out_dir(mut self, dir: impl AsRef<Path>) -> Self {
        self.out_dir = Some(dir.as_ref().to_owned());
        self
    }

    /// Also writes a file of this name in the output directory, which includes all packages in
    /// modules named and nested like them. Packages that use one another's messages need it.
    pub fn include_file(mut self, path: impl AsRef<Path>) -> Self {
        self.include_file = Some(path.as_ref().to_owned());
        self
    }

    /// Also writes the descriptors of all files to `path`, like `protoc -o`.
    pub fn file_descriptor_set_path(mut self, path: impl AsRef<Path>) -> Self {
        self.file_descriptor_set_path = Some(path.as_ref().to_owned());
        self
    }

    /// Compiles the `.proto` files with the `protoc` at this path, or of this name, instead of
    /// protox.
    pub fn protoc(mut self, protoc: impl AsRef<Path>) -> Self {
        self.protoc = Some(protoc.as_ref().to_owned());
        self
    }

    /// Sets whether a build script prints `cargo:rerun-if-changed` for the files that were read.
    /// The default is true. Without it, cargo runs the script again if any file of its package has
    /// changed.
    pub fn emit_rerun_if_changed(mut self, enable: bool) -> Self {
        self.emit_rerun_if_changed = enable;
        self
    }
}

fn pair(first: impl AsRef<str>, second: impl AsRef<str>) -> (String, String) {
    (first.as_ref().to_owned(), second.as_ref().to_owned())
}
