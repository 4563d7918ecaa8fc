//! Emits the server half of a service: the two traits, and the value that a `Server` takes.
//!
//! `T: Greeter` implements `LocalGreeter` too, and so both traits have the same methods. Only one
//! of them may be in scope where a service calls its own methods (E0034). `LocalGreeter` is
//! therefore not among the package's [re-exports](crate::generate): a glob import of the package
//! brings in `Greeter` alone, and a service that isn't `Send` names `greeter_server::LocalGreeter`.
//!
//! Two functions register the methods of a service: one for handlers on the poller, for any
//! `LocalGreeter`, and one for handlers on an executor, for a `Greeter`. The constructors that know
//! `T: Greeter` give the second to the runtime's `Registration`, which chooses between the two.
//!
//! A stream of responses may borrow the service. The future of a call owns the service, creates the
//! stream and sends it (`send_all`), so the stream does not outlive the service. On an executor, all
//! of this happens there.

use crate::emit::{self, Runtime};
use crate::model::{Kind, Method, Service};

/// Emits the server module of `service`.
pub(crate) fn emit(service: &Service, rt: &Runtime) -> String {
    let names = &service.names;
    let items = [names.server_trait.as_str(), &names.server];
    let docs = service.module_docs("Server for", &names.server_module, &items);
    let items = [
        server_trait(service),
        local_trait(service),
        forwarding(service),
        server(service),
        constructors(service),
        derivable(service),
        implementation(service),
        on_poller(service),
        on_executor(service),
    ]
    .concat();
    rt.module(&names.server_module, &docs, &names.server_trait, &items)
}

/// Returns the path of the service's trait where a generic parameter `T` is in scope.
fn bound(service: &Service) -> &str {
    match service.names.server_trait.as_str() {
        "T" => "self::T",
        name => name,
    }
}

fn server_trait(service: &Service) -> String {
    let (name, server) = (&service.names.server_trait, &service.names.server);
    let implement = format!(
        "Write an `async fn` for each method and serve the implementation with [`{server}`]."
    );
    let mut more = vec![
        implement.as_str(),
        "If a method returns `Err`, the client receives that status.",
    ];
    if service.default_stubs {
        more.push("A method that is not implemented answers with `UNIMPLEMENTED`.");
    }
    if service.methods.iter().any(|it| it.kind.server_streams()) {
        more.push(match service.arc_self {
            false => "A method that streams responses returns an `impl Stream`, which may borrow from `self`. \
                      If the stream yields an `Err`, the call ends with that status.",
            true => "A method that streams responses returns an `impl Stream`. \
                     If the stream yields an `Err`, the call ends with that status.",
        });
    }
    let docs = emit::docs(
        &service.docs,
        &format!("The service `{}`.", service.full_name),
        &more,
    );
    let deprecated = emit::deprecated(service.deprecated);
    let methods = trait_methods(service, " + $Send");
    let attributes = &service.trait_attributes;
    format!(
        "{docs}{deprecated}{attributes}pub trait {name}: $Send + $Sync + 'static {{\n{methods}}}\n"
    )
}

fn local_trait(service: &Service) -> String {
    let names = &service.names;
    let (name, server_trait, server) = (&names.local_trait, &names.server_trait, &names.server);
    let methods = trait_methods(service, "");
    format!(
        r#"/// [`{server_trait}`] without `Send`, for a service that stays on one poller: see [`{server}::per_poller`].
///
/// Every `{server_trait}` implements this trait as well. Import only one of the two where you call their methods.
pub trait {name}: 'static {{
{methods}}}
"#
    )
}

fn trait_methods(service: &Service, send: &str) -> String {
    let method = |method: &Method| {
        let docs = emit::docs(&method.docs, &format!("Handles `{}`.", method.path), &[]);
        let deprecated = emit::deprecated(method.deprecated);
        let signature = signature(service, method, send);
        let body = match service.default_stubs {
            true => default_body(method),
            false => ";".to_owned(),
        };
        format!("{docs}{deprecated}{signature}{body}\n")
    };
    service.methods.iter().map(method).collect()
}

