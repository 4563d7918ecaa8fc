//! What the descriptors may say and the generator cannot do (yet), found before anything is written.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use prost_types::{FileDescriptorProto, FileDescriptorSet, ServiceDescriptorProto};

use crate::error::Error;
use crate::model::qualified;
use crate::names::{self, ServiceNames};

/// Field numbers of `descriptor.proto`, of which the paths to source locations are made.
const FILE_SERVICE: i32 = 6;
const SERVICE_METHOD: i32 = 2;

/// Refuses what cannot be generated for `set`, with stubs for the files named in `wanted`. `read` says where on disk
/// files are.
pub(crate) fn check(
    set: &FileDescriptorSet,
    wanted: &[String],
    read: &BTreeMap<String, PathBuf>,
) -> Result<(), Error> {
    let on_disk = |name: &str| read.get(name).cloned().unwrap_or_else(|| name.into());
    for file in &set.file {
        if file.syntax() == "editions" {
            return Err(Error::Edition {
                file: on_disk(file.name()),
                line: None,
                edition: None,
            });
        }
        if let Some(import) = file
            .dependency
            .iter()
            .find(|import| !set.file.iter().any(|f| f.name() == *import))
        {
            return Err(Error::IncompleteDescriptorSet {
                file: file.name().to_owned(),
                import: import.clone(),
            });
        }
    }
    let mut taken = messages(set);
    for file in set
        .file
        .iter()
        .filter(|file| wanted.iter().any(|name| name == file.name()))
    {
        let on_disk = on_disk(file.name());
        for (index, service) in file.service.iter().enumerate() {
            let place = Place {
                file,
                on_disk: &on_disk,
                path: vec![FILE_SERVICE, index as i32],
            };
            unary_only(&place, service)?;
            distinct_methods(&place, service)?;
            distinct_items(&place, service, &mut taken)?;
        }
    }
    Ok(())
}

fn unary_only(place: &Place<'_>, service: &ServiceDescriptorProto) -> Result<(), Error> {
    for (index, method) in service.method.iter().enumerate() {
        if method.client_streaming() || method.server_streaming() {
            return Err(Error::Streaming {
                file: place.on_disk.to_owned(),
                line: place.method(index).line(),
                service: qualified(place.file.package(), service.name()),
                method: method.name().to_owned(),
                requests: method.client_streaming(),
                responses: method.server_streaming(),
            });
        }
    }
    Ok(())
}

/// `SayHello` and `say_hello` are two names in a `.proto`, and one in Rust.
fn distinct_methods(place: &Place<'_>, service: &ServiceDescriptorProto) -> Result<(), Error> {
    let mut taken: HashMap<String, &str> = HashMap::new();
    for (index, method) in service.method.iter().enumerate() {
        let name = names::method_from_proto(method.name());
        if let Some(other) = taken.insert(name.clone(), method.name()) {
            return Err(Error::NameTaken {
                file: place.on_disk.to_owned(),
                line: place.method(index).line(),
                what: format!("method `{}` of service `{}`", method.name(), service.name()),
                name,
                other: format!("method `{other}`"),
            });
        }
    }
    Ok(())
}

/// The items of a service stand beside the messages of its package and the items of the package's other services.
fn distinct_items(
    place: &Place<'_>,
    service: &ServiceDescriptorProto,
    taken: &mut HashMap<(String, String), String>,
) -> Result<(), Error> {
    let package = place.file.package();
    let what = format!("service `{}`", qualified(package, service.name()));
    for name in ServiceNames::new(service.name()).all() {
        if let Some(other) = taken.insert((package.to_owned(), name.to_owned()), what.clone()) {
            return Err(Error::NameTaken {
                file: place.on_disk.to_owned(),
                line: place.line(),
                what,
                name: name.to_owned(),
                other,
            });
        }
    }
    Ok(())
}

/// The Rust names that prost gives to top-level items, by package.
fn messages(set: &FileDescriptorSet) -> HashMap<(String, String), String> {
    let mut taken = HashMap::new();
    for file in &set.file {
        let package = file.package();
        let mut take = |name: String, kind: &str, proto_name: &str| {
            let what = format!("{kind} `{}`", qualified(package, proto_name));
            taken.insert((package.to_owned(), name), what);
        };
        for message in &file.message_type {
            let name = message.name();
            take(names::message_from_proto(name), "message", name);
            if !message.nested_type.is_empty()
                || !message.enum_type.is_empty()
                || !message.oneof_decl.is_empty()
            {
                take(
                    names::nested_module_from_proto(name),
                    "the module of message",
                    name,
                );
            }
        }
        for r#enum in &file.enum_type {
            take(
                names::message_from_proto(r#enum.name()),
                "enum",
                r#enum.name(),
            );
        }
    }
    taken
}

/// A descriptor's path within its file, by which its line can be looked up.
struct Place<'a> {
    file: &'a FileDescriptorProto,
    on_disk: &'a Path,
    path: Vec<i32>,
}

impl Place<'_> {
    fn method(&self, index: usize) -> Self {
        let path = [self.path.as_slice(), &[SERVICE_METHOD, index as i32]].concat();
        Place { path, ..*self }
    }

    /// Counted from one; nothing if the descriptors came without source information.
    fn line(&self) -> Option<usize> {
        let locations = &self.file.source_code_info.as_ref()?.location;
        let location = locations
            .iter()
            .find(|location| location.path == self.path)?;
        Some(usize::try_from(*location.span.first()?).ok()? + 1)
    }
}
