//! Generates Rust from descriptors: prost generates the messages, the emitters the services.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::rc::Rc;

use prost_build::{Config, Module, ServiceGenerator};
use prost_types::{FileDescriptorProto, FileDescriptorSet};
use syn::Item;

use crate::descriptors::{self, Descriptors};
use crate::emit::{self, Runtime};
use crate::error::Error;
use crate::messages::Generated;
use crate::methods::MethodLimits;
use crate::model::{ExternPaths, Service};
use crate::output::Package;
use crate::reexports::Reexports;
use crate::reflection::DescriptorSets;
use crate::services::ServiceSettings;
use crate::shared_modules::{self, SharedModules};
use crate::structs::Structs;
use crate::{aliases, client, codec, comments, methods, required, server};

/// What is generated besides prost's code, and for which runtime.
#[derive(Clone, Debug)]
pub(crate) struct Stubs {
    pub(crate) client: bool,
    pub(crate) server: bool,
    /// Whether the messages that methods use have a generated codec.
    pub(crate) codec: bool,
    /// Whether all others have one too.
    pub(crate) codec_for_all_messages: bool,
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

/// Returns the Rust code of every package in `set` that has any. `config` holds prost's settings, and
/// `codecs` the messages with a codec. `descriptor_sets` are the statics for reflection.
///
/// Generates services for the files named in `wanted`, and messages for all files, because services
/// may use the messages of imported files. `reexports` says which items of services are re-exported.
///
/// # Errors
///
/// Returns [`Error::Setting`] if prost rejects a setting, if the code is not Rust, or if no method has
/// the path of a limit, or no service that of an attribute, and [`Error::NoCodec`] if a codec cannot be
/// generated.
pub(crate) fn generate(
    mut set: FileDescriptorSet,
    wanted: &HashSet<&str>,
    mut config: Config,
    stubs: Stubs,
    mut codecs: Codecs,
    reexports: Reexports,
    descriptor_sets: Rc<DescriptorSets>,
) -> Result<BTreeMap<Module, Package>, Error> {
    for file in &mut set.file {
        comments::sanitize(file);
        if !wanted.contains(file.name()) {
            file.service.clear();
        }
    }
    aliases::replace_in_defaults(&mut set);
    required::break_cycles(&mut set);
    stubs.limits.check(&set)?;
    stubs.services.check(&set)?;
    let mut generated: HashMap<Module, Vec<Generated>> = HashMap::new();
    for file in &set.file {
        let of_file = descriptors::generated(file, &stubs.externs);
        generated.entry(module(file)).or_default().extend(of_file);
    }
    // Several packages may have one module: `Demo` and `demo`. The first one gives it its name.
    let mut names = BTreeMap::new();
    for file in &set.file {
        let name = || file.package().to_owned();
        names.entry(module(file)).or_insert_with(name);
    }
    // prost would format each module too, and panics at an attribute that is not Rust.
    config.format(false);
    config.service_generator(Box::new(Services {
        stubs: stubs.clone(),
        reexports,
        descriptor_sets: Rc::clone(&descriptor_sets),
    }));
    let files = set.file.into_iter().map(|file| (module(&file), file));
    let mut codes = config
        .generate(files.collect())
        .map_err(|err| Error::Setting {
            message: err.to_string(),
        })?;
    names.retain(|module, _| codes.contains_key(module));
    shared_modules::add_outer(&mut names);
    let mut shared = SharedModules::new(&names);
    let mut packages = BTreeMap::new();
    for (module, name) in names {
        let mut file = parse(&codes.remove(&module).unwrap_or_default(), &name)?;
        let generated = generated.remove(&module).unwrap_or_default();
        let codec = codecs.emit(&stubs, &generated, &file.items);
        file.items.extend(parse(&codec, &name)?.items);
        let sets = descriptor_sets.of_module(&module);
        file.items.extend(parse(sets, &name)?.items);
        shared.merge(&module, &mut file.items);
        if !file.items.is_empty() {
            let code = finished(&file);
            packages.insert(module, Package { name, code });
        }
    }
    codecs.finish()?;
    Ok(packages)
}

fn parse(code: &str, package: &str) -> Result<syn::File, Error> {
    syn::parse_file(code).map_err(|error| Error::Setting {
        message: format!(
            "the code of package `{package}` is not Rust, because of an attribute or a path that was set: {error}"
        ),
    })
}

/// Returns the Rust module of the file's package.
fn module(file: &FileDescriptorProto) -> Module {
    Module::from_protobuf_package_name(file.package())
}

/// The codecs of messages.
#[derive(Debug, Default)]
pub(crate) struct Codecs {
    /// The messages that get one, by their names with a leading dot.
    pub(crate) messages: BTreeSet<String>,
    descriptors: Descriptors,
    emitted: BTreeSet<String>,
    errors: Vec<Error>,
}

impl Codecs {
    /// Decides which messages get a codec. `wanted` names the files whose services are generated.
    pub(crate) fn new(set: &FileDescriptorSet, wanted: &HashSet<&str>, stubs: &Stubs) -> Codecs {
        let descriptors = Descriptors::new(set);
        let messages = match (stubs.codec, stubs.codec_for_all_messages) {
            (false, _) => BTreeSet::new(),
            (true, false) => descriptors.used(set, wanted, &stubs.externs),
            (true, true) => descriptors.messages(&stubs.externs),
        };
        Codecs {
            messages,
            descriptors,
            ..Codecs::default()
        }
    }

