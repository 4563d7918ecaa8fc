//! [`StreamCore`]: the state of one stream, shared by the application's halves and the driver.
//!
//! Both directions are behind one lock, which is taken once per batch of messages rather than once
//! per message, and never across code of the application. Either side may be on any thread: a
//! handler's stream may run on an executor, and a client's on any thread.
//!
//! ```text
//!  application                     StreamCore                         driver
//!  Streaming ◀── take ──── inbound:  arrived batches ◀── receive ──── message frames
//!  Sender, Responses ─ push ▶ outbound: chunks ─────────── next_frame ─▶ message frames
//!            └──────────────── signal: the driver has to look ─────────▶
//! ```

use std::fmt;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use biased_lock::{BiasedGuard, BiasedLock};

use super::end::StreamEnd;
use super::inbound::{Inbound, Taken};
use super::outbound::{FrameRoom, Outbound, PushOutcome, StreamSizes};
use super::traffic::ReadCounts;
use super::turns::{LocalTurns, LoneMessage, Turns};
use super::wakers::wake_all;
use crate::call_error::CallError;
use crate::codec::Chunks;
use crate::intercept::Traffic;
use crate::peer_memory::HostMemory;

/// The queue through which a stream tells its driver that it has work.
pub(crate) trait SignalQueue: fmt::Debug + Send + Sync {
    /// Queues the stream with this number, and wakes the driver.
    fn push_stream(&self, index: u32);
}

/// The stream's number in the driver's table, and the driver's queue.
#[derive(Debug)]
struct Signal {
    queue: Arc<dyn SignalQueue>,
    index: u32,
}

/// One stream.
pub(crate) struct StreamCore {
    state: BiasedLock<StreamState>,
    signal: OnceLock<Signal>,
    /// The poller that has created it for its own thread.
    poller: Option<LocalTurns>,
    turns: Turns,
    /// A frame has arrived since this side sent a message alone. It only says which way the next one takes,
    /// and guards nothing.
    has_heard: AtomicBool,
    /// Length of the longest message that the server's method permits a client to send.
    longest_request: usize,
    /// What the application has read, if that is counted.
    read: ReadCounts,
    /// The poller has created it for its own thread, whose next stream may have it.
    is_reusable: bool,
}

/// Both directions of a stream.
#[derive(Debug)]
pub(crate) struct StreamState {
    pub(crate) inbound: Inbound,
    pub(crate) outbound: Outbound,
    /// The application has given the call up.
    is_cancelled: bool,
    /// The driver has been told to look, and has not looked yet. True until the driver has attached
    /// the stream: it looks then.
    is_signalled: bool,
}

impl StreamCore {
    /// Creates a stream that no driver knows yet. Nothing can be sent before
    /// [`attach`](Self::attach).
    pub(crate) fn new() -> Arc<Self> {
        Self::with(BiasedLock::new, false)
    }

    /// Like [`new`](Self::new), for a server whose method limits the messages of its clients. `kept` is
    /// what an ended stream has left.
    pub(crate) fn of_server(
        kept: Option<Arc<Self>>,
        poller: Option<LocalTurns>,
        max_request_len: Option<u32>,
    ) -> Arc<Self> {
        // Its handler is polled in turns.
        Self::of_this_thread(kept, poller, Turns(None), max_request_len)
    }

    /// Returns what counts the messages that the application reads.
    pub(crate) fn read(&self) -> &ReadCounts {
        &self.read
    }

    /// Returns what the application has queued or sent.
    pub(crate) fn sent(&self) -> Traffic {
        self.lock().outbound.handed_over.traffic()
    }

    /// Returns the length of the longest message that the server's method permits a client to send.
    pub(crate) fn longest_request(&self) -> usize {
        self.longest_request
    }

    /// Like [`new`](Self::new), for a client whose poller has no thread of its own. `kept` is what an ended
    /// stream has left.
    pub(crate) fn of_local_poller(
        kept: Option<Arc<Self>>,
        poller: Option<LocalTurns>,
    ) -> Arc<Self> {
        Self::of_this_thread(kept, poller, Turns(poller), None)
    }

