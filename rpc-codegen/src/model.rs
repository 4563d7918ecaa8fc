//! The model of a service from which the emitters work.
//!
//! It contains no type of prost or of the descriptors, so emitters can be read and tested without
//! knowing either.

use prost_types::method_options::IdempotencyLevel;

use crate::emit;
use crate::names::{self, ServiceNames};
use crate::paths::qualified;
use crate::reexports::LeftOut;
use crate::services::{self, ServiceSettings};
use crate::well_known;

/// One service.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    pub(crate) names: ServiceNames,
    /// The name on the wire: `demo.Greeter`.
    pub(crate) full_name: String,
    /// Lines of documentation, without the slashes.
    pub(crate) docs: Vec<String>,
    pub(crate) deprecated: bool,
    pub(crate) methods: Vec<Method>,
    /// Attributes of the trait, each on a line.
    pub(crate) trait_attributes: String,
    /// Attributes of the client, likewise.
    pub(crate) client_attributes: String,
    /// Attributes of the server, likewise.
    pub(crate) server_attributes: String,
    /// Whether the methods of the traits have a default.
    pub(crate) default_stubs: bool,
    /// Whether the methods of the traits take `self: Arc<Self>`.
    pub(crate) arc_self: bool,
    /// The static with the descriptors of the service's file, in the module of the package.
    pub(crate) descriptor_set: Option<String>,
    /// The items that the module of the package does not re-export.
    pub(crate) left_out: Vec<LeftOut>,
}

/// One method.
#[derive(Clone, Debug)]
pub(crate) struct Method {
    /// `say_hello`.
    pub(crate) name: String,
    /// `SAY_HELLO`.
    pub(crate) constant: String,
    /// `demo.Greeter/SayHello`.
    pub(crate) path: String,
    pub(crate) kind: Kind,
    /// The type of a client's message, as a path from one of the service's modules: `super::HelloRequest`.
    pub(crate) request: String,
    /// The type of a server's message, likewise.
    pub(crate) response: String,
    /// The runtime's codec for a client's message: `GeneratedCodec`.
    pub(crate) request_codec: &'static str,
    /// The codec for a server's message, likewise.
    pub(crate) response_codec: &'static str,
    /// `demo.HelloRequest`.
    pub(crate) request_proto: String,
    /// `demo.HelloReply`.
    pub(crate) response_proto: String,
    /// Lines of documentation, without the slashes.
    pub(crate) docs: Vec<String>,
    pub(crate) deprecated: bool,
    pub(crate) idempotency: Idempotency,
}

/// Which sides stream. The variants are those of the runtime's `MethodKind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Unary,
    ClientStreaming,
    ServerStreaming,
    /// Both sides stream.
    Streaming,
}

impl Kind {
    fn new(client_streaming: bool, server_streaming: bool) -> Kind {
        match (client_streaming, server_streaming) {
            (false, false) => Kind::Unary,
            (true, false) => Kind::ClientStreaming,
            (false, true) => Kind::ServerStreaming,
            (true, true) => Kind::Streaming,
        }
    }

    /// Returns true if the client sends a stream of messages.
    pub(crate) fn client_streams(self) -> bool {
        matches!(self, Kind::ClientStreaming | Kind::Streaming)
    }

    /// Returns true if the server sends a stream of messages.
    pub(crate) fn server_streams(self) -> bool {
        matches!(self, Kind::ServerStreaming | Kind::Streaming)
    }
}

/// `google.protobuf.MethodOptions.idempotency_level`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Idempotency {
    Unknown,
    NoSideEffects,
    Idempotent,
}

impl Service {
    /// Builds the model of prost's `service`. The messages below `externs` are not generated; the
    /// others have a generated codec if `codec` is true.
    pub(crate) fn new(
        service: prost_build::Service,
        externs: &ExternPaths,
        codec: bool,
        settings: &ServiceSettings,
    ) -> Service {
        let full_name = qualified(&service.package, &service.proto_name);
        let path = format!(".{full_name}");
        Service {
            names: ServiceNames::new(&service.proto_name),
            docs: doc_lines(&service.comments, &path, settings),
            deprecated: service.options.deprecated(),
            methods: service
                .methods
                .into_iter()
                .map(|method| Method::new(method, &full_name, externs, codec, settings))
                .collect(),
            trait_attributes: services::attributes(&settings.traits, &path),
            client_attributes: services::attributes(&settings.clients, &path),
            server_attributes: services::attributes(&settings.servers, &path),
            default_stubs: settings.default_stubs,
            arc_self: settings.arc_self,
            descriptor_set: None,
            left_out: Vec::new(),
            full_name,
        }
    }

    /// Returns true if the module of the package re-exports the item `name`.
    pub(crate) fn is_reexported(&self, name: &str) -> bool {
        !self.left_out.iter().any(|it| it.name == name)
    }

    /// Returns the doc comment of `module`, which begins with `purpose`. It says which of the module's
    /// `items` are not re-exported.
    pub(crate) fn module_docs(&self, purpose: &str, module: &str, items: &[&str]) -> String {
        let left_out = self.left_out.iter();
        let left_out = left_out.filter(|it| items.contains(&it.name.as_str()));
        let paragraph = |LeftOut { name, holder }: &LeftOut| {
            format!(
                "`{name}` is not re-exported in the module of the package, because {holder} has that name there. \
                 Its path is `{module}::{name}`."
            )
        };
        let paragraphs: Vec<_> = left_out.map(paragraph).collect();
        let paragraphs: Vec<_> = paragraphs.iter().map(String::as_str).collect();
        emit::docs(
            &[],
            &format!("{purpose} the service `{}`.", self.full_name),
            &paragraphs,
        )
    }
}

