//! [`Caller`]: the interface of channels for generated clients; and [`SendCaller`], whose calls may
//! be spawned.
//!
//! A generated client takes any [`Caller`]. Generic code that moves a call to another thread takes a
//! [`SendCaller`] instead, because nothing says that the futures of a `Caller` are `Send`. A
//! [`Channel`](crate::Channel) is both, and a [`LocalChannel`](crate::LocalChannel) is a `Caller`
//! only.

use futures_core::Stream;
use prost::Message;

use crate::call_error::CallError;
use crate::codec::{Codec, ProstCodec};
use crate::message::{Request, Response};
use crate::method::MethodSpec;
use crate::stream::streaming::Streaming;

/// The interface through which a generated client makes calls. Channels implement it. To mock a
/// client, implement its service trait and serve it in process.
///
/// Every [`SendCaller`] is a `Caller`. In generic code, bound the type by `SendCaller` if a call is
/// to be spawned.
///
/// What runs around each call is an [interceptor](crate::intercept), which channels of both kinds take.
pub trait Caller {
    /// Makes one call of a unary method, with a codec for the request and one for the response.
    ///
    /// # Errors
    ///
    /// The future returns [`CallError`] if the call returned no response.
    fn unary_with<Q: Codec<Req>, S: Codec<Res>, Req: Send, Res: Send>(
        &self,
        method: &'static MethodSpec,
        request: Request<Req>,
        request_codec: Q,
        response_codec: S,
    ) -> impl Future<Output = Result<Response<Res>, CallError>>;

    /// Makes one call of a unary method, whose messages prost encodes and decodes.
    ///
    /// # Errors
    ///
    /// The future returns [`CallError`] if the call returned no response.
    fn unary<Req: Message + Default + 'static, Res: Message + Default + 'static>(
        &self,
        method: &'static MethodSpec,
        request: Request<Req>,
    ) -> impl Future<Output = Result<Response<Res>, CallError>> {
        self.unary_with(method, request, ProstCodec, ProstCodec)
    }

    /// Makes one call of a method with a stream of requests and one response. The stream is sent
    /// while the future is polled. Dropping the future cancels the call.
    ///
    /// # Errors
    ///
    /// The future returns [`CallError`] if the call returned no response.
    fn client_streaming_with<Q: Codec<Req>, S: Codec<Res>, Req: Send + 'static, Res: Send>(
        &self,
        method: &'static MethodSpec,
        request: Request<impl Stream<Item = Req> + Send + 'static>,
        request_codec: Q,
        response_codec: S,
    ) -> impl Future<Output = Result<Response<Res>, CallError>>;

    /// Makes one call of a method with one request and a stream of responses. The future completes
    /// when the server has begun to respond; dropping it before cancels the call.
    ///
    /// # Errors
    ///
    /// The future returns [`CallError`] if the call failed before the server began to respond.
    fn server_streaming_with<Q: Codec<Req>, S: Codec<Res>, Req: Send, Res: Send>(
        &self,
        method: &'static MethodSpec,
        request: Request<Req>,
        request_codec: Q,
        response_codec: S,
    ) -> impl Future<Output = Result<Response<Streaming<Res>>, CallError>>;

    /// Makes one call of a method with a stream of requests and a stream of responses. The future
    /// completes when the server has begun to respond; dropping it before cancels the call. The
    /// requests are sent while the future is polled, and then while the responses are.
    ///
    /// # Errors
    ///
    /// The future returns [`CallError`] if the call failed before the server began to respond.
    fn streaming_with<Q: Codec<Req>, S: Codec<Res>, Req: Send + 'static, Res: Send>(
        &self,
        method: &'static MethodSpec,
        request: Request<impl Stream<Item = Req> + Send + 'static>,
        request_codec: Q,
        response_codec: S,
    ) -> impl Future<Output = Result<Response<Streaming<Res>>, CallError>>;

    /// Like [`client_streaming_with`](Self::client_streaming_with), with messages that prost encodes
    /// and decodes.
    ///
    /// # Errors
    ///
    /// The future returns [`CallError`] if the call returned no response.
    fn client_streaming<Req: Message + Default + 'static, Res: Message + Default + 'static>(
        &self,
        method: &'static MethodSpec,
        request: Request<impl Stream<Item = Req> + Send + 'static>,
    ) -> impl Future<Output = Result<Response<Res>, CallError>> {
        self.client_streaming_with(method, request, ProstCodec, ProstCodec)
    }

    /// Like [`server_streaming_with`](Self::server_streaming_with), with messages that prost encodes
    /// and decodes.
    ///
    /// # Errors
    ///
    /// The future returns [`CallError`] if the call failed before the server began to respond.
    fn server_streaming<Req: Message + Default + 'static, Res: Message + Default + 'static>(
        &self,
        method: &'static MethodSpec,
        request: Request<Req>,
    ) -> impl Future<Output = Result<Response<Streaming<Res>>, CallError>> {
        self.server_streaming_with(method, request, ProstCodec, ProstCodec)
    }

    /// Like [`streaming_with`](Self::streaming_with), with messages that prost encodes and decodes.
    ///
    /// # Errors
    ///
    /// The future returns [`CallError`] if the call failed before the server began to respond.
    fn streaming<Req: Message + Default + 'static, Res: Message + Default + 'static>(
        &self,
        method: &'static MethodSpec,
        request: Request<impl Stream<Item = Req> + Send + 'static>,
    ) -> impl Future<Output = Result<Response<Streaming<Res>>, CallError>> {
        self.streaming_with(method, request, ProstCodec, ProstCodec)
    }
}

