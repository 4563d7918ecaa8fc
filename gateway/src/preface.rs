//! The first bytes of a connection. Whoever sends anything but HTTP/2's preface, or sends it slowly,
//! costs no more than a socket.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::timeout;

use crate::unread::{Heads, Unread};

/// What a client of HTTP/2 sends first.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The first byte of TLS: the type of a record with a message of the handshake.
pub(crate) const FIRST_OF_TLS: u8 = 0x16;

/// The answer to a client that begins with TLS: a frame `GOAWAY` that says `PROTOCOL_ERROR` (RFC 9113,
/// 6.8). Libraries of TLS find that it is not TLS, and say so.
const NO_TLS_HERE: &[u8; 17] = b"\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\x01";

/// How long, and how many bytes, a refused client is heard. The system resets a connection that has
/// unread bytes at its end, and a client may then not find the last words.
const LINGER_TIME: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 64 << 10;

/// The reason that a connection has not become one of HTTP/2.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotHttp2 {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it ended before the end of HTTP/2's preface")]
    Ended,
    #[error("it has not sent HTTP/2's preface in time")]
    Slow,
    #[error("it does not begin with HTTP/2's preface")]
    NoPreface,
    #[error(
        "it begins with TLS, and the gateway has none: give the gateway a certificate \
         (`GatewayBuilder::tls`, `--tls-cert`), or let the client call in plain text"
    )]
    TlsAtPlainPort,
    #[cfg(feature = "tls")]
    #[error("it begins without TLS, which the gateway demands: let the client call with TLS")]
    PlainAtTlsPort,
    #[cfg(feature = "tls")]
    #[error("no secure connection: {0}")]
    Handshake(#[from] verbline_tls::HandshakeError),
    #[cfg(feature = "tls")]
    #[error(transparent)]
    Certificate(#[from] verbline::server::CertificateTooLong),
}

/// A connection whose preface has been read, and is read again by HTTP/2's implementation.
#[derive(Debug)]
pub(crate) struct Opened<S> {
    preface: &'static [u8],
    stream: S,
    heads: Heads,
}

/// Reads the preface. What follows it is counted.
///
/// # Errors
///
/// Returns an error if something else arrives.
pub(crate) async fn open<S>(mut stream: S, unread: &Arc<Unread>) -> Result<Opened<S>, NotHttp2>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    match read_preface(&mut stream).await {
        Err(NotHttp2::TlsAtPlainPort) => {
            refuse(stream, NO_TLS_HERE).await;
            return Err(NotHttp2::TlsAtPlainPort);
        }
        read => read?,
    }
    Ok(Opened {
        preface: PREFACE,
        stream,
        heads: Heads::new(Arc::clone(unread)),
    })
}

async fn read_preface(stream: &mut (impl AsyncRead + Unpin)) -> Result<(), NotHttp2> {
    let mut read = [0; PREFACE.len()];
    let mut len = 0;
    while len < PREFACE.len() {
        let count = stream.read(&mut read[len..]).await?;
        if count == 0 {
            return Err(NotHttp2::Ended);
        }
        len += count;
        if read[..len] != PREFACE[..len] {
            return Err(match read[0] {
                FIRST_OF_TLS => NotHttp2::TlsAtPlainPort,
                _ => NotHttp2::NoPreface,
            });
        }
    }
    Ok(())
}

/// Says the last words, and hears what the client has said before it knew.
pub(crate) async fn refuse(mut stream: impl AsyncRead + AsyncWrite + Unpin, last_words: &[u8]) {
    let lingering = async {
        stream.write_all(last_words).await?;
        stream.shutdown().await?;
        let mut heard = [0; 4096];
        for _ in 0..LINGER_BYTES / heard.len() {
            if stream.read(&mut heard).await? == 0 {
                break;
            }
        }
        io::Result::Ok(())
    };
    // The client is refused in any case.
    let _ = timeout(LINGER_TIME, lingering).await;
}

impl<S: AsyncRead + Unpin> AsyncRead for Opened<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.preface.is_empty() {
            let before = buf.filled().len();
            ready!(pin!(&mut self.stream).poll_read(cx, buf))?;
            return Poll::Ready(self.heads.look(&buf.filled()[before..]));
        }
        let (now, later) = self
            .preface
            .split_at(self.preface.len().min(buf.remaining()));
        buf.put_slice(now);
        self.preface = later;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Opened<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        pin!(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        pin!(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        pin!(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        pin!(&mut self.stream).poll_shutdown(cx)
    }
}
