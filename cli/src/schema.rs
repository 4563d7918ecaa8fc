//! [`Schema`]: the types of services and messages, by the server's reflection or from `.proto` files.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use prost_reflect::prost::Message as _;
use prost_reflect::{
    DescriptorPool, EnumDescriptor, ExtensionDescriptor, FieldDescriptor, MessageDescriptor,
    MethodDescriptor, ServiceDescriptor,
};
use verbline::Code;
use verbline::message::bytes::Bytes;
use verbline::message::prost_types::FileDescriptorProto;

use crate::arguments::Protos;
use crate::failure::Failure;
use crate::method_name::MethodName;
use crate::nearest::nearest;
use crate::reflection::{Files, Reflection};
use crate::target::Target;

/// The types that are known so far. Those of reflection are fetched when they are asked for.
#[derive(Debug)]
pub(crate) struct Schema<'a> {
    /// `None` if the types are those of `.proto` files.
    reflection: Option<Reflection<'a>>,
    /// Where the types are from, for messages.
    of: String,
    /// Not borrowed while a question is waited for.
    pool: RefCell<DescriptorPool>,
}

/// Something that a `.proto` file defines.
#[derive(Debug)]
pub(crate) enum Symbol {
    Service(ServiceDescriptor),
    Method(MethodDescriptor),
    Message(MessageDescriptor),
    Field(FieldDescriptor),
    Enum(EnumDescriptor),
    Extension(ExtensionDescriptor),
}

impl<'a> Schema<'a> {
    /// The types that the server describes.
    pub(crate) fn of_server(target: &'a Target) -> Self {
        Self {
            reflection: Some(Reflection::new(target)),
            of: target.address.clone(),
            // With Google's own types, which not every server describes.
            pool: RefCell::new(DescriptorPool::global()),
        }
    }

    /// The types of `.proto` files, with their comments.
    pub(crate) fn of_files(protos: &Protos) -> Result<Self, Failure> {
        let mut includes = protos.includes.clone();
        if includes.is_empty() {
            includes = protos.files.iter().map(|file| folder(file)).collect();
            includes.dedup();
        }
        let mut compiler = protox::Compiler::new(&includes).map_err(Failure::BadProto)?;
        compiler
            .include_source_info(true)
            .include_imports(true)
            .open_files(&protos.files)
            .map_err(Failure::BadProto)?;
        let names: Vec<String> = protos
            .files
            .iter()
            .map(|file| file.display().to_string())
            .collect();
        let schema = Self {
            reflection: None,
            of: names.join(", "),
            pool: RefCell::new(DescriptorPool::global()),
        };
        // From bytes: custom options are only in them.
        for file in compiler.files() {
            let name = file.name();
            let mut pool = schema.pool.borrow_mut();
            if pool.get_file_by_name(name).is_none() {
                let bytes = compiler.descriptor_pool().get_file_by_name(name);
                let bytes = bytes.map(|file| file.encode_to_vec()).unwrap_or_default();
                pool.decode_file_descriptor_proto(&bytes[..])
                    .map_err(|source| Failure::BadDescriptors {
                        file: name.to_owned(),
                        source,
                    })?;
            }
        }
        Ok(schema)
    }

    /// Returns the type of a detail of an error, `Any`, with the types that such details have: few servers
    /// describe them.
    pub(crate) fn error_detail(&self) -> MessageDescriptor {
        let mut pool = self.pool.borrow_mut();
        if pool.get_message_by_name("google.rpc.ErrorInfo").is_none() {
            let text = include_str!("error_details.proto");
            let file = protox::file::File::from_source("google/rpc/error_details.proto", text);
            let file = file.expect("it is a part of this program");
            // Fails only if the server has given another file this name.
            let _ = pool.add_file_descriptor_proto(file.file_descriptor_proto().clone());
        }
        let any = pool.get_message_by_name("google.protobuf.Any");
        any.expect("it is one of Google's own types")
    }

    /// Returns a message's type, or `None` if it is not known.
    pub(crate) async fn message(&self, name: &str) -> Result<Option<MessageDescriptor>, Failure> {
        let known = self.pool.borrow().get_message_by_name(name);
        if known.is_some() {
            return Ok(known);
        }
        // Whoever asks has something to fall back on.
        let _ = self.fetch(name).await?;
        Ok(self.pool.borrow().get_message_by_name(name))
    }

