//! [`Inbound`]: the messages of a stream that have arrived, until their reader takes them.
//!
//! The reader exchanges its empty memory for all that has arrived, and decodes it without the lock.
//! The window bounds what waits here. It moves when the reader takes, and doubles while the sender
//! uses all of it and the reader keeps up.
//!
//! A long message keeps its position from the moment that its first frame arrives. What arrives behind
//! it waits with it, and the reader gets none of that before the message is complete:
//!
//! ```text
//!  arrived: batch ◀ long message, batch behind it ◀ long message (under way), batch behind it ◀ end
//! ```

use std::collections::VecDeque;
use std::mem;
use std::task::Waker;

use super::batch::{MessageForm, PREFIX_LEN, push_prefix};
use super::end::{ResponseBody, StreamEnd, no_memory};
use super::long::{LONG_MESSAGE_CHARGE, LONG_READ_AHEAD, NextLong, ReadAhead};
use super::reader::ReaderTask;
use super::window::{Window, WindowExceeded};
use crate::call_error::CallError;
use crate::codec::LongMessage;
use crate::limits::LEAST_UNREAD;
use crate::peer_memory::{Charge, HostMemory, Use};

/// Memory that a stream may keep when it is idle or has ended.
pub(super) const KEPT_WHEN_IDLE: usize = 512;

/// What a reader has taken.
#[derive(Debug)]
pub(crate) enum Taken {
    /// Messages, in the form of a batch.
    Batch,
    /// A long message.
    Long(LongMessage),
    /// There are no further messages. Returned once.
    End(StreamEnd),
    /// The end has been taken before.
    Nothing,
}

/// What the reader will not take, and its waker. To be dropped without the lock.
pub(crate) type Discarded = (Vec<u8>, VecDeque<LongArrival>, Option<Waker>);

/// The direction from the peer.
#[derive(Debug, Default)]
pub(crate) struct Inbound {
    /// Messages that have arrived before the first of `long`, in the form of a batch.
    arrived: Vec<u8>,
    /// Long messages that the reader has not taken, in their order.
    long: VecDeque<LongArrival>,
    /// Memory of the reader, for what arrives while it decodes.
    spare: Vec<u8>,
    window: Window,
    /// The server's initial metadata, encoded.
    metadata: Option<Vec<u8>>,
    /// The server has begun to answer.
    has_begun: bool,
    end: Option<StreamEnd>,
    has_ended: bool,
    is_discarded: bool,
    /// A message was dropped before it was complete, so that no further one may be read.
    is_cut: bool,
    /// The stream fails, because a message that arrived got no memory.
    lacks_memory: bool,
    /// Bytes of the memory that the reader took last.
    in_hand: usize,
    /// Counts the memory of what has arrived, beyond [`LEAST_UNREAD`].
    charge: Charge,
    /// The task that waits for messages.
    pub(crate) reader: ReaderTask,
}

/// A long message.
#[derive(Debug)]
pub(crate) struct LongArrival {
    /// The driver's name for it while it is under way.
    transfer: u32,
    /// `None` while it is under way.
    message: Option<LongMessage>,
    /// The driver fetches it, or has fetched it.
    is_fetched: bool,
    /// Counts it until the reader takes it.
    ahead: Option<ReadAhead>,
    /// The messages that have arrived behind it, in the form of a batch.
    behind: Vec<u8>,
}

impl LongArrival {
    fn is_under_way_as(&self, transfer: u32) -> bool {
        self.transfer == transfer && self.message.is_none()
    }
}

impl Inbound {
    pub(super) fn open(&mut self, window: u32, memory: &'static HostMemory) {
        self.charge = memory.charge(Use::Heap, 0);
        self.window.initial = window;
        self.window.size = window;
        self.window.available = window;
    }

    /// Adds the messages of a frame.
    #[inline]
    pub(crate) fn receive(&mut self, form: MessageForm, body: &[u8]) -> Result<(), WindowExceeded> {
        self.has_begun = true;
        let len = match form {
            MessageForm::None => return Ok(()),
            MessageForm::One => body.len() + PREFIX_LEN,
            MessageForm::Batch => body.len(),
        };
        self.window.consume(len)?;
        if self.is_discarded | self.is_cut | self.has_ended {
            self.window.owed += len as u32;
            return Ok(());
        }
        let mut batch = match self.long.back_mut() {
            None => &mut self.arrived,
            Some(long) => &mut long.behind,
        };
        if batch.capacity() - batch.len() < len {
            let Some(grown) = self.grow(len) else {
                return Ok(());
            };
            batch = grown;
        }
        if form == MessageForm::One {
            push_prefix(batch, body.len());
        }
        batch.extend_from_slice(body);
        Ok(())
    }

