//! Emits the server half of a service: the two traits and the value that is added to a `Server`.

use crate::emit::{self, Runtime};
use crate::model::{Method, Service};

/// The traits and the server value of `service`.
pub(crate) fn emit(service: &Service, rt: &Runtime) -> String {
    [
        server_trait(service, rt),
        local_trait(service, rt),
        forwarding(service, rt),
        on_executor(service, rt),
        server(service, rt),
    ]
    .concat()
}

fn server_trait(service: &Service, rt: &Runtime) -> String {
    let name = &service.names.server_trait;
    let docs = emit::docs(
        "",
        &service.docs,
        &format!("The service `{}`.", service.full_name),
    );
    let deprecated = emit::deprecated("", service.deprecated);
    let methods = trait_methods(service, rt, " + ::core::marker::Send");
    format!(
        "{docs}{deprecated}pub trait {name}: ::core::marker::Send + ::core::marker::Sync + 'static {{\n{methods}}}\n"
    )
}

fn local_trait(service: &Service, rt: &Runtime) -> String {
    let name = &service.names.local_trait;
    let server_trait = &service.names.server_trait;
    let server = &service.names.server;
    let methods = trait_methods(service, rt, "");
    format!(
        "/// [`{server_trait}`] without `Send`, for a service that stays on one poller: see [`{server}::per_poller`].\n\
         ///\n\
         /// Every [`{server_trait}`] is one of these, so bring only one of the two into scope where methods are called.\n\
         pub trait {name}: 'static {{\n{methods}}}\n"
    )
}

fn trait_methods(service: &Service, rt: &Runtime, send: &str) -> String {
    let method = |method: &Method| {
        let Method { name, path, .. } = method;
        let docs = emit::docs("    ", &method.docs, &format!("The method `{path}`."));
        let deprecated = emit::deprecated("    ", method.deprecated);
        let (request, output) = (rt.request(method), output(method, rt));
        format!(
            "{docs}{deprecated}    fn {name}(\n        &self,\n        request: {request},\n    ) -> impl ::core::future::Future<Output = {output}>{send};\n"
        )
    };
    service.methods.iter().map(method).collect()
}

fn forwarding(service: &Service, rt: &Runtime) -> String {
    let (server_trait, local_trait) = (&service.names.server_trait, &service.names.local_trait);
    let method = |method: &Method| {
        let (name, request, output) = (&method.name, rt.request(method), output(method, rt));
        format!(
            "    fn {name}(\n        &self,\n        request: {request},\n    ) -> impl ::core::future::Future<Output = {output}> {{\n        \
             <T as self::{server_trait}>::{name}(self, request)\n    }}\n"
        )
    };
    let methods: String = service.methods.iter().map(method).collect();
    format!("impl<T: self::{server_trait}> self::{local_trait} for T {{\n{methods}}}\n")
}

fn on_executor(service: &Service, rt: &Runtime) -> String {
    let (server_trait, local_trait) = (&service.names.server_trait, &service.names.local_trait);
    let method = |method: &Method| {
        let (name, request, output) = (&method.name, rt.request(method), output(method, rt));
        format!(
            r#"    async fn {name}(&self, request: {request}) -> {output} {{
        let service = self.service();
        self.run(async move {{ <T as self::{server_trait}>::{name}(&*service, request).await }}).await
    }}
"#
        )
    };
    let methods: String = service.methods.iter().map(method).collect();
    let rt = &rt.path;
    format!(
        "impl<T: self::{server_trait}> self::{local_trait} for {rt}::OnExecutor<T> {{\n{methods}}}\n"
    )
}

fn server(service: &Service, rt: &Runtime) -> String {
    let (server_trait, local_trait) = (&service.names.server_trait, &service.names.local_trait);
    let (name, full_name) = (&service.names.server, &service.full_name);
    let deprecated = emit::deprecated("", service.deprecated);
    let registrations = registrations(service, rt);
    let rt = &rt.path;
    format!(
        r#"/// Serves an implementation of [`{server_trait}`] or of [`{local_trait}`].
{deprecated}pub struct {name}<T> {{
    instances: {rt}::Instances<T>,
}}
impl<T: self::{server_trait}> {name}<T> {{
    /// Serves `service`; all pollers share it.
    pub fn new(service: T) -> Self {{
        Self::from_arc(::std::sync::Arc::new(service))
    }}
    /// Serves a service that the caller keeps a hold of.
    pub fn from_arc(service: ::std::sync::Arc<T>) -> Self {{
        Self {{ instances: {rt}::Instances::shared(service) }}
    }}
}}
impl<T: self::{server_trait}> {name}<{rt}::OnExecutor<T>> {{
    /// Serves a service whose handlers run on `executor`, such as tokio's, and not on the pollers: for those that wait
    /// for sockets, or that compute for long.
    pub fn on_executor(service: T, executor: impl {rt}::Executor) -> Self {{
        let service = {rt}::OnExecutor::new(::std::sync::Arc::new(service), executor);
        Self {{ instances: {rt}::Instances::shared(::std::sync::Arc::new(service)) }}
    }}
}}
impl<T: self::{local_trait}> {name}<T> {{
    /// Serves a service of its own on each poller, made there by `make`: it need not be `Send`, and shares nothing.
    pub fn per_poller(
        make: impl ::core::ops::Fn() -> T + ::core::marker::Send + ::core::marker::Sync + 'static,
    ) -> Self {{
        Self {{ instances: {rt}::Instances::per_poller(make) }}
    }}
}}
impl<T> ::core::clone::Clone for {name}<T> {{
    fn clone(&self) -> Self {{
        Self {{ instances: ::core::clone::Clone::clone(&self.instances) }}
    }}
}}
impl<T> ::core::fmt::Debug for {name}<T> {{
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {{
        f.debug_struct("{name}").finish_non_exhaustive()
    }}
}}
impl<T: self::{local_trait}> {rt}::Service for {name}<T> {{
    fn name(&self) -> &'static str {{
        "{full_name}"
    }}
    fn register(&self, methods: &mut {rt}::Methods) {{
{registrations}    }}
}}
"#
    )
}

fn registrations(service: &Service, rt: &Runtime) -> String {
    if service.methods.is_empty() {
        return "        let _ = methods;\n".to_owned();
    }
    let (local_trait, specs) = (&service.names.local_trait, &service.names.methods);
    let method = |method: &Method| {
        let Method { name, constant, .. } = method;
        let request = rt.request(method);
        format!(
            r#"        {{
            let instance = ::core::clone::Clone::clone(&instance);
            methods.unary(&self::{specs}::{constant}, move |request: {request}| {{
                let instance = ::core::clone::Clone::clone(&instance);
                async move {{ <T as self::{local_trait}>::{name}(&*instance, request).await }}
            }});
        }}
"#
        )
    };
    let methods: String = service.methods.iter().map(method).collect();
    format!("        let instance = self.instances.instance();\n{methods}")
}

fn output(method: &Method, rt: &Runtime) -> String {
    format!(
        "::core::result::Result<{}, {}::Status>",
        rt.response(method),
        rt.path
    )
}
