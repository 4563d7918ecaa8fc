//! Generic code spawns calls through a [`SendCaller`], and through a wrapper that implements
//! [`Caller`] for any caller.

use std::thread::{self, JoinHandle};

use proto::routeguide::{
    Feature, Point, Rectangle, RouteGuide, RouteGuideClient, RouteGuideServer, RouteNote,
    RouteSummary, route_guide_methods,
};
use rpc_core::codegen::v1::{CallError, Caller};
use rpc_core::{
    Channel, Codec, LocalPoller, MethodSpec, Request, Response, SendCaller, Server, ServerHandle,
    Status, Stream, Streaming, block_on, sender, stream,
};
use rpc_transport_verbs::Device;

/// Answers each point, area and note with the name that the caller gave in its metadata.
struct Guide;

fn caller_of<T>(request: &Request<T>) -> String {
    let name = request.metadata().get("caller");
    name.unwrap_or("nobody").to_owned()
}

fn named(name: &str) -> Feature {
    Feature {
        name: name.to_owned(),
        location: None,
    }
}

impl RouteGuide for Guide {
    async fn get_feature(&self, request: Request<Point>) -> Result<Response<Feature>, Status> {
        Ok(Response::new(named(&caller_of(&request))))
    }

    async fn list_features(
        &self,
        request: Request<Rectangle>,
    ) -> Result<Response<impl Stream<Item = Result<Feature, Status>>>, Status> {
        let name = caller_of(&request);
        Ok(Response::new(stream(async move |mut responses| {
            responses.send(named(&name)).await?;
            Ok(())
        })))
    }

    async fn record_route(
        &self,
        request: Request<Streaming<Point>>,
    ) -> Result<Response<RouteSummary>, Status> {
        let mut points = request.into_inner();
        let mut summary = RouteSummary::default();
        while points.message().await?.is_some() {
            summary.point_count += 1;
        }
        Ok(Response::new(summary))
    }

    async fn route_chat(
        &self,
        request: Request<Streaming<RouteNote>>,
    ) -> Result<Response<impl Stream<Item = Result<RouteNote, Status>>>, Status> {
        let mut notes = request.into_inner();
        Ok(Response::new(stream(async move |mut responses| {
            while let Some(note) = notes.message().await? {
                responses.send(note).await?;
            }
            Ok(())
        })))
    }
}

fn served() -> (Device, ServerHandle) {
    let device = Device::open("soft").unwrap();
    let server = Server::builder(&device)
        .add_service(RouteGuideServer::new(Guide))
        .bind("127.0.0.1:0")
        .unwrap()
        .spawn();
    (device, server)
}

/// Stands for the executor of a runtime with several threads.
fn spawn<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    thread::spawn(move || block_on(future))
}

type Outcome<T> = Result<T, CallError>;

/// A call of each kind.
struct Spawned {
    unary: JoinHandle<Outcome<Feature>>,
    server_streaming: JoinHandle<Outcome<Vec<Feature>>>,
    client_streaming: JoinHandle<Outcome<RouteSummary>>,
    both: JoinHandle<Outcome<Vec<RouteNote>>>,
}

/// Spawns a call of each kind. Only the bound says that the futures are `Send`.
fn spawn_each_kind<C: SendCaller + Clone + 'static>(guide: &RouteGuideClient<C>) -> Spawned {
    let unary = guide.clone();
    let server_streaming = guide.clone();
    let client_streaming = guide.clone();
    let both = guide.clone();
    Spawned {
        unary: spawn(async move { Ok(unary.get_feature(Point::default()).await?.into_inner()) }),
        server_streaming: spawn(async move {
            let area = Rectangle::default();
            all(server_streaming.list_features(area).await?.into_inner()).await
        }),
        client_streaming: spawn(async move {
            let (mut points, route) = sender();
            let call = spawn(async move { client_streaming.record_route(route).await });
            points.send(Point::default()).await.unwrap();
            points.send(Point::default()).await.unwrap();
            drop(points);
            Ok(call.join().unwrap()?.into_inner())
        }),
        both: spawn(async move {
            let (mut notes, messages) = sender();
            let echoes = both.route_chat(messages).await?.into_inner();
            notes.send(RouteNote::default()).await.unwrap();
            drop(notes);
            all(echoes).await
        }),
    }
}

/// Spawns a call without a generated client, through a method of `Caller`.
fn spawn_by_hand<C: SendCaller + 'static>(caller: C) -> JoinHandle<Outcome<Feature>> {
    spawn(async move {
        let request = Request::new(Point::default());
        let response = caller.unary(&route_guide_methods::GET_FEATURE, request);
        Ok(response.await?.into_inner())
    })
}

async fn all<T>(mut messages: Streaming<T>) -> Outcome<Vec<T>> {
    let mut all = Vec::new();
    while let Some(message) = messages.message().await? {
        all.push(message);
    }
    Ok(all)
}

