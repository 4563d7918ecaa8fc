//! One interceptor works on each kind of channel and of service, for methods of all four kinds.

use std::sync::{Arc, Mutex};
use std::thread;

use proto::routeguide::{
    Feature, Point, Rectangle, RouteGuide, RouteGuideClient, RouteGuideServer, RouteNote,
    RouteSummary,
};
use rpc_core::codegen::v1::{CallError, Caller};
use rpc_core::intercept::{Begin, Call, End, Interceptor, Side};
use rpc_core::{
    Channel, Code, Execution, LocalPoller, Request, Response, Server, Spawned, Status, Stream,
    Streaming, block_on, stream,
};
use rpc_transport_verbs::Device;

/// Reads two points in `record_route`, and sends each note back twice.
struct Guide;

/// What the interceptor of the server tells the handler.
struct Token(String);

fn check(request: &Request<impl Sized>) -> Result<(), Status> {
    match request.extensions().get::<Token>() {
        Some(Token(token)) if token == "secret" => Ok(()),
        _ => Err(Status::internal("the handler got nothing")),
    }
}

impl RouteGuide for Guide {
    async fn get_feature(&self, request: Request<Point>) -> Result<Response<Feature>, Status> {
        check(&request)?;
        let location = Some(request.into_inner());
        Ok(Response::new(Feature {
            name: "here".to_owned(),
            location,
        }))
    }

    async fn list_features(
        &self,
        request: Request<Rectangle>,
    ) -> Result<Response<impl Stream<Item = Result<Feature, Status>>>, Status> {
        check(&request)?;
        Ok(Response::new(stream(async |mut responses| {
            for name in ["one", "three"] {
                let name = name.to_owned();
                let location = None;
                responses.send(Feature { name, location }).await?;
            }
            Ok(())
        })))
    }

    async fn record_route(
        &self,
        request: Request<Streaming<Point>>,
    ) -> Result<Response<RouteSummary>, Status> {
        check(&request)?;
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
        check(&request)?;
        let mut notes = request.into_inner();
        Ok(Response::new(stream(async move |mut responses| {
            while let Some(note) = notes.message().await? {
                responses.send(note.clone()).await?;
                responses.send(note).await?;
            }
            Ok(())
        })))
    }
}

/// Signs calls on a client and checks them on a server. Notes what it sees.
#[derive(Default)]
struct Signed {
    seen: Mutex<Vec<Seen>>,
}

#[derive(Debug, PartialEq)]
struct Seen {
    side: Side,
    method: &'static str,
    code: Code,
    execution: Option<Execution>,
    /// Messages and bytes, of the client and of the server.
    traffic: [(u64, u64); 2],
    has_time: bool,
}

struct Began;

impl Interceptor for Signed {
    fn begin(&self, call: &mut Call<'_>) -> Begin {
        call.locals_mut().insert(Began);
        match call.side() {
            Side::Client => {
                let inserted = call.metadata_mut().insert("token", "secret");
                inserted.expect("it is a valid value");
                assert!(call.peer().is_none());
                Begin::PASS
            }
            Side::Server => {
                let Some(token) = call.metadata().get("token").map(str::to_owned) else {
                    return Begin::refuse(Status::unauthenticated("no token"));
                };
                call.extensions_mut().insert(Token(token));
                assert!(call.peer().is_some(), "{call:?}");
                Begin::PASS
            }
        }
    }

    fn end(&self, end: &mut End<'_>) {
        assert!(end.locals_mut().remove::<Began>().is_some(), "{end:?}");
        let (requests, responses) = (end.requests(), end.responses());
        self.seen.lock().unwrap().push(Seen {
            side: end.side(),
            method: end.method().path,
            code: end.code(),
            execution: end.execution(),
            traffic: [requests, responses].map(|traffic| (traffic.messages, traffic.bytes)),
            has_time: end.elapsed().is_some(),
        });
        if end.side() == Side::Client {
            assert_eq!(end.trailing_metadata().get("server"), Some("1"), "{end:?}");
        }
        let side = match end.side() {
            Side::Client => "client",
            Side::Server => "server",
        };
        let metadata = end.trailing_metadata_mut().expect("it has succeeded");
        metadata.insert(side, "1").unwrap();
    }

    fn measures_time(&self) -> bool {
        true
    }
}

/// Calls each method once. The client has changed the trailing metadata.
async fn call_all(caller: impl Caller) -> Result<(), CallError> {
    let guide = RouteGuideClient::new(caller);
    let point = Point {
        latitude: 1,
        longitude: 2,
    };
    let response = guide.get_feature(point).await?;
    let trailing = response.trailing_metadata();
    assert_eq!(trailing.get("client"), Some("1"));
    assert_eq!(trailing.get("server"), Some("1"));

    let mut features = guide
        .list_features(Rectangle::default())
        .await?
        .into_inner();
    while features.message().await?.is_some() {}
    let trailing = features.trailers().await?;
    assert_eq!(trailing.get("client"), Some("1"));
    assert_eq!(trailing.get("server"), Some("1"));

    let points = stream_of([point, point, point]);
    let response = guide.record_route(points).await?;
    assert_eq!(response.get_ref().point_count, 3);
    assert_eq!(response.trailing_metadata().get("client"), Some("1"));

    let note = RouteNote {
        location: None,
        message: "seven b".to_owned(),
    };
    let notes = stream_of([note]);
    let mut notes = guide.route_chat(notes).await?.into_inner();
    assert_eq!(notes.message().await?.unwrap().message, "seven b");
    assert!(notes.message().await?.is_some());
    assert!(notes.message().await?.is_none());
    assert_eq!(notes.trailers().await?.get("client"), Some("1"));
    Ok(())
}