    /// Returns the same type with all that is known by now: a descriptor keeps to what was known when it was
    /// made.
    pub(crate) fn newest(&self, message: &MessageDescriptor) -> MessageDescriptor {
        let newest = self.pool.borrow().get_message_by_name(message.full_name());
        newest.unwrap_or_else(|| message.clone())
    }

    /// Returns a symbol.
    pub(crate) async fn symbol(&self, name: &str) -> Result<Symbol, Failure> {
        let name = name.trim_start_matches('.').replace('/', ".");
        if let Some(symbol) = self.known(&name) {
            return Ok(symbol);
        }
        let _ = self.fetch(&name).await?;
        if let Some(symbol) = self.known(&name) {
            return Ok(symbol);
        }
        self.fetch_services(&name).await?;
        let near = nearest(&name, self.names());
        Err(match &self.reflection {
            Some(_) => Failure::NoSymbol {
                of: self.of.clone(),
                symbol: name,
                near,
            },
            None => self.not_in_files(name, near),
        })
    }

    /// Returns a method. A server that has named its methods is known to have this one.
    pub(crate) async fn method(
        &self,
        name: &MethodName,
        is_known_to_exist: bool,
    ) -> Result<MethodDescriptor, Failure> {
        let service = self.pool.borrow().get_service_by_name(&name.service);
        let mut why = None;
        if service.is_none() {
            why = self.fetch(&name.service).await?.err();
        }
        let service = self.pool.borrow().get_service_by_name(&name.service);
        let Some(service) = service else {
            if let (Some(why), true, Some(_)) = (why, is_known_to_exist, &self.reflection) {
                return Err(self.not_described(&name.service, why));
            }
            return Err(self.no_method(name).await?);
        };
        match service
            .methods()
            .find(|method| method.name() == name.method)
        {
            Some(method) => Ok(method),
            None => Err(self.no_method(name).await?),
        }
    }

    /// Adds the files of all services, so that the nearest names can be told. Fails if the wanted name is
    /// that of a service which is served without descriptors, or a member of it: whether it exists cannot be
    /// told.
    async fn fetch_services(&self, wanted: &str) -> Result<(), Failure> {
        let Some(reflection) = &self.reflection else {
            return Ok(());
        };
        for service in reflection.services().await? {
            let rest = wanted.strip_prefix(&service);
            if let (Err(why), Some(rest)) = (self.fetch(&service).await?, rest)
                && (rest.is_empty() || rest.starts_with('.'))
            {
                return Err(self.not_described(&service, why));
            }
        }
        Ok(())
    }

    async fn no_method(&self, name: &MethodName) -> Result<Failure, Failure> {
        self.fetch_services(&name.service).await?;
        let pool = self.pool.borrow();
        let paths = pool.services().flat_map(|service| {
            let methods = service.methods().map(|method| method.name().to_owned());
            let methods: Vec<String> = methods.collect();
            methods
                .into_iter()
                .map(move |method| format!("{}/{method}", service.full_name()))
        });
        let near = nearest(&name.to_string(), paths);
        Ok(match &self.reflection {
            Some(_) => Failure::NoMethod {
                of: self.of.clone(),
                method: name.to_string(),
                near,
            },
            None => self.not_in_files(name.to_string(), near),
        })
    }

    fn not_in_files(&self, symbol: String, near: Vec<String>) -> Failure {
        Failure::NotInFiles {
            files: self.of.clone(),
            symbol,
            near,
        }
    }

    fn not_described(&self, symbol: &str, why: String) -> Failure {
        Failure::NotDescribed {
            address: self.of.clone(),
            symbol: symbol.to_owned(),
            why,
        }
    }

    fn known(&self, name: &str) -> Option<Symbol> {
        let pool = self.pool.borrow();
        if let Some(service) = pool.get_service_by_name(name) {
            return Some(Symbol::Service(service));
        }
        if let Some(message) = pool.get_message_by_name(name) {
            return Some(Symbol::Message(message));
        }
        if let Some(found) = pool.get_enum_by_name(name) {
            return Some(Symbol::Enum(found));
        }
        if let Some(extension) = pool.get_extension_by_name(name) {
            return Some(Symbol::Extension(extension));
        }
        let (parent, member) = name.rsplit_once('.').unwrap_or(("", name));
        if let Some(service) = pool.get_service_by_name(parent) {
            let method = service.methods().find(|method| method.name() == member)?;
            return Some(Symbol::Method(method));
        }
        if let Some(message) = pool.get_message_by_name(parent) {
            if let Some(field) = message.get_field_by_name(member) {
                return Some(Symbol::Field(field));
            }
            // A oneof is shown with the message that it is a part of.
            if message.oneofs().any(|oneof| oneof.name() == member) {
                return Some(Symbol::Message(message));
            }
        }
        // A value has the scope of its enum.
        let mut enums = pool.all_enums();
        let found = enums.find(|one| one.values().any(|value| value.full_name() == name))?;
        Some(Symbol::Enum(found))
    }

