//! [`Outbound`]: the messages of a stream that wait to be sent.
//!
//! Messages wait in chunks, each of which becomes the body of one frame. A message joins the latest
//! chunk if it fits, so that messages that wait together share a frame, and one that is alone leaves
//! alone.

use std::collections::VecDeque;
use std::mem;
#[cfg(feature = "test-util")]
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use super::batch::{MessageForm, PREFIX_LEN};
use super::inbound::KEPT_WHEN_IDLE;
use super::long::LONG_MESSAGE_CHARGE;
use super::traffic::HandedOver;
use super::unread::Unread;
use crate::codec::Chunks;
use crate::limits::MessageLimit;
use crate::peer_memory::{Charge, HostMemory, Use};

/// What the handshake has determined about a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamSizes {
    /// Most bytes of metadata and messages in one frame.
    pub(crate) frame_room: usize,
    /// Bytes of messages that the peer may send before this side grants more.
    pub(crate) inbound_window: u32,
    /// Bytes of messages that this side may send before the peer grants more.
    pub(crate) outbound_window: u32,
    /// Whether messages that wait together share a frame.
    pub(crate) coalesces: bool,
    /// The limit of a message.
    pub(crate) longest_message: MessageLimit,
    /// Whether this side is the server.
    pub(crate) is_served: bool,
}

/// Frames whose messages may wait. A long message takes the room of all.
const QUEUED_FRAMES: usize = 4;

/// Empty chunks that are kept.
const SPARE_CHUNKS: usize = 4 * QUEUED_FRAMES;

/// Returns whether messages that wait together share a frame: always, but in a measurement.
#[cfg(not(feature = "test-util"))]
pub(crate) fn coalesces() -> bool {
    true
}

/// Returns whether messages that wait together share a frame.
#[cfg(feature = "test-util")]
pub(crate) fn coalesces() -> bool {
    COALESCES.load(Ordering::Relaxed)
}

/// Cleared by a measurement of what shared frames are worth.
#[cfg(feature = "test-util")]
pub(crate) static COALESCES: AtomicBool = AtomicBool::new(true);

/// Empty chunks that are kept when the call has ended, for the next stream.
const KEPT_AT_END: usize = 2;

/// The result of queueing messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PushOutcome {
    Queued,
    /// There is no room yet.
    Full,
    /// The call has ended.
    Ended,
}

/// What fits in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameRoom {
    /// Most bytes of metadata and messages. A message that is alone has no prefix.
    pub(crate) bytes: usize,
    /// Whether messages that wait together share a frame.
    pub(crate) coalesces: bool,
    /// The limit of a message. One that does not fit in a frame is long.
    pub(crate) longest_message: MessageLimit,
}

/// A frame that the driver should send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NextFrame {
    pub(crate) metadata_len: usize,
    pub(crate) form: MessageForm,
    /// Length in bytes of the messages, without prefix if there is one message.
    pub(crate) message_len: usize,
    /// It is the last of this side's messages.
    pub(crate) is_last: bool,
    /// The message is long: [`Outbound::take_long`] returns it. `message_len` is 0.
    pub(crate) is_long: bool,
}

/// What one frame brings.
#[derive(Debug)]
enum Chunk {
    /// Messages in the form of a batch.
    Batch {
        bytes: Vec<u8>,
        count: u32,
    },
    Long(Box<Chunks>),
}

impl Chunk {
    /// Returns the bytes of the window that it takes.
    fn charge(&self) -> usize {
        match self {
            Self::Batch { bytes, .. } => bytes.len(),
            Self::Long(_) => LONG_MESSAGE_CHARGE as usize,
        }
    }
}

/// The direction to the peer.
#[derive(Debug, Default)]
pub(crate) struct Outbound {
    chunks: VecDeque<Chunk>,
    spare: Vec<Vec<u8>>,
    /// Counts a frame for each of `charged`, beyond the first one.
    charge: Charge,
    unread: Unread,
    /// What waited and was kept when it was last charged.
    charged: usize,
    /// Bytes in all batches, and for a long message the room of all frames that may wait.
    queued: usize,
    /// Zero until the stream is attached.
    frame_room: usize,
    coalesces: bool,
    longest_message: MessageLimit,
    /// Bytes that the peer accepts.
    window: u32,
    /// Initial metadata to send, encoded.
    metadata: Option<Vec<u8>>,
    is_closed: bool,
    has_sent_close: bool,
    has_ended: bool,
    pub(super) handed_over: HandedOver,
    /// Long messages that were not sent before the end.
    left: Vec<Chunks>,
    /// The task that waits for room.
    pub(super) sender: Option<Waker>,
}

