//! Reads files with all that they import, and links them to descriptors.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;

use miette::Diagnostic;
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, ReflectMessage, Value};
use prost_types::{FileDescriptorProto, FileDescriptorSet};

use crate::error::Error;
use crate::includes::Sources;
use crate::problem::{Place, Problem};
use crate::resolve::{self, Symbols};
use crate::text;

/// The number of `dependency` in `FileDescriptorProto`.
const FILE_DEPENDENCY: i32 = 3;

/// The files that were read.
pub(crate) struct Linker<'a> {
    sources: &'a Sources,
    pool: DescriptorPool,
    /// In the order of [`pool`](Self::pool): imported files precede those that import them.
    files: HashMap<String, File>,
    /// The paths of the files that were read, by their names.
    read: BTreeMap<String, PathBuf>,
    /// The files that are being read, each of which imports the next.
    stack: Vec<String>,
}

/// What was linked.
pub(crate) struct Linked {
    /// The descriptors, those of imported files before those of the files that import them.
    pub(crate) set: FileDescriptorSet,
    /// The same set encoded, with the custom options; empty unless it was asked for.
    pub(crate) bytes: Vec<u8>,
    /// The paths of the files that were read, by their names in `set`.
    pub(crate) read: BTreeMap<String, PathBuf>,
}

/// One file.
struct File {
    symbols: Symbols,
    /// How many files it imports.
    imports: usize,
    /// The files that who imports this one sees: itself and its public imports.
    public: BTreeSet<String>,
}

/// The text of a file, and its name for messages.
struct Text {
    file: PathBuf,
    text: String,
}

impl<'a> Linker<'a> {
    pub(crate) fn new(sources: &'a Sources) -> Self {
        Self {
            sources,
            pool: DescriptorPool::new(),
            files: HashMap::new(),
            read: BTreeMap::new(),
            stack: Vec::new(),
        }
    }

    /// Reads the file with this name, and all that it imports.
    ///
    /// # Errors
    ///
    /// Returns an error if one of the files cannot be read or has a mistake.
    pub(crate) fn add(&mut self, name: &str) -> Result<(), Error> {
        if self.files.contains_key(name) {
            return Ok(());
        }
        let (text, mut file) = self.parse(name)?;
        self.stack.push(name.to_owned());
        for (index, import) in file.dependency.iter().enumerate() {
            self.check_import(&file, index, &text)?;
            self.add(import)?;
        }
        self.stack.pop();

        let imports = file.dependency.len();
        let exported = |name: &String| self.files[name].public.iter().cloned();
        let seen: BTreeSet<_> = file.dependency.iter().flat_map(exported).collect();
        let public = file.public_dependency.iter();
        let public = public.filter_map(|index| file.dependency.get(*index as usize));
        let mut public: BTreeSet<_> = public.flat_map(exported).collect();
        public.insert(name.to_owned());

        let symbols = Symbols::of(&file);
        let visible = seen.iter().map(|name| &self.files[name].symbols);
        let visible: Vec<_> = std::iter::once(&symbols).chain(visible).collect();
        resolve::make_absolute(&mut file, &visible);
        // prost-reflect does not follow public imports of public imports.
        let further = seen.iter().filter(|name| !file.dependency.contains(name));
        let further: Vec<_> = further.cloned().collect();
        file.dependency.extend(further);
        self.pool
            .add_file_descriptor_proto(file)
            .map_err(|error| rejected(&error.with_source_code(&text.text), &text))?;
        let file = File {
            symbols,
            imports,
            public,
        };
        self.files.insert(name.to_owned(), file);
        Ok(())
    }

    /// Returns the text of a file and its descriptor, in which nothing is linked.
    fn parse(&mut self, name: &str) -> Result<(Text, FileDescriptorProto), Error> {
        // Copies on the include path may be of any age; these are what generated code has.
        if name.starts_with("google/protobuf/")
            && let Some(file) = DescriptorPool::global().get_file_by_name(name)
        {
            let text = Text {
                file: PathBuf::from(name),
                text: String::new(),
            };
            return Ok((text, file.file_descriptor_proto().clone()));
        }
        let file = self.sources.find(name).ok_or_else(|| Error::FileNotFound {
            path: PathBuf::from(name),
        })?;
        let text = text::read(&file).map_err(|source| Error::Io {
            doing: "read",
            path: file.clone(),
            source,
        })?;
        self.read.insert(name.to_owned(), file.clone());
        let text = Text { file, text };
        let parsed = protox_parse::parse(name, &text.text);
        let file = parsed.map_err(|error| rejected(&error, &text))?;
        Ok((text, file))
    }

    /// Checks that a file can be imported: that it exists, and does not import the importing one.
    fn check_import(
        &self,
        file: &FileDescriptorProto,
        index: usize,
        text: &Text,
    ) -> Result<(), Error> {
        let import = &file.dependency[index];
        let is_known = self.files.contains_key(import)
            || self.sources.find(import).is_some()
            || import.starts_with("google/protobuf/")
                && DescriptorPool::global().get_file_by_name(import).is_some();
        let mut help = None;
        let message = if !is_known {
            help = Some(self.sources.list_includes());
            format!("import '{import}' not found")
        } else if file.dependency[..index].contains(import) {
            format!("import '{import}' was listed twice")
        } else if let Some(start) = self.stack.iter().position(|name| name == import) {
            let cycle = self.stack[start..].join(" -> ");
            format!("import cycle detected: {cycle} -> {import}")
        } else {
            return Ok(());
        };
        let mut problem = Problem::in_file(&text.file, message);
        problem.help = help;
        problem.places.extend(import_place(file, index, &text.text));
        Err(Error::Proto {
            problems: vec![problem],
        })
    }