    fn names(&self) -> Vec<String> {
        let pool = self.pool.borrow();
        let services = pool.services().flat_map(|service| {
            let mut names = vec![service.full_name().to_owned()];
            names.extend(
                service
                    .methods()
                    .map(|method| method.full_name().to_owned()),
            );
            names
        });
        let messages = pool
            .all_messages()
            .filter(|message| !message.is_map_entry());
        services
            .chain(messages.map(|message| message.full_name().to_owned()))
            .chain(pool.all_enums().map(|one| one.full_name().to_owned()))
            .collect()
    }

    /// Adds the file that defines a symbol, with all that it imports. The inner error is what the server
    /// says if it has none.
    async fn fetch(&self, symbol: &str) -> Result<Result<(), String>, Failure> {
        let Some(reflection) = &self.reflection else {
            return Ok(Err("it is not in the .proto files".to_owned()));
        };
        let mut waiting = BTreeMap::new();
        let files = reflection.file_of(symbol).await?;
        if let Err(why) = self.note(reflection, files, &mut waiting)? {
            return Ok(Err(why));
        }
        while let Some((name, importer)) = self.missing(&waiting) {
            let files = reflection.file_named(&name).await?;
            if let Err(why) = self.note(reflection, files, &mut waiting)? {
                return Err(reflection.bad(&format!("{importer} imports {name}, and {why}")));
            }
            if !waiting.contains_key(&name) {
                return Err(reflection.bad(&format!("it answers {name} with another file")));
            }
        }
        self.add(reflection, waiting)?;
        Ok(Ok(()))
    }

    /// Notes the files that are not known yet.
    fn note(
        &self,
        reflection: &Reflection<'_>,
        files: Files,
        waiting: &mut BTreeMap<String, Waiting>,
    ) -> Result<Result<(), String>, Failure> {
        let files = match files {
            Ok(files) => files,
            Err(error) => {
                let code = Code::from_i32(error.error_code);
                return Ok(Err(format!(
                    "the server says {code}: {}",
                    error.error_message
                )));
            }
        };
        for bytes in files {
            let file = FileDescriptorProto::decode(bytes.clone())
                .map_err(|error| reflection.bad(&format!("a file does not decode: {error}")))?;
            let name = file.name().to_owned();
            if self.pool.borrow().get_file_by_name(&name).is_none() {
                let imports = file.dependency;
                waiting.insert(name, Waiting { imports, bytes });
            }
        }
        Ok(Ok(()))
    }

    /// Returns a file that is imported and not known yet, and who imports it.
    fn missing(&self, waiting: &BTreeMap<String, Waiting>) -> Option<(String, String)> {
        let pool = self.pool.borrow();
        let mut imports = waiting
            .iter()
            .flat_map(|(name, file)| file.imports.iter().map(move |import| (import, name)));
        imports
            .find(|(import, _)| {
                !waiting.contains_key(*import) && pool.get_file_by_name(import).is_none()
            })
            .map(|(import, name)| (import.clone(), name.clone()))
    }

    /// Adds files, each after those that it imports.
    fn add(
        &self,
        reflection: &Reflection<'_>,
        mut waiting: BTreeMap<String, Waiting>,
    ) -> Result<(), Failure> {
        let mut pool = self.pool.borrow_mut();
        while !waiting.is_empty() {
            let ready = waiting.iter().find(|(_, file)| {
                let mut imports = file.imports.iter();
                imports.all(|import| pool.get_file_by_name(import).is_some())
            });
            let Some(name) = ready.map(|(name, _)| name.clone()) else {
                return Err(reflection.bad("files import each other in a circle"));
            };
            if let Some(file) = waiting.remove(&name) {
                pool.decode_file_descriptor_proto(file.bytes)
                    .map_err(|source| Failure::BadDescriptors { file: name, source })?;
            }
        }
        Ok(())
    }
}

/// A file that has come, and perhaps before those that it imports.
struct Waiting {
    imports: Vec<String>,
    /// As it came: custom options are only in the bytes.
    bytes: Bytes,
}

fn folder(file: &Path) -> PathBuf {
    match file.parent() {
        Some(folder) if folder != Path::new("") => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}