impl Outbound {
    #[must_use]
    pub(super) fn open(
        &mut self,
        sizes: StreamSizes,
        memory: &'static HostMemory,
    ) -> Option<Waker> {
        self.charge = memory.charge(Use::Heap, 0);
        self.unread.begin(sizes.is_served.then_some(memory));
        self.handed_over = HandedOver::default();
        self.frame_room = sizes.frame_room;
        self.coalesces = sizes.coalesces;
        self.longest_message = sizes.longest_message;
        self.window = sizes.outbound_window;
        self.sender.take()
    }

    /// Returns what fits in a frame if there is room for another one, `Some(None)` if the call has
    /// ended.
    pub(super) fn room(&self) -> Option<Option<FrameRoom>> {
        if self.has_ended {
            return Some(None);
        }
        self.has_room().then_some(Some(FrameRoom {
            bytes: self.frame_room,
            coalesces: self.coalesces,
            longest_message: self.longest_message,
        }))
    }

    /// Returns the bytes that may wait.
    fn capacity(&self) -> usize {
        QUEUED_FRAMES * self.frame_room
    }

    /// Returns true if another batch may be queued: always the first, and further ones if as many have been
    /// charged, or if the host may use more.
    fn has_room(&self) -> bool {
        match self.queued {
            // None before the stream is attached.
            0 => self.frame_room > 0,
            queued => {
                // A batch that is kept, if there is one, is used again.
                let is_charged = self.chunks.len() < self.charged;
                queued < self.capacity() && (is_charged || !self.charge.is_at_heap_limit())
            }
        }
    }

    /// Charges what waits now, and the batches that are kept. All hosts count charges together, so one grows when
    /// the queue is longer than before, and shrinks at the host's limit or when the stream is idle or ends.
    fn charge(&mut self) {
        self.charged = self.chunks.len() + self.spare.len();
        let bytes = self.charged.saturating_sub(1) * self.frame_room;
        self.charge.set(bytes as u64);
    }

    /// Queues a batch of `count` messages that fits in a frame, and empties it.
    #[inline(always)]
    pub(super) fn push(&mut self, batch: &mut Vec<u8>, count: u32) -> PushOutcome {
        if self.has_ended {
            return PushOutcome::Ended;
        }
        if !self.has_room() {
            return PushOutcome::Full;
        }
        self.queued += batch.len();
        self.handed_over.add(count, batch.len());
        if let Some(Chunk::Batch {
            bytes: latest,
            count: latest_count,
        }) = self.chunks.back_mut()
            && self.coalesces
            && latest.len() + batch.len() <= self.frame_room
        {
            latest.extend_from_slice(batch);
            *latest_count += count;
            batch.clear();
        } else {
            let bytes = mem::replace(batch, self.spare.pop().unwrap_or_default());
            self.chunks.push_back(Chunk::Batch { bytes, count });
            // An ended stream has left batches that are not charged.
            if self.chunks.len() > self.charged.max(1) {
                self.charge();
            }
        }
        PushOutcome::Queued
    }

    /// Queues a long message, and takes it. One waits at a time.
    pub(super) fn push_long(&mut self, message: &mut Option<Chunks>) -> PushOutcome {
        if self.has_ended {
            return PushOutcome::Ended;
        }
        // Its memory is the application's: no batch stands for it.
        let waits = self.queued > 0 && self.charge.is_at_heap_limit();
        if waits || !self.has_room() {
            return PushOutcome::Full;
        }
        if let Some(message) = message.take() {
            self.unread.note_queued(message.len());
            self.queued += self.capacity();
            self.handed_over.add(1, PREFIX_LEN + message.len());
            self.chunks.push_back(Chunk::Long(Box::new(message)));
        }
        PushOutcome::Queued
    }