    /// The poller that creates the stream is to enter most: the application's end is probably used on its
    /// thread.
    fn of_this_thread(
        kept: Option<Arc<Self>>,
        poller: Option<LocalTurns>,
        turns: Turns,
        max_request_len: Option<u32>,
    ) -> Arc<Self> {
        let new = || Self::with(BiasedLock::favouring_this_thread, true);
        let mut core = kept.unwrap_or_else(new);
        // It has been taken or created just now.
        if let Some(this) = Arc::get_mut(&mut core) {
            (this.poller, this.turns) = (poller, turns);
            this.longest_request = max_request_len.map_or(usize::MAX, |len| len as usize);
        }
        core
    }

    fn with(lock: fn(StreamState) -> BiasedLock<StreamState>, is_reusable: bool) -> Arc<Self> {
        Arc::new(Self {
            state: lock(StreamState {
                inbound: Inbound::default(),
                outbound: Outbound::default(),
                is_cancelled: false,
                is_signalled: true,
            }),
            signal: OnceLock::new(),
            poller: None,
            turns: Turns(None),
            has_heard: AtomicBool::new(false),
            longest_request: usize::MAX,
            read: ReadCounts::default(),
            is_reusable,
        })
    }

    /// Returns true if the next stream would be served by what this one leaves, now that it has ended.
    pub(super) fn is_worth_keeping(&self) -> bool {
        self.is_reusable && {
            let mut state = self.lock();
            let is_worth = state.inbound.has_little_left() && state.outbound.has_nothing_left();
            if is_worth {
                state.inbound.forget_charge();
            }
            is_worth
        }
    }

    /// Forgets a stream that has ended, but for its memory.
    pub(super) fn renew(&mut self) {
        self.signal = OnceLock::new();
        *self.has_heard.get_mut() = false;
        let StreamState {
            inbound,
            outbound,
            is_cancelled,
            is_signalled,
        } = self.state.get_mut();
        inbound.renew();
        outbound.renew();
        (*is_cancelled, *is_signalled) = (false, true);
    }

