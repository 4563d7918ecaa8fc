//! Servers of the tests: one that sends messages of `kinds.proto` back, with reflection and health, and the
//! same one behind a gateway.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use proto::echo::{Echo, EchoReply, EchoRequest, EchoServer};
use proto::greeter::{Greeter, GreeterServer, HelloReply, HelloRequest};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use verbline::client::{Idempotency, MethodKind, MethodSpec};
use verbline::health::{Health, ServingStatus};
use verbline::message::BytesCodec;
use verbline::message::bytes::Bytes;
use verbline::message::prost::Message;
use verbline::reflection::Reflection;
use verbline::server::{Methods, ServerBuilder, Service};
use verbline::{
    Channel, Code, Device, Metadata, Request, Response, Server, ServerHandle, Status, Streaming,
    stream,
};
use verbline_gateway::Gateway;

const RAW: BytesCodec = BytesCodec;

/// A server. Its channel and its gateway end with it.
pub(crate) struct Fixture {
    pub(crate) health: Health,
    /// `host:port`: over shared memory.
    pub(crate) address: String,
    /// `http://host:port`: through a gateway.
    pub(crate) grpc: String,
    server: Option<ServerHandle>,
    _gateway: Runtime,
    pub(crate) uploads: Arc<Uploads>,
}

/// How the calls of `Last` have ended.
#[derive(Default)]
pub(crate) struct Uploads {
    /// The client has said that its stream is complete.
    pub(crate) complete: AtomicUsize,
    /// In any way.
    pub(crate) ended: AtomicUsize,
}

/// Counts an end when it is dropped.
struct Upload(Arc<Uploads>);

impl Drop for Upload {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
    }
}

impl Fixture {
    /// A server with everything.
    pub(crate) fn new() -> Self {
        Self::with(|builder| {
            builder
                .add_service(Reflection::service())
                .add_service(GreeterServer::new(Polite))
                // Its stubs have no descriptors.
                .add_service(EchoServer::new(Polite))
        })
    }

    /// A server that greets in this way.
    pub(crate) fn greeting(greeter: impl Greeter) -> Self {
        let greeter = GreeterServer::new(greeter);
        Self::with(|builder| {
            builder
                .add_service(Reflection::service())
                .add_service(greeter)
        })
    }

    /// A server for so many connections.
    pub(crate) fn with_room_for(connections: u32) -> Self {
        Self::with(|builder| {
            builder
                .add_service(Reflection::service())
                .connections(connections)
        })
    }

    /// A server without reflection.
    pub(crate) fn without_reflection() -> Self {
        Self::with(|builder| builder)
    }

    /// A server without health.
    pub(crate) fn without_health() -> Self {
        Self::start(|builder| builder, Health::new())
    }

    /// A server with health.
    fn with(add: impl FnOnce(ServerBuilder<Device>) -> ServerBuilder<Device>) -> Self {
        let health = Health::new();
        health.set("verbline.kinds.Kinds", ServingStatus::NotServing);
        let service = health.service();
        Self::start(|builder| add(builder.add_service(service)), health)
    }

    fn start(
        add: impl FnOnce(ServerBuilder<Device>) -> ServerBuilder<Device>,
        health: Health,
    ) -> Self {
        let device = Device::open("soft").unwrap();
        let uploads = Arc::default();
        let server = add(Server::builder(&device).add_service(Kinds(Arc::clone(&uploads))))
            .bind("127.0.0.1:0")
            .unwrap()
            .spawn();
        let address = server.local_addr().to_string();
        let gateway = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let grpc = gateway.block_on(async {
            let channel = Channel::connect(&device, &address).await.unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let grpc = format!("http://{}", listener.local_addr().unwrap());
            let serving = Gateway::builder(channel).serve_on(listener, std::future::pending());
            tokio::spawn(serving);
            grpc
        });
        Self {
            health,
            address,
            grpc,
            server: Some(server),
            _gateway: gateway,
            uploads,
        }
    }

    /// The addresses of both protocols.
    pub(crate) fn both(&self) -> [&str; 2] {
        [&self.address, &self.grpc]
    }

    /// Returns the number of clients that the server has accepted.
    pub(crate) fn accepted(&self) -> u64 {
        let server = self.server.as_ref().expect("it is not shut down");
        server.stats().total().connections.accepted
    }

    /// Returns the number of calls that the server has answered with a message.
    pub(crate) fn answered(&self) -> u64 {
        let server = self.server.as_ref().expect("it is not shut down");
        let served = server.stats().total().served;
        served.iter().map(|method| method.ended(Code::Ok)).sum()
    }

