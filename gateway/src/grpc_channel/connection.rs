//! [`Connection`]: one connection to the server, made again when it has ended.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::Uri;
use http::uri::{Authority, PathAndQuery, Scheme};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::time::{Sleep, sleep_until, timeout};

use super::error::GrpcConnectError;
use super::upload::RequestBody;

/// How long connecting may take, as of a [`Channel`](verbline::Channel).
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The silence after which the server is asked whether it is there, and the time that it has to answer.
/// Stock servers close connections that ask more often than every five minutes.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(330), Duration::from_secs(20));

/// Bytes of a stream, and of all streams, that the server may send before they are read.
const WINDOWS: (u32, u32) = (1 << 20, 4 << 20);

pub(super) type Sender = SendRequest<RequestBody>;

/// The connection of a channel.
pub(super) struct Connection {
    target: String,
    authority: Authority,
    runtime: Handle,
    latest: Mutex<Latest>,
}

/// The latest attempt.
#[derive(Default)]
struct Latest {
    sender: Option<Sender>,
    /// The error of an attempt, and when it ended: callers that waited for it make no other one.
    failed: Option<(Instant, GrpcConnectError)>,
}

impl Connection {
    pub(super) fn new(target: &str) -> Result<Self, GrpcConnectError> {
        let refused = |why| GrpcConnectError::Target {
            target: target.to_owned(),
            why,
        };
        let form = "it is not of the form 'http://host:port'";
        let uri: Uri = target.parse().map_err(|_| refused(form))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => return Err(refused("TLS is not supported: use 'http://'")),
            _ => return Err(refused(form)),
        }
        let has_path = !matches!(uri.path(), "" | "/") || uri.query().is_some();
        match uri.authority() {
            Some(authority) if !has_path && !authority.as_str().contains('@') => Ok(Self {
                target: target.to_owned(),
                authority: authority.clone(),
                runtime: Handle::current(),
                latest: Mutex::default(),
            }),
            _ => Err(refused(form)),
        }
    }

    pub(super) fn target(&self) -> &str {
        &self.target
    }

    /// Returns the URI of a method.
    pub(super) fn uri(&self, path: PathAndQuery) -> Option<Uri> {
        let uri = Uri::builder().scheme(Scheme::HTTP);
        let uri = uri.authority(self.authority.clone()).path_and_query(path);
        uri.build().ok()
    }

    /// Returns the connection, and connects if there is none.
    pub(super) async fn get(&self) -> Result<Sender, GrpcConnectError> {
        let began = Instant::now();
        let mut latest = self.latest.lock().await;
        if let Some(sender) = &latest.sender
            && !sender.is_closed()
        {
            return Ok(sender.clone());
        }
        if let Some((at, error)) = &latest.failed
            && *at >= began
        {
            return Err(error.clone());
        }
        // A task, because whoever polls this may be on a thread without tokio.
        let authority = self.authority.clone();
        let attempt = self
            .runtime
            .spawn(timeout(CONNECT_TIMEOUT, connect(authority)));
        let target = self.target.clone();
        let outcome = match attempt.await {
            Ok(Ok(Ok(sender))) => Ok(sender),
            Ok(Ok(Err(error))) => Err(GrpcConnectError::Connect {
                target,
                source: Arc::new(error),
            }),
            Ok(Err(_)) => Err(GrpcConnectError::Timeout {
                target,
                timeout: CONNECT_TIMEOUT,
            }),
            // The runtime has been shut down.
            Err(error) => Err(GrpcConnectError::Connect {
                target,
                source: Arc::new(io::Error::other(error)),
            }),
        };
        match &outcome {
            Ok(sender) => {
                latest.sender = Some(sender.clone());
                latest.failed = None;
            }
            Err(error) => latest.failed = Some((Instant::now(), error.clone())),
        }
        outcome
    }

    /// Returns a timer that ends at the deadline. It may be polled on any thread.
    pub(super) fn timer(&self, deadline: Option<Instant>) -> Option<Sleep> {
        let _context = self.runtime.enter();
        deadline.map(|deadline| sleep_until(deadline.into()))
    }

    /// Waits for a future until the deadline. Returns `None` if that has passed.
    pub(super) async fn within<F: Future>(
        &self,
        deadline: Option<Instant>,
        future: F,
    ) -> Option<F::Output> {
        let mut future = pin!(future);
        let Some(timer) = self.timer(deadline) else {
            return Some(future.await);
        };
        let mut timer = pin!(timer);
        std::future::poll_fn(|cx| {
            if let std::task::Poll::Ready(output) = future.as_mut().poll(cx) {
                return std::task::Poll::Ready(Some(output));
            }
            timer.as_mut().poll(cx).map(|()| None)
        })
        .await
    }
}

async fn connect(authority: Authority) -> io::Result<Sender> {
    let port = authority.port_u16().unwrap_or(80);
    // Without the brackets of an address of IPv6.
    let host = authority
        .host()
        .trim_start_matches('[')
        .trim_end_matches(']');
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEPALIVE.0)
        .keep_alive_timeout(KEEPALIVE.1)
        .initial_stream_window_size(WINDOWS.0)
        .initial_connection_window_size(WINDOWS.1)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    // Its end ends the calls, which report it.
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "the connection to a gRPC server has ended");
        }
    });
    Ok(sender)
}