    #[inline(always)]
    pub(crate) fn lock(&self) -> BiasedGuard<'_, StreamState> {
        // Under this lock only the allocator can panic.
        self.state.enter()
    }

    /// Returns the turns that the application's end takes while it waits.
    pub(crate) fn turns(&self) -> Turns {
        self.turns
    }

    /// Makes the stream known to a driver, which then looks at it. Returns the waker of a sender
    /// that has waited for it.
    #[must_use]
    pub(crate) fn attach(
        &self,
        queue: Arc<dyn SignalQueue>,
        index: u32,
        sizes: StreamSizes,
        memory: &'static HostMemory,
    ) -> Option<Waker> {
        // Before `is_signalled` is cleared, which happens under the lock below at the earliest.
        let _ = self.signal.set(Signal { queue, index });
        let mut state = self.lock();
        state.inbound.open(sizes.inbound_window, memory);
        state.outbound.open(sizes, memory)
    }

    fn signal(&self) {
        if let Some(Signal { queue, index }) = self.signal.get() {
            queue.push_stream(*index);
        }
    }

    /// Unlocks a state that the application has changed, and tells the driver to look if it has to.
    fn unlock(&self, mut state: BiasedGuard<'_, StreamState>, needs_driver: bool) {
        let signals = needs_driver && !mem::replace(&mut state.is_signalled, true);
        drop(state);
        if signals {
            self.signal();
        }
    }

    /// Takes the batch that has arrived, into `batch`, whose memory the stream keeps for what arrives
    /// next. Returns false if something else has arrived, or if the reader may have to take a turn while it
    /// waits: [`poll_take`](Self::poll_take) tells.
    #[inline]
    pub(crate) fn poll_batch(&self, batch: &mut Vec<u8>, cx: &mut Context<'_>) -> Poll<bool> {
        let mut state = self.lock();
        if state.inbound.take_batch(batch) {
            let needs_driver = state.inbound.needs_driver();
            self.unlock(state, needs_driver);
            return Poll::Ready(true);
        }
        let is_own = state.inbound.reader.is_own(cx.waker());
        let may_take_turn = self.turns.0.is_some() && !is_own;
        if may_take_turn || !state.inbound.awaits_batch() {
            return Poll::Ready(false);
        }
        state.inbound.wait(batch);
        if is_own {
            // Its waker is there.
            return Poll::Pending;
        }
        register(state, |state| state.inbound.reader.place(), cx)
    }

    /// Takes what has arrived, into `batch`, whose memory the stream keeps for what arrives next.
    pub(crate) fn poll_take(&self, batch: &mut Vec<u8>, cx: &mut Context<'_>) -> Poll<Taken> {
        let mut state = self.lock();
        if let Some(taken) = state.inbound.take(batch) {
            let needs_driver = state.inbound.needs_driver();
            self.unlock(state, needs_driver);
            return Poll::Ready(taken);
        }
        state.inbound.wait(batch);
        let signals = state.inbound.awaits_fetch() && !mem::replace(&mut state.is_signalled, true);
        let pending = register(state, |state| state.inbound.reader.place(), cx);
        if signals {
            self.signal();
        }
        pending
    }

    /// Waits until the server has begun to answer, and takes its initial metadata as encoded bytes;
    /// or returns the end of a call that has ended without.
    pub(crate) fn poll_begun(&self, cx: &mut Context<'_>) -> Poll<Result<Vec<u8>, StreamEnd>> {
        let mut state = self.lock();
        if let Some(begun) = state.inbound.take_begun() {
            return Poll::Ready(begun);
        }
        state.inbound.reader.wait();
        register(state, |state| state.inbound.reader.place(), cx)
    }

    /// Queues encoded messages, as a batch of `count`. If there is no room, registers the waker and
    /// leaves `batch` as it is; otherwise `batch` is empty afterwards.
    pub(crate) fn poll_push(
        &self,
        batch: &mut Vec<u8>,
        count: u32,
        cx: &mut Context<'_>,
    ) -> Poll<PushOutcome> {
        let mut state = self.lock();
        match state.outbound.push(batch, count) {
            PushOutcome::Full => register(state, |state| &mut state.outbound.sender, cx),
            outcome => {
                self.unlock(state, outcome == PushOutcome::Queued);
                Poll::Ready(outcome)
            }
        }
    }

    /// Queues a long message. If there is no room, registers the waker and leaves `message` as it is.
    #[cold]
    #[inline(never)]
    pub(crate) fn poll_push_long(
        &self,
        message: &mut Option<Chunks>,
        cx: &mut Context<'_>,
    ) -> Poll<PushOutcome> {
        let mut state = self.lock();
        match state.outbound.push_long(message) {
            PushOutcome::Full => register(state, |state| &mut state.outbound.sender, cx),
            outcome => {
                self.unlock(state, outcome == PushOutcome::Queued);
                Poll::Ready(outcome)
            }
        }
    }

    /// Notes that a frame of the peer has arrived.
    #[inline]
    pub(crate) fn note_arrival(&self) {
        self.has_heard.store(true, Ordering::Relaxed);
    }

    /// Returns true if the next message probably is alone.
    #[inline]
    pub(super) fn expects_lone_message(&self) -> bool {
        self.has_heard.load(Ordering::Relaxed)
    }

    /// Sends a message of `len` bytes, which `encode` writes, without queueing it. Returns false if it
    /// has to be queued: on another thread than the poller's, or because something waits or lacks.
    pub(super) fn send_alone(&self, len: usize, encode: &mut dyn FnMut(&mut [u8]) -> bool) -> bool {
        self.has_heard.store(false, Ordering::Relaxed);
        let (Some(poller), Some(signal)) = (self.poller, self.signal.get()) else {
            return false;
        };
        let mut message = LoneMessage {
            core: ptr::from_ref(self).cast(),
            index: signal.index,
            len,
            encode,
        };
        (poller.send)(poller.poller, &mut message)
    }

    /// Waits until [`poll_push`](Self::poll_push) would not have to wait. Returns what fits in a
    /// frame, or `None` if the call has ended.
    pub(crate) fn poll_room(&self, cx: &mut Context<'_>) -> Poll<Option<FrameRoom>> {
        let state = self.lock();
        match state.outbound.room() {
            Some(room) => Poll::Ready(room),
            None => register(state, |state| &mut state.outbound.sender, cx),
        }
    }

    /// Waits until another long message may be made: on a server, until the client has read those before, or its
    /// host has read enough of all streams. Nothing that follows a long message is made meanwhile. Does not wait
    /// if the call has ended.
    #[cold]
    pub(super) fn poll_reader(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if !state.outbound.must_wait_for_reader() {
            return Poll::Ready(());
        }
        // The driver remembers it, and wakes the sender.
        let signals = !mem::replace(&mut state.is_signalled, true);
        let pending = register(state, |state| &mut state.outbound.sender, cx);
        if signals {
            self.signal();
        }
        pending
    }

    /// Sends the initial metadata, encoded, with the first message or alone.
    pub(crate) fn begin(&self, metadata: Vec<u8>) {
        let mut state = self.lock();
        state.outbound.begin(metadata);
        self.unlock(state, true);
    }

    /// Ends this side's messages: the half-close.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        let needs_driver = state.outbound.close();
        self.unlock(state, needs_driver);
    }

    /// Gives the call up.
    pub(crate) fn cancel(&self) {
        let mut state = self.lock();
        state.is_cancelled = true;
        let left = state.inbound.discard();
        self.unlock(state, true);
        drop(left);
    }

    /// Ends the call with an error of this side, which the reader gets after the messages that have
    /// arrived, and gives it up.
    pub(crate) fn fail(&self, error: CallError) {
        let mut state = self.lock();
        state.is_cancelled = true;
        let wakers = state.end(StreamEnd::Failed(error));
        let left = state.outbound.take_left();
        self.unlock(state, true);
        drop(left);
        wake_all(wakers.into_iter().flatten());
    }

    /// Ends a call that no driver has, and wakes the tasks that wait for it.
    pub(crate) fn end(&self, end: StreamEnd) {
        let mut state = self.lock();
        let wakers = state.end(end);
        let left = state.outbound.take_left();
        drop(state);
        drop(left);
        wake_all(wakers.into_iter().flatten());
    }

    /// Discards the messages that have arrived and those that will arrive: their reader is gone.
    pub(crate) fn discard(&self) {
        let mut state = self.lock();
        let left = state.inbound.discard();
        // The driver stops the transfers of long messages.
        let needs_driver = state.inbound.owes_grant() || !left.1.is_empty();
        self.unlock(state, needs_driver);
        drop(left);
    }
}