    /// Makes room for further bytes behind those that have arrived last. If there is no memory for them, they
    /// are dropped, and the stream fails.
    #[cold]
    fn grow(&mut self, len: usize) -> Option<&mut Vec<u8>> {
        let held = self.held();
        let batch = match self.long.back_mut() {
            None => &mut self.arrived,
            Some(long) => &mut long.behind,
        };
        let exact = batch.len() + len;
        let mut room = exact.max(2 * batch.capacity());
        let rest = held - batch.capacity();
        let beyond = |bytes: usize| bytes.saturating_sub(LEAST_UNREAD) as u64;
        if !self.charge.resize(beyond(rest + room)) {
            // What must be there, and nothing for what may follow.
            let rest = rest - self.spare.capacity();
            self.spare = Vec::new();
            room = exact;
            if !self.charge.resize(beyond(rest + room)) {
                self.lacks_memory = true;
                self.is_cut = true;
                return None;
            }
        }
        batch.reserve_exact(room - batch.len());
        Some(batch)
    }

    /// Returns the bytes of memory for messages, with those in the reader's hand.
    fn held(&self) -> usize {
        let behind = self.long.iter().map(|long| long.behind.capacity());
        let own = self.arrived.capacity() + self.spare.capacity() + self.in_hand;
        own + behind.sum::<usize>()
    }

    /// Charges nothing any more for a stream that has ended and holds little.
    pub(super) fn forget_charge(&mut self) {
        self.charge.set(0);
    }

    /// Returns true if a message was dropped because there was no memory for it.
    pub(crate) fn lacks_memory(&self) -> bool {
        self.lacks_memory
    }

    /// Returns true once if a message was dropped because there was no memory for it.
    pub(crate) fn take_lack_of_memory(&mut self) -> bool {
        mem::take(&mut self.lacks_memory)
    }

    /// Adds a long message, whose first frame has arrived. Returns false if nobody wants it.
    pub(crate) fn receive_long(&mut self, transfer: u32) -> Result<bool, WindowExceeded> {
        self.has_begun = true;
        self.window.consume(LONG_MESSAGE_CHARGE as usize)?;
        if self.is_discarded | self.is_cut | self.has_ended {
            self.window.owed += LONG_MESSAGE_CHARGE;
            return Ok(false);
        }
        self.long.push_back(LongArrival {
            transfer,
            message: None,
            is_fetched: false,
            ahead: None,
            behind: Vec::new(),
        });
        Ok(true)
    }

    /// Returns the next long message to fetch, or `None` if [`LONG_READ_AHEAD`] that the reader has not
    /// taken are fetched already.
    pub(crate) fn next_to_fetch(&self) -> Option<NextLong> {
        let mut ahead = self.long.iter().take(LONG_READ_AHEAD).enumerate();
        let (position, next) = ahead.find(|(_, long)| !long.is_fetched)?;
        Some(NextLong {
            transfer: next.transfer,
            is_awaited: position == 0 && self.arrived.is_empty() && self.reader.waits(),
        })
    }

    /// Notes that the driver fetches a long message, which `ahead` counts until the reader takes it.
    pub(crate) fn begin_to_fetch(&mut self, transfer: u32, ahead: Option<ReadAhead>) {
        let is_it = |long: &&mut LongArrival| long.is_under_way_as(transfer) && !long.is_fetched;
        if let Some(long) = self.long.iter_mut().find(is_it) {
            long.is_fetched = true;
            long.ahead = ahead;
        }
    }

    /// Completes a long message. Returns it if nobody wants it.
    pub(crate) fn complete_long(
        &mut self,
        transfer: u32,
        message: LongMessage,
    ) -> Option<LongMessage> {
        let mut arrivals = self.long.iter_mut();
        match arrivals.find(|long| long.is_under_way_as(transfer)) {
            Some(long) => {
                long.is_fetched = true;
                long.message.replace(message)
            }
            None => Some(message),
        }
    }

