//! Checks for input that the generator cannot handle, before anything is written.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use prost_types::{
    DescriptorProto, EnumDescriptorProto, FileDescriptorProto, FileDescriptorSet,
    ServiceDescriptorProto,
};

use crate::error::Error;
use crate::model::qualified;
use crate::names::{self, ServiceNames};

/// Field numbers of `descriptor.proto`. Paths to source locations consist of them.
const FILE_MESSAGE: i32 = 4;
const FILE_ENUM: i32 = 5;
const FILE_SERVICE: i32 = 6;
const MESSAGE_MESSAGE: i32 = 3;
const MESSAGE_ENUM: i32 = 4;
const SERVICE_METHOD: i32 = 2;

/// Checks that code can be generated for `set`, with stubs for the files named in `wanted`. `read`
/// maps the names of files to their paths on disk.
///
/// # Errors
///
/// Returns an error for the first file, service or item that is not supported.
pub(crate) fn check(
    set: &FileDescriptorSet,
    wanted: &[String],
    read: &BTreeMap<String, PathBuf>,
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
    let mut packages: HashMap<&str, Scope> = HashMap::new();
    for place in places() {
        readable(&place, set)?;
        distinct_messages(&place, packages.entry(place.file.package()).or_default())?;
    }
    for place in places().filter(|place| wanted.iter().any(|name| name == place.file.name())) {
        let package = packages.entry(place.file.package()).or_default();
        for (index, service) in place.file.service.iter().enumerate() {
            let place = place.below(FILE_SERVICE, index);
            distinct_methods(&place, service)?;
            distinct_items(&place, service, package)?;
        }
    }
    Ok(())
}

/// Checks that the syntax of the file is supported and that `set` contains its imports.
fn readable(place: &Place<'_>, set: &FileDescriptorSet) -> Result<(), Error> {
    if place.file.syntax() == "editions" {
        let file = place.on_disk.to_owned();
        return Err(Error::Edition {
            file,
            line: None,
            edition: None,
        });
    }
    let missing = |import: &&String| !set.file.iter().any(|file| file.name() == *import);
    match place.file.dependency.iter().find(missing) {
        Some(import) => Err(Error::IncompleteDescriptorSet {
            file: place.file.name().to_owned(),
            import: import.clone(),
        }),
        None => Ok(()),
    }
}

/// Checks that no two methods share a Rust name, as `SayHello` and `say_hello` do.
fn distinct_methods(place: &Place<'_>, service: &ServiceDescriptorProto) -> Result<(), Error> {
    let mut scope = Scope::default();
    for (index, method) in service.method.iter().enumerate() {
        let what = format!("method `{}` of service `{}`", method.name(), service.name());
        let place = place.below(SERVICE_METHOD, index);
        scope.take(names::method_from_proto(method.name()), &what, &place)?;
    }
    Ok(())
}

/// Checks that the items of a service share no name with the messages of its package or with the
/// items of other services.
fn distinct_items(
    place: &Place<'_>,
    service: &ServiceDescriptorProto,
    package: &mut Scope,
) -> Result<(), Error> {
    let what = format!(
        "service `{}`",
        qualified(place.file.package(), service.name())
    );
    let names = ServiceNames::new(service.name());
    names
        .in_package()
        .into_iter()
        .try_for_each(|name| package.take(name.to_owned(), &what, place))
}