/// Cancels a call when dropped.
pub(super) struct CancelOnPanic<'a>(pub(super) &'a StreamCore);

impl Drop for CancelOnPanic<'_> {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Registers the waker of a task that has to wait.
fn register<R>(
    mut state: BiasedGuard<'_, StreamState>,
    place: impl FnOnce(&mut StreamState) -> &mut Option<Waker>,
    cx: &mut Context<'_>,
) -> Poll<R> {
    let place = place(&mut state);
    let replaced = match place {
        Some(waker) if waker.will_wake(cx.waker()) => None,
        // Cloning a waker may run an executor's code. It must not use this stream, which its
        // contract does not allow either: it would need the half that is being polled.
        _ => place.replace(cx.waker().clone()),
    };
    drop(state);
    drop(replaced);
    Poll::Pending
}

impl StreamState {
    /// Notes that the driver looks at the stream now: later work signals again.
    pub(crate) fn begin_look(&mut self) {
        self.is_signalled = false;
    }

    /// Returns true if the application has given the call up.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.is_cancelled
    }

    /// Discards what waits to be sent, because the call has been answered. Returns the waker of the
    /// sender.
    #[must_use]
    pub(crate) fn stop_sending(&mut self) -> Option<Waker> {
        self.outbound.end()
    }

    /// Frees the memory of a stream that has been idle.
    pub(crate) fn trim(&mut self) {
        self.inbound.trim();
        self.outbound.trim();
    }

    /// Ends the stream. Returns the wakers of its reader and its sender.
    #[must_use]
    pub(crate) fn end(&mut self, end: StreamEnd) -> [Option<Waker>; 2] {
        match end {
            StreamEnd::Failed(error) => self.inbound.fail(error),
            end => self.inbound.end(end),
        }
        [self.inbound.reader.wake(), self.outbound.end()]
    }
}

impl fmt::Debug for StreamCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StreamCore")
    }
}
