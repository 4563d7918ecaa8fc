//! tonic's server streaming with the same messages, written by hand like [`super::tonic`].

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::marker::PhantomData;

use proto::bench::{Blob, Fixed, SubscribeRequest};
use tonic::body::Body;
use tonic::codegen::http;
use tonic::server::ServerStreamingService;
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use super::tonic::{Connection, Socket};
use crate::Outcome;
use crate::cores::Cores;
use crate::in_flight::Period;
use crate::rates::Rated;
use crate::streams::message::{Numbered, Numbers, Reader};
use crate::streams::rate::endless;

/// Path of the method that streams [`Fixed`].
pub const SUBSCRIBE_FIXED: &str = "/verbline.bench.BenchStreams/SubscribeFixed";
/// Path of the method that streams [`Blob`].
pub const SUBSCRIBE_BLOB: &str = "/verbline.bench.BenchStreams/SubscribeBlob";

/// A message that a method of the service streams.
pub trait Subscribed: Numbered + prost::Message + Default + 'static {
    /// Path of the method.
    const PATH: &'static str;
}

impl Subscribed for Fixed {
    const PATH: &'static str = SUBSCRIBE_FIXED;
}

impl Subscribed for Blob {
    const PATH: &'static str = SUBSCRIBE_BLOB;
}

/// A stream that a client on this thread reads, from its own server process.
pub struct TonicStream<M> {
    reader: Reader<Streaming<M>>,
    connection: Connection,
}

impl<M: Subscribed> TonicStream<M> {
    /// Opens the stream and pauses the server until the first turn. Pin the calling thread first.
    ///
    /// # Errors
    ///
    /// Fails if either side cannot be set up.
    pub fn start(socket: Socket, cores: Cores, payload_len: usize) -> Outcome<Self> {
        let mut connection = Connection::start(socket, cores)?;
        let Connection {
            runtime, client, ..
        } = &mut connection;
        let stream = runtime.block_on(async {
            client.ready().await?;
            let path = http::uri::PathAndQuery::from_static(M::PATH);
            let codec = ProstCodec::<SubscribeRequest, M>::default();
            let request = Request::new(endless(payload_len));
            Outcome::Ok(client.server_streaming(request, path, codec).await?)
        })?;
        connection.server.pause()?;
        Ok(Self {
            reader: Reader::new(stream.into_inner(), payload_len),
            connection,
        })
    }
}

impl<M: Subscribed> Rated for TonicStream<M> {
    fn take_turn(&mut self) -> Outcome<f64> {
        let Self { reader, connection } = self;
        let Connection {
            runtime, server, ..
        } = connection;
        server.in_turn(|| runtime.block_on(reader.rate(Period::turn())))
    }
}

/// One method of the service.
struct Subscribe<M>(PhantomData<fn() -> M>);

/// The numbered messages.
type Messages<M> = tokio_stream::Iter<ServedNumbers<M>>;

/// The numbered messages, as results.
struct ServedNumbers<M>(Numbers<M>);

impl<M: Numbered> Iterator for ServedNumbers<M> {
    type Item = Result<M, Status>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(Ok)
    }
}

impl<M: Numbered + Send + 'static> ServerStreamingService<SubscribeRequest> for Subscribe<M> {
    type Response = M;
    type ResponseStream = Messages<M>;
    type Future = Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<SubscribeRequest>) -> Self::Future {
        let SubscribeRequest { count, payload_len } = request.into_inner();
        let numbers = Numbers::new(count, payload_len as usize);
        ready(Ok(Response::new(tokio_stream::iter(ServedNumbers(
            numbers,
        )))))
    }
}

/// Serves the method that streams `M`.
pub(super) async fn serve<M: Subscribed>(
    request: http::Request<Body>,
) -> Result<http::Response<Body>, Infallible> {
    let mut grpc = tonic::server::Grpc::new(ProstCodec::<M, SubscribeRequest>::default());
    let method = Subscribe::<M>(PhantomData);
    Ok(grpc.server_streaming(method, request).await)
}
