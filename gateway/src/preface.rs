//! The first bytes of a connection. Whoever sends anything but HTTP/2's preface, or sends it slowly,
//! costs no more than a socket.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::unread::{Heads, Unread};

/// What a client of HTTP/2 sends first.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection whose preface has been read, and is read again by HTTP/2's implementation.
#[derive(Debug)]
pub(crate) struct Opened {
    preface: &'static [u8],
    stream: TcpStream,
    heads: Heads,
}

/// Reads the preface. What follows it is counted.
///
/// # Errors
///
/// Returns an error if something else arrives, or too little of it in this time.
pub(crate) async fn open(
    mut stream: TcpStream,
    time: Duration,
    unread: &Arc<Unread>,
) -> io::Result<Opened> {
    timeout(time, read_preface(&mut stream)).await??;
    Ok(Opened {
        preface: PREFACE,
        stream,
        heads: Heads::new(Arc::clone(unread)),
    })
}

async fn read_preface(stream: &mut TcpStream) -> io::Result<()> {
    let mut read = [0; PREFACE.len()];
    let mut len = 0;
    while len < PREFACE.len() {
        let count = stream.read(&mut read[len..]).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        len += count;
        if read[..len] != PREFACE[..len] {
            let message = match read[0] {
                0x16 => "it begins with TLS: the gateway serves plain HTTP/2",
                _ => "it does not begin with HTTP/2's preface",
            };
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
    }
    Ok(())
}

impl AsyncRead for Opened {
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

impl AsyncWrite for Opened {
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