#[test]
fn generic_code_spawns_calls_of_each_kind() {
    let (device, server) = served();
    let address = server.local_addr().to_string();
    let channel = block_on(Channel::connect(&device, &address)).unwrap();
    let by_hand = spawn_by_hand(channel.clone());
    assert_eq!(by_hand.join().unwrap().unwrap().name, "nobody");
    let guide = RouteGuideClient::new(channel);
    let calls = spawn_each_kind(&guide);
    assert_eq!(calls.unary.join().unwrap().unwrap().name, "nobody");
    let features = calls.server_streaming.join().unwrap().unwrap();
    assert_eq!(features, [named("nobody")]);
    let summary = calls.client_streaming.join().unwrap().unwrap();
    assert_eq!(summary.point_count, 2);
    assert_eq!(calls.both.join().unwrap().unwrap(), [RouteNote::default()]);
    drop(guide);
    server.shutdown().unwrap();
}

/// A wrapper that says who calls, for callers of both sorts.
#[derive(Clone)]
struct Auth<C>(C);

fn signed<T>(mut request: Request<T>) -> Request<T> {
    request.metadata_mut().insert("caller", "Ada").unwrap();
    request
}

impl<C: Caller> Caller for Auth<C> {
    async fn unary_with<Q: Codec<Req>, S: Codec<Res>, Req: Send, Res: Send>(
        &self,
        method: &'static MethodSpec,
        request: Request<Req>,
        request_codec: Q,
        response_codec: S,
    ) -> Outcome<Response<Res>> {
        let request = signed(request);
        let call = self
            .0
            .unary_with(method, request, request_codec, response_codec);
        call.await
    }

    async fn client_streaming_with<Q, S, Req, Res>(
        &self,
        method: &'static MethodSpec,
        request: Request<impl Stream<Item = Req> + Send + 'static>,
        request_codec: Q,
        response_codec: S,
    ) -> Outcome<Response<Res>>
    where
        Q: Codec<Req>,
        S: Codec<Res>,
        Req: Send + 'static,
        Res: Send,
    {
        let (caller, request) = (&self.0, signed(request));
        let call = caller.client_streaming_with(method, request, request_codec, response_codec);
        call.await
    }

    async fn server_streaming_with<Q: Codec<Req>, S: Codec<Res>, Req: Send, Res: Send>(
        &self,
        method: &'static MethodSpec,
        request: Request<Req>,
        request_codec: Q,
        response_codec: S,
    ) -> Outcome<Response<Streaming<Res>>> {
        let (caller, request) = (&self.0, signed(request));
        let call = caller.server_streaming_with(method, request, request_codec, response_codec);
        call.await
    }

    async fn streaming_with<Q, S, Req, Res>(
        &self,
        method: &'static MethodSpec,
        request: Request<impl Stream<Item = Req> + Send + 'static>,
        request_codec: Q,
        response_codec: S,
    ) -> Outcome<Response<Streaming<Res>>>
    where
        Q: Codec<Req>,
        S: Codec<Res>,
        Req: Send + 'static,
        Res: Send,
    {
        let (caller, request) = (&self.0, signed(request));
        let call = caller.streaming_with(method, request, request_codec, response_codec);
        call.await
    }
}

/// Spawns calls through a wrapper, for any caller that can be spawned.
fn spawn_wrapped<C: SendCaller + 'static>(
    guide: RouteGuideClient<Auth<C>>,
) -> JoinHandle<(Outcome<Feature>, Outcome<Vec<Feature>>)> {
    spawn(async move {
        let feature = guide.get_feature(Point::default()).await;
        let features = match guide.list_features(Rectangle::default()).await {
            Ok(features) => all(features.into_inner()).await,
            Err(error) => Err(error),
        };
        (feature.map(Response::into_inner), features)
    })
}

#[test]
fn calls_through_a_wrapper_are_spawned_and_stay_on_a_poller() {
    let (device, server) = served();
    let address = server.local_addr().to_string();
    let channel = block_on(Channel::connect(&device, &address)).unwrap();
    let (feature, features) = spawn_wrapped(RouteGuideClient::new(Auth(channel)))
        .join()
        .unwrap();
    assert_eq!(feature.unwrap().name, "Ada");
    assert_eq!(features.unwrap(), [named("Ada")]);

    // The same wrapper around a channel that stays on its thread.
    let poller = LocalPoller::new(&device).unwrap();
    let local = RouteGuideClient::new(Auth(poller.connect(&address).unwrap()));
    let feature = poller.block_on(local.get_feature(Point::default()));
    assert_eq!(feature.unwrap().into_inner().name, "Ada");
    drop(local);
    server.shutdown().unwrap();
}
