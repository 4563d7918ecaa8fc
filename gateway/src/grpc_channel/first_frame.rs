//! [`FirstFrame`]: whether a server speaks HTTP/2, by the first bytes that it sends.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::oneshot;

/// Bytes of the head of a frame: its length, type, flags and stream (RFC 9113, 4.1).
const HEAD_LEN: usize = 9;

/// The type of `SETTINGS`, which a server sends first (RFC 9113, 3.4).
const SETTINGS: u8 = 4;

/// What a server has done that has sent nothing.
pub(super) const CLOSED: &str = "the server closed the connection without a word of HTTP/2";

/// Reads for HTTP/2's implementation, and looks at what comes first.
pub(super) struct FirstFrame<R> {
    reader: R,
    head: Vec<u8>,
    found: Option<oneshot::Sender<io::Result<()>>>,
}

impl<R> FirstFrame<R> {
    /// Returns the reader, and what waits for the first frame.
    ///
    /// # Errors
    ///
    /// The latter returns an error if something else comes, or if the connection ends before.
    pub(super) fn of(reader: R) -> (Self, impl Future<Output = io::Result<()>>) {
        let (found, finds) = oneshot::channel();
        let reader = Self {
            reader,
            head: Vec::new(),
            found: Some(found),
        };
        let first = async { finds.await.map_err(io::Error::other)? };
        (reader, first)
    }

    /// Tells what has come, or the error of the read that has failed.
    fn tell(&mut self, read: io::Result<()>) {
        if let Some(found) = self.found.take() {
            // Nobody waits if the time to connect is over.
            let _ = found.send(read.and_then(|()| judge(&self.head)));
        }
    }
}

/// HTTP/2's implementation gives the reader up at the end, or when it makes nothing of the first bytes.
impl<R> Drop for FirstFrame<R> {
    fn drop(&mut self) {
        self.tell(Ok(()));
    }
}

fn judge(head: &[u8]) -> io::Result<()> {
    let what = match head {
        [_, _, _, SETTINGS, _, 0, 0, 0, 0] => return Ok(()),
        [] => CLOSED,
        [b'H', b'T', b'T', b'P', b'/', ..] => "the server speaks HTTP/1, and not HTTP/2",
        // An alert, or a part of a handshake.
        [0x15 | 0x16, 3, ..] => "the server speaks TLS: use 'https://'",
        _ => "the server does not speak HTTP/2",
    };
    Err(io::Error::new(io::ErrorKind::InvalidData, what))
}

impl<R: AsyncRead + Unpin> AsyncRead for FirstFrame<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        if let Err(error) = ready!(pin!(&mut self.reader).poll_read(cx, buf)) {
            let copy = io::Error::new(error.kind(), error.to_string());
            // What came before says more: a server that speaks TLS sends an alert, and resets.
            if self.head.is_empty() {
                self.tell(Err(error));
            }
            return Poll::Ready(Err(copy));
        }
        let missing = HEAD_LEN - self.head.len();
        let read = &buf.filled()[before..];
        self.head.extend(read.iter().take(missing));
        if self.head.len() == HEAD_LEN {
            self.tell(Ok(()));
        }
        Poll::Ready(Ok(()))
    }
}