    /// Returns true if the sender has to wait before it makes another long message. The driver wakes it.
    pub(super) fn must_wait_for_reader(&mut self) -> bool {
        !self.has_ended && self.unread.must_wait()
    }

    /// Returns true if the sender waits for that.
    pub(crate) fn awaits_reader(&self) -> bool {
        self.unread.is_awaited()
    }

    /// Notes whether something of long messages is under way.
    #[inline]
    pub(crate) fn note_under_way(&mut self, any: bool) {
        self.unread.note_under_way(any);
    }

    pub(super) fn begin(&mut self, metadata: Vec<u8>) {
        if !self.has_ended {
            self.metadata = Some(metadata);
        }
    }

    pub(super) fn close(&mut self) -> bool {
        !self.has_ended && !mem::replace(&mut self.is_closed, true)
    }

    /// Ends this direction: what waits is discarded. Returns the waker of the sender.
    pub(super) fn end(&mut self) -> Option<Waker> {
        self.has_ended = true;
        while let Some(chunk) = self.chunks.pop_front() {
            if let Chunk::Long(message) = chunk {
                self.left.push(*message);
            }
        }
        self.spare.truncate(KEPT_AT_END);
        self.spare
            .retain(|batch| batch.capacity() <= KEPT_WHEN_IDLE);
        self.charge.set(0);
        self.unread.end();
        (self.charged, self.queued) = (0, 0);
        self.metadata = None;
        self.sender.take()
    }

    /// Adds bytes that the peer accepts. Returns false if their sum is too large to be honest.
    #[must_use]
    pub(crate) fn grant(&mut self, bytes: u32) -> bool {
        match self.window.checked_add(bytes) {
            Some(window) if window <= i32::MAX as u32 => {
                self.window = window;
                true
            }
            _ => false,
        }
    }

    /// Returns true if a message of `len` bytes may be sent now without being queued.
    pub(crate) fn may_pass(&self, len: usize) -> bool {
        let is_idle = self.is_empty() && !self.is_closed && !self.has_ended;
        is_idle && PREFIX_LEN + len <= self.window as usize
    }

    /// Notes that a message of `len` bytes, which [may pass](Self::may_pass), is sent.
    pub(crate) fn pass(&mut self, len: usize) {
        self.window -= (PREFIX_LEN + len) as u32;
        self.handed_over.add(1, PREFIX_LEN + len);
    }

    /// Returns the next frame to send, if there is one that the peer's window allows.
    // Inlined, because the second call of most looks finds nothing: everything was sent.
    #[inline(always)]
    pub(crate) fn next_frame(&self) -> Option<NextFrame> {
        let closes = self.is_closed && !self.has_sent_close;
        if self.has_ended || (self.is_empty() && !closes) {
            return None;
        }
        self.next_of_some()
    }

    fn next_of_some(&self) -> Option<NextFrame> {
        let front = self.chunks.front();
        let allowed = front.filter(|chunk| chunk.charge() <= self.window as usize);
        let (form, message_len) = match allowed {
            None => (MessageForm::None, 0),
            Some(Chunk::Batch { bytes, count: 1 }) => (MessageForm::One, bytes.len() - PREFIX_LEN),
            Some(Chunk::Batch { bytes, .. }) => (MessageForm::Batch, bytes.len()),
            Some(Chunk::Long(_)) => (MessageForm::One, 0),
        };
        let is_long = matches!(allowed, Some(Chunk::Long(_)));
        let metadata_len = self.metadata.as_ref().map_or(0, Vec::len);
        // Metadata does not precede a long message in its frame, which describes the message.
        if metadata_len + message_len > self.frame_room || (is_long && metadata_len > 0) {
            return Some(NextFrame {
                metadata_len,
                form: MessageForm::None,
                message_len: 0,
                is_last: false,
                is_long: false,
            });
        }
        let sent = usize::from(allowed.is_some());
        let is_last = self.is_closed && !self.has_sent_close && self.chunks.len() == sent;
        let has_any = form != MessageForm::None || self.metadata.is_some() || is_last;
        has_any.then_some(NextFrame {
            metadata_len,
            form,
            message_len,
            is_last,
            is_long,
        })
    }

