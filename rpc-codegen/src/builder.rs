//! The settings, under the names that tonic uses.

mod settings;

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use prost::Message;
use prost_build::Config;
use prost_types::FileDescriptorSet;

use crate::by_reference;
use crate::check;
use crate::compile::{self, Compiled};
use crate::emit::Runtime;
use crate::error::Error;
use crate::generate::{self, Codecs, Stubs};
use crate::includes::Sources;
use crate::methods::MethodLimits;
use crate::model::ExternPaths;
use crate::output::{self, Files, Output};
use crate::reflection::DescriptorSets;
use crate::runtime_path;
use crate::services::ServiceSettings;

/// Compiles one `.proto` file into `OUT_DIR` with the default settings.
///
/// Imports are looked up in the file's directory. Include the code of package `demo` with
/// `verbline::include_proto!("demo")`. For other settings, see [`configure`].
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
        codec_for_all_messages: false,
        emit_rerun_if_changed: true,
        compile_well_known_types: false,
        crate_path: None,
        out_dir: None,
        include_file: None,
        file_descriptor_set_path: None,
        protoc: None,
        protoc_args: Vec::new(),
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
        type_names: false,
        type_name_domains: Vec::new(),
        disable_comments: Vec::new(),
        skip_debug: Vec::new(),
        retain_enum_prefix: false,
        reflection: false,
        services: ServiceSettings::default(),
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
    codec_for_all_messages: bool,
    emit_rerun_if_changed: bool,
    compile_well_known_types: bool,
    crate_path: Option<String>,
    out_dir: Option<PathBuf>,
    include_file: Option<PathBuf>,
    file_descriptor_set_path: Option<PathBuf>,
    protoc: Option<PathBuf>,
    protoc_args: Vec<OsString>,
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
    type_names: bool,
    type_name_domains: Vec<(String, String)>,
    disable_comments: Vec<String>,
    skip_debug: Vec<String>,
    retain_enum_prefix: bool,
    reflection: bool,
    services: ServiceSettings,
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
        self.compile_protos_with_config(Config::new(), protos, includes)
    }

    /// Like [`compile_protos`](Self::compile_protos), with settings of prost for which there is no
    /// method here. The settings here are added to `config`, except that paths of `bytes`,
    /// `btree_map`, `disable_comments` and `skip_debug` replace those of `config`.
    ///
    /// Set extern paths here rather than in `config`, which the generated codec does not know. The
    /// service generator, the output files and the `protoc` of `config` are not used.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`compile_protos`](Self::compile_protos).
    pub fn compile_protos_with_config(
        self,
        config: Config,
        protos: &[impl AsRef<Path>],
        includes: &[impl AsRef<Path>],
    ) -> Result<(), Error> {
        let owned = |path: &Path| path.to_owned();
        let sources = Sources {
            protos: protos.iter().map(|path| owned(path.as_ref())).collect(),
            includes: includes.iter().map(|path| owned(path.as_ref())).collect(),
        };
        let compiled = match &self.protoc {
            Some(protoc) => compile::with_protoc(&sources, protoc, &self.protoc_args)?,
            None if self.protoc_args.is_empty() => {
                let encodes = self.file_descriptor_set_path.is_some() || self.reflection;
                compile::with_protox(&sources, encodes)?
            }
            None => {
                return Err(Error::Setting {
                    message: "protoc_arg: set `.protoc(…)` as well; without it, no protoc runs"
                        .to_owned(),
                });
            }
        };
        self.generate(compiled, config)
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
        let compiled = Compiled {
            bytes: set.encode_to_vec(),
            set,
            roots,
            read: BTreeMap::new(),
        };
        self.generate(compiled, Config::new())
    }

    fn generate(self, compiled: Compiled, config: Config) -> Result<(), Error> {
        let output = Output::new(self.out_dir.clone())?;
        let (runtime, manifest) = self.runtime();
        let files = self.files(&compiled, config, runtime, output.is_out_dir)?;
        output.write(&files)?;
        if let Some(path) = &self.file_descriptor_set_path {
            output::write_if_changed(path, &compiled.bytes)?;
        }
        if self.emit_rerun_if_changed {
            output::rerun_if_changed(compiled.read.values().chain(&manifest))?;
        }
        Ok(())
    }

    /// Returns the generated files, which will be in cargo's `OUT_DIR` or elsewhere.
    pub(crate) fn files(
        &self,
        compiled: &Compiled,
        config: Config,
        runtime: Runtime,
        is_out_dir: bool,
    ) -> Result<Files, Error> {
        let Compiled {
            set,
            bytes,
            roots,
            read,
        } = compiled;
        let stubs = self.stubs(runtime.clone());
        let wanted: HashSet<_> = match stubs.any() {
            true => roots.iter().map(String::as_str).collect(),
            false => HashSet::new(),
        };
        let strips_prefix = !self.retain_enum_prefix;
        let reexports = check::check(set, &wanted, read, &stubs.externs, strips_prefix)?;
        self.check_bytes(set)?;
        let codecs = Codecs::new(set, &wanted, &stubs);
        let config = self.prost_config(config, set, &runtime, &codecs);
        let descriptor_sets = match self.reflection && self.build_server {
            true => DescriptorSets::new(set, bytes, &wanted),
            false => DescriptorSets::default(),
        };
        let packages = generate::generate(
            set.clone(),
            &wanted,
            config,
            stubs,
            codecs,
            reexports,
            Rc::new(descriptor_sets),
        )?;
        let mut files = output::package_files(&packages);
        if let Some(path) = &self.include_file {
            let code = output::include_file(&packages, is_out_dir);
            if files.insert(path.clone(), code).is_some() {
                let path = path.display();
                return Err(Error::Setting {
                    message: format!(
                        "include_file: a package has the file `{path}`: choose another name"
                    ),
                });
            }
        }
        Ok(files)
    }

    /// Returns the runtime's path, and the manifest from which it was read.
    pub(crate) fn runtime(&self) -> (Runtime, Option<PathBuf>) {
        match &self.crate_path {
            Some(path) => (Runtime::in_crate(path), None),
            None => {
                let found = runtime_path::find();
                (Runtime::in_crate(&found.path), found.manifest)
            }
        }
    }

    /// Rejects paths of [`bytes`](Self::bytes) that no field has: they are misspelled.
    fn check_bytes(&self, set: &FileDescriptorSet) -> Result<(), Error> {
        let unmatched = by_reference::unmatched(set, &self.bytes);
        Error::any_of(unmatched.map(|path| Error::Setting {
            message: format!(
                "bytes: no field has the path `{path}`, for example `.package.Message.field`, and none \
                 is below it"
            ),
        }))
    }

    fn stubs(&self, runtime: Runtime) -> Stubs {
        let paths = self.extern_paths.iter().map(|(proto, _)| proto.clone());
        Stubs {
            client: self.build_client,
            server: self.build_server,
            codec: self.build_codec,
            codec_for_all_messages: self.codec_for_all_messages,
            runtime,
            externs: ExternPaths {
                paths: paths.collect(),
                well_known_types: !self.compile_well_known_types,
            },
            limits: self.limits.clone(),
            decode_budgets: self.decode_budgets.clone(),
            services: ServiceSettings {
                disable_comments: self.disable_comments.clone(),
                ..self.services.clone()
            },
        }
    }

    /// Returns `config` with these settings.
    fn prost_config(
        &self,
        mut config: Config,
        set: &FileDescriptorSet,
        runtime: &Runtime,
        codecs: &Codecs,
    ) -> Config {
        let runtime = &runtime.path;
        config
            .prost_path(format!("{runtime}::prost"))
            .prost_types_path(format!("{runtime}::prost_types"));
        // These methods replace the paths that `config` has.
        if !self.bytes.is_empty() {
            config.bytes(&self.bytes);
        }
        if !self.btree_map.is_empty() {
            config.btree_map(&self.btree_map);
        }
        if !self.disable_comments.is_empty() {
            config.disable_comments(&self.disable_comments);
        }
        if !self.skip_debug.is_empty() {
            config.skip_debug(&self.skip_debug);
        }
        if self.type_names {
            config.enable_type_names();
        }
        for (path, domain) in &self.type_name_domains {
            config.type_name_domain([path], domain);
        }
        if self.retain_enum_prefix {
            config.retain_enum_prefix();
        }
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
        for path in by_reference::fields(set, &self.bytes, &codecs.messages) {
            for line in by_reference::DOCS {
                config.field_attribute(&path, format!("#[doc = {line:?}]"));
            }
        }
        config
    }
}
