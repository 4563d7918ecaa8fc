//! [`sender`]: a stream of requests that the application feeds with [`Sender::send`].
//!
//! [`Messages`] is the stream. If it is passed to a stub as it is, the call links the sender to its
//! [`StreamCore`]: the sender then encodes its messages into the core by itself, and they are sent
//! whether the response is polled or not. [`LinkedMessages`], a part of the call, sends those that
//! waited before.
//!
//! ```text
//!  before the call:  Sender ─▶ queue ─▶ Messages, a Stream
//!  linked:           Sender ─────────▶ StreamCore        (the queue first, if it is not empty)
//! ```
//!
//! The core keeps one waker for both. It wakes the sender, which waits for room, and the linked
//! messages, which may have to send the queue.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker, ready};

use biased_lock::{BiasedGuard, BiasedLock};
use futures_core::Stream;

use super::alone;
use super::core::StreamCore;
use super::pump::{Added, Batcher, PumpError, RequestPump};
use crate::codec::Codec;
use crate::limits::{Direction, LengthLimit};

/// Messages that may wait in a sender.
const QUEUED_MESSAGES: usize = 32;

/// Creates a stream of requests and its sender.
///
/// The sender waits while messages that it has sent fill the stream's windows. Dropping it ends the
/// stream: the half-close.
///
/// ```
/// use rpc_core::{block_on, sender};
///
/// let (mut sender, messages) = sender();
/// block_on(async {
///     // Up to 32 messages wait for the call.
///     sender.send("one").await?;
///     sender.send("two").await
/// })?;
/// drop(sender);
/// // let summary = client.record(messages).await?;
/// # drop(messages);
/// # Ok::<(), rpc_core::SendError>(())
/// ```
#[must_use]
pub fn sender<T>() -> (Sender<T>, Messages<T>) {
    let shared = Arc::new(Shared(BiasedLock::favouring_this_thread(State {
        queue: VecDeque::new(),
        sender: None,
        receiver: None,
        is_closed: false,
        end: None,
        link: None,
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
    /// The message is longer than the server or the method accepts, or than this side may send. The call
    /// has ended with the same error.
    #[error("the message of {message_len} bytes {}", .exceeded.exceeded(*.limit, Direction::Request))]
    TooLong {
        /// Bytes of the encoded message.
        message_len: usize,
        /// The most bytes of a message.
        limit: usize,
        /// Whose limit this is.
        exceeded: LengthLimit,
    },
}

struct Shared<T>(BiasedLock<State<T>>);

struct State<T> {
    /// Messages that wait for their stream to be polled, or for the linked call to have room.
    queue: VecDeque<T>,
    /// The sender's task, which waits for room.
    sender: Option<Waker>,
    /// The task that polls the stream, or the linked call.
    receiver: Option<Waker>,
    /// The sender has been dropped.
    is_closed: bool,
    /// Messages cannot be sent any more.
    end: Option<SendError>,
    link: Option<Link<T>>,
}

/// The connection of a sender with a call.
struct Link<T> {
    core: Arc<StreamCore>,
    /// Empty unless a message is being sent.
    batcher: Batcher,
    /// [`push`] with the codec of the call.
    push: Push<T>,
    /// Wakes the sender and the call. It refers to the state that has this link, which is why the
    /// call removes the link at its end.
    waker: Waker,
}

type Push<T> = fn(&mut Link<T>, &mut VecDeque<T>, Option<&T>) -> Poll<Result<(), PumpError>>;

/// Sends the queue and then a message. A message that cannot be sent yet stays where it is.
fn push<Q: Codec<T>, T>(
    link: &mut Link<T>,
    queue: &mut VecDeque<T>,
    message: Option<&T>,
) -> Poll<Result<(), PumpError>> {
    let mut cx = Context::from_waker(&link.waker);
    let Some(room) = ready!(link.batcher.poll_room(&link.core, &mut cx)) else {
        return Poll::Ready(Err(PumpError::Ended));
    };
    while !queue.is_empty() {
        link.batcher.clear();
        let mut count = 0;
        for message in queue.iter() {
            let added = link.batcher.add::<Q, T>(room, message)?;
            if added == Added::Long {
                ready!(
                    link.batcher
                        .poll_encode_long::<Q, T>(&link.core, message, &mut cx)
                )?;
            }
            count += usize::from(added != Added::No);
            if added != Added::Yes {
                break;
            }
        }
        ready!(link.batcher.poll_flush(&link.core, &mut cx))?;
        queue.drain(..count);
    }
    if let Some(message) = message {
        if alone::send::<Q, T>(&link.core, room, message) {
            return Poll::Ready(Ok(()));
        }
        link.batcher.clear();
        if link.batcher.add::<Q, T>(room, message)? == Added::Long {
            ready!(
                link.batcher
                    .poll_encode_long::<Q, T>(&link.core, message, &mut cx)
            )?;
        }
        ready!(link.batcher.poll_flush(&link.core, &mut cx))?;
    }
    Poll::Ready(Ok(()))
}

impl<T> Shared<T> {
    fn lock(&self) -> BiasedGuard<'_, State<T>> {
        self.0.enter()
    }

    /// Ends the stream because of an error, and fails the call that it is linked with.
    #[cold]
    fn fail(&self, mut state: BiasedGuard<'_, State<T>>, error: PumpError) -> SendError {
        let end = match error {
            PumpError::TooLong { message_len, limit } => SendError::TooLong {
                message_len,
                limit: limit.bytes(),
                exceeded: limit.kind,
            },
            _ => SendError::Ended,
        };
        state.end = Some(end);
        let core = state.link.as_ref().map(|link| Arc::clone(&link.core));
        drop(state);
        if let Some(core) = core
            && let Some(error) = error.into_call_error()
        {
            core.fail(error);
        }
        end
    }

    fn end(&self) {
        let mut state = self.lock();
        state.end.get_or_insert(SendError::Ended);
        let left = (mem::take(&mut state.queue), state.link.take());
        let sender = state.sender.take();
        drop(state);
        drop(left);
        if let Some(sender) = sender {
            sender.wake();
        }
    }
}

impl<T> State<T> {
    /// Sends the queue and then a message, if the stream is linked.
    fn push(&mut self, message: Option<&T>) -> Option<Poll<Result<(), PumpError>>> {
        let link = self.link.as_mut()?;
        let push = link.push;
        Some(push(link, &mut self.queue, message))
    }
}

impl<T: Send> Wake for Shared<T> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut state = self.lock();
        let wakers = [state.sender.take(), state.receiver.take()];
        drop(state);
        for waker in wakers.into_iter().flatten() {
            waker.wake();
        }
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

    #[inline]
    fn poll_send(
        &mut self,
        message: &mut Option<T>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), SendError>> {
        let mut state = self.shared.lock();
        if let Some(end) = state.end {
            return Poll::Ready(Err(end));
        }
        match state.push(message.as_ref()) {
            Some(Poll::Ready(Ok(()))) => {
                drop(state);
                // Not under the lock: this may run the application's code.
                *message = None;
                return Poll::Ready(Ok(()));
            }
            Some(Poll::Ready(Err(error))) => {
                return Poll::Ready(Err(self.shared.fail(state, error)));
            }
            None if state.queue.len() < QUEUED_MESSAGES => {
                state.queue.extend(message.take());
                let receiver = state.receiver.take();
                drop(state);
                if let Some(receiver) = receiver {
                    receiver.wake();
                }
                return Poll::Ready(Ok(()));
            }
            Some(Poll::Pending) | None => {}
        }
        let replaced = state.sender.replace(cx.waker().clone());
        drop(state);
        drop(replaced);
        Poll::Pending
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_closed = true;
        if let Some(link) = &state.link
            && state.queue.is_empty()
        {
            let core = Arc::clone(&link.core);
            drop(state);
            core.close();
            return;
        }
        // The stream ends, or the linked messages send what waits and half-close.
        let receiver = state.receiver.take();
        drop(state);
        if let Some(receiver) = receiver {
            receiver.wake();
        }
    }
}

/// Messages that a call has taken over. The future completes when all have been sent and the sender
/// has been dropped.
pub(super) struct LinkedMessages<T> {
    messages: Messages<T>,
    /// Those that waited before the call have been sent. The sender sends the others by itself, and
    /// half-closes.
    is_idle: bool,
}

impl<T: Send + 'static> Messages<T> {
    /// Links the sender to a call. `Q` encodes its messages.
    pub(super) fn link<Q: Codec<T>>(self, core: Arc<StreamCore>) -> LinkedMessages<T> {
        let mut state = self.shared.lock();
        state.link = Some(Link {
            core,
            batcher: Batcher::default(),
            push: push::<Q, T>,
            waker: Waker::from(Arc::clone(&self.shared)),
        });
        let sender = state.sender.take();
        drop(state);
        if let Some(sender) = sender {
            sender.wake();
        }
        LinkedMessages {
            messages: self,
            is_idle: false,
        }
    }
}

impl<T> Future for LinkedMessages<T> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let shared = &this.messages.shared;
        let mut state = shared.lock();
        if state.end.is_some() {
            return Poll::Ready(());
        }
        match state.push(None) {
            Some(Poll::Ready(Err(error))) => {
                shared.fail(state, error);
                return Poll::Ready(());
            }
            Some(Poll::Ready(Ok(()))) if state.is_closed => {
                let core = state.link.as_ref().map(|link| Arc::clone(&link.core));
                drop(state);
                if let Some(core) = core {
                    core.close();
                }
                return Poll::Ready(());
            }
            Some(Poll::Ready(Ok(()))) => {
                // Nothing is to be woken any more.
                let receiver = state.receiver.take();
                drop(state);
                drop(receiver);
                this.is_idle = true;
                return Poll::Pending;
            }
            Some(Poll::Pending) | None => {}
        }
        let replaced = state.receiver.replace(cx.waker().clone());
        drop(state);
        drop(replaced);
        Poll::Pending
    }
}

impl<T: Send> RequestPump for LinkedMessages<T> {
    fn is_idle(&self) -> bool {
        self.is_idle
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
        self.shared.end();
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
