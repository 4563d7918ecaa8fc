//! Emits the server half of a service: the two traits, and the value that a `Server` takes.
//!
//! `T: Greeter` implements `LocalGreeter` too, and so both traits have the same methods. Only one
//! of them may be in scope where a service calls its own methods (E0034). `LocalGreeter` is
//! therefore not among the package's [re-exports](crate::generate): a glob import of the package
//! brings in `Greeter` alone, and a service that isn't `Send` names `greeter_server::LocalGreeter`.

use crate::emit::{self, Runtime};
use crate::model::{Method, Service};

/// Emits the server module of `service`.
pub(crate) fn emit(service: &Service, rt: &Runtime) -> String {
    let names = &service.names;
    let docs = format!("Server for the service `{}`.", service.full_name);
    let items = [
        server_trait(service),
        local_trait(service),
        forwarding(service),
        on_executor(service),
        server(service),
        constructors(service),
        derivable(service),
        registration(service),
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
    let docs = emit::docs(
        &service.docs,
        &format!("The service `{}`.", service.full_name),
        &[
            &format!(
                "Write an `async fn` for each method and serve the implementation with [`{server}`]."
            ),
            "If a method returns `Err`, the client receives that status.",
        ],
    );
    let deprecated = emit::deprecated(service.deprecated);
    let methods = trait_methods(service, " + $Send");
    format!("{docs}{deprecated}pub trait {name}: $Send + $Sync + 'static {{\n{methods}}}\n")
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
        format!("{docs}{deprecated}{}{send};\n", signature(method))
    };
    service.methods.iter().map(method).collect()
}

fn forwarding(service: &Service) -> String {
    let (server_trait, local_trait) = (bound(service), &service.names.local_trait);
    let method = |method: &Method| {
        let (name, signature) = (&method.name, signature(method));
        format!("{signature} {{ {server_trait}::{name}(self, request) }}\n")
    };
    let methods: String = service.methods.iter().map(method).collect();
    format!("impl<T: {server_trait}> {local_trait} for T {{\n{methods}}}\n")
}

fn on_executor(service: &Service) -> String {
    let (server_trait, local_trait) = (bound(service), &service.names.local_trait);
    let method = |method: &Method| {
        let (name, request, output) = (&method.name, &method.request, output(method));
        format!(
            r#"async fn {name}(&self, request: $Request<{request}>) -> {output} {{
    let service = self.service();
    self.run(async move {{ {server_trait}::{name}(&*service, request).await }}).await
}}
"#
        )
    };
    let methods: String = service.methods.iter().map(method).collect();
    format!("impl<T: {server_trait}> {local_trait} for $OnExecutor<T> {{\n{methods}}}\n")
}

fn server(service: &Service) -> String {
    let names = &service.names;
    let (name, server_trait, local_trait) =
        (&names.server, &names.server_trait, &names.local_trait);
    let deprecated = emit::deprecated(service.deprecated);
    format!(
        r#"/// Serves an implementation of [`{server_trait}`] or of [`{local_trait}`].
{deprecated}pub struct {name}<T> {{
    instances: $Instances<T>,
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
        Self {{ instances: $Instances::shared(service) }}
    }}
}}
impl<T: {server_trait}> {name}<$OnExecutor<T>> {{
    /// Serves `service` and runs its handlers on `executor`, for example tokio's, instead of on the pollers.
    ///
    /// For handlers that wait for sockets or that compute for long.
    pub fn on_executor(service: T, executor: impl $Executor) -> Self {{
        let service = $OnExecutor::new($Arc::new(service), executor);
        Self {{ instances: $Instances::shared($Arc::new(service)) }}
    }}
}}
impl<T: {local_trait}> {name}<T> {{
    /// Serves one instance per poller. Each poller calls `make` on its own thread.
    ///
    /// The instances share nothing and need not be `Send`.
    pub fn per_poller(make: impl $Fn() -> T + $Send + $Sync + 'static) -> Self {{
        Self {{ instances: $Instances::per_poller(make) }}
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
        Self {{ instances: self.instances.clone() }}
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

fn registration(service: &Service) -> String {
    let (name, full_name) = (&service.names.server, &service.full_name);
    let local_trait = &service.names.local_trait;
    let methods: String = service
        .methods
        .iter()
        .map(|method| register(service, method))
        .collect();
    let (parameter, instance) = match service.methods.as_slice() {
        [] => ("_", ""),
        _ => ("methods", "let instance = self.instances.instance();\n"),
    };
    format!(
        r#"impl<T: {local_trait}> $Service for {name}<T> {{
    fn name(&self) -> &'static str {{
        "{full_name}"
    }}
    fn register(&self, {parameter}: &mut $Methods) {{
        {instance}{methods}
    }}
}}
"#
    )
}

fn register(service: &Service, method: &Method) -> String {
    let Method {
        name,
        constant,
        request_codec,
        response_codec,
        ..
    } = method;
    let (local_trait, constants) = (&service.names.local_trait, &service.names.methods);
    format!(
        r#"{{
    let instance = instance.clone();
    methods.unary_with(&super::{constants}::{constant}, ${request_codec}, ${response_codec}, move |request| {{
        let instance = instance.clone();
        async move {{ {local_trait}::{name}(&*instance, request).await }}
    }});
}}
"#
    )
}

/// Emits the signature of a method in both traits, up to the bounds of the future.
fn signature(method: &Method) -> String {
    let (name, request, output) = (&method.name, &method.request, output(method));
    format!("fn {name}(&self, request: $Request<{request}>) -> impl $Future<Output = {output}>")
}

fn output(method: &Method) -> String {
    format!("$Result<{}, $Status>", emit::response(method))
}