/// Checks that messages and enums get different names from prost, which assumes so.
fn distinct_messages(place: &Place<'_>, package: &mut Scope) -> Result<(), Error> {
    let full_name = |name: &str| qualified(place.file.package(), name);
    for (index, message) in place.file.message_type.iter().enumerate() {
        let place = place.below(FILE_MESSAGE, index);
        distinct_message(&place, message, &full_name(message.name()), package)?;
    }
    for (index, r#enum) in place.file.enum_type.iter().enumerate() {
        let place = place.below(FILE_ENUM, index);
        distinct_enum(&place, r#enum, &full_name(r#enum.name()), package)?;
    }
    Ok(())
}

fn distinct_message(
    place: &Place<'_>,
    message: &DescriptorProto,
    full_name: &str,
    scope: &mut Scope,
) -> Result<(), Error> {
    let what = format!("message `{full_name}`");
    scope.take(names::message_from_proto(message.name()), &what, place)?;
    // Protobuf describes the entries of a map as a message; prost generates no type for it.
    let is_type =
        |nested: &&DescriptorProto| !nested.options.as_ref().is_some_and(|it| it.map_entry());
    named_members(place, message, &what)?;
    let mut inside = Scope::default();
    for (index, nested) in message
        .nested_type
        .iter()
        .enumerate()
        .filter(|(_, it)| is_type(it))
    {
        let full_name = qualified(full_name, nested.name());
        distinct_message(
            &place.below(MESSAGE_MESSAGE, index),
            nested,
            &full_name,
            &mut inside,
        )?;
    }
    for (index, nested) in message.enum_type.iter().enumerate() {
        let full_name = qualified(full_name, nested.name());
        distinct_enum(
            &place.below(MESSAGE_ENUM, index),
            nested,
            &full_name,
            &mut inside,
        )?;
    }
    if !inside.0.is_empty() || !message.oneof_decl.is_empty() {
        let what = format!("the module of {what}");
        scope.take(
            names::nested_module_from_proto(message.name()),
            &what,
            place,
        )?;
    }
    Ok(())
}

/// Checks that the fields and oneofs of a message have Rust names.
fn named_members(
    place: &Place<'_>,
    message: &DescriptorProto,
    of_message: &str,
) -> Result<(), Error> {
    let fields = message.field.iter().map(|field| ("field", field.name()));
    let oneofs = message.oneof_decl.iter().map(|it| ("oneof", it.name()));
    fields.chain(oneofs).try_for_each(|(kind, name)| {
        named(name, &format!("{kind} `{name}` of {of_message}"), place)
    })
}

/// Checks that `name` has a Rust name: the casing removes underscores.
fn named(name: &str, what: &str, place: &Place<'_>) -> Result<(), Error> {
    if name.chars().any(|c| c != '_') {
        return Ok(());
    }
    Err(Error::NoRustName {
        file: place.on_disk.to_owned(),
        line: place.line(),
        what: what.to_owned(),
    })
}

fn distinct_enum(
    place: &Place<'_>,
    r#enum: &EnumDescriptorProto,
    full_name: &str,
    scope: &mut Scope,
) -> Result<(), Error> {
    let name = names::message_from_proto(r#enum.name());
    let mut inside = Scope::default();
    let mut numbers = Vec::new();
    for value in &r#enum.value {
        // prost generates one variant per number, for the first of its names.
        if !numbers.contains(&value.number()) {
            numbers.push(value.number());
            let what = format!("value `{}` of enum `{full_name}`", value.name());
            inside.take(names::variant_from_proto(&name, value.name()), &what, place)?;
        }
    }
    scope.take(name, &format!("enum `{full_name}`"), place)
}

/// The Rust names of one scope, each with a description of the item that has it.
#[derive(Default)]
struct Scope(HashMap<String, String>);

impl Scope {
    /// Records `name` for `what`.
    fn take(&mut self, name: String, what: &str, place: &Place<'_>) -> Result<(), Error> {
        named(&name, what, place)?;
        match self.0.insert(name.clone(), what.to_owned()) {
            None => Ok(()),
            Some(other) => Err(Error::NameTaken {
                file: place.on_disk.to_owned(),
                line: place.line(),
                what: what.to_owned(),
                name,
                other,
            }),
        }
    }
}

/// The location of a descriptor in its file, from which its line can be looked up.
struct Place<'a> {
    file: &'a FileDescriptorProto,
    on_disk: &'a Path,
    path: Vec<i32>,
}

impl Place<'_> {
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
