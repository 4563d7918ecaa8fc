//! Checks for input that the generator cannot handle, before anything is written.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use prost_types::{
    DescriptorProto, EnumDescriptorProto, FileDescriptorProto, FileDescriptorSet,
    ServiceDescriptorProto,
};

use crate::error::Error;
use crate::messages;
use crate::names::{self, ServiceNames};
use crate::paths::qualified;

/// Field numbers of `descriptor.proto`. Paths to source locations consist of them.
const FILE_PACKAGE: i32 = 2;
const FILE_MESSAGE: i32 = 4;
const FILE_ENUM: i32 = 5;
const FILE_SERVICE: i32 = 6;
const MESSAGE_MESSAGE: i32 = 3;
const MESSAGE_ENUM: i32 = 4;
const SERVICE_METHOD: i32 = 2;

/// Checks that code can be generated for `set`, with stubs for the files named in `wanted`. `read`
/// maps the names of files to their paths on disk. `strips_prefix` tells whether the name of an enum
/// is removed from its values' names.
///
/// # Errors
///
/// Returns an error for each file, service or item that is not supported.
pub(crate) fn check(
    set: &FileDescriptorSet,
    wanted: &[String],
    read: &BTreeMap<String, PathBuf>,
    strips_prefix: bool,
) -> Result<(), Error> {
    let places = || {
        set.file.iter().map(|file| Place {
            file,
            on_disk: read
                .get(file.name())
                .map_or(Path::new(file.name()), PathBuf::as_path),
            path: Vec::new(),
        })
    };
    let mut check = Check {
        errors: places().flat_map(|place| unreadable(&place, set)).collect(),
        strips_prefix,
    };
    let mut packages: HashMap<&str, Scope> = HashMap::new();
    for place in places() {
        check.package(&place);
        check.messages(&place, packages.entry(place.file.package()).or_default());
    }
    for place in places().filter(|place| wanted.iter().any(|name| name == place.file.name())) {
        let package = packages.entry(place.file.package()).or_default();
        for (index, service) in place.file.service.iter().enumerate() {
            let place = place.below(FILE_SERVICE, index);
            check.methods(&place, service);
            check.items(&place, service, package);
        }
    }
    Error::any_of(check.errors)
}

/// Returns the errors of a file whose syntax is not supported, or whose imports are not in `set`.
fn unreadable(place: &Place<'_>, set: &FileDescriptorSet) -> Vec<Error> {
    if place.file.syntax() == "editions" {
        return vec![Error::Edition {
            file: place.on_disk.to_owned(),
            line: None,
            edition: None,
        }];
    }
    let missing = |import: &&String| !set.file.iter().any(|file| file.name() == *import);
    let missing = place.file.dependency.iter().filter(missing);
    let error = |import: &String| Error::IncompleteDescriptorSet {
        file: place.file.name().to_owned(),
        import: import.clone(),
    };
    missing.map(error).collect()
}

/// The errors that were found.
struct Check {
    errors: Vec<Error>,
    strips_prefix: bool,
}

impl Check {
    /// Checks that each part of the package's name has a Rust name.
    fn package(&mut self, place: &Place<'_>) {
        let package = place.file.package();
        if package
            .split('.')
            .any(|part| !part.is_empty() && !is_named(part))
        {
            self.unnamed(&format!("package `{package}`"), &place.at(FILE_PACKAGE));
        }
    }

    /// Checks that no two methods share a Rust name, as `SayHello` and `say_hello` do.
    fn methods(&mut self, place: &Place<'_>, service: &ServiceDescriptorProto) {
        let mut scope = Scope::default();
        for (index, method) in service.method.iter().enumerate() {
            let what = format!("method `{}` of service `{}`", method.name(), service.name());
            let place = place.below(SERVICE_METHOD, index);
            let name = names::method_from_proto(method.name());
            self.take(&mut scope, name, &what, &place);
        }
    }

    /// Checks that the items of a service share no name with the messages of its package or with the
    /// items of other services.
    fn items(&mut self, place: &Place<'_>, service: &ServiceDescriptorProto, package: &mut Scope) {
        let name = qualified(place.file.package(), service.name());
        let what = format!("service `{name}`");
        if !is_named(service.name()) {
            return self.unnamed(&what, place);
        }
        for name in ServiceNames::new(service.name()).in_package() {
            // One name is enough to see the mistake.
            if !self.take(package, name.to_owned(), &what, place) {
                return;
            }
        }
    }

    /// Checks that messages and enums get different names from prost, which assumes so.
    fn messages(&mut self, place: &Place<'_>, package: &mut Scope) {
        let full_name = |name: &str| qualified(place.file.package(), name);
        for (index, message) in place.file.message_type.iter().enumerate() {
            let place = place.below(FILE_MESSAGE, index);
            self.message(&place, message, &full_name(message.name()), package);
        }
        for (index, r#enum) in place.file.enum_type.iter().enumerate() {
            let place = place.below(FILE_ENUM, index);
            self.r#enum(&place, r#enum, &full_name(r#enum.name()), package);
        }
    }

