//! The receiving half of a ring: memory that this process creates and the peer writes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use super::super::commit::{Commit, CommitWord, Flags};
use super::super::sync::Ordering;
use super::buffer::Taken;
use super::{
    CLOSED, FIRST, LAYOUT_VERSION, MAGIC, MAX_BUFFERED, MAX_IN_RING, NOT_READY, READY,
    RING_AND_STAGING_LEN, RING_LEN, Ring, SLOT_COUNT,
};
use crate::hooks::point;
use crate::prefetch::{self, LINE_LEN};
use crate::provider::soft::shared::memory::SharedMemory;

/// Messages after which a receiver acknowledges even if more have arrived. Each acknowledgement
/// costs a transfer of its cache line if the sender looks at it.
const ACK_INTERVAL: u64 = 16;

/// More NAKs than any receiver sends: it takes nothing more.
const STOPPED: u64 = u64::MAX;

/// The receiving half of a ring.
#[derive(Debug)]
pub(crate) struct RingReceiver {
    ring: Arc<Ring>,
    fd: OwnedFd,
    /// Sequence number of the next message.
    next: u64,
    /// What the messages before it have taken of the buffer.
    buffered: Taken,
    /// Sequence number of the last acknowledgement published to the sender.
    published: u64,
    /// RNR NAKs sent so far.
    naks: u64,
    /// The next message waits until the sender allows a retry.
    awaits_retry: bool,
}

/// The next message, still in its slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incoming {
    /// `len` untrusted bytes from a peer, in the slot or in the buffer. The sender leaves them alone until
    /// the message is acknowledged.
    pub(crate) payload: NonNull<u8>,
    pub(crate) len: usize,
    pub(crate) flags: Flags,
    /// The message's sequence number, which also locates its request word.
    pub(crate) sequence: u64,
}

impl Incoming {
    /// Returns the commit that the message was checked with.
    pub(crate) fn commit(&self) -> Commit {
        Commit {
            // The cast is lossless: the length came from a commit.
            len: self.len as u16,
            flags: self.flags,
        }
    }
}

/// Where the next message of a ring will appear: all that a look at an empty ring needs.
#[derive(Debug)]
pub(crate) struct NextMessage {
    /// The commit word of the message's slot.
    word: NonNull<CommitWord>,
    sequence: u64,
    /// The ring that `word` lies in: keeps it mapped.
    _ring: Arc<Ring>,
}

// SAFETY: the pointer is an address of the process, the same from every thread, and it is only
// dereferenced to an atomic.
unsafe impl Send for NextMessage {}

impl NextMessage {
    /// Returns the message's commit, if the sender has committed it. What it contains comes from
    /// the peer and has not been checked.
    #[inline]
    pub(crate) fn look(&self) -> Option<Commit> {
        // SAFETY: the word is an atomic in a mapping that `_ring` keeps alive; see `commit_word`.
        let commit = unsafe { self.word.as_ref() }.peek(self.sequence);
        if commit.is_none() {
            // A message that has two lines otherwise costs two transfers, one after the other: the
            // second line would only be requested when the first has arrived.
            prefetch::to_read(self.word.cast::<u8>().as_ptr().wrapping_add(LINE_LEN));
        }
        commit
    }

    /// Requests the lines of the message, which will be looked at soon.
    #[inline]
    pub(crate) fn prefetch(&self) {
        let slot = self.word.cast::<u8>().as_ptr();
        prefetch::to_read(slot);
        prefetch::to_read(slot.wrapping_add(LINE_LEN));
    }

    /// Returns true if a message has been committed; for a ring that is not expected to have one.
    pub(crate) fn has_come(&self) -> bool {
        // SAFETY: as in `look`: the word is an atomic in a mapping that `_ring` keeps alive.
        unsafe { self.word.as_ref() }.peek(self.sequence).is_some()
    }
}

/// Error: the sender committed an invalid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadCommit;

