//! Emits the client of a service.

use crate::emit::{self, Runtime};
use crate::model::{Method, Service};

/// The client of `service`.
pub(crate) fn emit(service: &Service, rt: &Runtime) -> String {
    let (name, full_name) = (&service.names.client, &service.full_name);
    let deprecated = emit::deprecated("", service.deprecated);
    let methods: String = service
        .methods
        .iter()
        .map(|method| client_method(service, method, rt))
        .collect();
    let rt = &rt.path;
    format!(
        r#"/// Calls the service `{full_name}`.
#[derive(::core::clone::Clone, ::core::fmt::Debug)]
{deprecated}pub struct {name}<C = {rt}::Channel> {{
    caller: C,
}}
impl<C: {rt}::Caller> {name}<C> {{
    /// A client whose calls go through `caller`.
    pub fn new(caller: C) -> Self {{
        Self {{ caller }}
    }}
{methods}}}
"#
    )
}

fn client_method(service: &Service, method: &Method, rt: &Runtime) -> String {
    let Method {
        name,
        constant,
        path,
        ..
    } = method;
    let specs = &service.names.methods;
    let docs = emit::docs("    ", &method.docs, &format!("Calls `{path}`."));
    let deprecated = emit::deprecated("    ", method.deprecated);
    let (request, response) = (&method.request.rust_type, rt.response(method));
    let rt = &rt.path;
    format!(
        r#"{docs}{deprecated}    pub async fn {name}(
        &self,
        request: impl {rt}::IntoRequest<{request}>,
    ) -> ::core::result::Result<{response}, {rt}::CallError> {{
        let request = {rt}::IntoRequest::into_request(request);
        {rt}::Caller::unary(&self.caller, &self::{specs}::{constant}, request).await
    }}
"#
    )
}