fn stream_of<T: Clone + Send + Unpin + 'static, const N: usize>(
    items: [T; N],
) -> impl Stream<Item = T> + Send + 'static {
    let (mut sender, messages) = rpc_core::sender();
    thread::spawn(move || {
        block_on(async {
            for item in items {
                sender.send(item).await.unwrap();
            }
        });
    });
    messages
}

/// What each side sees, in the order of the calls.
fn expected(side: Side) -> Vec<Seen> {
    let seen = |method, requests, responses| Seen {
        side,
        method,
        code: Code::Ok,
        execution: (side == Side::Client).then_some(Execution::Answered),
        traffic: [requests, responses],
        has_time: true,
    };
    vec![
        // A name of 4 bytes, and a location of 4: each with 2 bytes before it.
        seen("routeguide.RouteGuide/GetFeature", (1, 4), (1, 12)),
        seen("routeguide.RouteGuide/ListFeatures", (1, 0), (2, 12)),
        seen("routeguide.RouteGuide/RecordRoute", (3, 12), (1, 2)),
        seen("routeguide.RouteGuide/RouteChat", (1, 9), (2, 18)),
    ]
}

fn on_threads(future: Spawned) {
    thread::spawn(|| block_on(future));
}

#[test]
fn one_interceptor_works_everywhere() {
    let device = Device::open("soft").unwrap();
    type Serve = fn(Arc<Signed>) -> RouteGuideServer<Guide>;
    let services: [(&str, Serve); 3] = [
        ("shared", |it| RouteGuideServer::new(Guide).interceptor(it)),
        ("per poller", |it| {
            RouteGuideServer::per_poller(|| Guide).interceptor(it)
        }),
        ("executor", |it| {
            RouteGuideServer::new(Guide)
                .executor(on_threads)
                .interceptor(it)
        }),
    ];
    for (name, service) in services {
        for is_local in [false, true] {
            let signed = Arc::new(Signed::default());
            let server = Server::builder(&device)
                .add_service(service(Arc::clone(&signed)))
                .bind("127.0.0.1:0")
                .unwrap()
                .spawn();
            let address = server.local_addr().to_string();
            let interceptor: Arc<dyn Interceptor> = signed.clone();
            if is_local {
                let poller = LocalPoller::new(&device).unwrap();
                let channel = poller.connect(&address).unwrap();
                let channel = channel.with_interceptor(interceptor);
                poller.block_on(call_all(channel)).unwrap();
            } else {
                let channel = Channel::builder(&device, &address).interceptor(interceptor);
                block_on(async { call_all(channel.connect().await.unwrap()).await }).unwrap();
            }
            server.shutdown().unwrap();
            let seen = std::mem::take(&mut *signed.seen.lock().unwrap());
            for side in [Side::Client, Side::Server] {
                let of_side: Vec<_> = seen.iter().filter(|it| it.side == side).collect();
                let expected = expected(side);
                let expected: Vec<_> = expected.iter().collect();
                assert_eq!(of_side, expected, "{name}, local: {is_local}");
            }
        }
    }
}

#[test]
fn the_interceptors_of_a_server_come_before_those_of_a_service() {
    let device = Device::open("soft").unwrap();
    let begun = Arc::new(Mutex::new(Vec::new()));
    let note = |name: &'static str| {
        let begun = Arc::clone(&begun);
        move |call: &mut Call<'_>| {
            begun.lock().unwrap().push(name);
            call.extensions_mut().insert(Token("secret".to_owned()));
            Ok(())
        }
    };
    let server = Server::builder(&device)
        .interceptor(note("server 1"))
        .add_service(
            RouteGuideServer::new(Guide)
                .interceptor(note("service 1"))
                .interceptor(note("service 2")),
        )
        .interceptor(note("server 2"))
        .bind("127.0.0.1:0")
        .unwrap()
        .spawn();
    let address = server.local_addr().to_string();
    block_on(async {
        let channel = Channel::builder(&device, &address).interceptor(note("channel 1"));
        let channel = channel.interceptor(note("channel 2")).connect().await;
        let channel = channel.unwrap().with_interceptor(note("channel 3"));
        let guide = RouteGuideClient::new(channel);
        guide.get_feature(Point::default()).await.unwrap();
    });
    server.shutdown().unwrap();
    let expected = [
        "channel 1",
        "channel 2",
        "channel 3",
        "server 1",
        "server 2",
        "service 1",
        "service 2",
    ];
    assert_eq!(*begun.lock().unwrap(), expected);
}
