//! Emits the constants that describe a service's methods, shared by client and server.

use crate::emit::Runtime;
use crate::model::{Idempotency, Method, Service};

/// The module of method constants of `service`.
pub(crate) fn emit(service: &Service, rt: &Runtime) -> String {
    let (name, full_name) = (&service.names.methods, &service.full_name);
    let constants: String = service
        .methods
        .iter()
        .map(|method| constant(method, rt))
        .collect();
    format!("/// The methods of `{full_name}`.\npub mod {name} {{\n{constants}}}\n")
}

fn constant(method: &Method, rt: &Runtime) -> String {
    let Method { constant, path, .. } = method;
    let (request, response) = (&method.request.proto_type, &method.response.proto_type);
    let idempotency = match method.idempotency {
        Idempotency::Unknown => "Unknown",
        Idempotency::NoSideEffects => "NoSideEffects",
        Idempotency::Idempotent => "Idempotent",
    };
    let rt = &rt.path;
    format!(
        r#"    /// `{path}`
    pub const {constant}: {rt}::MethodSpec = {rt}::MethodSpec::new(
        "{path}",
        {rt}::MethodKind::Unary,
        {rt}::Idempotency::{idempotency},
        "{request}",
        "{response}",
    );
"#
    )
}
