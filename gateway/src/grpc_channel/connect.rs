//! [`connect`]: from a name to a connection whose server speaks HTTP/2.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustix::net::sockopt::set_tcp_user_timeout;
use tokio::io::{AsyncRead, AsyncWrite, join};
use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::first_frame::FirstFrame;
use super::target::{Security, Target};
use super::upload::RequestBody;

/// The time that an address of a name has before the next one is tried beside it (RFC 8305, 5).
const HEAD_START: Duration = Duration::from_millis(250);

/// The silence after which the server is asked whether it is there, and the time that it has to answer.
/// Stock servers close connections that ask more often than every five minutes.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(330), Duration::from_secs(20));

/// How long the system tries to send bytes that the host of the server does not acknowledge. Without it,
/// calls of a host that has vanished wait for the ping.
const UNSENT_MILLIS: u32 = 20_000;

/// Bytes of one stream that the server may send before they are read.
const STREAM_WINDOW: u32 = 1 << 20;

/// Bytes of all streams: the most that HTTP/2 allows, so that no call waits because others are not read,
/// as in grpc-go. What bounds the memory is the window of each stream. h2 takes 256 bytes for a frame that
/// is shorter, and closes a connection on which they are half of this window: with one of 4 MiB, 11,000
/// messages of 64 bytes that nobody had read were too many.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;

pub(super) type Sender = SendRequest<RequestBody>;

/// Connects, and waits until the server has begun to speak HTTP/2.
pub(super) async fn connect(target: &Target) -> io::Result<Sender> {
    let stream = open(target.host_and_port()).await?;
    match target.security() {
        Security::Plain => {
            let (reader, writer) = stream.into_split();
            begin(FirstFrame::of(reader), writer).await
        }
        #[cfg(feature = "tls")]
        Security::Tls { tls, name } => {
            let stream = super::tls::secure(stream, tls, name.clone()).await?;
            let (reader, writer) = tokio::io::split(stream);
            let begun = begin(FirstFrame::of(reader), writer).await;
            begun.map_err(super::tls::explained)
        }
    }
}

async fn begin<R, W>(
    (reader, first_frame): (FirstFrame<R>, impl Future<Output = io::Result<()>>),
    writer: W,
) -> io::Result<Sender>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEPALIVE.0)
        .keep_alive_timeout(KEEPALIVE.1)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .handshake(TokioIo::new(join(reader, writer)))
        .await
        .map_err(io::Error::other)?;
    // Its end ends the calls, which report it.
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "the connection to a gRPC server has ended");
        }
    });
    first_frame.await?;
    Ok(sender)
}

/// Opens a socket to a name, or to an address.
async fn open(host_and_port: (&str, u16)) -> io::Result<TcpStream> {
    let stream = connect_to_any(lookup_host(host_and_port).await?).await?;
    stream.set_nodelay(true)?;
    set_tcp_user_timeout(&stream, UNSENT_MILLIS)?;
    Ok(stream)
}

/// Connects to the first address that answers. One that does not delays the others, but not for long.
async fn connect_to_any(mut addresses: impl Iterator<Item = SocketAddr>) -> io::Result<TcpStream> {
    let mut attempts = JoinSet::new();
    let mut latest = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    loop {
        let next = addresses.next();
        let is_last = next.is_none();
        if let Some(address) = next {
            attempts.spawn(TcpStream::connect(address));
        }
        let ended = match is_last {
            true => attempts.join_next().await,
            false => match timeout(HEAD_START, attempts.join_next()).await {
                Ok(ended) => ended,
                Err(_) => continue,
            },
        };
        match ended {
            Some(Ok(Ok(stream))) => return Ok(stream),
            Some(Ok(Err(error))) => latest = error,
            Some(Err(error)) => latest = io::Error::other(error),
            None => return Err(latest),
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::sockopt::tcp_user_timeout;
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    #[tokio::test]
    async fn the_system_gives_up_a_host_that_acknowledges_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let stream = open(("127.0.0.1", port)).await.unwrap();
        assert_eq!(tcp_user_timeout(&stream), Ok(20_000));
    }

    #[tokio::test]
    async fn an_address_that_does_not_answer_leaves_time_for_the_next() {
        // Linux drops what comes when the queue of a listener is full.
        let silent = TcpSocket::new_v4().unwrap();
        silent.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let silent = silent.listen(1).unwrap();
        let dead = silent.local_addr().unwrap();
        let mut queued = Vec::new();
        while let Ok(stream) = timeout(HEAD_START, TcpStream::connect(dead)).await {
            queued.push(stream.unwrap());
        }
        let alive = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = alive.local_addr().unwrap();
        let stream = connect_to_any([dead, dead, address].into_iter()).await;
        assert_eq!(stream.unwrap().peer_addr().unwrap(), address);
        drop(alive);
        let refused = connect_to_any([address, address].into_iter()).await;
        assert_eq!(
            refused.unwrap_err().kind(),
            io::ErrorKind::ConnectionRefused
        );
        assert!(connect_to_any([].into_iter()).await.is_err());
    }
}
