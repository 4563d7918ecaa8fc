//! [`GrpcChannel`]: calls of any gRPC server over HTTP/2, through the clients that Verbline generates.
//!
//! ```text
//!  generated client ─▶ GrpcChannel ─▶ connection.rs: one connection, made again when it has ended
//!                          │          └▶ connect.rs, tls.rs, first_frame.rs: one attempt
//!                          │ upload.rs:   messages ─▶ the body of the request
//!                          └ download.rs: the body of the response ─▶ messages, and how the call ended
//! ```

mod connect;
mod connection;
mod download;
mod error;
mod first_frame;
mod target;
#[cfg(feature = "tls")]
mod tls;
mod upload;

#[cfg(test)]
mod tests;

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue, TE, USER_AGENT};
use http::uri::PathAndQuery;
use http::{Method, Uri, Version};
use hyper::body::Incoming;
use verbline::client::{MessageSource, MethodSpec, SendCaller};
use verbline::message::Codec;
use verbline::{CallError, Code, Execution, Request, Response, Stream, Streaming};

use self::connection::Connection;
use self::download::Download;
pub use self::error::GrpcConnectError;
use self::error::{failed, with_source};
use self::target::Target;
use self::upload::{RequestBody, Sending, Upload, encode};
use crate::headers::{GRPC, GRPC_TIMEOUT, write_metadata};

const TRAILERS: HeaderValue = HeaderValue::from_static("trailers");
const VERBLINE: HeaderValue =
    HeaderValue::from_static(concat!("verbline/", env!("CARGO_PKG_VERSION")));

/// The longest message that is received, as in Verbline and in gRPC.
const MAX_MESSAGE_LEN: usize = 4 << 20;

/// How many connections a request tries that was not written to the ones before.
const ATTEMPTS: usize = 3;

/// A client of a gRPC server of any kind, over HTTP/2, in plain text or over TLS 1.3. Cheap to clone.
///
/// Generated clients take it as they take a [`Channel`](verbline::Channel). It has one connection, which
/// the first call makes, and which is made again when it has ended. It needs tokio: it uses the runtime
/// in which it was created, and its futures may be polled anywhere.
///
/// While the server cannot be reached, calls fail with [`Code::Unavailable`] and the reason. The time
/// between two attempts grows from 50 ms to 5 s; calls in it fail at once. An attempt goes on when the
/// deadlines of the calls that wait for it have passed, for 10 seconds. A connection that ends before any
/// response counts as an attempt that has failed when it connected. One whose host acknowledges nothing
/// for 20 seconds ends, and with it its calls.
///
/// A stream that is not read holds no more than 1 MiB of messages, and 256 bytes for each frame that is
/// shorter. So a server that sends single bytes makes one such stream hold 256 MiB: connect to servers
/// that you trust. Up to 2,000 streams with longer frames, which hold 2 GiB, delay no other call.
///
/// [`CallError::execution`] is as exact as HTTP/2 allows:
///
/// | what has happened | `Execution` |
/// | --- | --- |
/// | no connection, the deadline passed before there was one, or the request was not written | `NeverSent` |
/// | the server refused the stream, or left it out of its last ones (`GOAWAY`) | `NotStarted` |
/// | the server's trailers have arrived | `Answered`, or what a Verbline gateway says in them |
/// | anything else | `MayHaveRun` |
///
/// A call that the server asks not to repeat (`grpc-retry-pushback-ms: -1`) is never
/// [retryable](CallError::is_retryable): `NotStarted` is `MayHaveRun` then.
///
/// A panic of a stream of requests, or of its codec, ends the call with [`Code::Internal`]. One of the
/// codec of a call with a single message is the caller's.
///
/// Servers of other kinds often begin to respond with their first message only. A call with streams in
/// both directions completes then, so give its stream the first request before awaiting it.
///
/// ```no_run
/// use proto::greeter::{GreeterClient, HelloRequest};
/// use verbline_gateway::GrpcChannel;
///
/// # async fn greet() -> Result<(), Box<dyn std::error::Error>> {
/// let channel = GrpcChannel::connect("http://127.0.0.1:50052").await?;
/// let greeter = GreeterClient::new(channel);
/// let reply = greeter.say_hello(HelloRequest { name: "Ada".to_owned() }).await?;
/// # let _ = reply;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct GrpcChannel {
    connection: Arc<Connection>,
    max_message_len: usize,
}