    /// Returns true if a long message is under way and is to be read.
    pub(crate) fn awaits(&self, transfer: u32) -> bool {
        self.long.iter().any(|long| long.is_under_way_as(transfer))
    }

    /// Drops a long message that does not arrive any more, and all that is behind it: only the end
    /// follows, and further messages are not wanted.
    pub(crate) fn cut(&mut self, transfer: u32) {
        let mut arrivals = self.long.iter();
        if let Some(position) = arrivals.position(|long| long.is_under_way_as(transfer)) {
            self.cut_at(position);
        }
    }

    /// Like [`cut`](Self::cut), from the first long message that is under way on.
    pub(crate) fn cut_incomplete(&mut self) {
        if let Some(position) = self.long.iter().position(|long| long.message.is_none()) {
            self.cut_at(position);
        }
    }

    fn cut_at(&mut self, position: usize) {
        for long in self.long.drain(position..) {
            self.window.owed += LONG_MESSAGE_CHARGE + long.behind.len() as u32;
        }
        self.is_cut = true;
        if let Some(end) = self.end.take() {
            self.end = Some(end.behind_cut());
        }
    }

    /// Keeps the server's initial metadata.
    pub(crate) fn begin(&mut self, metadata: &[u8]) {
        self.has_begun = true;
        self.metadata = Some(metadata.to_vec());
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Ends this direction, unless it has ended.
    #[inline]
    pub(crate) fn end(&mut self, end: StreamEnd) {
        if !mem::replace(&mut self.has_ended, true) {
            self.end = Some(match self.is_cut {
                true if self.lacks_memory => StreamEnd::Failed(CallError::remote(no_memory())),
                true => end.behind_cut(),
                false => end,
            });
        }
    }

    /// Ends this direction with an error, which follows the messages that have arrived. A long message
    /// that is under way does not arrive any more, nor does anything behind it.
    pub(super) fn fail(&mut self, error: CallError) {
        let incomplete = self.long.iter().position(|long| long.message.is_none());
        if let Some(first) = incomplete {
            self.long.truncate(first);
            self.has_ended = false;
        }
        self.end(StreamEnd::Failed(error));
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Takes the batch that has arrived, if there is one.
    #[inline]
    pub(super) fn take_batch(&mut self, batch: &mut Vec<u8>) -> bool {
        batch.clear();
        if self.arrived.is_empty() {
            return false;
        }
        mem::swap(&mut self.arrived, batch);
        if self.arrived.capacity() == 0 {
            mem::swap(&mut self.arrived, &mut self.spare);
        }
        self.in_hand = batch.capacity();
        self.window.took(batch.len());
        true
    }

    /// Returns true if nothing but a batch can be next, as far as is known.
    #[inline]
    pub(super) fn awaits_batch(&self) -> bool {
        self.long.is_empty() && !self.has_ended
    }

    /// Notes that the reader waits. `batch` is empty.
    #[inline]
    pub(super) fn wait(&mut self, batch: &mut Vec<u8>) {
        self.keep_memory(batch);
        self.window.reader_waits = true;
        self.reader.wait();
    }

    /// Takes the memory of an empty batch, so that the driver can free it if the stream is idle. What has
    /// ended takes none: the driver may have looked at it for the last time.
    #[inline]
    fn keep_memory(&mut self, batch: &mut Vec<u8>) {
        if self.has_ended {
            return;
        }
        if self.arrived.capacity() == 0 {
            mem::swap(&mut self.arrived, batch);
        } else if self.spare.capacity() == 0 {
            mem::swap(&mut self.spare, batch);
        }
        self.in_hand = batch.capacity();
    }

    pub(super) fn take(&mut self, batch: &mut Vec<u8>) -> Option<Taken> {
        if self.take_batch(batch) {
            return Some(Taken::Batch);
        }
        self.keep_memory(batch);
        if !self.long.is_empty() {
            return self.take_long();
        }
        match self.end.take() {
            Some(end) => Some(Taken::End(end)),
            None => self.has_ended.then_some(Taken::Nothing),
        }
    }

    /// Takes the first long message, if it is complete.
    #[cold]
    fn take_long(&mut self) -> Option<Taken> {
        let is_complete = self.long.front().is_some_and(|long| long.message.is_some());
        if !is_complete {
            return None;
        }
        let long = self.long.pop_front()?;
        if !long.behind.is_empty() {
            self.arrived = long.behind;
        }
        self.window.took(LONG_MESSAGE_CHARGE as usize);
        long.message.map(Taken::Long)
    }

    /// Returns true if the driver has to grant window or to fetch a long message, now that the reader has
    /// taken messages.
    pub(super) fn needs_driver(&self) -> bool {
        let awaits_fetch = |long: &LongArrival| !long.is_fetched;
        let any_awaits = || self.long.iter().take(LONG_READ_AHEAD).any(awaits_fetch);
        self.owes_grant() || (!self.long.is_empty() && any_awaits())
    }

    /// Returns true if the reader waits for a long message that was not fetched ahead of it.
    #[inline]
    pub(super) fn awaits_fetch(&self) -> bool {
        self.long.front().is_some_and(|long| !long.is_fetched)
    }

    pub(super) fn take_begun(&mut self) -> Option<Result<Vec<u8>, StreamEnd>> {
        if self.has_begun {
            return Some(Ok(self.metadata.take().unwrap_or_default()));
        }
        self.end.take().map(Err)
    }

    pub(super) fn discard(&mut self) -> Discarded {
        let arrived = mem::take(&mut self.arrived);
        let long = mem::take(&mut self.long);
        let behind: usize = long.iter().map(|long| long.behind.len()).sum();
        self.is_discarded = true;
        (self.spare, self.in_hand) = (Vec::new(), 0);
        self.charge.set(0);
        self.window.owed += (arrived.len() + behind) as u32;
        self.window.owed += long.len() as u32 * LONG_MESSAGE_CHARGE;
        (arrived, long, self.reader.leave())
    }

    pub(crate) fn is_discarded(&self) -> bool {
        self.is_discarded
    }

    /// Returns true if so much is owed that a grant should be sent for it alone.
    pub(crate) fn owes_grant(&self) -> bool {
        !self.has_ended && self.window.owed > 0 && self.window.owed >= self.window.size / 2
    }

    /// Takes the bytes to grant to the peer in a frame that is sent anyway; 0 if there are none.
    pub(crate) fn take_grant(&mut self) -> u32 {
        if self.has_ended {
            return 0;
        }
        let owed = mem::take(&mut self.window.owed);
        self.window.available += owed;
        owed
    }

    /// Takes the bytes to grant to the peer, if so many are owed that a control frame should carry
    /// them.
    pub(crate) fn take_due_grant(&mut self) -> Option<u32> {
        self.owes_grant().then(|| self.take_grant())
    }

    /// Returns true if an ended stream holds little memory, and none of a connection, whatever its reader
    /// has not taken.
    pub(super) fn has_little_left(&self) -> bool {
        let body = match &self.end {
            Some(StreamEnd::Response { body, .. }) => match body {
                ResponseBody::Short(body) => body.capacity(),
                ResponseBody::Long(_) => return false,
            },
            Some(StreamEnd::HalfClosed | StreamEnd::Failed(_)) | None => 0,
        };
        let metadata = self.metadata.as_ref().map_or(0, Vec::capacity);
        let batches = [self.arrived.capacity(), self.spare.capacity()];
        let is_little = |capacity: usize| capacity <= KEPT_WHEN_IDLE;
        self.long.is_empty() && [body, metadata].into_iter().chain(batches).all(is_little)
    }

    /// Forgets everything, but keeps the memory.
    pub(super) fn renew(&mut self) {
        let Self {
            arrived,
            long,
            spare,
            window,
            metadata,
            has_begun,
            end,
            has_ended,
            is_discarded,
            is_cut,
            lacks_memory,
            in_hand,
            charge,
            reader,
        } = self;
        arrived.clear();
        spare.clear();
        long.clear();
        *window = Window::default();
        *reader = ReaderTask::default();
        (*metadata, *end) = (None, None);
        (*has_begun, *has_ended) = (false, false);
        (*is_discarded, *is_cut, *lacks_memory) = (false, false, false);
        *in_hand = 0;
        charge.set(0);
    }

    /// Frees the memory of a stream that has been idle.
    pub(crate) fn trim(&mut self) {
        if self.arrived.is_empty() && self.arrived.capacity() > KEPT_WHEN_IDLE {
            self.arrived = Vec::new();
        }
        self.spare = Vec::new();
        let left = self.held().saturating_sub(LEAST_UNREAD);
        self.charge.set(left as u64);
    }
}
