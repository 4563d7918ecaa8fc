//! [`AnyChannel`]: a channel to a Verbline server or to a gRPC server, as the target says.

use verbline::client::{MethodSpec, SendCaller};
use verbline::message::Codec;
use verbline::{CallError, Channel, ChannelError, Device, Request, Response, Stream, Streaming};

use crate::grpc_channel::{GrpcChannel, GrpcConnectError};

/// A channel whose protocol is a matter of configuration: one generated client calls a stock gRPC server,
/// and later a Verbline server.
///
/// ```no_run
/// use proto::greeter::GreeterClient;
/// use verbline::Device;
/// use verbline_gateway::AnyChannel;
///
/// # async fn open() -> Result<(), Box<dyn std::error::Error>> {
/// // `http://greeter:50051`, `https://greeter`, or `greeter:50052`.
/// let target = std::env::var("GREETER")?;
/// let channel = AnyChannel::connect(&Device::best()?, &target).await?;
/// let greeter = GreeterClient::new(channel);
/// # let _ = greeter;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AnyChannel {
    /// To a Verbline server.
    Verbline(Channel),
    /// To a gRPC server, over HTTP/2.
    Grpc(GrpcChannel),
}

/// The reason that an [`AnyChannel`] is not connected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AnyConnectError {
    /// Of a Verbline server.
    #[error(transparent)]
    Verbline(#[from] ChannelError),
    /// Of a gRPC server.
    #[error(transparent)]
    Grpc(#[from] GrpcConnectError),
}

impl AnyChannel {
    /// Connects to `http://host:port`, a gRPC server, or to `host:port`, a Verbline server, which is
    /// reached through `device`. Must be called in a tokio runtime.
    ///
    /// With the feature `tls`, `https://host:port` is a gRPC server whose authority the system knows, as
    /// of [`GrpcChannel::connect`]. A Verbline server is reached with the TLS of the device
    /// (`Device::with_client_tls`), if it has any.
    ///
    /// # Errors
    ///
    /// Returns an error if the target has another form, or if the server cannot be reached.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime if the target is a gRPC server.
    pub async fn connect(device: &Device, target: &str) -> Result<Self, AnyConnectError> {
        Ok(match target.contains("://") {
            true => Self::Grpc(GrpcChannel::connect(target).await?),
            false => Self::Verbline(Channel::connect(device, target).await?),
        })
    }

    /// Connects to `https://host:port`, a gRPC server, or to `host:port`, a Verbline server, with this
    /// TLS and never without. For a Verbline server, it takes the place of the TLS of the device.
    ///
    /// # Errors
    ///
    /// As of [`connect`](Self::connect). A target with `http://` is refused.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime if the target is a gRPC server.
    #[cfg(feature = "tls")]
    pub async fn connect_with_tls(
        device: &Device,
        target: &str,
        tls: verbline::tls::ClientTls,
    ) -> Result<Self, AnyConnectError> {
        if target.contains("://") {
            return Ok(Self::Grpc(
                GrpcChannel::connect_with_tls(target, tls).await?,
            ));
        }
        let device = device.clone().with_client_tls(tls);
        Ok(Self::Verbline(Channel::connect(&device, target).await?))
    }
}

/// Makes the call through either channel.
macro_rules! either {
    ($channel:expr, $call:ident, $method:ident, $request:ident, $q:ident, $s:ident) => {
        match $channel {
            Self::Verbline(channel) => SendCaller::$call(channel, $method, $request, $q, $s).await,
            Self::Grpc(channel) => SendCaller::$call(channel, $method, $request, $q, $s).await,
        }
    };
}

impl SendCaller for AnyChannel {
    async fn unary_with<Q: Codec<Req>, S: Codec<Res>, Req: Send, Res: Send>(
        &self,
        method: &'static MethodSpec,
        request: Request<Req>,
        q: Q,
        s: S,
    ) -> Result<Response<Res>, CallError> {
        either!(self, unary_with, method, request, q, s)
    }

    async fn client_streaming_with<Q: Codec<Req>, S: Codec<Res>, Req: Send + 'static, Res: Send>(
        &self,
        method: &'static MethodSpec,
        request: Request<impl Stream<Item = Req> + Send + 'static>,
        q: Q,
        s: S,
    ) -> Result<Response<Res>, CallError> {
        either!(self, client_streaming_with, method, request, q, s)
    }

    async fn server_streaming_with<Q: Codec<Req>, S: Codec<Res>, Req: Send, Res: Send>(
        &self,
        method: &'static MethodSpec,
        request: Request<Req>,
        q: Q,
        s: S,
    ) -> Result<Response<Streaming<Res>>, CallError> {
        either!(self, server_streaming_with, method, request, q, s)
    }

    async fn streaming_with<Q: Codec<Req>, S: Codec<Res>, Req: Send + 'static, Res: Send>(
        &self,
        method: &'static MethodSpec,
        request: Request<impl Stream<Item = Req> + Send + 'static>,
        q: Q,
        s: S,
    ) -> Result<Response<Streaming<Res>>, CallError> {
        either!(self, streaming_with, method, request, q, s)
    }
}
