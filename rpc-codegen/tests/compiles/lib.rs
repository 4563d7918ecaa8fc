//! A user's crate, which denies the lints that generated code may trigger. `tests/compiles.rs`
//! builds it.
#![deny(
    warnings,
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    elided_lifetimes_in_paths,
    unused_qualifications,
    nonstandard_style,
    rust_2018_idioms,
    future_incompatible
)]
#![forbid(unsafe_code)]

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

use public::clashes::{TraitClient, T};
use public::greeter::greeter_server::LocalGreeter;
use public::greeter::{Greeter, GreeterClient, GreeterServer, HelloReply, HelloRequest};
use public::keywords::{Empty, SelfClient, TypeClient};
use rpc_core::codegen::v1::{CallError, Caller, MethodSpec, Service};
use rpc_core::Spawned;
use rpc_core::{Codec, Request, Response, Status};

/// Every package, in a public module.
pub mod public {
    include!("../generated/packages.rs");
}

/// Every package, in a private module where most items are unused.
mod private {
    include!("../generated/packages.rs");
}

/// An ordinary service.
#[derive(Debug)]
pub struct Polite;

impl Greeter for Polite {
    async fn say_hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        #[cfg(feature = "not-send")]
        let _not_send = Rc::new(());
        std::future::ready(()).await;
        let HelloRequest { name } = request.into_inner();
        Ok(Response::new(HelloReply { message: format!("Hello, {name}!") }))
    }
}

/// A service that is not `Send`.
#[derive(Debug, Default)]
pub struct Counting {
    calls: Rc<Cell<u64>>,
}

impl LocalGreeter for Counting {
    async fn say_hello(&self, _: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        let calls = Rc::clone(&self.calls);
        std::future::ready(()).await;
        calls.set(calls.get() + 1);
        Ok(Response::new(HelloReply { message: calls.get().to_string() }))
    }
}

/// Both can be served, and the first one on an executor as well.
pub fn servers() -> [Box<dyn Service>; 3] {
    [
        Box::new(GreeterServer::new(Polite)),
        Box::new(GreeterServer::per_poller(Counting::default)),
        Box::new(GreeterServer::on_executor(Polite, drop::<Spawned>)),
    ]
}

fn assert_send<T: Send>(value: T) -> T {
    value
}

/// The futures of every implementation are `Send`, without a bound here.
pub fn every_handler_is_send<G: Greeter>(greeter: &G) -> impl Future + Send + '_ {
    assert_send(greeter.say_hello(Request::new(HelloRequest::default())))
}

/// A caller whose calls never end.
#[derive(Clone, Debug)]
pub struct Nowhere;

impl Caller for Nowhere {
    async fn unary_with<Q: Codec<Req>, S: Codec<Res>, Req, Res>(
        &self,
        _: &'static MethodSpec,
        _: Request<Req>,
        _: Q,
        _: S,
    ) -> Result<Response<Res>, CallError> {
        std::future::pending().await
    }
}

/// Calls with messages and with requests, and methods whose names are changed.
///
/// # Errors
///
/// Returns the error of the first call that fails.
pub async fn call() -> Result<(), CallError> {
    let greeter = GreeterClient::new(Nowhere).clone();
    greeter.say_hello(HelloRequest::default()).await?;
    greeter.say_hello(Request::new(HelloRequest::default())).await?;
    let keywords = TypeClient::new(Nowhere);
    keywords.r#type(Empty {}).await?;
    keywords.r#move(Empty {}).await?;
    keywords.r#async(Empty {}).await?;
    keywords.r#gen(Empty {}).await?;
    keywords.self_(Empty {}).await?;
    keywords.crate_(Empty {}).await?;
    SelfClient::new(Nowhere).self_(Empty {}).await?;
    let clashes = TraitClient::new(Nowhere);
    clashes.new_(T {}).await?;
    clashes.clone_(T {}).await?;
    clashes.into_(T {}).await?;
    Ok(())
}

/// The descriptions of methods.
pub fn described() -> bool {
    let spec = &public::services::reader_methods::GET;
    let private = &private::services::writer_methods::GET;
    spec.path == "services.Reader/Get" && private.path == "services.Writer/Get"
}

/// After a glob import, calls of a service's methods are not ambiguous (E0034).
pub mod glob {
    use rpc_core::codegen::v1::Service;
    use rpc_core::{Request, Response, Status};

    use super::Polite;
    use super::public::greeter::*;
    use super::public::services::*;

    /// Calls a method of a service without a server.
    ///
    /// # Errors
    ///
    /// Returns the status of the method.
    pub async fn greet() -> Result<Response<HelloReply>, Status> {
        Polite.say_hello(Request::new(HelloRequest::default())).await
    }

    /// One type for two services, which both have a method `get`. It calls its own methods.
    #[derive(Clone, Debug)]
    pub struct Store;

    impl Reader for Store {
        async fn get(&self, _: Request<Key>) -> Result<Response<Value>, Status> {
            Ok(Response::new(Value::default()))
        }

        async fn has(&self, request: Request<Key>) -> Result<Response<Value>, Status> {
            Reader::get(self, request).await
        }
    }

    impl Writer for Store {
        async fn get(&self, _: Request<Value>) -> Result<Response<Key>, Status> {
            self.has(Request::new(Key::default())).await?;
            Ok(Response::new(Key::default()))
        }

        async fn put(&self, request: Request<Value>) -> Result<Response<Key>, Status> {
            Writer::get(self, request).await
        }

        #[allow(deprecated)]
        async fn old_put(&self, request: Request<Value>) -> Result<Response<Key>, Status> {
            self.put(request).await
        }
    }

    /// Both services are served.
    pub fn servers() -> [Box<dyn Service>; 2] {
        [Box::new(ReaderServer::new(Store)), Box::new(WriterServer::new(Store))]
    }
}

/// Services may have the names of items that generated code uses.
pub mod names {
    use rpc_core::codegen::v1::Service;

    use super::public::names::{self, M, RequestServer, TServer};

    /// Implements two such services.
    #[derive(Debug)]
    pub struct Named;

    impl names::Request for Named {
        async fn go(&self, _: rpc_core::Request<M>) -> Result<rpc_core::Response<M>, rpc_core::Status> {
            Ok(rpc_core::Response::new(M {}))
        }
    }

    impl names::T for Named {
        async fn go(&self, _: rpc_core::Request<M>) -> Result<rpc_core::Response<M>, rpc_core::Status> {
            Ok(rpc_core::Response::new(M {}))
        }
    }

    /// Both are served.
    pub fn servers() -> [Box<dyn Service>; 2] {
        [Box::new(RequestServer::new(Named)), Box::new(TServer::new(Named))]
    }
}