    /// Returns the codec of the messages in a module with these `items`, or nothing if there are none.
    /// `generated` are all messages of the module, in the order of the items.
    fn emit(&mut self, stubs: &Stubs, generated: &[Generated], items: &[Item]) -> String {
        let structs = Structs {
            descriptors: &self.descriptors,
            externs: &stubs.externs,
            wanted: &self.messages,
        };
        let messages = match structs.read(items, generated) {
            Ok(messages) => messages,
            Err(error) => {
                self.errors.push(error);
                return String::new();
            }
        };
        for message in &messages {
            if !self.emitted.insert(message.name.clone()) {
                self.fail(&message.name, "a second struct".to_owned());
            }
            let numbers = self.descriptors.numbers(&message.name);
            if message.numbers() != numbers {
                let found = format!("fields with the numbers {:?}", message.numbers());
                self.fail(&message.name, found);
            }
        }
        if messages.is_empty() {
            return String::new();
        }
        codec::emit(&messages, &stubs.decode_budgets, &stubs.runtime)
    }

    fn fail(&mut self, message: &str, found: String) {
        self.errors
            .push(self.descriptors.no_codec(message, None, found));
    }

    /// Checks that all messages have got their codec.
    fn finish(mut self) -> Result<(), Error> {
        if self.errors.is_empty() {
            let missing: Vec<_> = self.messages.difference(&self.emitted).cloned().collect();
            for message in missing {
                self.fail(&message, "no struct".to_owned());
            }
        }
        Error::any_of(self.errors)
    }
}

/// Generates the code of services, which prost does not.
struct Services {
    stubs: Stubs,
    reexports: Reexports,
    descriptor_sets: Rc<DescriptorSets>,
}

impl ServiceGenerator for Services {
    fn generate(&mut self, service: prost_build::Service, buf: &mut String) {
        let stubs = &self.stubs;
        let mut service = Service::new(service, &stubs.externs, stubs.codec, &stubs.services);
        service.descriptor_set = self.descriptor_sets.of_service(&service.full_name);
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
}

/// Returns the code of a module with our heading, and with its lints off.
fn finished(file: &syn::File) -> String {
    format!(
        "// This file is @generated by rpc-codegen.\n{}",
        emit::finished(&prettyplease::unparse(file))
    )
}
