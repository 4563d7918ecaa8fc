//! [`LocalTurns`]: how a stream reaches its poller, on the poller's thread; [`Turns`], which it takes, and
//! [`LoneMessage`], which it sends.

use std::fmt;
use std::task::{Context, Poll};

/// How a stream reaches its poller, on the poller's thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalTurns {
    pub(crate) poller: u64,
    /// Takes a turn of the poller with this number, if it belongs to this thread and this thread is
    /// not inside a turn. Returns true if it did.
    pub(crate) take: fn(u64) -> bool,
    /// Sends a message through the poller with this number, if it belongs to this thread and the
    /// message can be sent at once. Returns true if it was sent.
    pub(crate) send: fn(u64, &mut LoneMessage<'_>) -> bool,
}

/// A message that may go alone.
pub(crate) struct LoneMessage<'a> {
    /// The address of the stream's state.
    pub(crate) core: *const (),
    /// The number of the stream in the driver's table, if it has not ended.
    pub(crate) index: u32,
    /// Length in bytes of the encoded message.
    pub(crate) len: usize,
    /// Encodes the message into a buffer of this length. Returns false if its length has changed.
    pub(crate) encode: &'a mut dyn FnMut(&mut [u8]) -> bool,
}

/// The turns that a stream takes of its poller, if it takes any.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turns(pub(super) Option<LocalTurns>);

impl Turns {
    /// Polls a part of the application's end. If it has to wait, and an executor polls it that does
    /// not run this stream's poller, takes a turn of the poller and polls once more.
    pub(crate) fn poll<R>(
        self,
        cx: &mut Context<'_>,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<R>,
    ) -> Poll<R> {
        let polled = poll(cx);
        match polled {
            Poll::Ready(_) => polled,
            Poll::Pending => self.poll_again(cx, poll),
        }
    }

    /// Takes a turn and polls once more, as [`poll`](Self::poll) does with a part that has to wait.
    pub(crate) fn poll_again<R>(
        self,
        cx: &mut Context<'_>,
        poll: impl FnOnce(&mut Context<'_>) -> Poll<R>,
    ) -> Poll<R> {
        let took_turn = self.0.is_some_and(|turns| (turns.take)(turns.poller));
        if !took_turn {
            return Poll::Pending;
        }
        let polled = poll(cx);
        if polled.is_pending() {
            cx.waker().wake_by_ref();
        }
        polled
    }
}

impl fmt::Debug for LoneMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LoneMessage of {} bytes", self.len)
    }
}
