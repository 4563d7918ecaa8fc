//! [`Caller`]: the interface of channels for generated clients.

use futures_core::Stream;
use prost::Message;

use crate::call_error::CallError;
use crate::codec::{Codec, ProstCodec};
use crate::message::{Request, Response};
use crate::method::MethodSpec;
use crate::stream::streaming::Streaming;

/// The interface through which a generated client makes calls. Channels implement it. To mock a
/// client, implement its service trait and serve it in process.
pub trait Caller {
    /// Makes one call of a unary method, with a codec for the request and one for the response.
    ///
    /// # Errors
    ///
    /// The future returns [`CallError`] if the call returned no response.
    fn unary_with<Q, S, Req, Res>(
        &self,
        method: &'static MethodSpec,
        request: Request<Req>,
        request_codec: Q,
        response_codec: S,
    ) -> impl Future<Output = Result<Response<Res>, CallError>>
    where
        Q: Codec<Req>,
        S: Codec<Res>;

    /// Makes one call of a unary method, whose messages prost encodes and decodes.
    ///
    /// # Errors
    ///
    /// The future returns [`CallError`] if the call returned no response.
    fn unary<Req, Res>(
        &self,
        method: &'static MethodSpec,
        request: Request<Req>,
    ) -> impl Future<Output = Result<Response<Res>, CallError>>
    where
        Req: Message + Default,
        Res: Message + Default,
    {
        self.unary_with(method, request, ProstCodec, ProstCodec)
    }

    /// Makes one call of a method with a stream of requests and one response. The stream is sent
    /// while the future is polled. Dropping the future cancels the call.
    ///
    /// # Errors
    ///
    /// The future returns [`CallError`] if the call returned no response.
    fn client_streaming_with<Q, S, Req, Res>(
        &self,
        method: &'static MethodSpec,
        request: Request<impl Stream<Item = Req> + Send + 'static>,
        request_codec: Q,
        response_codec: S,
    ) -> impl Future<Output = Result<Response<Res>, CallError>>
    where
        Q: Codec<Req> + 'static,
        S: Codec<Res>,
        Req: Send + 'static;

    /// Makes one call of a method with one request and a stream of responses. The future completes
    /// when the server has begun to respond; dropping it before cancels the call.
    ///
    /// # Errors
    ///
    /// The future returns [`CallError`] if the call failed before the server began to respond.
    fn server_streaming_with<Q, S, Req, Res>(
        &self,
        method: &'static MethodSpec,
        request: Request<Req>,
        request_codec: Q,
        response_codec: S,
    ) -> impl Future<Output = Result<Response<Streaming<Res>>, CallError>>
    where
        Q: Codec<Req>,
        S: Codec<Res>;

    /// Makes one call of a method with a stream of requests and a stream of responses. The future
    /// completes when the server has begun to respond; dropping it before cancels the call. The
    /// requests are sent while the future is polled, and then while the responses are.
    ///
    /// # Errors
    ///
    /// The future returns [`CallError`] if the call failed before the server began to respond.
    fn streaming_with<Q, S, Req, Res>(
        &self,
        method: &'static MethodSpec,
        request: Request<impl Stream<Item = Req> + Send + 'static>,
        request_codec: Q,
        response_codec: S,
    ) -> impl Future<Output = Result<Response<Streaming<Res>>, CallError>>
    where
        Q: Codec<Req> + 'static,
        S: Codec<Res>,
        Req: Send + 'static;

    /// Like [`client_streaming_with`](Self::client_streaming_with), with messages that prost encodes
    /// and decodes.
    ///
    /// # Errors
    ///
    /// The future returns [`CallError`] if the call returned no response.
    fn client_streaming<Req, Res>(
        &self,
        method: &'static MethodSpec,
        request: Request<impl Stream<Item = Req> + Send + 'static>,
    ) -> impl Future<Output = Result<Response<Res>, CallError>>
    where
        Req: Message + Default + 'static,
        Res: Message + Default,
    {
        self.client_streaming_with(method, request, ProstCodec, ProstCodec)
    }

    /// Like [`server_streaming_with`](Self::server_streaming_with), with messages that prost encodes
    /// and decodes.
    ///
    /// # Errors
    ///
    /// The future returns [`CallError`] if the call failed before the server began to respond.
    fn server_streaming<Req, Res>(
        &self,
        method: &'static MethodSpec,
        request: Request<Req>,
    ) -> impl Future<Output = Result<Response<Streaming<Res>>, CallError>>
    where
        Req: Message + Default,
        Res: Message + Default,
    {
        self.server_streaming_with(method, request, ProstCodec, ProstCodec)
    }

    /// Like [`streaming_with`](Self::streaming_with), with messages that prost encodes and decodes.
    ///
    /// # Errors
    ///
    /// The future returns [`CallError`] if the call failed before the server began to respond.
    fn streaming<Req, Res>(
        &self,
        method: &'static MethodSpec,
        request: Request<impl Stream<Item = Req> + Send + 'static>,
    ) -> impl Future<Output = Result<Response<Streaming<Res>>, CallError>>
    where
        Req: Message + Default + 'static,
        Res: Message + Default,
    {
        self.streaming_with(method, request, ProstCodec, ProstCodec)
    }
}
