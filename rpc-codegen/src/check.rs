//! Checks for input that the generator cannot handle, before anything is written.
//!
//! Most of it is about names: what has two names in a `.proto` may have one in Rust. The checks follow
//! the scopes of Rust: the module of a package, with the items of all files of that package; the module
//! of the types nested in a message; the fields of a message and the methods that prost's derive gives
//! it; the variants of an enum or a oneof; the methods of a service.

mod accessors;
mod scope;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

use prost_build::Module;
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet,
    ServiceDescriptorProto,
};

use self::scope::{Item, Place, Scope};
use crate::error::Error;
use crate::messages;
use crate::model::ExternPaths;
use crate::names::{self, ServiceNames};
use crate::paths::{self, qualified};
use crate::reexports::Reexports;

/// Field numbers of `descriptor.proto`. Paths to source locations consist of them.
const FILE_PACKAGE: i32 = 2;
const FILE_MESSAGE: i32 = 4;
const FILE_ENUM: i32 = 5;
const FILE_SERVICE: i32 = 6;
const MESSAGE_FIELD: i32 = 2;
const MESSAGE_MESSAGE: i32 = 3;
const MESSAGE_ENUM: i32 = 4;
const MESSAGE_ONEOF: i32 = 8;
const ENUM_VALUE: i32 = 2;
const SERVICE_METHOD: i32 = 2;

/// Checks that code can be generated for `set`, with stubs for the files named in `wanted` and without
/// the messages below `externs`. `read` maps the names of files to their paths on disk. `strips_prefix`
/// tells whether the name of an enum is removed from its values' names.
///
/// Returns which items of services the modules of packages can re-export.
///
/// # Errors
///
/// Returns an error for each file, service or item that is not supported.
pub(crate) fn check(
    set: &FileDescriptorSet,
    wanted: &HashSet<&str>,
    read: &BTreeMap<String, PathBuf>,
    externs: &ExternPaths,
    strips_prefix: bool,
) -> Result<Reexports, Error> {
    let places = || {
        set.file.iter().map(|file| Place {
            file,
            on_disk: read
                .get(file.name())
                .map_or(Path::new(file.name()), PathBuf::as_path),
            path: Vec::new(),
        })
    };
    let is_wanted = |place: &Place<'_>| wanted.contains(place.file.name());
    let names: HashSet<_> = set.file.iter().map(|file| file.name()).collect();
    let mut check = Check {
        errors: places()
            .flat_map(|place| unreadable(&place, &names))
            .collect(),
        externs,
        strips_prefix,
        modules: HashMap::new(),
    };
    for place in places() {
        check.package(&place, is_wanted(&place));
        check.messages(&place);
    }
    for place in places().filter(is_wanted) {
        for (index, service) in place.file.service.iter().enumerate() {
            check.service(&place.below(FILE_SERVICE, index), service);
        }
    }
    let reexports = check.reexports(places().filter(is_wanted));
    Error::any_of(check.errors)?;
    Ok(reexports)
}

/// Returns the errors of a file whose syntax is not supported, or whose imports are not in `files`.
fn unreadable(place: &Place<'_>, files: &HashSet<&str>) -> Vec<Error> {
    if place.file.syntax() == "editions" {
        return vec![Error::Edition {
            file: place.on_disk.to_owned(),
            line: None,
            edition: None,
        }];
    }
    let missing = |import: &&String| !files.contains(import.as_str());
    let missing = place.file.dependency.iter().filter(missing);
    let error = |import: &String| Error::IncompleteDescriptorSet {
        file: place.file.name().to_owned(),
        import: import.clone(),
    };
    missing.map(error).collect()
}

/// What was found so far.
struct Check<'a> {
    errors: Vec<Error>,
    externs: &'a ExternPaths,
    strips_prefix: bool,
    /// The names in each module of messages: that of a package, or of the types nested in a message.
    modules: HashMap<Module, Scope<'a>>,
}

impl<'a> Check<'a> {
    /// Checks the Rust names of the parts of the package's name: the modules that contain one another.
    fn package(&mut self, place: &Place<'a>, with_services: bool) {
        let package = place.file.package();
        let parts: Vec<_> = package.split('.').filter(|it| !it.is_empty()).collect();
        if parts.iter().any(|part| names::snake(part).is_empty()) {
            let item = Item::new(format!("package `{package}`"), &place.at(FILE_PACKAGE));
            return self.errors.push(item.unnamed());
        }
        if !self.has_code(place, with_services) {
            return;
        }
        let mut parent = Module::from_parts([""; 0]);
        for (index, part) in parts.iter().enumerate() {
            let what = format!("package `{}`", parts[..=index].join("."));
            let name = names::snake(part);
            let module = child(&parent, &name);
            self.take(&parent, name, Item::module(what, &place.at(FILE_PACKAGE)));
            parent = module;
        }
    }

