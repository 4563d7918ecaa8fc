//! A crate of a user who has every lint on that generated code might trip over. `tests/compiles.rs` puts it together.
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
use public::greeter::{Greeter, GreeterClient, GreeterServer, HelloReply, HelloRequest, LocalGreeter};
use public::keywords::{Empty, SelfClient, TypeClient};
use rpc_core::codegen::v1::{CallError, Caller, MethodSpec, Service, prost};
use rpc_core::Spawned;
use rpc_core::{Request, Response, Status};

/// Every package, for all to see.
pub mod public {
    include!("../generated/packages.rs");
}

/// Every package, and nobody uses most of it.
mod private {
    include!("../generated/packages.rs");
}

/// A service as most are.
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

/// A service that stays on its thread.
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

/// Both can be served, and one of them away from the pollers.
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

/// Whatever implements the trait, its futures are `Send`: no bound is written here.
pub fn every_handler_is_send<G: Greeter>(greeter: &G) -> impl Future + Send + '_ {
    assert_send(greeter.say_hello(Request::new(HelloRequest::default())))
}

/// Goes nowhere.
#[derive(Clone, Debug)]
pub struct Nowhere;

impl Caller for Nowhere {
    async fn unary<Req: prost::Message, Res: prost::Message + Default>(
        &self,
        _: &'static MethodSpec,
        _: Request<Req>,
    ) -> Result<Response<Res>, CallError> {
        std::future::pending().await
    }
}

/// Messages and requests alike, and names that had to be changed.
///
/// # Errors
///
/// Those of the calls.
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

/// What is known of a method without calling it.
pub fn described() -> bool {
    let spec = &public::services::reader_methods::GET;
    let private = &private::services::writer_methods::GET;
    spec.path == "services.Reader/Get" && private.path == "services.Writer/Get"
}
