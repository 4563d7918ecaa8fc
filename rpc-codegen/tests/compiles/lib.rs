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
use std::sync::Arc;

use public::clashes::{TraitClient, T};
use public::greeter::greeter_server::LocalGreeter;
use public::greeter::{Greeter, GreeterClient, GreeterServer, HelloReply, HelloRequest};
use public::keywords::{Empty, SelfClient, TypeClient};
use rpc_core::codegen::v1::{CallError, Caller, MethodSpec, Service};
use rpc_core::{Codec, Request, Response, Spawned, Status, Stream, Streaming};

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

/// Both can be served, and the first one on an executor as well, with an instance per poller too.
pub fn servers() -> [Box<dyn Service>; 5] {
    [
        Box::new(GreeterServer::new(Polite)),
        Box::new(GreeterServer::per_poller(Counting::default)),
        Box::new(GreeterServer::new(Polite).executor(drop::<Spawned>)),
        Box::new(GreeterServer::from_arc(Arc::new(Polite)).on_poller()),
        Box::new(GreeterServer::per_poller(|| Polite).executor(drop::<Spawned>)),
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
    async fn unary_with<Q: Codec<Req>, S: Codec<Res>, Req: Send, Res: Send>(
        &self,
        _: &'static MethodSpec,
        _: Request<Req>,
        _: Q,
        _: S,
    ) -> Result<Response<Res>, CallError> {
        std::future::pending().await
    }

    async fn client_streaming_with<Q, S, Req, Res>(
        &self,
        _: &'static MethodSpec,
        _: Request<impl Stream<Item = Req> + Send + 'static>,
        _: Q,
        _: S,
    ) -> Result<Response<Res>, CallError>
    where
        Q: Codec<Req>,
        S: Codec<Res>,
        Req: Send + 'static,
        Res: Send,
    {
        std::future::pending().await
    }

    async fn server_streaming_with<Q: Codec<Req>, S: Codec<Res>, Req: Send, Res: Send>(
        &self,
        _: &'static MethodSpec,
        _: Request<Req>,
        _: Q,
        _: S,
    ) -> Result<Response<Streaming<Res>>, CallError> {
        std::future::pending().await
    }

    async fn streaming_with<Q, S, Req, Res>(
        &self,
        _: &'static MethodSpec,
        _: Request<impl Stream<Item = Req> + Send + 'static>,
        _: Q,
        _: S,
    ) -> Result<Response<Streaming<Res>>, CallError>
    where
        Q: Codec<Req>,
        S: Codec<Res>,
        Req: Send + 'static,
        Res: Send,
    {
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

/// The four kinds of methods.
pub mod streams {
    use std::cell::Cell;
    use std::future::Future;
    use std::pin::Pin;
    use std::rc::Rc;
    use std::task::{Context, Poll};

    use rpc_core::codegen::v1::{CallError, Service};
    use rpc_core::{Request, Response, Spawned, Status, Stream, Streaming, sender, stream};

    use super::public::streams::sink_server::LocalSink;
    use super::public::streams::source_server::LocalSource;
    use super::public::streams::{
        Place, Reading, Sink, SinkClient, SinkServer, Source, SourceClient, SourceServer, Summary,
    };
    use super::public::streams::{Thermometer, ThermometerClient, ThermometerServer};
    use super::{Nowhere, assert_send};

    /// A stream with a name. It yields the items of an iterator.
    #[derive(Debug)]
    pub struct Each<I>(I);

    impl<I: Iterator + Unpin> Stream for Each<I> {
        type Item = I::Item;

        fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<I::Item>> {
            Poll::Ready(self.0.next())
        }
    }

    /// Its streams borrow its readings.
    #[derive(Debug)]
    pub struct Mercury {
        readings: Vec<Reading>,
    }

    impl Thermometer for Mercury {
        async fn read(&self, _: Request<Place>) -> Result<Response<Reading>, Status> {
            Ok(Response::new(self.readings[0]))
        }

        async fn record(&self, request: Request<Streaming<Reading>>) -> Result<Response<Summary>, Status> {
            let mut readings = request.into_inner();
            let mut count = 0;
            while let Ok(Some(_)) = readings.message().await {
                count += 1;
            }
            Ok(Response::new(Summary { count }))
        }

        async fn watch(
            &self,
            _: Request<Place>,
        ) -> Result<Response<impl Stream<Item = Result<Reading, Status>>>, Status> {
            std::future::ready(()).await;
            Ok(Response::new(Each(self.readings.iter().copied().map(Ok))))
        }

        // A loop that sends, and that borrows `self`.
        async fn converse(
            &self,
            request: Request<Streaming<Place>>,
        ) -> Result<Response<impl Stream<Item = Result<Reading, Status>>>, Status> {
            let mut places = request.into_inner();
            Ok(Response::new(stream(async move |mut responses| {
                #[cfg(feature = "stream-not-send")]
                let _not_send = Rc::new(());
                while let Ok(Some(_)) = places.message().await {
                    for reading in &self.readings {
                        responses.send(*reading).await?;
                    }
                }
                Ok(())
            })))
        }

        // `Send` may be written, and the stream may be boxed.
        async fn undocumented(
            &self,
            _: Request<Streaming<Place>>,
        ) -> Result<Response<impl Stream<Item = Result<Reading, Status>> + Send>, Status> {
            let boxed: Pin<Box<dyn Stream<Item = Result<Reading, Status>> + Send>> =
                Box::pin(Each(std::iter::empty()));
            Ok(Response::new(boxed))
        }

        // A stream that fails at once is a way to write a method that always fails.
        #[allow(deprecated)]
        async fn old_watch(
            &self,
            _: Request<Place>,
        ) -> Result<Response<impl Stream<Item = Result<Reading, Status>>>, Status> {
            Ok(Response::new(Each(std::iter::once(Err(Status::unimplemented("gone"))))))
        }

        async fn ticks(
            &self,
            _: Request<()>,
        ) -> Result<Response<impl Stream<Item = Result<rpc_core::codegen::v1::prost_types::Timestamp, Status>>>, Status>
        {
            Ok(Response::new(Each(std::iter::repeat_with(|| Ok(Default::default())))))
        }

        async fn ticked(
            &self,
            _: Request<Streaming<rpc_core::codegen::v1::prost_types::Timestamp>>,
        ) -> Result<Response<()>, Status> {
            Ok(Response::new(()))
        }
    }

    /// Its futures and streams are not `Send`.
    #[derive(Clone, Debug, Default)]
    pub struct Bucket {
        poured: Rc<Cell<u64>>,
    }

    impl LocalSink for Bucket {
        async fn pour(&self, request: Request<Streaming<Reading>>) -> Result<Response<Summary>, Status> {
            let poured = Rc::clone(&self.poured);
            let mut readings = request.into_inner();
            while let Ok(Some(_)) = readings.message().await {
                poured.set(poured.get() + 1);
            }
            Ok(Response::new(Summary { count: poured.get() }))
        }
    }

    impl LocalSource for Bucket {
        async fn draw(
            &self,
            _: Request<Place>,
        ) -> Result<Response<impl Stream<Item = Result<Reading, Status>>>, Status> {
            let poured = Rc::clone(&self.poured);
            Ok(Response::new(stream(move |mut responses| async move {
                while poured.get() > 0 {
                    poured.set(poured.get() - 1);
                    responses.send(Reading::default()).await?;
                }
                Ok(())
            })))
        }
    }

    /// Mocks of two services.
    #[derive(Debug)]
    pub struct Mock;

    impl Sink for Mock {
        async fn pour(&self, _: Request<Streaming<Reading>>) -> Result<Response<Summary>, Status> {
            Err(Status::resource_exhausted("full"))
        }
    }

    impl Source for Mock {
        async fn draw(
            &self,
            _: Request<Place>,
        ) -> Result<Response<impl Stream<Item = Result<Reading, Status>>>, Status> {
            let end = Err(Status::unavailable("dry"));
            Ok(Response::new(Each([Ok(Reading::default()), end].into_iter())))
        }
    }

    /// Each way to serve them.
    pub fn servers() -> [Box<dyn Service>; 7] {
        let mercury = || Mercury { readings: Vec::new() };
        [
            Box::new(ThermometerServer::new(mercury())),
            Box::new(ThermometerServer::per_poller(mercury)),
            Box::new(ThermometerServer::new(mercury()).executor(drop::<Spawned>)),
            Box::new(SinkServer::per_poller(Bucket::default)),
            Box::new(SourceServer::per_poller(Bucket::default)),
            Box::new(SinkServer::new(Mock)),
            Box::new(SourceServer::new(Mock).executor(drop::<Spawned>)),
        ]
    }

    /// The futures and the streams of every implementation are `Send`, without a bound here.
    pub fn every_stream_is_send<T: Thermometer>(thermometer: &T) -> impl Future + Send + '_ {
        assert_send(async move {
            let responses = assert_send(thermometer.watch(Request::new(Place::default()))).await;
            std::future::ready(()).await;
            drop(assert_send(responses));
        })
    }

    /// Calls with streams, with requests of streams and with senders.
    ///
    /// # Errors
    ///
    /// Returns the error of the first call that fails.
    pub async fn call() -> Result<(), CallError> {
        let thermometer = ThermometerClient::new(Nowhere);
        thermometer.read(Place::default()).await?;
        let readings = || Each([Reading::default()].into_iter());
        thermometer.record(readings()).await?;
        thermometer.record(Request::new(readings())).await?;
        let mut watched = thermometer.watch(Place::default()).await?.into_inner();
        while let Some(Reading { .. }) = watched.message().await? {}
        let (mut places, messages) = sender();
        let conversation = thermometer.converse(messages).await?;
        let _ = places.send(Place::default()).await;
        drop(places);
        let _: Option<Reading> = conversation.into_inner().message().await?;
        SinkClient::new(Nowhere).pour(readings()).await?;
        SourceClient::new(Nowhere).draw(Request::new(Place::default())).await?;
        thermometer.ticked(Each(std::iter::empty())).await?;
        Ok(())
    }
}

/// Services may have the names of items that generated code uses.
pub mod names {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use rpc_core::codegen::v1::Service;

    use super::public::names::{self, M, OnExecutorServer, RequestServer, TServer};

    /// Implements three such services.
    #[derive(Debug)]
    pub struct Named;

    impl names::Request for Named {
        async fn go(&self, _: rpc_core::Request<M>) -> Result<rpc_core::Response<M>, rpc_core::Status> {
            Ok(rpc_core::Response::new(M {}))
        }

        async fn talk(
            &self,
            _: rpc_core::Request<rpc_core::Streaming<M>>,
        ) -> Result<rpc_core::Response<impl rpc_core::Stream<Item = Result<M, rpc_core::Status>>>, rpc_core::Status> {
            Ok(rpc_core::Response::new(Never))
        }
    }

    impl names::T for Named {
        async fn go(&self, _: rpc_core::Request<M>) -> Result<rpc_core::Response<M>, rpc_core::Status> {
            Ok(rpc_core::Response::new(M {}))
        }

        async fn talk(
            &self,
            _: rpc_core::Request<rpc_core::Streaming<M>>,
        ) -> Result<rpc_core::Response<impl rpc_core::Stream<Item = Result<M, rpc_core::Status>>>, rpc_core::Status> {
            Ok(rpc_core::Response::new(Never))
        }
    }

    impl names::OnExecutor for Named {
        async fn run(
            &self,
            _: rpc_core::Request<M>,
        ) -> Result<rpc_core::Response<impl rpc_core::Stream<Item = Result<M, rpc_core::Status>>>, rpc_core::Status> {
            Ok(rpc_core::Response::new(Never))
        }

        async fn service(
            &self,
            _: rpc_core::Request<rpc_core::Streaming<M>>,
        ) -> Result<rpc_core::Response<M>, rpc_core::Status> {
            Ok(rpc_core::Response::new(M {}))
        }
    }

    /// A stream that stays silent.
    #[derive(Debug)]
    pub struct Never;

    impl rpc_core::Stream for Never {
        type Item = Result<M, rpc_core::Status>;

        fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
            Poll::Pending
        }
    }

    /// All of them are served.
    pub fn servers() -> [Box<dyn Service>; 4] {
        [
            Box::new(RequestServer::new(Named)),
            Box::new(TServer::new(Named)),
            Box::new(OnExecutorServer::new(Named)),
            Box::new(OnExecutorServer::new(Named).executor(drop::<rpc_core::Spawned>)),
        ]
    }
}