impl RingReceiver {
    /// Creates a ring whose first message has the PSN `psn`, with staging memory if READs are
    /// permitted.
    pub(crate) fn new(psn: u32, may_be_read: bool) -> io::Result<Self> {
        let len = if may_be_read {
            RING_AND_STAGING_LEN
        } else {
            RING_LEN
        };
        let SharedMemory { mapping, fd } = SharedMemory::for_writers("verbline-ring", len)?;
        let ring = Arc::new(Ring::new(mapping)?);
        point!(MakeRing);
        let head = ring.head();
        head.preamble.magic.store(MAGIC, Ordering::Relaxed);
        head.preamble
            .version
            .store(LAYOUT_VERSION, Ordering::Relaxed);
        head.preamble
            .slot_count
            .store(SLOT_COUNT as u32, Ordering::Relaxed);
        head.preamble.psn.store(u64::from(psn), Ordering::Relaxed);
        head.progress.ack.publish(FIRST - 1);
        head.readiness.state.store(NOT_READY, Ordering::Release);
        Ok(Self {
            ring,
            fd,
            next: FIRST,
            buffered: Taken::default(),
            published: FIRST - 1,
            naks: 0,
            awaits_retry: false,
        })
    }

    /// Returns the file to send to the peer.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Starts accepting messages.
    pub(crate) fn set_ready(&self) {
        point!(RingReady);
        self.ring
            .head()
            .readiness
            .state
            .store(READY, Ordering::Release);
    }

    /// Stops accepting messages: from now on they are dropped, and the sender sees a silent peer.
    pub(crate) fn set_closed(&self) {
        point!(RingOver);
        self.ring
            .head()
            .readiness
            .state
            .store(CLOSED, Ordering::Release);
    }

    /// Returns where the next message will appear.
    pub(crate) fn next_message(&self) -> NextMessage {
        NextMessage {
            word: NonNull::from(self.ring.commit_word(self.next)),
            sequence: self.next,
            _ring: Arc::clone(&self.ring),
        }
    }

    /// Moves `next`, which came from this receiver's `next_message`, to its current message.
    #[inline]
    pub(crate) fn update(&self, next: &mut NextMessage) {
        next.word = NonNull::from(self.ring.commit_word(self.next));
        next.sequence = self.next;
    }

    /// Returns the payload of the next message if it is a plain message in the ring, of which
    /// nothing but the bytes is special, and does not wait for a retry. `commit` is the message's
    /// commit, which is checked here.
    #[inline(always)]
    pub(crate) fn plain_payload(&self, commit: Commit) -> Option<(NonNull<u8>, usize)> {
        let len = usize::from(commit.len);
        let is_plain = commit.flags == Flags::default() && len <= MAX_IN_RING;
        let is_buffered = commit.flags == Flags(Flags::BUFFERED) && len <= MAX_BUFFERED;
        match self.awaits_retry {
            false if is_plain => Some((self.ring.payload(self.next), len)),
            false if is_buffered => Some((self.ring.buffer(self.buffered.next(len)), len)),
            _ => None,
        }
    }

    /// Moves on to the next message, after one was copied out of its slot, and acknowledges it
    /// unless more have arrived: the acknowledgement of those covers it. A sender waits for at most
    /// `ACK_INTERVAL` messages to be taken.
    #[inline(always)]
    pub(crate) fn advance_and_ack(&mut self, commit: Commit, next: &mut NextMessage) {
        self.advance(commit);
        self.update(next);
        if next.look().is_none() {
            self.publish_ack();
        } else {
            self.prefetch_following();
            if self.next > self.published + ACK_INTERVAL {
                self.publish_ack();
            }
        }
    }

    /// Requests the lines of the message behind the next one, which has come: there may be a burst.
    #[inline(always)]
    fn prefetch_following(&self) {
        let slot = self.ring.slot(self.next + 1).as_ptr();
        prefetch::to_read(slot);
        prefetch::to_read(slot.wrapping_add(LINE_LEN));
    }

    /// Returns the next message, if it has arrived and does not wait for a retry.
    #[inline]
    pub(crate) fn peek(&mut self) -> Result<Option<Incoming>, BadCommit> {
        if self.awaits_retry {
            let retry = self.ring.head().notices.retry.load(Ordering::Acquire);
            if retry < self.naks || self.naks == STOPPED {
                return Ok(None);
            }
            self.awaits_retry = false;
        }
        let Some(commit) = self.ring.commit_word(self.next).peek(self.next) else {
            return Ok(None);
        };
        let len = usize::from(commit.len);
        let payload = if !commit.flags.has(Flags::BUFFERED) && len <= MAX_IN_RING {
            self.ring.payload(self.next)
        } else if commit.flags.has(Flags::BUFFERED)
            && !commit.flags.has(Flags::DESCRIPTOR)
            && len <= MAX_BUFFERED
        {
            self.ring.buffer(self.buffered.next(len))
        } else {
            return Err(BadCommit);
        };
        Ok(Some(Incoming {
            payload,
            len,
            flags: commit.flags,
            sequence: self.next,
        }))
    }

