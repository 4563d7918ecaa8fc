//! tonic's server streaming with the same messages, written by hand like [`super::tonic`].

use std::convert::Infallible;

use proto::bench::{Blob, Fixed, SubscribeRequest};
use rpc_core::Waiting;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::{Request, Response, Streaming};
use tonic_prost::ProstCodec;
use tower::service_fn;

use super::tonic::{Connection, Socket};
use crate::Outcome;
use crate::cores::Cores;
use crate::in_flight::Period;
use crate::rates::Rated;
use crate::streams::message::{Numbered, Numbers, Reader};
use crate::streams::rate::endless;

/// Path of the method that streams [`Fixed`].
pub const SUBSCRIBE_FIXED: &str = "/verbline.Peer/SubscribeFixed";
/// Path of the method that streams [`Blob`].
pub const SUBSCRIBE_BLOB: &str = "/verbline.Peer/SubscribeBlob";

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
    pub fn start(
        socket: Socket,
        waiting: Waiting,
        cores: Cores,
        payload_len: usize,
    ) -> Outcome<Self> {
        let mut connection = Connection::start(socket, waiting, cores)?;
        let stream = connection.in_turn(async |client| {
            client.ready().await?;
            let path = http::uri::PathAndQuery::from_static(M::PATH);
            let codec = ProstCodec::<SubscribeRequest, M>::default();
            let request = Request::new(endless(payload_len));
            Ok(client.server_streaming(request, path, codec).await?)
        })?;
        Ok(Self {
            reader: Reader::new(stream.into_inner(), payload_len),
            connection,
        })
    }
}

impl<M: Subscribed> Rated for TonicStream<M> {
    fn take_turn(&mut self) -> Outcome<f64> {
        let Self { reader, connection } = self;
        connection.in_turn(async |_| reader.rate(Period::turn()).await)
    }
}

/// Serves the method that streams `M`.
pub(super) async fn serve<M: Subscribed>(
    request: http::Request<Body>,
) -> Result<http::Response<Body>, Infallible> {
    let mut grpc = tonic::server::Grpc::new(ProstCodec::<M, SubscribeRequest>::default());
    let method = async |request: Request<SubscribeRequest>| {
        let SubscribeRequest { count, payload_len } = request.into_inner();
        let numbers = Numbers::<M>::new(count, payload_len as usize);
        Ok(Response::new(tokio_stream::iter(numbers.map(Ok))))
    };
    Ok(grpc.server_streaming(service_fn(method), request).await)
}
