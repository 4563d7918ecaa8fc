//! Generates Rust from descriptors: prost generates the messages, the emitters the services.

use std::collections::{BTreeMap, HashMap, VecDeque};

use prost_build::{Config, Module, ServiceGenerator};
use prost_types::{FileDescriptorProto, FileDescriptorSet};

use crate::emit::{self, Runtime};
use crate::error::Error;
use crate::messages::{self, EnumDefaults};
use crate::methods::MethodLimits;
use crate::model::{ExternPaths, Service};
use crate::output::Package;
use crate::reexports::Reexports;
use crate::services::ServiceSettings;
use crate::shared_modules;
use crate::{aliases, client, codec, comments, methods, server};

/// The service generator: which halves of a service it generates, and for which runtime.
#[derive(Clone, Debug)]
pub(crate) struct Stubs {
    pub(crate) client: bool,
    pub(crate) server: bool,
    /// Whether messages have a generated codec.
    pub(crate) codec: bool,
    pub(crate) runtime: Runtime,
    pub(crate) externs: ExternPaths,
    pub(crate) limits: MethodLimits,
    /// How many bytes one encoded byte may become when decoded, by the paths of messages.
    pub(crate) decode_budgets: Vec<(String, usize)>,
    pub(crate) services: ServiceSettings,
}

impl Stubs {
    /// Returns true if anything is generated for services.
    pub(crate) fn any(&self) -> bool {
        self.client || self.server
    }

    /// Returns the re-exports of one service in the module of its package.
    ///
    /// They leave out the local trait; [`server`] explains why.
    fn reexports(&self, service: &Service) -> String {
        let names = &service.names;
        let of_client = (self.client, &names.client_module, vec![&names.client]);
        let of_server = vec![&names.server_trait, &names.server];
        let of_server = (self.server, &names.server_module, of_server);
        let mut items = Vec::new();
        for (_, module, mut names) in [of_client, of_server].into_iter().filter(|it| it.0) {
            names.retain(|name| service.is_reexported(name));
            match names.as_slice() {
                [] => {}
                [name] => items.push(format!("{module}::{name}")),
                [first, second, ..] => items.push(format!("{module}::{{{first}, {second}}}")),
            }
        }
        if items.is_empty() {
            return String::new();
        }
        // Without `self::`, a dependency called `greeter_client` would make the path ambiguous.
        format!("#[doc(inline)]\npub use self::{{{}}};\n", items.join(", "))
    }
}

/// Returns the Rust code of every package in `set` that has any. `config` holds prost's settings.
///
/// Generates services for the files named in `wanted`, and messages for all files, because services
/// may use the messages of imported files. `reexports` says which items of services are re-exported.
///
/// # Errors
///
/// Returns [`Error::Setting`] if prost rejects a setting, or if no method has the path of a limit, or
/// no service that of an attribute.
pub(crate) fn generate(
    mut set: FileDescriptorSet,
    wanted: &[String],
    mut config: Config,
    stubs: Stubs,
    reexports: Reexports,
) -> Result<BTreeMap<Module, Package>, Error> {
    for file in &mut set.file {
        comments::sanitize(file);
        if !wanted.iter().any(|name| name == file.name()) {
            file.service.clear();
        }
    }
    aliases::replace_in_defaults(&mut set);
    stubs.limits.check(&set)?;
    stubs.services.check(&set)?;
    let codecs = match stubs.codec && stubs.any() {
        true => codecs(&set, &stubs),
        false => VecDeque::new(),
    };
    config.service_generator(Box::new(Services {
        stubs,
        codecs,
        reexports,
    }));
    // Several packages may have one module: `Demo` and `demo`. The first one gives it its name.
    let mut names = HashMap::new();
    for file in &set.file {
        let name = || file.package().to_owned();
        names.entry(module(file)).or_insert_with(name);
    }
    let files = set.file.into_iter().map(|file| (module(&file), file));
    let modules = config
        .generate(files.collect())
        .map_err(|err| Error::Setting {
            message: err.to_string(),
        })?;
    let package = |(module, code): (Module, String)| {
        let name = names.remove(&module).unwrap_or_default();
        (module, Package { name, code })
    };
    let mut packages = modules.into_iter().map(package).collect();
    shared_modules::merge(&mut packages)?;
    for package in packages.values_mut() {
        package.code = finished(&package.code);
    }
    Ok(packages)
}

/// Returns the Rust module of the file's package.
fn module(file: &FileDescriptorProto) -> Module {
    Module::from_protobuf_package_name(file.package())
}

/// Emits the codec of each package, for the last of its files. The other files get nothing.
fn codecs(set: &FileDescriptorSet, stubs: &Stubs) -> VecDeque<String> {
    let enums = EnumDefaults::new(set);
    let mut packages: HashMap<Module, Vec<_>> = HashMap::new();
    let mut last = HashMap::new();
    for (index, file) in set.file.iter().enumerate() {
        let messages = messages::messages(file, &enums, &stubs.externs);
        packages.entry(module(file)).or_default().extend(messages);
        last.insert(module(file), index);
    }
    let files = set.file.iter().enumerate();
    let codec = |(index, file)| {
        let module = module(file);
        match packages[&module].as_slice() {
            messages if last[&module] == index && !messages.is_empty() => {
                codec::emit(messages, &stubs.decode_budgets, &stubs.runtime)
            }
            _ => String::new(),
        }
    };
    files.map(codec).collect()
}

/// Generates what prost does not.
struct Services {
    stubs: Stubs,
    /// The code to add to each file, in the order in which prost generates them.
    codecs: VecDeque<String>,
    reexports: Reexports,
}

impl ServiceGenerator for Services {
    fn generate(&mut self, service: prost_build::Service, buf: &mut String) {
        let stubs = &self.stubs;
        let mut service = Service::new(service, &stubs.externs, stubs.codec, &stubs.services);
        service.left_out = self.reexports.left_out(&service.full_name);
        buf.push_str(&stubs.reexports(&service));
        if stubs.client {
            buf.push_str(&client::emit(&service, &stubs.runtime));
        }
        if stubs.server {
            buf.push_str(&server::emit(&service, &stubs.runtime));
        }
        buf.push_str(&methods::emit(&service, &stubs.limits, &stubs.runtime));
    }

    fn finalize(&mut self, buf: &mut String) {
        buf.extend(self.codecs.pop_front());
    }
}

/// Returns `code` with our heading instead of prost's, and with its lints off.
fn finished(code: &str) -> String {
    let code = code
        .strip_prefix("// This file is @generated by prost-build.\n")
        .unwrap_or(code);
    format!(
        "// This file is @generated by rpc-codegen.\n{}",
        emit::finished(code)
    )
}