    pub(crate) fn shutdown(&mut self) {
        self.server.take().unwrap().shutdown().unwrap();
    }
}

struct Polite;

impl Greeter for Polite {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        let message = format!("Hello, {}!", request.into_inner().name);
        Ok(Response::new(HelloReply { message }))
    }
}

impl Echo for Polite {
    async fn echo(&self, _: Request<EchoRequest>) -> Result<Response<EchoReply>, Status> {
        Err(Status::unimplemented("nobody calls it"))
    }
}

/// The service of `kinds.proto`, whose messages stay bytes. It sends metadata back: keys that begin with
/// `initial-` before the messages, and those with `trailing-` after them. `fail-with: 5` has it fail with
/// that code.
struct Kinds(Arc<Uploads>);

const fn spec(path: &'static str, kind: MethodKind) -> MethodSpec {
    MethodSpec::new(path, kind, Idempotency::Unknown, "", "")
}

static ECHO: MethodSpec = spec("verbline.kinds.Kinds/Echo", MethodKind::Unary);
static LAST: MethodSpec = spec("verbline.kinds.Kinds/Last", MethodKind::ClientStreaming);
static REPEAT: MethodSpec = spec("verbline.kinds.Kinds/Repeat", MethodKind::ServerStreaming);
static CHAT: MethodSpec = spec("verbline.kinds.Kinds/Chat", MethodKind::Streaming);

impl Service for Kinds {
    fn name(&self) -> &'static str {
        "verbline.kinds.Kinds"
    }

    fn register(&self, methods: &mut Methods) {
        methods.unary_with(&ECHO, RAW, RAW, async |request: Request<Bytes>| {
            echo(request, |message| message)
        });
        let uploads = Arc::clone(&self.0);
        methods.client_streaming_with(
            &LAST,
            RAW,
            RAW,
            move |mut request: Request<Streaming<Bytes>>| {
                let upload = Upload(Arc::clone(&uploads));
                async move {
                    let mut last = Bytes::new();
                    while let Some(message) = request.get_mut().message().await? {
                        last = message;
                    }
                    upload.0.complete.fetch_add(1, Ordering::SeqCst);
                    echo(request, |_| last)
                }
            },
        );
        methods.server_streaming_with(
            &REPEAT,
            RAW,
            RAW,
            async |request: Request<Bytes>, responses| {
                let begun = echo(request, |message| {
                    stream(async move |mut out| {
                        out.send(message.clone()).await?;
                        out.send(message).await
                    })
                });
                responses.send_all(begun).await
            },
        );
        methods.streaming_with(
            &CHAT,
            RAW,
            RAW,
            async |request: Request<Streaming<Bytes>>, responses| {
                let begun = echo(request, |mut messages| {
                    stream(async move |mut out| {
                        while let Some(message) = messages.message().await? {
                            out.send(message).await?;
                        }
                        Ok(())
                    })
                });
                responses.send_all(begun).await
            },
        );
    }

    fn descriptor_set(&self) -> Option<&'static [u8]> {
        static SET: OnceLock<Vec<u8>> = OnceLock::new();
        Some(SET.get_or_init(|| {
            let protos = protos();
            let set = protox::compile([protos.join("kinds.proto")], [&protos]).unwrap();
            // As `protoc` and `rpc-codegen` leave comments out.
            let mut set = set;
            for file in &mut set.file {
                file.source_code_info = None;
            }
            set.encode_to_vec()
        }))
    }
}

/// Answers with the metadata that the request asks for, or fails as it asks.
fn echo<Q, S>(request: Request<Q>, answer: impl FnOnce(Q) -> S) -> Result<Response<S>, Status> {
    let (asked, _, message) = request.into_parts();
    let (mut initial, mut trailing) = (Metadata::new(), Metadata::new());
    for (key, value) in asked.iter() {
        let value = Bytes::copy_from_slice(value);
        let added = match key.split('-').next() {
            Some("initial") => initial.append(key, value),
            Some("trailing") => trailing.append(key, value),
            _ => Ok(()),
        };
        added.expect("it has come as metadata");
    }
    if let Some(code) = asked.get("fail-with") {
        let code = Code::from_i32(code.parse().unwrap());
        let details = verbline::error_details::RetryInfo::after(std::time::Duration::from_secs(3));
        let status = Status::with_error_details(code, "as you wish", details);
        return Err(status.with_metadata(trailing));
    }
    Ok(Response::new(answer(message))
        .with_metadata(initial)
        .with_trailing_metadata(trailing))
}

/// The folder of the `.proto` files.
pub(crate) fn protos() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/protos")
}