    fn message(
        &mut self,
        place: &Place<'_>,
        message: &DescriptorProto,
        full_name: &str,
        scope: &mut Scope,
    ) {
        let what = format!("message `{full_name}`");
        self.take(
            scope,
            names::message_from_proto(message.name()),
            &what,
            place,
        );
        self.members(place, message, &what);
        let mut inside = Scope::default();
        for (index, nested) in message.nested_type.iter().enumerate() {
            // Protobuf describes the entries of a map as a message; prost generates no type for it.
            if !messages::is_entry(nested) {
                let place = place.below(MESSAGE_MESSAGE, index);
                self.message(
                    &place,
                    nested,
                    &qualified(full_name, nested.name()),
                    &mut inside,
                );
            }
        }
        for (index, nested) in message.enum_type.iter().enumerate() {
            let place = place.below(MESSAGE_ENUM, index);
            self.r#enum(
                &place,
                nested,
                &qualified(full_name, nested.name()),
                &mut inside,
            );
        }
        let has_module = !inside.0.is_empty() || !message.oneof_decl.is_empty();
        // Without a name, the message has no module, and the error is noted already.
        if has_module && is_named(message.name()) {
            let what = format!("the module of {what}");
            let name = names::nested_module_from_proto(message.name());
            self.take(scope, name, &what, place);
        }
    }

    /// Checks that the fields and oneofs of a message have Rust names.
    fn members(&mut self, place: &Place<'_>, message: &DescriptorProto, of_message: &str) {
        let fields = message.field.iter().map(|field| ("field", field.name()));
        let oneofs = message.oneof_decl.iter().map(|it| ("oneof", it.name()));
        for (kind, name) in fields.chain(oneofs) {
            if !is_named(name) {
                self.unnamed(&format!("{kind} `{name}` of {of_message}"), place);
            }
        }
    }

    fn r#enum(
        &mut self,
        place: &Place<'_>,
        r#enum: &EnumDescriptorProto,
        full_name: &str,
        scope: &mut Scope,
    ) {
        let name = names::message_from_proto(r#enum.name());
        let prefix = if self.strips_prefix {
            name.as_str()
        } else {
            ""
        };
        let mut inside = Scope::default();
        let mut numbers = Vec::new();
        for value in &r#enum.value {
            // prost generates one variant per number, for the first of its names.
            if !numbers.contains(&value.number()) {
                numbers.push(value.number());
                let what = format!("value `{}` of enum `{full_name}`", value.name());
                let variant = names::variant_from_proto(prefix, value.name());
                self.take(&mut inside, variant, &what, place);
            }
        }
        self.take(scope, name, &format!("enum `{full_name}`"), place);
    }

    /// Records `name` for `what`. Returns false if that is an error.
    fn take(&mut self, scope: &mut Scope, name: String, what: &str, place: &Place<'_>) -> bool {
        if !is_named(&name) {
            self.unnamed(what, place);
            return false;
        }
        let Some(other) = scope.0.insert(name.clone(), what.to_owned()) else {
            return true;
        };
        self.errors.push(Error::NameTaken {
            file: place.on_disk.to_owned(),
            line: place.line(),
            what: what.to_owned(),
            name,
            other,
        });
        false
    }

    fn unnamed(&mut self, what: &str, place: &Place<'_>) {
        self.errors.push(Error::NoRustName {
            file: place.on_disk.to_owned(),
            line: place.line(),
            what: what.to_owned(),
        });
    }
}

/// Returns true if `name` has a Rust name: the casing removes underscores.
fn is_named(name: &str) -> bool {
    name.chars().any(|c| c != '_')
}

/// The Rust names of one scope, each with a description of the item that has it.
#[derive(Default)]
struct Scope(HashMap<String, String>);

/// The location of a descriptor in its file, from which its line can be looked up.
struct Place<'a> {
    file: &'a FileDescriptorProto,
    on_disk: &'a Path,
    path: Vec<i32>,
}

impl Place<'_> {
    /// Returns the location of the field `field`.
    fn at(&self, field: i32) -> Self {
        Place {
            path: [self.path.as_slice(), &[field]].concat(),
            ..*self
        }
    }

    /// Returns the location of element `index` of the repeated field `field`.
    fn below(&self, field: i32, index: usize) -> Self {
        Place {
            path: [self.path.as_slice(), &[field, index as i32]].concat(),
            ..*self
        }
    }

    /// Returns the line, counted from one, or `None` if the descriptors have no source information.
    fn line(&self) -> Option<usize> {
        let locations = &self.file.source_code_info.as_ref()?.location;
        let location = locations
            .iter()
            .find(|location| location.path == self.path)?;
        Some(usize::try_from(*location.span.first()?).ok()? + 1)
    }
}
