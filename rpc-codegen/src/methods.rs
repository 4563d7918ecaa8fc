//! Emits the constants that describe a service's methods. The client and the server both use them.

use prost_types::FileDescriptorSet;

use crate::emit::Runtime;
use crate::error::Error;
use crate::model::{Idempotency, Kind, Method, Service};
use crate::paths;

/// The lengths of messages that are set for methods, by the methods' paths.
#[derive(Clone, Debug, Default)]
pub(crate) struct MethodLimits {
    pub(crate) requests: Vec<(String, u32)>,
    pub(crate) responses: Vec<(String, u32)>,
}

impl MethodLimits {
    /// Checks that each path is that of a method of `set`, or of something that contains one.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Setting`] for each that is neither: the limit would limit nothing.
    pub(crate) fn check(&self, set: &FileDescriptorSet) -> Result<(), Error> {
        let mut names = Vec::new();
        for file in &set.file {
            for service in &file.service {
                let service_name = paths::qualified(file.package(), service.name());
                let methods = service.method.iter();
                names.extend(methods.map(|method| format!(".{service_name}.{}", method.name())));
            }
        }
        let settings = [
            ("max_request_len", &self.requests),
            ("max_response_len", &self.responses),
        ];
        let unused = settings.into_iter().flat_map(|(setting, limits)| {
            let paths = limits.iter().map(|(path, _)| path);
            let unused = paths.filter(|path| !names.iter().any(|name| paths::matches(path, name)));
            unused.map(move |path| Error::Setting {
                message: format!("{setting}: no method has the path `{path}`"),
            })
        });
        Error::any_of(unused)
    }
}

/// Emits the module of method constants of `service`.
pub(crate) fn emit(service: &Service, limits: &MethodLimits, rt: &Runtime) -> String {
    let docs = format!(
        "/// Descriptions of the methods of `{}`.\n",
        service.full_name
    );
    let constants: String = service
        .methods
        .iter()
        .map(|method| constant(method, limits))
        .collect();
    rt.module(&service.names.methods, &docs, "", &constants)
}

fn constant(method: &Method, limits: &MethodLimits) -> String {
    let Method {
        constant,
        path,
        request_proto,
        response_proto,
        ..
    } = method;
    let kind = match method.kind {
        Kind::Unary => "Unary",
        Kind::ClientStreaming => "ClientStreaming",
        Kind::ServerStreaming => "ServerStreaming",
        Kind::Streaming => "Streaming",
    };
    let idempotency = match method.idempotency {
        Idempotency::Unknown => "Unknown",
        Idempotency::NoSideEffects => "NoSideEffects",
        Idempotency::Idempotent => "Idempotent",
    };
    let name = format!(".{}", path.replace('/', "."));
    let limit = |setting: &str, limits: &[(String, u32)]| match paths::last(limits, &name) {
        Some(limit) => format!(".{setting}({limit})"),
        None => String::new(),
    };
    let request_limit = limit("with_max_request_len", &limits.requests);
    let response_limit = limit("with_max_response_len", &limits.responses);
    format!(
        r#"/// Describes `{path}`.
pub const {constant}: $MethodSpec = $MethodSpec::new(
    "{path}",
    $MethodKind::{kind},
    $Idempotency::{idempotency},
    "{request_proto}",
    "{response_proto}",
){request_limit}{response_limit};
"#
    )
}
