//! Servers, gateways and clients of the tests.

use std::net::SocketAddr;

use bytes::Bytes;
use http::header::HeaderMap;
use http::uri::PathAndQuery;
use proto::interop::TestServiceServer;
use rpc_core::{Channel, Server, ServerHandle};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::client::Grpc;
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use verbline::Device;
use verbline_gateway::{Gateway, GatewayBuilder};

use crate::service::TestServer;

/// A server, and the gateway in front of it.
pub(crate) struct Fixture {
    pub(crate) server: ServerHandle,
    pub(crate) channel: Channel,
    pub(crate) address: SocketAddr,
    stop: oneshot::Sender<()>,
    gateway: JoinHandle<()>,
}

impl Fixture {
    /// Starts the interop service and a gateway.
    pub(crate) async fn interop() -> Self {
        Self::interop_with(|builder| builder).await
    }

    /// Starts the interop service and a gateway with these settings.
    pub(crate) async fn interop_with(
        configure: impl FnOnce(GatewayBuilder) -> GatewayBuilder,
    ) -> Self {
        let device = Device::open("soft").unwrap();
        let server = Server::builder(&device)
            .add_service(TestServiceServer::new(TestServer))
            .bind("127.0.0.1:0")
            .unwrap()
            .spawn();
        Self::start(&device, server, configure).await
    }

    pub(crate) async fn start(
        device: &Device,
        server: ServerHandle,
        configure: impl FnOnce(GatewayBuilder) -> GatewayBuilder,
    ) -> Self {
        let address = server.local_addr().to_string();
        let channel = Channel::connect(device, &address).await.unwrap();
        Self::over(channel, server, configure).await
    }

    /// Starts a gateway over this channel.
    pub(crate) async fn over(
        channel: Channel,
        server: ServerHandle,
        configure: impl FnOnce(GatewayBuilder) -> GatewayBuilder,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let builder = configure(Gateway::builder(channel.clone()));
        let gateway = tokio::spawn(builder.serve_on(listener, async {
            let _ = stopped.await;
        }));
        Self {
            server,
            channel,
            address,
            stop,
            gateway,
        }
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.address).await
    }

    /// Ends the gateway, then the server.
    pub(crate) async fn end(self) {
        drop(self.stop);
        self.gateway.await.unwrap();
        drop(self.channel);
        self.server.shutdown().unwrap();
    }
}

/// A client of tonic's, without generated code.
#[derive(Clone)]
pub(crate) struct Client(pub(crate) tonic::transport::Channel);

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}"));
        Self(endpoint.unwrap().connect().await.unwrap())
    }

    /// A client that connects with its first call.
    pub(crate) fn connect_later(address: SocketAddr) -> Self {
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}"));
        Self(endpoint.unwrap().connect_lazy())
    }

    async fn grpc(&self) -> Grpc<tonic::transport::Channel> {
        let mut grpc = Grpc::new(self.0.clone());
        grpc.ready().await.unwrap();
        grpc
    }

    pub(crate) async fn unary<Q, S>(
        &self,
        path: &'static str,
        request: Request<Q>,
    ) -> Result<Response<S>, Status>
    where
        Q: prost::Message + 'static,
        S: prost::Message + Default + 'static,
    {
        let codec = ProstCodec::<Q, S>::default();
        let path = PathAndQuery::from_static(path);
        self.grpc().await.unary(request, path, codec).await
    }

    pub(crate) async fn server_streaming<Q, S>(
        &self,
        path: &'static str,
        request: Request<Q>,
    ) -> Result<Response<Streaming<S>>, Status>
    where
        Q: prost::Message + 'static,
        S: prost::Message + Default + 'static,
    {
        let codec = ProstCodec::<Q, S>::default();
        let path = PathAndQuery::from_static(path);
        self.grpc()
            .await
            .server_streaming(request, path, codec)
            .await
    }

    pub(crate) async fn client_streaming<Q, S>(
        &self,
        path: &'static str,
        request: Request<impl tokio_stream::Stream<Item = Q> + Send + 'static>,
    ) -> Result<Response<S>, Status>
    where
        Q: prost::Message + 'static,
        S: prost::Message + Default + 'static,
    {
        let codec = ProstCodec::<Q, S>::default();
        let path = PathAndQuery::from_static(path);
        self.grpc()
            .await
            .client_streaming(request, path, codec)
            .await
    }

    pub(crate) async fn streaming<Q, S>(
        &self,
        path: &'static str,
        request: Request<impl tokio_stream::Stream<Item = Q> + Send + 'static>,
    ) -> Result<Response<Streaming<S>>, Status>
    where
        Q: prost::Message + 'static,
        S: prost::Message + Default + 'static,
    {
        let codec = ProstCodec::<Q, S>::default();
        let path = PathAndQuery::from_static(path);
        self.grpc().await.streaming(request, path, codec).await
    }
}

/// What a server answered to one request.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) trailers: Option<HeaderMap>,
}

/// Sends one request with these headers, without a library that knows gRPC. A request that is not
/// whole does not end.
pub(crate) async fn send(
    address: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
    body: &'static [u8],
    is_whole: bool,
) -> Answer {
    let socket = TcpStream::connect(address).await.unwrap();
    send_on(socket, path, headers, body, is_whole).await
}

/// Sends one request on a connection of its own.
pub(crate) async fn send_on(
    socket: TcpStream,
    path: &str,
    headers: &[(&str, &str)],
    body: &'static [u8],
    is_whole: bool,
) -> Answer {
    let (mut client, connection) = h2::client::handshake(socket).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut request = http::Request::post(format!("http://test{path}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(()).unwrap();
    let (response, mut stream) = client.send_request(request, false).unwrap();
    // Fails if the server has answered already, because of the headers.
    let _ = stream.send_data(Bytes::from_static(body), is_whole);
    let (head, mut body) = response.await.unwrap().into_parts();
    while let Some(data) = body.data().await {
        data.unwrap();
    }
    let trailers = body.trailers().await.unwrap();
    connection.abort();
    Answer {
        status: head.status.as_u16(),
        headers: head.headers,
        trailers,
    }
}