impl GrpcChannel {
    /// Creates a channel to `http://host:port`, and waits until the server speaks HTTP/2. Must be called
    /// in a tokio runtime.
    ///
    /// With the feature `tls`, the target may be `https://host:port`. The system's roots then say which
    /// authorities are believed, and no certificate is shown: see `connect_with_tls`.
    ///
    /// # Errors
    ///
    /// Returns an error if the target is not of this form, if the server cannot be reached, if it does
    /// not speak HTTP/2, or if it does not prove its name.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime.
    pub async fn connect(target: &str) -> Result<Self, GrpcConnectError> {
        Self::connect_lazy(target)?.connected().await
    }

    /// Creates a channel whose first call connects.
    ///
    /// # Errors
    ///
    /// Returns an error if the target is not of a form that [`connect`](Self::connect) takes.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime.
    pub fn connect_lazy(target: &str) -> Result<Self, GrpcConnectError> {
        Ok(Self::to(Target::new(target)?))
    }

    /// Creates a channel to `https://host:port`, as [`connect`](Self::connect) does, which believes,
    /// expects and shows what `tls` says. Without a port, it is 443.
    ///
    /// # Errors
    ///
    /// As of [`connect`](Self::connect). A target with `http://` is refused.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime.
    #[cfg(feature = "tls")]
    pub async fn connect_with_tls(
        target: &str,
        tls: verbline::tls::ClientTls,
    ) -> Result<Self, GrpcConnectError> {
        Self::connect_lazy_with_tls(target, tls)?.connected().await
    }

    /// Creates a channel to `https://host:port`, whose first call connects.
    ///
    /// # Errors
    ///
    /// Returns an error if the target is not of this form.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime.
    #[cfg(feature = "tls")]
    pub fn connect_lazy_with_tls(
        target: &str,
        tls: verbline::tls::ClientTls,
    ) -> Result<Self, GrpcConnectError> {
        Ok(Self::to(Target::with_tls(target, tls)?))
    }

    fn to(target: Target) -> Self {
        Self {
            connection: Arc::new(Connection::new(target)),
            max_message_len: MAX_MESSAGE_LEN,
        }
    }

    async fn connected(self) -> Result<Self, GrpcConnectError> {
        self.connection.get().await?;
        Ok(self)
    }

    /// Sets the length in bytes of the longest message that is received: 4 MiB by default.
    #[must_use]
    pub fn max_message_len(mut self, bytes: usize) -> Self {
        self.max_message_len = bytes;
        self
    }

    /// Makes a call, and waits until the server has begun to respond.
    async fn call<T, S>(
        &self,
        method: &'static MethodSpec,
        request: Request<T>,
        body: impl FnOnce(T) -> Result<(RequestBody, Sending), CallError>,
    ) -> Result<Response<Download<S>>, CallError> {
        let deadline = request.deadline_of_call_at(Instant::now());
        let mut head = http::Request::new(());
        *head.method_mut() = Method::POST;
        *head.version_mut() = Version::HTTP_2;
        *head.uri_mut() = self.uri(method)?;
        let headers = head.headers_mut();
        write_metadata(request.metadata(), headers);
        headers.insert(TE, TRAILERS);
        headers.insert(CONTENT_TYPE, GRPC);
        headers.insert(USER_AGENT, VERBLINE);
        let (body, sending) = body(request.into_inner())?;
        let request = head.map(|()| body);

        let answer = self.send(deadline, request, &sending).await?;
        let timer = self.connection.timer(deadline);
        let max_message_len = match method.max_response_len {
            Some(limit) => self.max_message_len.min(limit as usize),
            None => self.max_message_len,
        };
        Download::begin(answer, sending, timer, max_message_len)
    }

    /// Sends a request. One that finds its connection at its end, and was not written, goes to the next.
    async fn send(
        &self,
        deadline: Option<Instant>,
        mut request: http::Request<RequestBody>,
        sending: &Sending,
    ) -> Result<http::Response<Incoming>, CallError> {
        let connection = &*self.connection;
        let mut why = String::new();
        for _ in 0..ATTEMPTS {
            let connected = connection.within(deadline, connection.get()).await;
            let connected = connected.ok_or_else(|| deadline_exceeded(Execution::NeverSent))?;
            let mut connected = connected.map_err(GrpcConnectError::into_call_error)?;
            if let Some(deadline) = deadline {
                // What is left after connecting.
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(deadline_exceeded(Execution::NeverSent));
                }
                write_timeout(left, request.headers_mut());
            }
            let answer = connected.sender.try_send_request(request);
            let answer = connection.within(deadline, answer).await;
            let mut failure = match answer {
                Some(Ok(answer)) => {
                    connected.set_answered();
                    return Ok(answer);
                }
                Some(Err(failure)) => failure,
                None => return Err(deadline_exceeded(Execution::MayHaveRun)),
            };
            match failure.take_message() {
                Some(unsent) => request = unsent,
                None => return Err(sending.why(&failure.into_error())),
            }
            why = with_source(&failure.into_error());
        }
        let target = connection.target();
        let message = format!("could not send the request to {target}: {why}");
        Err(failed(Code::Unavailable, message, Execution::NeverSent))
    }

    fn uri(&self, method: &MethodSpec) -> Result<Uri, CallError> {
        let path = PathAndQuery::try_from(format!("/{}", method.path));
        let uri = path.ok().and_then(|path| self.connection.uri(path));
        uri.ok_or_else(|| {
            let message = format!("the path {:?} cannot be one of HTTP", method.path);
            failed(Code::Internal, message, Execution::NeverSent)
        })
    }
}