impl Method {
    fn new(
        method: prost_build::Method,
        service: &str,
        externs: &ExternPaths,
        codec: bool,
        settings: &ServiceSettings,
    ) -> Method {
        let full_name = format!(".{service}.{}", method.proto_name);
        let name = names::method(&method.name);
        let codec_of = |proto_type: &str| match codec && !externs.contains(proto_type) {
            true => "GeneratedCodec",
            false => "ProstCodec",
        };
        Method {
            constant: names::method_constant(&name),
            name,
            path: format!("{service}/{}", method.proto_name),
            kind: Kind::new(method.client_streaming, method.server_streaming),
            request_codec: codec_of(&method.input_proto_type),
            response_codec: codec_of(&method.output_proto_type),
            request: externs.path_in_module(&method.input_type, &method.input_proto_type),
            response: externs.path_in_module(&method.output_type, &method.output_proto_type),
            request_proto: method.input_proto_type.trim_start_matches('.').to_owned(),
            response_proto: method.output_proto_type.trim_start_matches('.').to_owned(),
            docs: doc_lines(&method.comments, &full_name, settings),
            deprecated: method.options.deprecated(),
            idempotency: match method.options.idempotency_level() {
                IdempotencyLevel::IdempotencyUnknown => Idempotency::Unknown,
                IdempotencyLevel::NoSideEffects => Idempotency::NoSideEffects,
                IdempotencyLevel::Idempotent => Idempotency::Idempotent,
            },
        }
    }
}

/// The Protobuf paths, with a leading dot, whose Rust types exist elsewhere.
#[derive(Clone, Debug)]
pub(crate) struct ExternPaths {
    /// Those of the user.
    pub(crate) paths: Vec<String>,
    /// True if `google.protobuf` is in `prost-types`.
    pub(crate) well_known_types: bool,
}

impl ExternPaths {
    /// Converts `rust_type`, a path from the package's module, to a path from a service's module.
    fn path_in_module(&self, rust_type: &str, proto_type: &str) -> String {
        // prost returns extern paths as they were set, and those are absolute.
        if self.contains(proto_type) && !rust_type.starts_with("super::") {
            rust_type.to_owned()
        } else {
            format!("super::{rust_type}")
        }
    }

    /// Returns true if `proto_path` is one of these paths or lies below one.
    pub(crate) fn contains(&self, proto_path: &str) -> bool {
        self.is_set(proto_path) || self.well_known_type(proto_path).is_some()
    }

    /// Returns true if `proto_path` is a message in `prost-types` whose fields are not messages.
    pub(crate) fn is_flat(&self, proto_path: &str) -> bool {
        let well_known = self.well_known_type(proto_path);
        !self.is_set(proto_path) && well_known.is_some_and(well_known::is_flat)
    }

    /// Returns true if prost takes `proto_path` for a type of `prost-types` which that crate does not
    /// have.
    pub(crate) fn is_missing(&self, proto_path: &str) -> bool {
        let well_known = self.well_known_type(proto_path);
        !self.is_set(proto_path)
            && well_known.is_some_and(|name| !well_known::is_in_prost_types(name))
    }

    fn well_known_type<'a>(&self, proto_path: &'a str) -> Option<&'a str> {
        let name = proto_path.strip_prefix(".google.protobuf.")?;
        self.well_known_types.then_some(name)
    }

    fn is_set(&self, proto_path: &str) -> bool {
        self.paths.iter().any(|path| {
            let rest = proto_path.strip_prefix(path.as_str());
            rest.is_some_and(|rest| rest.is_empty() || path == "." || rest.starts_with('.'))
        })
    }
}

/// Returns the lines that prost would write for the item called `name`, without the slashes. Detached
/// comments are left out, as they document nothing.
fn doc_lines(
    comments: &prost_build::Comments,
    name: &str,
    settings: &ServiceSettings,
) -> Vec<String> {
    if settings.disables_comments(name) {
        return Vec::new();
    }
    let mut comments = comments.clone();
    comments.leading_detached.clear();
    let mut text = String::new();
    comments.append_with_indent(0, &mut text);
    text.lines()
        .map(|line| line.trim_start_matches("///").to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extern_paths_cover_whole_segments() {
        let externs = ExternPaths {
            paths: vec![".a.B".to_owned()],
            well_known_types: true,
        };
        assert!(externs.contains(".google.protobuf.Empty"));
        assert!(externs.contains(".a.B"));
        assert!(!externs.contains(".a.Better"));
        assert!(!externs.contains(".google.proto"));
        assert!(externs.is_flat(".google.protobuf.Empty"));
        assert!(!externs.is_flat(".google.protobuf.Struct"));
        assert!(!externs.is_flat(".a.B"));
    }

    #[test]
    fn types_are_paths_from_a_module_of_the_package() {
        let externs = ExternPaths {
            paths: vec![".b".to_owned(), ".c".to_owned()],
            well_known_types: false,
        };
        let path = |rust_type, proto_type| externs.path_in_module(rust_type, proto_type);
        assert_eq!(path("M", ".a.M"), "super::M");
        assert_eq!(path("super::d::M", ".d.M"), "super::super::d::M");
        assert_eq!(path("::b::M", ".b.M"), "::b::M");
        assert_eq!(path("super::c::M", ".c.M"), "super::super::c::M");
    }
}