    /// Returns true if code is generated for the file.
    fn has_code(&self, place: &Place<'_>, with_services: bool) -> bool {
        let file = place.file;
        let messages = file.message_type.iter().map(DescriptorProto::name);
        let mut types = messages.chain(file.enum_type.iter().map(EnumDescriptorProto::name));
        with_services && !file.service.is_empty()
            || types.any(|name| !self.is_extern(&qualified(file.package(), name)))
    }

    fn is_extern(&self, full_name: &str) -> bool {
        self.externs.contains(&format!(".{full_name}"))
    }

    /// Checks that no two messages or enums of a file have one name, nor what is inside of them.
    fn messages(&mut self, place: &Place<'a>) {
        let module = Module::from_protobuf_package_name(place.file.package());
        let full_name = |name: &str| qualified(place.file.package(), name);
        for (index, message) in place.file.message_type.iter().enumerate() {
            let place = place.below(FILE_MESSAGE, index);
            self.message(&place, message, &full_name(message.name()), &module);
        }
        for (index, r#enum) in place.file.enum_type.iter().enumerate() {
            let place = place.below(FILE_ENUM, index);
            self.r#enum(&place, r#enum, &full_name(r#enum.name()), &module);
        }
    }

    fn message(
        &mut self,
        place: &Place<'a>,
        message: &'a DescriptorProto,
        full_name: &str,
        module: &Module,
    ) {
        if self.is_extern(full_name) {
            return;
        }
        let what = format!("message `{full_name}`");
        let name = names::upper_camel(message.name());
        self.take(module, name, Item::new(what.clone(), place));
        let oneofs = self.members(place, message, full_name);

        // Protobuf describes the entries of a map as a message; prost generates no type for it.
        let nested = message.nested_type.iter().enumerate();
        let nested = nested.filter(|(_, nested)| !messages::is_entry(nested));
        let has_module = !message.enum_type.is_empty()
            || nested.clone().next().is_some()
            || message.field.iter().any(|field| oneof_of(field).is_some());
        let name = names::snake(message.name());
        // Without a name, the error is noted already.
        if !has_module || name.is_empty() {
            return;
        }
        let inside = child(module, &name);
        let item = Item::module(format!("the module of {what}"), place);
        self.take(module, name, item);
        for (index, nested) in nested {
            let place = place.below(MESSAGE_MESSAGE, index);
            let full_name = qualified(full_name, nested.name());
            self.message(&place, nested, &full_name, &inside);
        }
        for (index, nested) in message.enum_type.iter().enumerate() {
            let place = place.below(MESSAGE_ENUM, index);
            let full_name = qualified(full_name, nested.name());
            self.r#enum(&place, nested, &full_name, &inside);
        }
        for index in oneofs {
            let oneof = &message.oneof_decl[index];
            let what = format!("the type of oneof `{}` of {what}", oneof.name());
            let item = Item::new(what, &place.below(MESSAGE_ONEOF, index));
            self.take(&inside, names::oneof_type(message, oneof), item);
        }
    }

    /// Checks the names of the fields and oneofs of a message, and those of their accessors. Returns the
    /// indices of the oneofs that have names.
    fn members(
        &mut self,
        place: &Place<'a>,
        message: &'a DescriptorProto,
        full_name: &str,
    ) -> Vec<usize> {
        let path = paths::with_dot(full_name);
        let mut fields = Scope::default();
        let mut methods = Scope::default();
        let mut oneofs: Vec<_> = message
            .oneof_decl
            .iter()
            .map(|_| Scope::default())
            .collect();
        for (index, field) in message.field.iter().enumerate() {
            let place = place.below(MESSAGE_FIELD, index);
            let of_message = format!("field `{}` of message `{full_name}`", field.name());
            // The values of a map are described by the message of its entries.
            let entry = messages::entry(field, &message.nested_type, &path);
            for field in entry.map_or(std::slice::from_ref(field), |entry| &entry.field) {
                self.has_rust_type(&place, &of_message, field.type_name());
            }
            if let Some(variants) = oneof_of(field).and_then(|index| oneofs.get_mut(index)) {
                let name = names::upper_camel(field.name());
                self.note(variants.take(name, Item::new(of_message, &place)));
                continue;
            }
            let name = names::snake(field.name());
            let item = Item::new(of_message.clone(), &place);
            if !self.note(fields.take(name, item)) {
                continue;
            }
            for name in accessors::of(field, message, full_name, place.file) {
                let item = Item::new(format!("a method for {of_message}"), &place);
                self.note(methods.take(name, item));
            }
        }
        let mut named = Vec::new();
        for (index, oneof) in message.oneof_decl.iter().enumerate() {
            // The oneof of an `optional` field has no variants, and is not in Rust.
            if message
                .field
                .iter()
                .any(|field| oneof_of(field) == Some(index))
            {
                let what = format!("oneof `{}` of message `{full_name}`", oneof.name());
                let item = Item::new(what, &place.below(MESSAGE_ONEOF, index));
                if self.note(fields.take(names::snake(oneof.name()), item)) {
                    named.push(index);
                }
            }
        }
        named
    }

