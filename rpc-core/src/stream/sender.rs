//! [`sender`]: a stream of requests that the application feeds with [`Sender::send`].
//!
//! [`Messages`] is the stream. If it is passed to a stub as it is, a call takes it over: then the
//! sender encodes its messages into the call's [`StreamCore`] by itself, and they are sent whether
//! the response is polled or not. The call's future sends only the messages that were left when the
//! stream had no room.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use futures_core::Stream;

/// Messages that may wait in a sender.
const QUEUED_MESSAGES: usize = 32;

/// Creates a stream of requests and its sender.
///
/// The sender waits while messages that it has sent fill the stream's windows. Dropping it ends the
/// stream: the half-close.
#[must_use]
pub fn sender<T>() -> (Sender<T>, Messages<T>) {
    let shared = Arc::new(Shared(Mutex::new(State {
        queue: VecDeque::new(),
        sender: None,
        receiver: None,
        is_closed: false,
        end: None,
    })));
    let messages = Messages {
        shared: Arc::clone(&shared),
    };
    (Sender { shared }, messages)
}

/// Sends the messages of a stream of requests. See [`sender`].
///
/// There is one sender per stream, because a stream has one order. To send from several tasks,
/// share it behind an asynchronous mutex or feed it from a channel.
pub struct Sender<T> {
    shared: Arc<Shared<T>>,
}

/// A stream of requests that a [`Sender`] feeds. See [`sender`].
pub struct Messages<T> {
    shared: Arc<Shared<T>>,
}

/// The reason that a message was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The call has ended, or its request stream was dropped. The call's response says why.
    #[error("the call has ended; its response tells the reason")]
    Ended,
    /// The message does not fit in a frame. The call has ended with the same error.
    #[error(
        "the message of {message_len} bytes exceeds the limit of {limit} bytes, the smaller of both \
         sides' limits: raise `max_message_len` on the client and on the server"
    )]
    TooLong {
        /// Bytes of the encoded message.
        message_len: usize,
        /// The most bytes of a message.
        limit: usize,
    },
}

#[derive(Debug)]
struct Shared<T>(Mutex<State<T>>);

#[derive(Debug)]
struct State<T> {
    queue: VecDeque<T>,
    /// The sender's task, which waits for room.
    sender: Option<Waker>,
    /// The task of the stream, which waits for messages.
    receiver: Option<Waker>,
    /// The sender has been dropped.
    is_closed: bool,
    /// Messages cannot be sent any more.
    end: Option<SendError>,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Sender<T> {
    /// Sends a message. Waits while earlier messages fill the stream's windows.
    ///
    /// If the future is dropped before it completes, the message is not sent.
    ///
    /// # Errors
    ///
    /// Returns [`SendError`] if the message cannot be sent. Earlier messages may be lost too: the
    /// call's response says how it ended.
    pub async fn send(&mut self, message: T) -> Result<(), SendError> {
        let mut message = Some(message);
        poll_fn(|cx| self.poll_send(&mut message, cx)).await
    }

    fn poll_send(
        &mut self,
        message: &mut Option<T>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), SendError>> {
        let mut state = self.shared.lock();
        if let Some(end) = state.end {
            return Poll::Ready(Err(end));
        }
        if state.queue.len() >= QUEUED_MESSAGES {
            state.sender = Some(cx.waker().clone());
            return Poll::Pending;
        }
        state.queue.extend(message.take());
        let receiver = state.receiver.take();
        drop(state);
        if let Some(receiver) = receiver {
            receiver.wake();
        }
        Poll::Ready(Ok(()))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_closed = true;
        let receiver = state.receiver.take();
        drop(state);
        if let Some(receiver) = receiver {
            receiver.wake();
        }
    }
}

impl<T> Stream for Messages<T> {
    type Item = T;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut state = self.shared.lock();
        let message = state.queue.pop_front();
        if message.is_none() && !state.is_closed {
            state.receiver = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let sender = state.sender.take();
        drop(state);
        if let Some(sender) = sender {
            sender.wake();
        }
        Poll::Ready(message)
    }
}

impl<T> Drop for Messages<T> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.end.get_or_insert(SendError::Ended);
        let left = std::mem::take(&mut state.queue);
        let sender = state.sender.take();
        drop(state);
        drop(left);
        if let Some(sender) = sender {
            sender.wake();
        }
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Messages<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Messages").finish_non_exhaustive()
    }
}
