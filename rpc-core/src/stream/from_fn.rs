//! [`stream`]: a stream that is written as a loop.
//!
//! The stream polls the future that the application wrote. [`ResponseSender::send`] leaves messages
//! in a queue between them, and the stream takes all of them at once.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use futures_core::Stream;
use pin_project_lite::pin_project;

use crate::status::Status;

/// The most messages that wait between the future and the stream. The first time it is one, and then twice as
/// many whenever that many were there, until one is long: their lengths are not known here.
const QUEUED_MESSAGES: usize = 8;

thread_local! {
    /// The latest message that was taken of the stream which this thread polls was long.
    static TAKES_LONG: Cell<bool> = const { Cell::new(false) };
}

/// While there is one, the futures that this thread polls make one message at a time.
pub(super) struct OneAtATime {
    before: bool,
}

impl OneAtATime {
    pub(super) fn begin() -> Self {
        let before = TAKES_LONG.replace(true);
        Self { before }
    }
}

impl Drop for OneAtATime {
    fn drop(&mut self) {
        TAKES_LONG.set(self.before);
    }
}

/// Creates a stream from a future that sends messages, for handlers that return a stream.
///
/// The future runs when the stream is polled, as a part of the handler's own task. The stream ends
/// when the future has completed: with the error that it returns, if there is one.
///
/// ```
/// use rpc_core::{Response, Status, stream};
///
/// async fn count(up_to: u64) -> Result<Response<impl rpc_core::Stream<Item = Result<u64, Status>>>, Status> {
///     Ok(Response::new(stream(async move |mut responses| {
///         for number in 1..=up_to {
///             responses.send(number).await?;
///         }
///         Ok(())
///     })))
/// }
/// # let _ = count(3);
/// ```
pub fn stream<T, F, Fut>(send_all: F) -> impl Stream<Item = Result<T, Status>>
where
    F: FnOnce(ResponseSender<T>) -> Fut,
    Fut: Future<Output = Result<(), Status>>,
{
    let queue = Arc::new(Queue::default());
    FromFn {
        future: Some(send_all(ResponseSender {
            queue: Arc::clone(&queue),
        })),
        taken: VecDeque::new(),
        most: 1,
        outcome: None,
        queue,
    }
}

/// Sends the messages of a [`stream`].
pub struct ResponseSender<T> {
    queue: Arc<Queue<T>>,
}

#[derive(Debug)]
struct Queue<T>(Mutex<Queued<T>>);

#[derive(Debug)]
struct Queued<T> {
    messages: VecDeque<T>,
    /// Messages that may wait.
    most: usize,
    /// The stream, which waits for messages.
    reader: Option<Waker>,
    /// The future, which waits for room.
    writer: Option<Waker>,
    /// The stream has been dropped or has ended.
    is_closed: bool,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self(Mutex::new(Queued {
            messages: VecDeque::new(),
            most: 1,
            reader: None,
            writer: None,
            is_closed: false,
        }))
    }
}

impl<T> Queue<T> {
    fn lock(&self) -> MutexGuard<'_, Queued<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> ResponseSender<T> {
    /// Sends a message. Waits while the stream's earlier messages have not been taken.
    ///
    /// # Errors
    ///
    /// Returns `CANCELLED` if the stream has ended, which the stream's own future never sees: it is
    /// dropped then.
    #[inline]
    pub async fn send(&mut self, message: T) -> Result<(), Status> {
        let mut message = Some(message);
        poll_fn(|cx| self.poll_send(&mut message, cx)).await
    }

    #[inline]
    fn poll_send(
        &mut self,
        message: &mut Option<T>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Status>> {
        let mut queue = self.queue.lock();
        if queue.is_closed {
            return Poll::Ready(Err(ended()));
        }
        if queue.messages.len() >= queue.most {
            queue.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        queue.messages.extend(message.take());
        let reader = queue.reader.take();
        drop(queue);
        if let Some(reader) = reader {
            reader.wake();
        }
        Poll::Ready(Ok(()))
    }
}

#[cold]
fn ended() -> Status {
    Status::cancelled("the stream has ended")
}

impl<T> fmt::Debug for ResponseSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseSender").finish_non_exhaustive()
    }
}

pin_project! {
    /// The stream of [`stream`].
    struct FromFn<T, Fut> {
        // Messages that have been taken.
        taken: VecDeque<T>,
        // Those that may wait.
        most: usize,
        queue: Arc<Queue<T>>,
        #[pin]
        future: Option<Fut>,
        // The future has completed with an error, which comes after the messages.
        outcome: Option<Status>,
    }

    impl<T, Fut> PinnedDrop for FromFn<T, Fut> {
        fn drop(this: Pin<&mut Self>) {
            this.queue.close();
        }
    }
}

impl<T> Queue<T> {
    /// Makes later calls of `send` fail.
    fn close(&self) {
        let mut queue = self.lock();
        queue.is_closed = true;
        let left = mem::take(&mut queue.messages);
        let writer = queue.writer.take();
        drop(queue);
        drop(left);
        if let Some(writer) = writer {
            writer.wake();
        }
    }
}

impl<T, Fut: Future<Output = Result<(), Status>>> Stream for FromFn<T, Fut> {
    type Item = Result<T, Status>;

    #[inline]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut this = self.project();
        if let Some(message) = this.taken.pop_front() {
            return Poll::Ready(Some(Ok(message)));
        }
        let takes_long = TAKES_LONG.get();
        if takes_long && *this.most > 1 {
            *this.most = 1;
            this.queue.lock().most = 1;
        }
        if let Some(future) = this.future.as_mut().as_pin_mut()
            && let Poll::Ready(outcome) = future.poll(cx)
        {
            *this.outcome = outcome.err();
            this.future.set(None);
        }
        let mut queue = this.queue.lock();
        mem::swap(&mut queue.messages, this.taken);
        if !takes_long && this.taken.len() >= *this.most {
            *this.most = QUEUED_MESSAGES.min(2 * *this.most);
            queue.most = *this.most;
        }
        let writer = queue.writer.take();
        if this.taken.is_empty() && this.future.is_some() {
            queue.reader = Some(cx.waker().clone());
        }
        drop(queue);
        // The future is polled again when the messages have been returned.
        if let Some(writer) = writer
            && !writer.will_wake(cx.waker())
        {
            writer.wake();
        }
        match this.taken.pop_front() {
            Some(message) => Poll::Ready(Some(Ok(message))),
            None if this.future.is_some() => Poll::Pending,
            None => Poll::Ready(this.outcome.take().map(Err)),
        }
    }
}