    /// Checks that the type of an item is not one of `google.protobuf` without a type in Rust.
    fn has_rust_type(&mut self, place: &Place<'_>, what: &str, proto_path: &str) {
        if self.externs.is_missing(proto_path) {
            self.errors.push(Error::NotInProstTypes {
                file: place.on_disk.to_owned(),
                line: place.line(),
                what: what.to_owned(),
                r#type: proto_path.trim_start_matches('.').to_owned(),
            });
        }
    }

    fn r#enum(
        &mut self,
        place: &Place<'a>,
        r#enum: &'a EnumDescriptorProto,
        full_name: &str,
        module: &Module,
    ) {
        if self.is_extern(full_name) {
            return;
        }
        let name = names::upper_camel(r#enum.name());
        let stripped = self.strips_prefix.then_some(name.as_str());
        let mut variants = Scope::default();
        let mut numbers = HashSet::new();
        for (index, value) in r#enum.value.iter().enumerate() {
            // prost generates one variant per number, for the first of its names.
            if numbers.insert(value.number()) {
                let what = format!("value `{}` of enum `{full_name}`", value.name());
                let variant = names::variant(value.name(), stripped);
                let item = Item::new(what, &place.below(ENUM_VALUE, index));
                self.note(variants.take(variant, item));
            }
        }
        let item = Item::new(format!("enum `{full_name}`"), place);
        self.take(module, name, item);
    }

    /// Checks that no two methods of a service have one name, and that its modules have the names of no
    /// other ones.
    fn service(&mut self, place: &Place<'a>, service: &'a ServiceDescriptorProto) {
        let mut methods = Scope::default();
        for (index, method) in service.method.iter().enumerate() {
            let place = place.below(SERVICE_METHOD, index);
            let what = format!("method `{}` of service `{}`", method.name(), service.name());
            let name = names::method_from_proto(method.name());
            self.note(methods.take(name, Item::new(what.clone(), &place)));
            for message in [method.input_type(), method.output_type()] {
                self.has_rust_type(&place, &what, message);
            }
        }
        let what = describe(place, service);
        if names::snake(service.name()).is_empty() {
            return self.errors.push(Item::new(what, place).unnamed());
        }
        let module = Module::from_protobuf_package_name(place.file.package());
        for name in ServiceNames::new(service.name()).modules() {
            // One name is enough to see the mistake.
            if !self.take(&module, name.to_owned(), Item::new(what.clone(), place)) {
                return;
            }
        }
    }

    /// Gives the names that are left in the modules of packages to the items of services.
    ///
    /// First come the traits, whose names are in the `.proto`, then clients and servers. In the order of
    /// names, because the order of files must not matter.
    fn reexports(&mut self, places: impl Iterator<Item = Place<'a>>) -> Reexports {
        let mut services = Vec::new();
        for place in places {
            for (index, service) in place.file.service.iter().enumerate() {
                services.push((place.below(FILE_SERVICE, index), service));
            }
        }
        services.sort_by_key(|(place, service)| describe(place, service));
        let mut reexports = Reexports::default();
        for kind in 0..3 {
            for (place, service) in &services {
                let what = describe(place, service);
                let module = Module::from_protobuf_package_name(place.file.package());
                let names = ServiceNames::new(service.name());
                let name = names.reexported()[kind];
                let item = Item::new(what.clone(), place);
                let holder = self.modules.entry(module).or_default().offer(name, item);
                if holder != what {
                    let full_name = qualified(place.file.package(), service.name());
                    reexports.leave_out(&full_name, name, holder);
                }
            }
        }
        reexports
    }

    /// Gives `name` in `module` to `item`. Returns false if that is an error.
    fn take(&mut self, module: &Module, name: String, item: Item<'a>) -> bool {
        let scope = self.modules.entry(module.clone()).or_default();
        let taken = scope.take(name, item);
        self.note(taken)
    }

    /// Notes the error, if there is one. Returns false then.
    fn note(&mut self, result: Result<(), Error>) -> bool {
        let is_ok = result.is_ok();
        self.errors.extend(result.err());
        is_ok
    }
}

/// Returns the module `name` in `parent`.
fn child(parent: &Module, name: &str) -> Module {
    Module::from_parts(parent.parts().chain([name]))
}

/// Returns the name of a service for messages.
fn describe(place: &Place<'_>, service: &ServiceDescriptorProto) -> String {
    let full_name = qualified(place.file.package(), service.name());
    format!("service `{full_name}`")
}

/// Returns the index of the oneof of which the field is a variant.
fn oneof_of(field: &FieldDescriptorProto) -> Option<usize> {
    let index = field.oneof_index.filter(|_| !field.proto3_optional())?;
    usize::try_from(index).ok()
}
