//! [`Index`]: the descriptors of a server's services, by the names of files, items and extensions.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use rpc_core::bytes::Bytes;
use rpc_core::prost::Message;
use rpc_core::prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
};
use rpc_core::{Code, ServedService};

use super::v1::server_reflection_request::MessageRequest as Question;
use super::v1::server_reflection_response::MessageResponse as Answer;
use super::v1::{
    ErrorResponse, ExtensionNumberResponse, FileDescriptorResponse, ListServiceResponse,
    ServerReflectionRequest, ServerReflectionResponse, ServiceResponse,
};

/// A `FileDescriptorSet` whose files stay encoded: they are sent as they are, from where they are.
#[derive(Clone, PartialEq, Message)]
#[prost(prost_path = "::rpc_core::prost")]
struct EncodedSet {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    files: Vec<Bytes>,
}

/// The files that a stream has brought.
#[derive(Debug, Default)]
pub(super) struct Sent(HashSet<usize>);

/// The descriptors of all services.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// The names of all services, sorted.
    services: Vec<&'static str>,
    /// Those without descriptors.
    undescribed: Vec<&'static str>,
    files: Vec<File>,
    /// By the names of files.
    names: HashMap<String, usize>,
    /// By the full names of items.
    symbols: HashMap<String, usize>,
    /// By the full names of messages, all of which are here, and the numbers of fields.
    extensions: HashMap<String, BTreeMap<i32, usize>>,
    /// The items of files of which another one with the same name is here.
    left_out: HashMap<String, usize>,
}

#[derive(Debug)]
struct File {
    name: String,
    imports: Vec<String>,
    encoded: Bytes,
    /// The service through which it came.
    service: &'static str,
}

impl Index {
    /// Reads the descriptors of `services`, in their order.
    ///
    /// If the sets of two services have different files of one name, from builds of different ages,
    /// the first one counts: a client could not load both.
    pub(super) fn of(services: &[ServedService]) -> Self {
        let mut index = Self::default();
        for service in services {
            index.services.push(service.name);
            let files = service.descriptor_set.and_then(decode).unwrap_or_default();
            if files.is_empty() {
                index.undescribed.push(service.name);
            }
            for (file, encoded) in files {
                index.add(&file, encoded, service.name);
            }
        }
        index.services.sort_unstable();
        index
    }

    fn add(&mut self, file: &FileDescriptorProto, encoded: Bytes, service: &'static str) {
        if let Some(first) = self.names.get(file.name()).copied() {
            let other = &self.files[first];
            if other.encoded != encoded {
                tracing::warn!(
                    file = file.name(),
                    "the stubs of {service} were generated from another version of this file than those of \
                     {}, which is the one that reflection describes. Generate both from the same file",
                    other.service
                );
                each_symbol(file, &mut |symbol| {
                    self.left_out.entry(symbol).or_insert(first);
                });
            }
            return;
        }
        let number = self.files.len();
        self.names.insert(file.name().to_owned(), number);
        self.files.push(File {
            name: file.name().to_owned(),
            imports: file.dependency.clone(),
            encoded,
            service,
        });
        each_symbol(file, &mut |symbol| {
            self.symbols.entry(symbol).or_insert(number);
        });
        let scope = file.package();
        self.add_extensions(&file.extension, number);
        for message in &file.message_type {
            self.add_message(message, scope, number);
        }
    }

    fn add_message(&mut self, message: &DescriptorProto, scope: &str, file: usize) {
        let name = join(scope, message.name());
        self.add_extensions(&message.extension, file);
        for nested in &message.nested_type {
            self.add_message(nested, &name, file);
        }
        self.extensions.entry(name).or_default();
    }

    fn add_extensions(&mut self, extensions: &[FieldDescriptorProto], file: usize) {
        for extension in extensions {
            let extended = extension.extendee().trim_start_matches('.').to_owned();
            let numbers = self.extensions.entry(extended).or_default();
            numbers.entry(extension.number()).or_insert(file);
        }
    }

    /// Answers one question.
    pub(super) fn answer(
        &self,
        question: ServerReflectionRequest,
        sent: &mut Sent,
    ) -> ServerReflectionResponse {
        let answer = match &question.message_request {
            Some(Question::FileByFilename(name)) => self.file_by_name(name, sent),
            Some(Question::FileContainingSymbol(symbol)) => self.file_of_symbol(symbol, sent),
            Some(Question::FileContainingExtension(asked)) => {
                let numbers = self.extensions.get(&asked.containing_type);
                let file = numbers.and_then(|numbers| numbers.get(&asked.extension_number));
                match file {
                    Some(file) => Ok(self.files(*file, sent)),
                    None => {
                        Err("no extension of this message with this number is described".into())
                    }
                }
            }
            Some(Question::AllExtensionNumbersOfType(name)) => self.extension_numbers(name),
            Some(Question::ListServices(_)) => Ok(self.list()),
            None => Ok(error(
                Code::InvalidArgument,
                "the request has no question, or one of a later version".to_owned(),
            )),
        };
        ServerReflectionResponse {
            valid_host: question.host.clone(),
            original_request: Some(question),
            message_response: Some(answer.unwrap_or_else(|why| error(Code::NotFound, why))),
        }
    }