    /// Writes metadata and messages of the next frame, which is then sent. `out` has their length.
    pub(crate) fn write_frame(&mut self, frame: &NextFrame, out: &mut [u8]) {
        let (metadata, messages) = out.split_at_mut(frame.metadata_len);
        if let Some(encoded) = self.metadata.take() {
            metadata.copy_from_slice(&encoded);
        }
        self.has_sent_close |= frame.is_last;
        if frame.form == MessageForm::None {
            return;
        }
        let Some(Chunk::Batch { mut bytes, .. }) = self.chunks.pop_front() else {
            return;
        };
        self.window -= bytes.len() as u32;
        self.queued -= bytes.len();
        let skipped = bytes.len() - frame.message_len;
        messages.copy_from_slice(&bytes[skipped..]);
        if self.spare.len() < SPARE_CHUNKS {
            bytes.clear();
            self.spare.push(bytes);
        }
    }

    /// Takes the long message of the next frame, to send it.
    pub(crate) fn take_long(&mut self) -> Option<(NextFrame, Chunks)> {
        let frame = self.next_frame().filter(|frame| frame.is_long)?;
        let Some(Chunk::Long(message)) = self.chunks.pop_front() else {
            return None;
        };
        // Empty metadata says only that the server has begun, as the message does.
        self.metadata = None;
        self.has_sent_close |= frame.is_last;
        self.window -= LONG_MESSAGE_CHARGE;
        self.queued -= self.capacity();
        self.charge();
        self.unread.note_sent();
        Some((frame, *message))
    }

    /// Reverts [`take_long`](Self::take_long) for a message that cannot be sent yet.
    pub(crate) fn put_back(&mut self, frame: NextFrame, message: Chunks) {
        if self.has_ended {
            return self.left.push(message);
        }
        self.has_sent_close &= !frame.is_last;
        self.window += LONG_MESSAGE_CHARGE;
        self.queued += self.capacity();
        self.unread.note_queued(message.len());
        self.chunks.push_front(Chunk::Long(Box::new(message)));
    }

    /// Takes the long messages that were not sent, when the call has ended. Their parts may be the
    /// application's, so they are dropped while nothing is locked or borrowed.
    pub(crate) fn take_left(&mut self) -> Vec<Chunks> {
        mem::take(&mut self.left)
    }

    /// Takes the waker of a sender that waits for room, if half of the room is free now that messages have been
    /// sent. If the host may use no more memory, frees what is spare, but for the only batch.
    pub(crate) fn after_sending(&mut self) -> Option<Waker> {
        let kept = usize::from(self.chunks.is_empty());
        if self.spare.len() > kept && self.charge.is_at_heap_limit() {
            self.spare.truncate(kept);
            self.charge();
        }
        if self.unread.is_awaited() && self.unread.must_wait() {
            return None;
        }
        if self.queued <= self.capacity() / 2 {
            self.sender.take()
        } else {
            None
        }
    }

    /// Returns true if nothing waits to be sent.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty() && self.metadata.is_none()
    }

    /// Returns the bytes that wait to be sent.
    #[cfg(test)]
    pub(super) fn queued(&self) -> usize {
        self.queued
    }

    /// Returns true if a call that has ended has left no message.
    pub(super) fn has_nothing_left(&self) -> bool {
        self.chunks.is_empty() && self.left.is_empty()
    }

    /// Forgets everything about a call that has ended, but keeps the memory.
    pub(super) fn renew(&mut self) {
        let Self {
            chunks,
            spare: _,
            handed_over: _,
            charge,
            unread,
            charged,
            queued,
            frame_room,
            coalesces,
            longest_message,
            window,
            metadata,
            is_closed,
            has_sent_close,
            has_ended,
            left,
            sender,
        } = self;
        chunks.clear();
        left.clear();
        charge.set(0);
        unread.end();
        (*charged, *queued, *frame_room, *window) = (0, 0, 0, 0);
        (*coalesces, *longest_message) = (false, MessageLimit::default());
        (*metadata, *sender) = (None, None);
        (*is_closed, *has_sent_close, *has_ended) = (false, false, false);
    }

    /// Frees the memory of a stream that has been idle.
    pub(crate) fn trim(&mut self) {
        if self.chunks.is_empty() {
            self.chunks = VecDeque::new();
            self.spare = Vec::new();
            self.charge();
        }
    }
}
