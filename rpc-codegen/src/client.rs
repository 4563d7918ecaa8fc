//! Emits the client of a service.

use crate::emit::{self, Runtime};
use crate::model::{Kind, Method, Service};

/// Emits the client module of `service`.
pub(crate) fn emit(service: &Service, rt: &Runtime) -> String {
    let name = &service.names.client;
    let module = &service.names.client_module;
    let docs = service.module_docs("Client for", module, &[name]);
    let items = [client(service), methods(service)].concat();
    rt.module(module, &docs, name, &items)
}

fn client(service: &Service) -> String {
    let (name, full_name) = (&service.names.client, &service.full_name);
    let docs = emit::docs(
        &service.docs,
        &format!("Client for the service `{full_name}`."),
        &[
            "Calls go through `C`: a `Channel`, or any other `Caller`. Generic code that spawns calls needs a `SendCaller`.",
            "To mock the server in a test, implement the service and serve it in process.",
        ],
    );
    let deprecated = emit::deprecated(service.deprecated);
    let attributes = &service.client_attributes;
    format!(
        r#"{docs}#[derive(Clone, Debug)]
{deprecated}{attributes}pub struct {name}<C = $Channel> {{
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
        kind,
        request,
        response,
        request_codec,
        response_codec,
        ..
    } = method;
    let docs = emit::docs(&method.docs, &format!("Calls `{path}`."), about(*kind));
    let deprecated = emit::deprecated(method.deprecated);
    let constants = &service.names.methods;
    let call = match kind {
        Kind::Unary => "unary_with",
        Kind::ClientStreaming => "client_streaming_with",
        Kind::ServerStreaming => "server_streaming_with",
        Kind::Streaming => "streaming_with",
    };
    let (argument, convert) = match kind.client_streams() {
        false => (format!("$IntoRequest<{request}>"), "into_request"),
        true => (
            format!("$IntoStreamingRequest<Message = {request}>"),
            "into_streaming_request",
        ),
    };
    let response = match kind.server_streams() {
        false => response.clone(),
        true => format!("$Streaming<{response}>"),
    };
    format!(
        r#"{docs}{deprecated}pub async fn {name}(
    &self,
    request: impl {argument},
) -> $Result<$Response<{response}>, $CallError> {{
    self.caller.{call}(&super::{constants}::{constant}, request.{convert}(), ${request_codec}, ${response_codec}).await
}}
"#
    )
}

/// Returns the paragraphs of documentation that every method of `kind` has.
fn about(kind: Kind) -> &'static [&'static str] {
    const ERRORS: &str = "# Errors";
    const NO_RESPONSE: &str = "Returns a `CallError` if the server responds with an error status, or if no response arrives.";
    const NO_STREAM: &str = "Returns a `CallError` if the call ends before the stream of responses begins. Later errors come from the stream.";
    match kind {
        Kind::Unary => &["Returns the server's response.", ERRORS, NO_RESPONSE],
        Kind::ClientStreaming => &[
            "Sends the messages of `request`, which is any `Stream`: for example the `Messages` of a `Sender`. \
             Returns the server's response, which may arrive before the last message is sent.",
            ERRORS,
            NO_RESPONSE,
        ],
        Kind::ServerStreaming => &[
            "Returns the stream of the server's responses. Dropping it cancels the call.",
            ERRORS,
            NO_STREAM,
        ],
        Kind::Streaming => &[
            "Sends the messages of `request`, which is any `Stream`: for example the `Messages` of a `Sender`. \
             Returns the stream of the server's responses. Dropping it cancels the call.",
            ERRORS,
            NO_STREAM,
        ],
    }
}