    fn file_by_name(&self, name: &str, sent: &mut Sent) -> Result<Answer, String> {
        match self.names.get(name) {
            Some(file) => Ok(self.files(*file, sent)),
            None => Err(self.not_described("no file of this name is described")),
        }
    }

    fn file_of_symbol(&self, symbol: &str, sent: &mut Sent) -> Result<Answer, String> {
        if let Some(file) = self.symbols.get(symbol) {
            return Ok(self.files(*file, sent));
        }
        if let Some(file) = self.left_out.get(symbol) {
            let File { name, service, .. } = &self.files[*file];
            return Err(format!(
                "this item is in another version of the file {name} than that of {service}, which is the \
                 one that this server describes: generate the stubs of both from the same file"
            ));
        }
        let is_within = |service: &&&str| {
            let rest = symbol.strip_prefix(**service);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        if let Some(service) = self.undescribed.iter().find(is_within) {
            return Err(format!(
                "{service} is served without descriptors: generate its stubs with \
                 `rpc_codegen::configure().reflection(true)`"
            ));
        }
        Err(self.not_described("no item of this name is described"))
    }

    fn extension_numbers(&self, name: &str) -> Result<Answer, String> {
        let numbers = self
            .extensions
            .get(name)
            .filter(|_| self.symbols.contains_key(name));
        let numbers =
            numbers.ok_or_else(|| self.not_described("no message of this name is described"))?;
        Ok(Answer::AllExtensionNumbersResponse(
            ExtensionNumberResponse {
                base_type_name: name.to_owned(),
                extension_number: numbers.keys().copied().collect(),
            },
        ))
    }

    /// Adds the services that are not described to a message, because what was asked for may be theirs.
    fn not_described(&self, what: &str) -> String {
        match self.undescribed.as_slice() {
            [] => what.to_owned(),
            [first, ..] => format!(
                "{what}; {} of the services have no descriptors, the first is {first}: generate their stubs \
                 with `rpc_codegen::configure().reflection(true)`",
                self.undescribed.len()
            ),
        }
    }

    /// Returns a file and all that it imports, without imports that were sent before.
    fn files(&self, file: usize, sent: &mut Sent) -> Answer {
        let mut file_descriptor_proto = vec![self.files[file].encoded.clone()];
        sent.0.insert(file);
        let mut seen = HashSet::from([file]);
        let mut left = VecDeque::from([file]);
        while let Some(importing) = left.pop_front() {
            let imports = self.files[importing].imports.iter();
            for import in imports.filter_map(|name| self.names.get(name).copied()) {
                if seen.insert(import) {
                    left.push_back(import);
                    if sent.0.insert(import) {
                        file_descriptor_proto.push(self.files[import].encoded.clone());
                    }
                }
            }
        }
        Answer::FileDescriptorResponse(FileDescriptorResponse {
            file_descriptor_proto,
        })
    }

    fn list(&self) -> Answer {
        let service = |name: &&str| ServiceResponse {
            name: (*name).to_owned(),
        };
        Answer::ListServicesResponse(ListServiceResponse {
            service: self.services.iter().map(service).collect(),
        })
    }
}

fn error(code: Code, error_message: String) -> Answer {
    Answer::ErrorResponse(ErrorResponse {
        error_code: code.into(),
        error_message,
    })
}

/// Returns the files of an encoded set, each with its bytes. `None` if it cannot be decoded.
fn decode(set: &'static [u8]) -> Option<Vec<(FileDescriptorProto, Bytes)>> {
    let set = EncodedSet::decode(Bytes::from_static(set)).ok()?;
    let files = set.files.into_iter();
    let file = |encoded: Bytes| Some((FileDescriptorProto::decode(encoded.clone()).ok()?, encoded));
    files.map(file).collect()
}

/// Calls `found` with the full name of each item of a file: messages, their fields and oneofs, enums and
/// their values, services, methods, extensions.
fn each_symbol(file: &FileDescriptorProto, found: &mut impl FnMut(String)) {
    let scope = file.package();
    for message in &file.message_type {
        each_symbol_of_message(message, scope, found);
    }
    each_symbol_of_enums(&file.enum_type, scope, found);
    for extension in &file.extension {
        found(join(scope, extension.name()));
    }
    for service in &file.service {
        let name = join(scope, service.name());
        for method in &service.method {
            found(join(&name, method.name()));
        }
        found(name);
    }
}

fn each_symbol_of_message(message: &DescriptorProto, scope: &str, found: &mut impl FnMut(String)) {
    let name = join(scope, message.name());
    for field in message.field.iter().chain(&message.extension) {
        found(join(&name, field.name()));
    }
    for oneof in &message.oneof_decl {
        found(join(&name, oneof.name()));
    }
    each_symbol_of_enums(&message.enum_type, &name, found);
    for nested in &message.nested_type {
        each_symbol_of_message(nested, &name, found);
    }
    found(name);
}

/// A value's name is in the scope that has the enum, beside it.
fn each_symbol_of_enums(
    enums: &[EnumDescriptorProto],
    scope: &str,
    found: &mut impl FnMut(String),
) {
    for one in enums {
        found(join(scope, one.name()));
        for value in &one.value {
            found(join(scope, value.name()));
        }
    }
}

fn join(scope: &str, name: &str) -> String {
    match scope {
        "" => name.to_owned(),
        scope => format!("{scope}.{name}"),
    }
}
