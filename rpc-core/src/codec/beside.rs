//! Decoding beside the poller: what takes long to decode does not keep a poller's thread.
//!
//! Everybody on a poller waits while it decodes a message. Most messages take microseconds, also long
//! ones: a field of type `Bytes` is a slice of its message. But 300,000 entries of a map are 3.6 MB, and
//! take 100 ms. So [`Codec::begin_decode`] estimates first what a message
//! takes, with the [`Scan`](super::Scan) that bounds its memory, and what takes more than
//! [`MOST_WORK`](super::budget::MOST_WORK) is decoded on another thread. No message is refused for the work that it takes.
//!
//! ```text
//!  poller's thread                              verbline-decode
//!  begin_decode ── scan ── is short: decode
//!                   │
//!                   └───── takes long ────────▶ queue ── decode ─┐
//!  DecodeFuture ◀───────── the outcome, and a wake ──────────────┘
//! ```
//!
//! - Only messages in memory of their own come here. One that arrives in a slot is too short.
//! - Only threads of pollers pass decodes on. A handler on an executor decodes what its stream brings
//!   where it is, and so does a client on a thread of its own.
//! - The process has one such thread, which starts with the first decode and ends with the last one. Decodes
//!   wait for it in their order.
//! - A decode that waits holds its message, which counts as memory that the application keeps. That bounds
//!   the queue.
//! - A decode that nobody waits for any more does not begin. A value that nobody takes is dropped there too:
//!   that takes long as well.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use super::scan::{ScanField, takes_long};
use super::{Codec, DecodeError, Decoded};
use crate::catch_panic::catch_panic;
use crate::offload::{Offloaded, Spawned, offload};

/// What [`Codec::begin_decode`] returns.
#[derive(Debug)]
pub enum BegunDecode<M> {
    /// The message was decoded, or cannot be.
    Done(Result<Decoded<M>, DecodeError>),
    /// The message is being decoded on another thread.
    Beside(DecodeFuture<M>),
}

/// A message that is being decoded on another thread. If it is dropped, so is the message.
pub struct DecodeFuture<M>(Pin<Box<dyn Future<Output = DecodeResult<M>> + Send + Sync>>);

type DecodeResult<M> = Result<Decoded<M>, DecodeError>;

impl<M: Send + 'static> BegunDecode<M> {
    /// Decodes a message with the codec `C`: on another thread if this one is a poller's, and at once
    /// otherwise.
    #[must_use]
    pub fn beside<C: Codec<M>>(bytes: &Bytes, share_from: usize) -> Self {
        match POLLER.get() {
            Some(poller) => Self::on_decoding_thread::<C>(bytes, share_from, poller),
            None => Self::Done(C::decode_shared(bytes, share_from)),
        }
    }

    /// Like [`beside`](Self::beside), but at once if the message does not take long. `scan_field` passes
    /// its fields.
    pub(super) fn estimated<C: Codec<M>>(
        bytes: &Bytes,
        share_from: usize,
        scan_field: ScanField,
    ) -> Self {
        match POLLER.get() {
            Some(poller) if takes_long(bytes, share_from, poller.most_work, scan_field) => {
                Self::on_decoding_thread::<C>(bytes, share_from, poller)
            }
            _ => Self::Done(C::decode_shared(bytes, share_from)),
        }
    }

    #[cold]
    fn on_decoding_thread<C: Codec<M>>(
        bytes: &Bytes,
        share_from: usize,
        poller: PollerThread,
    ) -> Self {
        let bytes = bytes.clone();
        let decode = async move { C::decode_shared(&bytes, share_from) };
        let (work, outcome) = offload(decode, || unreachable!("each decode is polled"));
        spawn(work, poller.start);
        Self::Beside(DecodeFuture(Box::pin(PassedOn {
            outcome,
            start: poller.start,
        })))
    }
}

impl<M> BegunDecode<M> {
    /// Waits for the outcome.
    pub(crate) async fn finish(self) -> Result<Decoded<M>, DecodeError> {
        match self {
            Self::Done(outcome) => outcome,
            Self::Beside(decode) => decode.await,
        }
    }
}

impl<M> Future for DecodeFuture<M> {
    type Output = Result<Decoded<M>, DecodeError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

impl<M> fmt::Debug for DecodeFuture<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DecodeFuture")
    }
}

/// A decode that was passed on.
struct PassedOn<M: Send + 'static> {
    outcome: Offloaded<DecodeResult<M>>,
    start: StartThread,
}

impl<M: Send + 'static> Future for PassedOn<M> {
    type Output = DecodeResult<M>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.outcome).poll(cx)
    }
}

impl<M: Send + 'static> Drop for PassedOn<M> {
    fn drop(&mut self) {
        if let Some(untaken) = self.outcome.leave() {
            spawn(Box::pin(async move { drop(untaken) }), self.start);
        }
    }
}

/// Starts a thread of the library that runs this function.
pub(crate) type StartThread = fn(fn()) -> io::Result<()>;

/// What a poller's thread knows of the other one.
#[derive(Clone, Copy)]
struct PollerThread {
    start: StartThread,
    /// The most work of a decode on this thread.
    most_work: u64,
}

thread_local! {
    /// `None` if this thread runs no poller.
    static POLLER: Cell<Option<PollerThread>> = const { Cell::new(None) };
}

/// Notes that this thread runs a poller from now on, which decodes what takes at most this work. `start` starts
/// the thread that decodes the rest.
pub(crate) fn enter_poller_thread(start: StartThread, most_work: u64) {
    POLLER.set(Some(PollerThread { start, most_work }));
}

/// The work of the decoding thread.
struct Queue {
    waiting: VecDeque<Spawned>,
    /// The thread runs, or is about to.
    is_running: bool,
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue {
    waiting: VecDeque::new(),
    is_running: false,
});

fn queue() -> MutexGuard<'static, Queue> {
    // Under this lock only the allocator can panic.
    QUEUE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Queues work for the decoding thread, and starts the thread if it does not run.
fn spawn(work: Spawned, start: StartThread) {
    let mut queue = queue();
    queue.waiting.push_back(work);
    if queue.is_running {
        return;
    }
    queue.is_running = true;
    drop(queue);
    if let Err(error) = start(run) {
        log_limited!(
            warn,
            "the system refuses the thread for messages that take long to decode: the poller decodes them \
             ({error})"
        );
        run();
    }
}

/// Does what is queued, until nothing is left.
fn run() {
    let mut waiting = queue();
    while let Some(mut work) = waiting.waiting.pop_front() {
        drop(waiting);
        // A decode ends at its first poll, and catches its own panics. Those of wakers and destructors are
        // caught here.
        let done = catch_panic(|| {
            let polled = work.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_ready(), "a decode does not wait");
            drop(work);
        });
        if let Err(panicked) = done {
            log_limited!(
                error,
                "the waker of a task, or the destructor of a message that nobody took, panicked: {panicked}"
            );
        }
        waiting = queue();
    }
    waiting.is_running = false;
}