    /// Returns the descriptors of all files that were read; encoded too if `encodes`.
    pub(crate) fn finish(self, encodes: bool) -> Linked {
        let files = || self.pool.files();
        let imports = |name: &str| self.files[name].imports;
        let of_file = |file: prost_reflect::FileDescriptor| {
            let mut descriptor = file.file_descriptor_proto().clone();
            descriptor.dependency.truncate(imports(file.name()));
            descriptor
        };
        let set = FileDescriptorSet {
            file: files().map(of_file).collect(),
        };
        let mut bytes = Vec::new();
        if encodes {
            let with_options = |file: prost_reflect::FileDescriptor| {
                Value::Message(with_options(&file, imports(file.name())))
            };
            let mut encoded = FileDescriptorSet::default().transcode_to_dynamic();
            encoded.set_field_by_name("file", Value::List(files().map(with_options).collect()));
            bytes = encoded.encode_to_vec();
        }
        Linked {
            set,
            bytes,
            read: self.read,
        }
    }
}

/// Returns the place of an import, if the descriptor says where it is.
fn import_place(file: &FileDescriptorProto, index: usize, text: &str) -> Option<Place> {
    let locations = &file.source_code_info.as_ref()?.location;
    // The cast is lossless: the number is that of a repeated field.
    let path = [FILE_DEPENDENCY, index as i32];
    let location = locations.iter().find(|location| location.path == path)?;
    let [line, start, end] = *location.span.as_slice() else {
        return None;
    };
    let before: usize = text
        .split_inclusive('\n')
        .take(line as usize)
        .map(str::len)
        .sum();
    let (start, end) = (start as usize, end as usize);
    let label = "imported here".to_owned();
    Some(Place::new(
        text,
        before + start,
        end.saturating_sub(start),
        label,
    ))
}

/// Returns the error of a file that protox rejects, with the lines to which it refers.
fn rejected(error: &dyn Diagnostic, text: &Text) -> Error {
    if let Some((line, edition)) = edition_of(&text.text) {
        return Error::Edition {
            file: text.file.clone(),
            line: Some(line),
            edition: Some(edition),
        };
    }
    let related = error.related().into_iter().flatten();
    let all = std::iter::once(error).chain(related);
    let mut problems: Vec<_> = all.map(|error| problem(error, text)).collect();
    if let Some(last) = problems.last_mut() {
        let advice = "if protoc takes this file, have it read by protoc: set `.protoc(\"protoc\")`";
        last.help = Some(match last.help.take() {
            Some(help) => format!("{help}\n  = help: {advice}"),
            None => advice.to_owned(),
        });
    }
    Error::Proto { problems }
}

/// Returns the descriptor of a file with its custom options, for which `FileDescriptorProto` has no
/// field, and with its first `imports` imports.
fn with_options(file: &prost_reflect::FileDescriptor, imports: usize) -> DynamicMessage {
    let descriptor = FileDescriptorProto::default().descriptor();
    let encoded = file.encode_to_vec();
    let mut message = DynamicMessage::decode(descriptor, encoded.as_slice())
        .expect("the pool encodes descriptors");
    if let Value::List(dependency) = message
        .get_field_by_name_mut("dependency")
        .expect("descriptors have imports")
    {
        dependency.truncate(imports);
    }
    message
}

fn problem(diagnostic: &dyn Diagnostic, text: &Text) -> Problem {
    let source = &text.text;
    let mut problem = Problem::in_file(&text.file, diagnostic.to_string());
    problem.help = diagnostic.help().map(|help| help.to_string());
    // The parser has one message for this and for names of groups.
    let is_import = |help: &String| help.starts_with("imports may not");
    if problem.help.as_ref().is_some_and(is_import) {
        problem.message = "invalid import".to_owned();
    }
    for label in diagnostic.labels().into_iter().flatten() {
        let text = label.label().unwrap_or_default().to_owned();
        problem
            .places
            .push(Place::new(source, label.offset(), label.len(), text));
    }
    // Of two definitions with the same name, show the second one first: it is probably the mistake.
    if problem
        .places
        .first()
        .is_some_and(|place| place.label.starts_with("first"))
    {
        problem.places.reverse();
    }
    if problem.places.is_empty() && problem.message.ends_with("end of file") {
        problem.places.push(Place::end_of(source));
    }
    problem
}

/// Returns the line and the value of the `edition` statement if `source` begins with one.
fn edition_of(source: &str) -> Option<(usize, String)> {
    let mut rest = source;
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == '\u{feff}');
        rest = match rest.get(..2) {
            Some("//") => rest.split_once('\n')?.1,
            Some("/*") => rest.split_once("*/")?.1,
            _ => break,
        };
    }
    let value = rest
        .strip_prefix("edition")?
        .trim_start()
        .strip_prefix('=')?;
    let value = value
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .trim_matches(['"', '\'']);
    let line = source[..source.len() - rest.len()].matches('\n').count() + 1;
    Some((line, value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edition_is_found_after_comments() {
        let source = "// edition = \"no\";\n/* nor\n here */\nedition = \"2023\";\npackage a;";
        assert_eq!(edition_of(source), Some((4, "2023".to_owned())));
        assert_eq!(
            edition_of("syntax = \"proto3\"; // edition = \"2023\";"),
            None
        );
        assert_eq!(edition_of("/* never closed edition"), None);
        assert_eq!(edition_of("/é"), None);
    }
}
