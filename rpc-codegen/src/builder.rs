//! The settings, in the words that users of tonic know.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use prost::Message;
use prost_types::FileDescriptorSet;

use crate::check;
use crate::compile::{Compiled, Sources};
use crate::emit::Runtime;
use crate::error::Error;
use crate::generate::{self, Stubs};
use crate::model::ExternPaths;
use crate::output::{self, Output};

/// Compiles one `.proto` file into `OUT_DIR`, with the settings that suit most. The one line of a build script.
///
/// Its imports are looked up in the directory that it is in. The code of package `demo` is then had by
/// `rpc_core::include_proto!("demo")`. For anything else, see [`configure`].
///
/// # Errors
///
/// Every [`Error`] says in which file, and where it can in which line, something is to be mended.
pub fn compile_protos(proto: impl AsRef<Path>) -> Result<(), Error> {
    let proto = proto.as_ref();
    let include = match proto.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    configure().compile_protos(&[proto], &[include])
}

/// Settings for compiling `.proto` files, all of which may be left as they are.
#[must_use = "nothing is generated until `compile_protos` or `compile_fds` is called"]
pub fn configure() -> Builder {
    Builder {
        build_client: true,
        build_server: true,
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
        btree_map: Vec::new(),
        boxed: Vec::new(),
    }
}

/// Settings for compiling `.proto` files; [`configure`] makes one.
///
/// # Paths
///
/// Where a setting takes a Protobuf path, `.demo.HelloRequest.name` with a leading dot is a field, `.demo.HelloRequest`
/// a message with all its fields, `.demo` a package, and `.` everything. Without a leading dot a path is matched
/// against the end of the full name.
#[derive(Clone, Debug)]
#[must_use = "nothing is generated until `compile_protos` or `compile_fds` is called"]
pub struct Builder {
    build_client: bool,
    build_server: bool,
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
    btree_map: Vec<String>,
    boxed: Vec<String>,
}

impl Builder {
    /// Compiles `protos` and what they import from the directories `includes`, and writes a Rust file per package.
    ///
    /// Clients and servers are generated for the services in `protos`; messages for imported files too, unless an
    /// [`extern_path`](Self::extern_path) says where they are. In a build script cargo is told which files were read,
    /// so that it runs the script again when one of those has changed and only then. Files whose contents would be the
    /// same are not written.
    ///
    /// # Errors
    ///
    /// Every [`Error`] says in which file, and where it can in which line, something is to be mended.
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

    /// The same from descriptors that were made elsewhere, of which every file is taken as asked for.
    ///
    /// The set must hold the files that its files import, as `protoc --include_imports` makes it. Documentation needs
    /// `--include_source_info` as well.
    ///
    /// # Errors
    ///
    /// As [`compile_protos`](Self::compile_protos), but for what concerns reading `.proto` files.
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
        let packages = generate::generate(set, &wanted, self.prost_config(), stubs)?;
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

    fn stubs(&self) -> Stubs {
        let mut externs: Vec<String> = self
            .extern_paths
            .iter()
            .map(|(proto, _)| proto.clone())
            .collect();
        if !self.compile_well_known_types {
            externs.push(".google.protobuf".to_owned());
        }
        Stubs {
            client: self.build_client,
            server: self.build_server,
            runtime: Runtime::in_crate(&self.crate_path),
            externs: ExternPaths(externs),
        }
    }

    fn prost_config(&self) -> prost_build::Config {
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
        config
    }
}

/// What is generated.
impl Builder {
    /// Whether to generate clients; they are unless this says otherwise.
    pub fn build_client(mut self, enable: bool) -> Self {
        self.build_client = enable;
        self
    }

    /// Whether to generate the traits that servers implement, and their servers; they are unless this says otherwise.
    pub fn build_server(mut self, enable: bool) -> Self {
        self.build_server = enable;
        self
    }

    /// Generates the messages of `google.protobuf` too, instead of using those of `prost-types`.
    pub fn compile_well_known_types(mut self, enable: bool) -> Self {
        self.compile_well_known_types = enable;
        self
    }