/// Emits a body that answers with `UNIMPLEMENTED`. A stream of responses needs a type, although there
/// is none.
fn default_body(method: &Method) -> String {
    let (path, response) = (&method.path, &method.response);
    let error = match method.kind.server_streams() {
        false => "Err".to_owned(),
        true => format!("Err::<$Response<$BoxStream<{response}>>, $Status>"),
    };
    format!(
        " {{\nlet _ = request;\nasync {{ {error}($Status::unimplemented(\"{path} is not implemented\")) }}\n}}"
    )
}

fn forwarding(service: &Service) -> String {
    let (server_trait, local_trait) = (bound(service), &service.names.local_trait);
    let method = |method: &Method| {
        let (name, signature) = (&method.name, signature(service, method, ""));
        format!("{signature} {{ {server_trait}::{name}(self, request) }}\n")
    };
    let methods: String = service.methods.iter().map(method).collect();
    format!("impl<T: {server_trait}> {local_trait} for T {{\n{methods}}}\n")
}

fn server(service: &Service) -> String {
    let names = &service.names;
    let (name, server_trait, local_trait) =
        (&names.server, &names.server_trait, &names.local_trait);
    let deprecated = emit::deprecated(service.deprecated);
    let attributes = &service.server_attributes;
    format!(
        r#"/// Serves an implementation of [`{server_trait}`] or of [`{local_trait}`].
{deprecated}{attributes}pub struct {name}<T> {{
    registration: $Registration<T>,
}}
"#
    )
}

fn constructors(service: &Service) -> String {
    let (server_trait, local_trait) = (bound(service), &service.names.local_trait);
    let name = &service.names.server;
    format!(
        r#"impl<T: {server_trait}> {name}<T> {{
    /// Serves `service`, which all pollers share.
    pub fn new(service: T) -> Self {{
        Self::from_arc($Arc::new(service))
    }}
    /// Serves a service to which the caller keeps a reference.
    pub fn from_arc(service: $Arc<T>) -> Self {{
        Self {{ registration: $Registration::shared(service, on_executor) }}
    }}
    /// Runs the handlers on `executor`, for example tokio's, instead of on the pollers or the server's executor.
    ///
    /// For handlers that wait for sockets or that compute for long.
    pub fn executor(self, executor: impl $Executor) -> Self {{
        Self {{ registration: self.registration.executor(executor, on_executor) }}
    }}
}}
impl<T: {local_trait}> {name}<T> {{
    /// Serves one instance per poller. Each poller calls `make` on its own thread.
    ///
    /// The instances share nothing and need not be `Send`. Their handlers run on the pollers, even if the server has an executor.
    pub fn per_poller(make: impl $Fn() -> T + $Send + $Sync + 'static) -> Self {{
        Self {{ registration: $Registration::per_poller(make) }}
    }}
    /// Runs the handlers on the pollers, even if the server has an executor.
    pub fn on_poller(self) -> Self {{
        Self {{ registration: self.registration.on_poller() }}
    }}
    /// Adds an interceptor of the calls of this service. It begins after those of the server and those added before.
    pub fn interceptor(self, interceptor: impl $Interceptor) -> Self {{
        Self {{ registration: self.registration.interceptor(interceptor) }}
    }}
}}
"#
    )
}

/// Emits `Clone` and `Debug`, written out because a `derive` would require them of `T`.
fn derivable(service: &Service) -> String {
    let name = &service.names.server;
    format!(
        r#"impl<T> $Clone for {name}<T> {{
    fn clone(&self) -> Self {{
        Self {{ registration: self.registration.clone() }}
    }}
}}
impl<T> $fmt::Debug for {name}<T> {{
    fn fmt(&self, f: &mut $fmt::Formatter<'_>) -> $fmt::Result {{
        f.debug_struct("{name}").finish_non_exhaustive()
    }}
}}
"#
    )
}

/// Emits the implementation of `Service`.
fn implementation(service: &Service) -> String {
    let (name, local_trait) = (&service.names.server, &service.names.local_trait);
    let full_name = &service.full_name;
    let descriptor_set = service.descriptor_set.as_ref().map(|name| {
        format!("fn descriptor_set(&self) -> $Option<&'static [u8]> {{\nSome(super::{name})\n}}\n")
    });
    let descriptor_set = descriptor_set.unwrap_or_default();
    format!(
        r#"impl<T: {local_trait}> $Service for {name}<T> {{
    fn name(&self) -> &'static str {{
        "{full_name}"
    }}
    fn register(&self, methods: &mut $Methods) {{
        self.registration.register(methods, on_poller);
    }}
    {descriptor_set}}}
