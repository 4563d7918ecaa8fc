//! The descriptors that generated servers return: for each file with services one encoded set, of the
//! file and of all files that it imports.

use std::collections::{BTreeMap, HashMap, HashSet};

use prost::Message;
use prost_build::Module;
use prost_reflect::{DynamicMessage, ReflectMessage};
use prost_types::{FileDescriptorProto, FileDescriptorSet};

use crate::paths;

/// The number of `source_code_info` in `FileDescriptorProto`: positions and comments.
const SOURCE_CODE_INFO: u32 = 9;

/// A `FileDescriptorSet` whose files stay encoded. They contain custom options, for which prost's
/// types have no field.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct EncodedSet {
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub(crate) files: Vec<Vec<u8>>,
}

/// The sets of all files with services.
#[derive(Debug, Default)]
pub(crate) struct DescriptorSets {
    /// The names of the statics, by the names of services.
    statics: HashMap<String, String>,
    /// The statics, by the modules of packages.
    code: BTreeMap<Module, String>,
}

impl DescriptorSets {
    /// Makes a static for each file in `wanted` that has services. `encoded` is `set`, with the custom
    /// options.
    ///
    /// The sets have no comments: they would be half of their size, and servers do not serve
    /// documentation.
    pub(crate) fn new(set: &FileDescriptorSet, encoded: &[u8], wanted: &HashSet<&str>) -> Self {
        let mut sets = Self::default();
        let encoded = EncodedSet::decode(encoded).unwrap_or_default();
        let files: HashMap<_, _> = set
            .file
            .iter()
            .zip(encoded.files.iter().map(|file| without_comments(file)))
            .map(|(file, encoded)| (file.name(), (file, encoded)))
            .collect();
        let mut counts = HashMap::new();
        for file in &set.file {
            if file.service.is_empty() || !wanted.contains(file.name()) {
                continue;
            }
            let mut closure = EncodedSet::default();
            add(file.name(), &files, &mut HashSet::new(), &mut closure);

            let module = Module::from_protobuf_package_name(file.package());
            let count: &mut usize = counts.entry(module.clone()).or_default();
            let name = format!("FILE_DESCRIPTOR_SET_{count}");
            *count += 1;
            let code = sets.code.entry(module).or_default();
            code.push_str(&emit(&name, file.name(), &closure.encode_to_vec()));
            for service in &file.service {
                let service = paths::qualified(file.package(), service.name());
                sets.statics.insert(service, name.clone());
            }
        }
        sets
    }

    /// Returns the name of the static for a service, in the module of its package.
    pub(crate) fn of_service(&self, full_name: &str) -> Option<String> {
        self.statics.get(full_name).cloned()
    }

    /// Returns the statics in a module.
    pub(crate) fn of_module(&self, module: &Module) -> &str {
        self.code.get(module).map_or("", String::as_str)
    }
}

/// Adds a file to `closure`, after the files that it imports.
fn add<'a>(
    name: &'a str,
    files: &HashMap<&str, (&'a FileDescriptorProto, Vec<u8>)>,
    added: &mut HashSet<&'a str>,
    closure: &mut EncodedSet,
) {
    if let Some((file, encoded)) = files.get(name)
        && added.insert(name)
    {
        for import in &file.dependency {
            add(import, files, added, closure);
        }
        closure.files.push(encoded.clone());
    }
}

/// Removes the comments from an encoded file. What the descriptor of descriptors does not have stays.
fn without_comments(file: &[u8]) -> Vec<u8> {
    let descriptor = FileDescriptorProto::default().descriptor();
    match DynamicMessage::decode(descriptor, file) {
        Ok(mut message) => {
            message.clear_field_by_number(SOURCE_CODE_INFO);
            message.encode_to_vec()
        }
        Err(_) => file.to_vec(),
    }
}

/// The longest line of a literal.
const LINE: usize = 100;

/// Emits a static of the encoded set of `file`.
fn emit(name: &str, file: &str, set: &[u8]) -> String {
    let mut literal = String::new();
    let mut line = String::new();
    for byte in set {
        let escaped = match byte {
            // A line that begins with `#` could be taken for an attribute, and one with a space would
            // lose it.
            b' '..=b'~' if !matches!(byte, b'"' | b'\\' | b'#') => char::from(*byte).to_string(),
            byte => format!("\\x{byte:02x}"),
        };
        if line.len() + escaped.len() > LINE - 5 {
            literal.push_str(&format!("    {line}\\\n"));
            line.clear();
        }
        line.push_str(match (escaped.as_str(), line.is_empty()) {
            (" ", true) => "\\x20",
            (escaped, _) => escaped,
        });
    }
    let file = file.replace(['\n', '\r'], " ");
    format!(
        "/// The descriptors of `{file}`, and of the files that it imports.\n\
         static {name}: &[u8] = b\"\\\n{literal}    {line}\";\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_literal_has_the_bytes_of_the_set() {
        let all: Vec<u8> = (0..=255).cycle().take(2000).collect();
        let spaces = vec![b' '; 300];
        for bytes in [&all, &spaces, &vec![]] {
            let code = emit("NAME", "a.proto", bytes);
            assert!(code.lines().all(|line| line.len() <= LINE), "{code}");
            let file = syn::parse_file(&code).unwrap();
            let syn::Item::Static(found) = &file.items[0] else {
                panic!("no static: {code}");
            };
            let syn::Expr::Lit(literal) = &*found.expr else {
                panic!("no literal: {code}");
            };
            let syn::Lit::ByteStr(literal) = &literal.lit else {
                panic!("no bytes: {code}");
            };
            assert_eq!(&literal.value(), bytes);
        }
    }
}