    /// Returns what the slot of a request has besides the payload: `MAX_IN_RING` bytes.
    pub(crate) fn in_slot(&self, incoming: &Incoming) -> NonNull<u8> {
        self.ring.payload(incoming.sequence)
    }

    /// Returns the request word of the request that `peek` returned.
    pub(crate) fn request_word(&self, incoming: &Incoming) -> u64 {
        // Relaxed: `peek` has seen the commit word, which published this word.
        self.ring
            .request_word(incoming.sequence)
            .load(Ordering::Relaxed)
    }

    /// Returns the stage for the response to a READ that names it; `None` if the ring has no
    /// staging memory.
    pub(crate) fn stage(&self, number: u32) -> Option<NonNull<u8>> {
        self.ring.stage(number.into())
    }

    /// Moves on to the next message, after the one with this commit was copied out of the ring.
    #[inline]
    pub(crate) fn advance(&mut self, commit: Commit) {
        self.next += 1;
        if commit.flags.has(Flags::BUFFERED) {
            self.buffered.take(commit.len.into());
        }
    }

    /// Acknowledges the messages received since the last call: once per batch.
    #[inline]
    pub(crate) fn publish_ack(&mut self) {
        let ack = self.next - 1;
        if ack != self.published {
            point!(Ack);
            self.published = ack;
            self.ring.head().progress.ack.publish(ack);
        }
    }

    /// Sends an RNR NAK for the next message, which has no receive: it stays in its slot, and the
    /// sender has to wait for the time that `timer` encodes.
    pub(crate) fn send_rnr_nak(&mut self, timer: u8) {
        point!(Nak);
        self.naks += 1;
        self.awaits_retry = true;
        // Release: a sender that sees this also sees the acknowledgement of earlier messages.
        self.ring
            .head()
            .progress
            .nak
            .store(self.naks << 8 | u64::from(timer), Ordering::Release);
    }

    /// Takes nothing more out of the ring: the next message has been lost.
    pub(crate) fn stop(&mut self) {
        // It waits for a retry, whatever its sender announces.
        self.naks = STOPPED;
        self.awaits_retry = true;
    }

    /// Sends a fatal NAK for the next message, with the status that its sender is to report.
    pub(crate) fn send_fatal_nak(&mut self, code: u8) {
        // Release: a sender that sees this also sees the acknowledgement of earlier messages.
        let fatal_nak = self.next << 8 | u64::from(code);
        self.ring
            .head()
            .progress
            .fatal_nak
            .store(fatal_nak, Ordering::Release);
    }

    /// Returns true if the sender may have reused its memory before a copy from its arena ended, so
    /// that the copied data is invalid. Called after the copy.
    pub(crate) fn is_closed_after_copy(&self) -> bool {
        self.ring.head().notices.closed.is_closed_after_copy()
    }

    /// Makes the ring cold. Returns `false` if something arrived meanwhile; the ring then stays
    /// hot.
    pub(crate) fn try_go_cold(&mut self) -> bool {
        point!(Arm);
        self.ring.head().readiness.mark.arm();
        point!(SecondLook);
        // The second look, R3 in the drawing of `wake`. An invalid commit also counts as an
        // arrival.
        if matches!(self.peek(), Ok(None)) {
            true
        } else {
            self.go_hot();
            false
        }
    }

    /// Makes the ring cold, of which the next message was found and cannot be received: it needs no second
    /// look, because nothing that arrives behind that message can be received either.
    pub(crate) fn go_cold(&self) {
        self.ring.head().readiness.mark.arm();
    }

    /// Makes the ring hot: the receiver polls it directly again.
    pub(crate) fn go_hot(&self) {
        point!(Disarm);
        self.ring.head().readiness.mark.disarm();
    }

    #[cfg(any(test, fuzzing))]
    pub(super) fn ring_for_tests(&self) -> &Ring {
        &self.ring
    }

    /// Commits an empty message, as the sender does.
    #[cfg(test)]
    pub(crate) fn commit_for_tests(&self) {
        let commit = Commit {
            len: 0,
            flags: Flags::default(),
        };
        self.ring.commit_word(self.next).publish(self.next, commit);
    }

    #[cfg(any(test, fuzzing))]
    pub(super) fn next_for_tests(&self) -> u64 {
        self.next
    }
}