/// Writes what is left until the deadline, rounded down: the server must not go on for longer.
fn write_timeout(left: Duration, headers: &mut HeaderMap) {
    // Eight digits at most.
    let text = match left.as_micros() {
        micros @ ..100_000_000 => format!("{micros}u"),
        micros @ ..100_000_000_000 => format!("{}m", micros / 1000),
        micros => format!("{}S", (micros / 1_000_000).min(99_999_999)),
    };
    if let Ok(value) = HeaderValue::try_from(text) {
        headers.insert(GRPC_TIMEOUT, value);
    }
}

#[cold]
fn deadline_exceeded(execution: Execution) -> CallError {
    failed(
        Code::DeadlineExceeded,
        "the call's deadline passed",
        execution,
    )
}

/// Waits for the only message of a response, and for the end of the call.
async fn one_message<S: Codec<Res>, Res>(
    response: Response<Download<S>>,
) -> Result<Response<Res>, CallError> {
    let (metadata, mut download, _) = response.into_parts();
    let mut next = async || poll_fn(|cx| download.poll_message(cx)).await;
    let first: Option<Res> = next().await?;
    let more: Option<Res> = match first {
        Some(_) => next().await?,
        None => None,
    };
    let (Some(message), None) = (first, more) else {
        let message = "the server has sent no message, or several, where one was expected";
        return Err(failed(Code::Internal, message, Execution::Answered));
    };
    let mut response = Response::new(message);
    *response.metadata_mut() = metadata;
    *response.trailing_metadata_mut() = MessageSource::<Res>::trailers(&mut download);
    Ok(response)
}

impl SendCaller for GrpcChannel {
    async fn unary_with<Q, S, Req, Res>(
        &self,
        method: &'static MethodSpec,
        request: Request<Req>,
        _: Q,
        _: S,
    ) -> Result<Response<Res>, CallError>
    where
        Q: Codec<Req>,
        S: Codec<Res>,
        Req: Send,
        Res: Send,
    {
        let body = |message| encode::<Q, Req>(&message, method);
        one_message(self.call::<Req, S>(method, request, body).await?).await
    }

    async fn client_streaming_with<Q, S, Req, Res>(
        &self,
        method: &'static MethodSpec,
        request: Request<impl Stream<Item = Req> + Send + 'static>,
        _: Q,
        _: S,
    ) -> Result<Response<Res>, CallError>
    where
        Q: Codec<Req>,
        S: Codec<Res>,
        Req: Send + 'static,
        Res: Send,
    {
        let body = |messages| Ok(Upload::<Q, _>::body(messages, method));
        one_message(self.call::<_, S>(method, request, body).await?).await
    }

    async fn server_streaming_with<Q, S, Req, Res>(
        &self,
        method: &'static MethodSpec,
        request: Request<Req>,
        _: Q,
        _: S,
    ) -> Result<Response<Streaming<Res>>, CallError>
    where
        Q: Codec<Req>,
        S: Codec<Res>,
        Req: Send,
        Res: Send,
    {
        let body = |message| encode::<Q, Req>(&message, method);
        let response = self.call::<Req, S>(method, request, body).await?;
        Ok(response.map(Streaming::from_source))
    }

    async fn streaming_with<Q, S, Req, Res>(
        &self,
        method: &'static MethodSpec,
        request: Request<impl Stream<Item = Req> + Send + 'static>,
        _: Q,
        _: S,
    ) -> Result<Response<Streaming<Res>>, CallError>
    where
        Q: Codec<Req>,
        S: Codec<Res>,
        Req: Send + 'static,
        Res: Send,
    {
        let body = |messages| Ok(Upload::<Q, _>::body(messages, method));
        let response = self.call::<_, S>(method, request, body).await?;
        Ok(response.map(Streaming::from_source))
    }
}

impl fmt::Debug for GrpcChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GrpcChannel({})", self.connection.target())
    }
}