/// A [`Caller`] whose calls may be spawned: their futures are `Send`. [`Channel`](crate::Channel) is
/// one.
///
/// Generated clients take it as they take any `Caller`. This function spawns a call through any
/// channel for several threads:
///
/// ```
/// use proto::greeter::{GreeterClient, HelloRequest};
/// use rpc_core::{Executor, SendCaller};
///
/// fn greet<C: SendCaller + 'static>(greeter: GreeterClient<C>, executor: &impl Executor) {
///     executor.spawn(Box::pin(async move {
///         let request = HelloRequest { name: "Ada".to_owned() };
///         match greeter.say_hello(request).await {
///             Ok(reply) => println!("{}", reply.into_inner().message),
///             Err(error) => eprintln!("{error}"),
///         }
///     }));
/// }
/// ```
///
/// A wrapper, which chooses among channels for example, implements this trait over a `C: SendCaller`,
/// and is a `Caller` by that. One over a [`LocalChannel`](crate::client::LocalChannel), which is no
/// `SendCaller`, implements `Caller` instead: no type implements both. The methods have the names of
/// `Caller`'s: import only one of the two traits where you call them.
#[diagnostic::on_unimplemented(
    message = "the futures of calls through `{Self}` are not known to be `Send`",
    note = "a `Channel` is a `SendCaller`; a `LocalChannel` is not, because its calls stay on its thread",
    note = "a wrapper is one if it implements `SendCaller`, over a `C: SendCaller`, instead of `Caller`"
)]
pub trait SendCaller: Send + Sync {
    /// Makes the call of [`Caller::unary_with`].
    ///
    /// # Errors
    ///
    /// The future returns the errors of [`Caller::unary_with`].
    fn unary_with<Q: Codec<Req>, S: Codec<Res>, Req: Send, Res: Send>(
        &self,
        method: &'static MethodSpec,
        request: Request<Req>,
        request_codec: Q,
        response_codec: S,
    ) -> impl Future<Output = Result<Response<Res>, CallError>> + Send;

    /// Makes the call of [`Caller::client_streaming_with`].
    ///
    /// # Errors
    ///
    /// The future returns the errors of [`Caller::client_streaming_with`].
    fn client_streaming_with<Q: Codec<Req>, S: Codec<Res>, Req: Send + 'static, Res: Send>(
        &self,
        method: &'static MethodSpec,
        request: Request<impl Stream<Item = Req> + Send + 'static>,
        request_codec: Q,
        response_codec: S,
    ) -> impl Future<Output = Result<Response<Res>, CallError>> + Send;

    /// Makes the call of [`Caller::server_streaming_with`].
    ///
    /// # Errors
    ///
    /// The future returns the errors of [`Caller::server_streaming_with`].
    fn server_streaming_with<Q: Codec<Req>, S: Codec<Res>, Req: Send, Res: Send>(
        &self,
        method: &'static MethodSpec,
        request: Request<Req>,
        request_codec: Q,
        response_codec: S,
    ) -> impl Future<Output = Result<Response<Streaming<Res>>, CallError>> + Send;

    /// Makes the call of [`Caller::streaming_with`].
    ///
    /// # Errors
    ///
    /// The future returns the errors of [`Caller::streaming_with`].
    fn streaming_with<Q: Codec<Req>, S: Codec<Res>, Req: Send + 'static, Res: Send>(
        &self,
        method: &'static MethodSpec,
        request: Request<impl Stream<Item = Req> + Send + 'static>,
        request_codec: Q,
        response_codec: S,
    ) -> impl Future<Output = Result<Response<Streaming<Res>>, CallError>> + Send;
}

impl<C: SendCaller> Caller for C {
    #[inline]
    fn unary_with<Q: Codec<Req>, S: Codec<Res>, Req: Send, Res: Send>(
        &self,
        method: &'static MethodSpec,
        request: Request<Req>,
        request_codec: Q,
        response_codec: S,
    ) -> impl Future<Output = Result<Response<Res>, CallError>> {
        SendCaller::unary_with(self, method, request, request_codec, response_codec)
    }

    fn client_streaming_with<Q: Codec<Req>, S: Codec<Res>, Req: Send + 'static, Res: Send>(
        &self,
        method: &'static MethodSpec,
        request: Request<impl Stream<Item = Req> + Send + 'static>,
        request_codec: Q,
        response_codec: S,
    ) -> impl Future<Output = Result<Response<Res>, CallError>> {
        SendCaller::client_streaming_with(self, method, request, request_codec, response_codec)
    }

    fn server_streaming_with<Q: Codec<Req>, S: Codec<Res>, Req: Send, Res: Send>(
        &self,
        method: &'static MethodSpec,
        request: Request<Req>,
        request_codec: Q,
        response_codec: S,
    ) -> impl Future<Output = Result<Response<Streaming<Res>>, CallError>> {
        SendCaller::server_streaming_with(self, method, request, request_codec, response_codec)
    }

    fn streaming_with<Q: Codec<Req>, S: Codec<Res>, Req: Send + 'static, Res: Send>(
        &self,
        method: &'static MethodSpec,
        request: Request<impl Stream<Item = Req> + Send + 'static>,
        request_codec: Q,
        response_codec: S,
    ) -> impl Future<Output = Result<Response<Streaming<Res>>, CallError>> {
        SendCaller::streaming_with(self, method, request, request_codec, response_codec)
    }
}