"#
    )
}

/// Emits the registration of handlers that run on the poller.
fn on_poller(service: &Service) -> String {
    let local_trait = &service.names.local_trait;
    let head = format!("fn on_poller<T: {local_trait}>(instance: $Instance<T>");
    registration(service, &head, |method| {
        let instance = if service.arc_self {
            "instance.arc()"
        } else {
            "&*instance"
        };
        format!("{}.await", outcome(local_trait, method, instance))
    })
}

/// Emits the registration of handlers that run on an executor.
fn on_executor(service: &Service) -> String {
    let server_trait = bound(service);
    let head = format!("fn on_executor<T: {server_trait}>(instance: $Instance<$OnExecutor<T>>");
    registration(service, &head, |method| {
        let this = if service.arc_self {
            "service"
        } else {
            "&*service"
        };
        let outcome = outcome(server_trait, method, this);
        let (register, parameters) = registered(method.kind);
        let run = register.trim_end_matches("_with");
        let argument = match method.kind.server_streams() {
            false => parameters.to_owned(),
            true => format!("({parameters})"),
        };
        let (constants, constant) = (&service.names.methods, &method.constant);
        let (request_codec, response_codec) = (&method.request_codec, &method.response_codec);
        format!(
            "instance.{run}(&super::{constants}::{constant}, ${request_codec}, ${response_codec}, {argument}, \
             |service, {argument}| async move {{ {outcome}.await }}).await"
        )
    })
}

/// Emits the future of a call's outcome, which sends the stream of responses if there is one.
/// `receiver` is the method's first argument.
fn outcome(service_trait: &str, method: &Method, receiver: &str) -> String {
    let call = format!("{service_trait}::{}({receiver}, request)", method.name);
    match method.kind.server_streams() {
        false => call,
        true => format!("responses.send_all({call}.await)"),
    }
}

/// Emits the function that begins with `head` and registers all methods. `handler` emits the body of
/// a call's future, in which `instance` is the poller's instance of the service.
fn registration(service: &Service, head: &str, handler: impl Fn(&Method) -> String) -> String {
    let methods: String = service
        .methods
        .iter()
        .map(|method| register(service, method, &handler(method)))
        .collect();
    let (head, parameter) = match service.methods.as_slice() {
        [] => (head.replace("(instance", "(_"), "_"),
        _ => (head.to_owned(), "methods"),
    };
    format!("{head}, {parameter}: &mut $Methods) {{\n{methods}}}\n")
}

/// Returns the function of `Methods` that registers a method of this kind, and the parameters of its
/// handler.
fn registered(kind: Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::Unary => ("unary_with", "request"),
        Kind::ClientStreaming => ("client_streaming_with", "request"),
        Kind::ServerStreaming => ("server_streaming_with", "request, responses"),
        Kind::Streaming => ("streaming_with", "request, responses"),
    }
}

fn register(service: &Service, method: &Method, handler: &str) -> String {
    let Method {
        constant,
        kind,
        request_codec,
        response_codec,
        ..
    } = method;
    let constants = &service.names.methods;
    let (register, parameters) = registered(*kind);
    format!(
        r#"{{
    let instance = instance.clone();
    methods.{register}(&super::{constants}::{constant}, ${request_codec}, ${response_codec}, move |{parameters}| {{
        let instance = instance.clone();
        async move {{ {handler} }}
    }});
}}
"#
    )
}

/// Emits the signature of a method in both traits. `send` is the last bound of its futures and
/// streams.
fn signature(service: &Service, method: &Method, send: &str) -> String {
    let Method {
        name,
        kind,
        request,
        response,
        ..
    } = method;
    let request = match kind.client_streams() {
        false => request.clone(),
        true => format!("$Streaming<{request}>"),
    };
    let response = match kind.server_streams() {
        false => response.clone(),
        true => format!("impl $Stream<Item = $Result<{response}, $Status>>{send}"),
    };
    let receiver = if service.arc_self {
        "self: $Arc<Self>"
    } else {
        "&self"
    };
    format!(
        "fn {name}({receiver}, request: $Request<{request}>) \
         -> impl $Future<Output = $Result<$Response<{response}>, $Status>>{send}"
    )
}
