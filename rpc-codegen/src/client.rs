//! Emits the client of a service.

use crate::emit::{self, Runtime};
use crate::model::{Method, Service};

/// Emits the client module of `service`.
pub(crate) fn emit(service: &Service, rt: &Runtime) -> String {
    let name = &service.names.client;
    let docs = format!("Client for the service `{}`.", service.full_name);
    let items = [client(service), methods(service)].concat();
    rt.module(&service.names.client_module, &docs, name, &items)
}

fn client(service: &Service) -> String {
    let (name, full_name) = (&service.names.client, &service.full_name);
    let docs = emit::docs(
        &service.docs,
        &format!("Client for the service `{full_name}`."),
        &["Calls go through `C`: a `Channel`, or any other `Caller`."],
    );
    let deprecated = emit::deprecated(service.deprecated);
    format!(
        r#"{docs}#[derive(Clone, Debug)]
{deprecated}pub struct {name}<C = $Channel> {{
    caller: C,
}}
"#
    )
}

fn methods(service: &Service) -> String {
    let name = &service.names.client;
    let methods: String = service
        .methods
        .iter()
        .map(|method| call(service, method))
        .collect();
    format!(
        r#"impl<C: $Caller> {name}<C> {{
    /// Creates a client that calls through `caller`.
    pub fn new(caller: C) -> Self {{
        Self {{ caller }}
    }}
{methods}}}
"#
    )
}

fn call(service: &Service, method: &Method) -> String {
    let Method {
        name,
        constant,
        path,
        request,
        request_codec,
        response_codec,
        ..
    } = method;
    let docs = emit::docs(
        &method.docs,
        &format!("Calls `{path}`."),
        &[
            "Returns the server's response.",
            "# Errors",
            "Returns a `CallError` if the server responds with an error status, or if no response arrives.",
        ],
    );
    let deprecated = emit::deprecated(method.deprecated);
    let (constants, response) = (&service.names.methods, emit::response(method));
    format!(
        r#"{docs}{deprecated}pub async fn {name}(
    &self,
    request: impl $IntoRequest<{request}>,
) -> $Result<{response}, $CallError> {{
    self.caller.unary_with(&super::{constants}::{constant}, request.into_request(), ${request_codec}, ${response_codec}).await
}}
"#
    )
}
