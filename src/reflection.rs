//! Reflection (feature `reflection`): describes the services of a server to tools, such as `grpcurl`.
//!
//! It is gRPC's protocol, in both of its versions: the services `grpc.reflection.v1.ServerReflection`
//! and `grpc.reflection.v1alpha.ServerReflection`. One line adds them to a server:
//!
//! ```
//! use proto::greeter::{Greeter, GreeterServer, HelloReply, HelloRequest};
//! use verbline::reflection::Reflection;
//! use verbline::{Device, Request, Response, Server, Status};
//!
//! # struct MyGreeter;
//! # impl Greeter for MyGreeter {
//! #     async fn say_hello(&self, _: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
//! #         Err(Status::unimplemented(""))
//! #     }
//! # }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Server::builder(&Device::open("soft")?)
//!     .add_service(Reflection::service())
//!     .add_service(GreeterServer::new(MyGreeter))
//!     .bind("127.0.0.1:0")?
//!     .spawn();
//! # server.shutdown()?;
//! # Ok(())
//! # }
//! ```
//!
//! It lists exactly the services that the server has, itself included. It describes those whose stubs
//! were generated with descriptors: `rpc_codegen::configure().reflection(true)`. What it describes is
//! public to whoever may call the server.

mod index;

use std::fmt;
use std::sync::{Arc, OnceLock};

use rpc_core::{
    Methods, Request, Response, ServedService, Service, Status, Stream, Streaming, stream,
};

use self::index::{Index, Sent};
use self::v1::{ServerReflectionRequest, ServerReflectionResponse};

/// The package `grpc.reflection.v1`, generated: `ServerReflectionClient` asks a server, and the messages
/// are what it sends and receives.
pub mod v1 {
    include!("generated/grpc.reflection.v1.rs");
}

/// The package `grpc.reflection.v1alpha`, generated. Its messages are those of [`v1`].
pub mod v1alpha {
    include!("generated/grpc.reflection.v1alpha.rs");
}

/// The services of reflection, both versions, for one server.
pub struct Reflection {
    answers: Arc<Answers>,
    v1: v1::ServerReflectionServer<Answers>,
    v1alpha: v1alpha::ServerReflectionServer<Answers>,
}

impl Reflection {
    /// Returns the services for a server: `.add_service(Reflection::service())`.
    ///
    /// The descriptors are read at the first question, on the poller that it came to.
    #[must_use]
    pub fn service() -> Self {
        let answers = Arc::new(Answers::default());
        Self {
            // The handlers wait for questions only.
            v1: v1::ServerReflectionServer::from_arc(Arc::clone(&answers)).on_poller(),
            v1alpha: v1alpha::ServerReflectionServer::from_arc(Arc::clone(&answers)).on_poller(),
            answers,
        }
    }
}

impl Service for Reflection {
    fn name(&self) -> &'static str {
        self.v1.name()
    }

    fn register(&self, methods: &mut Methods) {
        let mut services = methods.services().to_vec();
        services.push(ServedService::of(&self.v1alpha));
        // Every poller has the same services.
        let _ = self.answers.services.set(services);
        self.v1.register(methods);
        self.v1alpha.register(methods);
    }

    fn descriptor_set(&self) -> Option<&'static [u8]> {
        self.v1.descriptor_set()
    }
}

impl fmt::Debug for Reflection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reflection")
    }
}

/// Answers the questions of both versions.
#[derive(Default)]
struct Answers {
    services: OnceLock<Vec<ServedService>>,
    index: OnceLock<Index>,
}

impl Answers {
    fn index(&self) -> &Index {
        let services = || self.services.get().map_or(&[][..], Vec::as_slice);
        self.index.get_or_init(|| Index::of(services()))
    }

    /// Answers each question, in order.
    fn answer_all(
        &self,
        mut questions: Streaming<ServerReflectionRequest>,
    ) -> impl Stream<Item = Result<ServerReflectionResponse, Status>> {
        stream(async move |mut answers| {
            let mut sent = Sent::default();
            while let Some(question) = questions.message().await? {
                answers
                    .send(self.index().answer(question, &mut sent))
                    .await?;
            }
            Ok(())
        })
    }
}

impl v1::ServerReflection for Answers {
    async fn server_reflection_info(
        &self,
        request: Request<Streaming<ServerReflectionRequest>>,
    ) -> Result<Response<impl Stream<Item = Result<ServerReflectionResponse, Status>>>, Status>
    {
        Ok(Response::new(self.answer_all(request.into_inner())))
    }
}

impl v1alpha::ServerReflection for Answers {
    async fn server_reflection_info(
        &self,
        request: Request<Streaming<ServerReflectionRequest>>,
    ) -> Result<Response<impl Stream<Item = Result<ServerReflectionResponse, Status>>>, Status>
    {
        Ok(Response::new(self.answer_all(request.into_inner())))
    }
}