    /// Says that what lies below a Protobuf path is in Rust already, and where: `(".demo.common", "crate::common")`.
    pub fn extern_path(mut self, proto_path: impl AsRef<str>, rust_path: impl AsRef<str>) -> Self {
        self.extern_paths.push(pair(proto_path, rust_path));
        self
    }

    /// Where the crate `rpc-core` is for the generated code, if not at `::rpc_core`; an absolute path, or one from
    /// `crate`.
    pub fn crate_path(mut self, path: impl AsRef<str>) -> Self {
        self.crate_path = path.as_ref().to_owned();
        self
    }
}

/// How messages look.
impl Builder {
    /// Puts an attribute before the messages, enums and oneofs below `path`.
    pub fn type_attribute(mut self, path: impl AsRef<str>, attribute: impl AsRef<str>) -> Self {
        self.type_attributes.push(pair(path, attribute));
        self
    }

    /// Puts an attribute before the messages below `path`.
    pub fn message_attribute(mut self, path: impl AsRef<str>, attribute: impl AsRef<str>) -> Self {
        self.message_attributes.push(pair(path, attribute));
        self
    }

    /// Puts an attribute before the enums and oneofs below `path`.
    pub fn enum_attribute(mut self, path: impl AsRef<str>, attribute: impl AsRef<str>) -> Self {
        self.enum_attributes.push(pair(path, attribute));
        self
    }

    /// Puts an attribute before the fields below `path`.
    pub fn field_attribute(mut self, path: impl AsRef<str>, attribute: impl AsRef<str>) -> Self {
        self.field_attributes.push(pair(path, attribute));
        self
    }

    /// Makes the `bytes` fields below `path` a `bytes::Bytes` instead of a `Vec<u8>`.
    pub fn bytes(mut self, path: impl AsRef<str>) -> Self {
        self.bytes.push(path.as_ref().to_owned());
        self
    }

    /// Makes the `map` fields below `path` a `BTreeMap` instead of a `HashMap`.
    pub fn btree_map(mut self, path: impl AsRef<str>) -> Self {
        self.btree_map.push(path.as_ref().to_owned());
        self
    }

    /// Puts the message fields below `path` into a `Box`.
    pub fn boxed(mut self, path: impl AsRef<str>) -> Self {
        self.boxed.push(path.as_ref().to_owned());
        self
    }
}

/// Where things come from and go to.
impl Builder {
    /// The directory to write to, made if it is not there, instead of cargo's `OUT_DIR`.
    pub fn out_dir(mut self, dir: impl AsRef<Path>) -> Self {
        self.out_dir = Some(dir.as_ref().to_owned());
        self
    }

    /// Also writes a file of this name, in the output directory, that includes all the others in modules named and
    /// nested as their packages are. Packages that use one another's messages need it.
    pub fn include_file(mut self, path: impl AsRef<Path>) -> Self {
        self.include_file = Some(path.as_ref().to_owned());
        self
    }

    /// Also writes the descriptors of all the files to `path`, as `protoc -o` would.
    pub fn file_descriptor_set_path(mut self, path: impl AsRef<Path>) -> Self {
        self.file_descriptor_set_path = Some(path.as_ref().to_owned());
        self
    }

    /// Reads the `.proto` files by running the `protoc` at this path (or of this name) instead of doing so here.
    pub fn protoc(mut self, protoc: impl AsRef<Path>) -> Self {
        self.protoc = Some(protoc.as_ref().to_owned());
        self
    }

    /// Whether to tell cargo which files were read; it is told, in a build script, unless this says otherwise. A build
    /// script that is told nothing runs again whenever any file of its package has changed.
    pub fn emit_rerun_if_changed(mut self, enable: bool) -> Self {
        self.emit_rerun_if_changed = enable;
        self
    }
}

fn pair(first: impl AsRef<str>, second: impl AsRef<str>) -> (String, String) {
    (first.as_ref().to_owned(), second.as_ref().to_owned())
}
