//! [`Unread`]: the frames of requests that have arrived on a connection and wait for their calls.
//!
//! The windows of HTTP/2 bound their bytes, not their number, and h2 takes up to [`FRAME_MEMORY`] for
//! each. Its own limit of short frames is no bound: longer frames that are read give it back (h2 0.4.20).
//! So they are counted here: on their way in by [`Heads`], and on their way out by [`CountedBody`].

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_body::{Body, Frame, SizeHint};
use tokio::runtime::Handle;
use tokio::time::timeout;
use verbline::message::bytes::Bytes;

/// Frames that a connection may have unread. The window of a stream has room for as many messages of 27
/// bytes, each in a frame of its own.
pub(crate) const MAX_UNREAD_FRAMES: u64 = 8192;

/// The most bytes that h2 takes for a frame, besides its data.
pub(crate) const FRAME_MEMORY: u64 = 512;

/// How long the rest of a request is taken that its call does not want: its client may not know yet.
const DRAIN_TIME: Duration = Duration::from_secs(1);

/// Bytes of the head of a frame: its length, type, flags and stream (RFC 9113, 4.1).
const HEAD_LEN: usize = 9;

/// The type of `DATA` (RFC 9113, 6.1).
const DATA: u8 = 0;

/// The unread frames of one connection.
#[derive(Debug, Default)]
pub(crate) struct Unread {
    arrived: AtomicU64,
    taken: AtomicU64,
}

impl Unread {
    /// Counts a frame that a call has taken.
    fn take(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a frame that has arrived.
    ///
    /// # Errors
    ///
    /// Returns an error if too many are unread then.
    fn add(&self) -> io::Result<()> {
        let arrived = self.arrived.fetch_add(1, Ordering::Relaxed) + 1;
        // A frame can be taken before its arrival is counted: h2 may read it from the same buffer.
        let unread = arrived.saturating_sub(self.taken.load(Ordering::Relaxed));
        match unread > MAX_UNREAD_FRAMES {
            false => Ok(()),
            true => Err(io::Error::other(format!(
                "its client has sent more than {MAX_UNREAD_FRAMES} frames that the server does not read"
            ))),
        }
    }
}

/// Finds the heads of frames in the bytes that a client sends.
#[derive(Debug, Default)]
pub(crate) struct Heads {
    unread: Arc<Unread>,
    head: [u8; HEAD_LEN],
    head_len: usize,
    /// Bytes of the frame that are still to come.
    payload_left: usize,
}

impl Heads {
    pub(crate) fn new(unread: Arc<Unread>) -> Self {
        Self {
            unread,
            ..Self::default()
        }
    }

    /// Looks at the next bytes of the connection.
    ///
    /// # Errors
    ///
    /// Returns an error if too many frames are unread.
    pub(crate) fn look(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let skipped = self.payload_left.min(bytes.len());
            self.payload_left -= skipped;
            bytes = &bytes[skipped..];
            let (part, rest) = bytes.split_at((HEAD_LEN - self.head_len).min(bytes.len()));
            self.head[self.head_len..][..part.len()].copy_from_slice(part);
            self.head_len += part.len();
            bytes = rest;
            if self.head_len == HEAD_LEN {
                let [a, b, c, kind, ..] = self.head;
                self.payload_left = u32::from_be_bytes([0, a, b, c]) as usize;
                self.head_len = 0;
                if kind == DATA {
                    self.unread.add()?;
                }
            }
        }
        Ok(())
    }
}

/// The body of a request, which counts the frames that are taken out of it.
pub(crate) struct CountedBody<B>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
{
    /// `None` once this is dropped.
    body: Option<B>,
    unread: Arc<Unread>,
}

impl<B> CountedBody<B>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
{
    pub(crate) fn new(body: B, unread: &Arc<Unread>) -> Self {
        Self {
            body: Some(body),
            unread: Arc::clone(unread),
        }
    }
}

impl<B> Body for CountedBody<B>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let Self { body, unread } = &mut *self;
        body.as_mut()
            .map_or(Poll::Ready(None), |body| poll_counted(body, unread, cx))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(B::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map(B::size_hint).unwrap_or_default()
    }
}

fn poll_counted<B>(
    body: &mut B,
    unread: &Unread,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, B::Error>>>
where
    B: Body<Data = Bytes> + Unpin,
{
    let frame = ready!(Pin::new(body).poll_frame(cx));
    if let Some(Ok(frame)) = &frame
        && frame.is_data()
    {
        unread.take();
    }
    Poll::Ready(frame)
}

/// Takes what is still on its way of a request that its call does not want, so that it does not count as
/// unread for ever.
impl<B> Drop for CountedBody<B>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
{
    fn drop(&mut self) {
        let Some(mut body) = self.body.take().filter(|body| !body.is_end_stream()) else {
            return;
        };
        let unread = Arc::clone(&self.unread);
        // Without a runtime, the connection has ended, too.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(timeout(DRAIN_TIME, async move {
                while let Some(Ok(_)) = poll_fn(|cx| poll_counted(&mut body, &unread, cx)).await {}
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame of this type, with a payload of so many zeros.
    fn frame(kind: u8, len: u16) -> Vec<u8> {
        let [a, b] = len.to_be_bytes();
        let mut frame = vec![0, a, b, kind, 0, 0, 0, 0, 1];
        frame.resize(HEAD_LEN + usize::from(len), 0);
        frame
    }

    #[test]
    fn frames_of_data_are_counted_however_the_bytes_come() {
        let sent = [
            frame(DATA, 300),
            frame(1, 0),
            frame(DATA, 0),
            frame(6, 8),
            frame(DATA, 1),
        ];
        let sent = sent.concat();
        for piece_len in 1..sent.len() {
            let unread = Arc::<Unread>::default();
            let mut heads = Heads::new(Arc::clone(&unread));
            for piece in sent.chunks(piece_len) {
                heads.look(piece).unwrap();
            }
            assert_eq!(unread.arrived.load(Ordering::Relaxed), 3, "{piece_len}");
        }
    }

    #[test]
    fn too_many_unread_frames_are_an_error_and_those_that_are_taken_do_not_count() {
        let unread = Arc::<Unread>::default();
        let mut heads = Heads::new(Arc::clone(&unread));
        let data = frame(DATA, 1);
        for _ in 0..3 * MAX_UNREAD_FRAMES {
            heads.look(&data).unwrap();
            unread.take();
        }
        for _ in 0..MAX_UNREAD_FRAMES {
            heads.look(&data).unwrap();
        }
        let error = heads.look(&data).unwrap_err();
        assert!(
            error.to_string().contains("more than 8192 frames"),
            "{error}"
        );
    }
}
