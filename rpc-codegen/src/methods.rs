//! Emits the constants that describe a service's methods. The client and the server both use them.

use crate::emit::Runtime;
use crate::model::{Idempotency, Kind, Method, Service};

/// Emits the module of method constants of `service`.
pub(crate) fn emit(service: &Service, rt: &Runtime) -> String {
    let docs = format!("Descriptions of the methods of `{}`.", service.full_name);
    let constants: String = service.methods.iter().map(constant).collect();
    rt.module(&service.names.methods, &docs, "", &constants)
}

fn constant(method: &Method) -> String {
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
    format!(
        r#"/// Describes `{path}`.
pub const {constant}: $MethodSpec = $MethodSpec::new(
    "{path}",
    $MethodKind::{kind},
    $Idempotency::{idempotency},
    "{request_proto}",
    "{response_proto}",
);
"#
    )
}
