//! The receiving half of a ring: memory that this process made and the peer writes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use super::super::commit::Flags;
use super::super::sync::Ordering;
use super::{
    LAYOUT_VERSION, MAGIC, MAX_IN_RING, NOT_READY, OVER, READY, RING_AND_STAGING_LEN, RING_LEN,
    Ring, SLOT_COUNT,
};
use crate::hooks::point;
use crate::provider::soft::shared::memory::SharedMemory;

/// The receiving half of a ring.
#[derive(Debug)]
pub(crate) struct RingReceiver {
    ring: Ring,
    fd: OwnedFd,
    /// Sequence number of the next message.
    next: u64,
    /// What the sender was last told.
    published: u64,
    /// "Receiver not ready" said so far.
    naks: u64,
    /// The next message waits for the sender's leave to be tried again.
    awaits_retry: bool,
}

/// The next message, still in its slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incoming {
    /// `len` bytes, which the sender leaves alone until the message is acknowledged. Bytes from a
    /// peer.
    pub(crate) payload: NonNull<u8>,
    pub(crate) len: usize,
    pub(crate) flags: Flags,
    /// What `request_message` draws, if the flags say so.
    pub(crate) sequence: u64,
}

/// The sender committed something that no sender should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadCommit;

impl RingReceiver {
    /// Makes a ring that expects its first message to follow `psn`, with staging memory if READs may come.
    pub(crate) fn new(psn: u32, may_be_read: bool) -> io::Result<Self> {
        let len = if may_be_read {
            RING_AND_STAGING_LEN
        } else {
            RING_LEN
        };
        let SharedMemory { mapping, fd } = SharedMemory::for_writers("verbline-ring", len)?;
        let ring = Ring::new(mapping)?;
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
        head.progress.ack.publish(u64::from(psn));
        head.readiness.state.store(NOT_READY, Ordering::Release);
        let psn = u64::from(psn);
        Ok(Self {
            ring,
            fd,
            next: psn + 1,
            published: psn,
            naks: 0,
            awaits_retry: false,
        })
    }

    /// The file to send to the peer.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// From now on messages are taken.
    pub(crate) fn set_ready(&self) {
        point!(RingReady);
        self.ring
            .head()
            .readiness
            .state
            .store(READY, Ordering::Release);
    }

    /// From now on messages are dropped: the sender sees a peer that is silent.
    pub(crate) fn set_over(&self) {
        point!(RingOver);
        self.ring
            .head()
            .readiness
            .state
            .store(OVER, Ordering::Release);
    }

    /// The next message, if it is there and may be tried.
    #[inline]
    pub(crate) fn look(&mut self) -> Result<Option<Incoming>, BadCommit> {
        if self.awaits_retry {
            if self.ring.head().notices.retry.load(Ordering::Acquire) < self.naks {
                return Ok(None);
            }
            self.awaits_retry = false;
        }
        let Some(commit) = self.ring.commit_word(self.next).look(self.next) else {
            return Ok(None);
        };
        let len = usize::from(commit.len);
        if len > MAX_IN_RING {
            return Err(BadCommit);
        }
        let payload = self.ring.payload(self.next);
        Ok(Some(Incoming {
            payload,
            len,
            flags: commit.flags,
            sequence: self.next,
        }))
    }

    /// The word of the request that `look` gave.
    pub(crate) fn request_word(&self, incoming: &Incoming) -> u64 {
        // The commit word, which was seen, published it.
        self.ring
            .request_word(incoming.sequence)
            .load(Ordering::Relaxed)
    }

    /// Where a READ that names this place is answered; `None` if the ring has no such memory.
    pub(crate) fn stage(&self, place: u32) -> Option<NonNull<u8>> {
        self.ring.stage(place.into())
    }

    /// The message that `look` gave has been copied out of its slot.
    #[inline]
    pub(crate) fn advance(&mut self) {
        self.next += 1;
    }

    /// Tells the sender what was taken since the last time: once per batch.
    #[inline]
    pub(crate) fn publish_ack(&mut self) {
        let ack = self.next - 1;
        if ack != self.published {
            point!(Ack);
            self.published = ack;
            self.ring.head().progress.ack.publish(ack);
        }
    }

    /// There is no receive for the next message: it stays, and the sender is told to wait for the
    /// time of this code.
    pub(crate) fn refuse_for_now(&mut self, timer: u8) {
        point!(Nak);
        self.naks += 1;
        self.awaits_retry = true;
        // Release: the acknowledgement of what came before is seen with it.
        self.ring
            .head()
            .progress
            .nak
            .store(self.naks << 8 | u64::from(timer), Ordering::Release);
    }

    /// The next message is refused for good, with the status that its sender is to report.
    pub(crate) fn refuse_for_good(&mut self, code: u8) {
        // Release: the acknowledgement of what came before is seen with it.
        let verdict = self.next << 8 | u64::from(code);
        self.ring
            .head()
            .progress
            .verdict
            .store(verdict, Ordering::Release);
    }

    /// After copying from the sender's arena: whether the sender may have had its memory back
    /// before the copy ended, so that what was copied is worth nothing.
    pub(crate) fn is_closed_after_copy(&self) -> bool {
        self.ring.head().notices.closed.is_closed_after_copy()
    }

    /// Goes cold. `false` if something came meanwhile, and the ring is as hot as before.
    pub(crate) fn try_go_cold(&mut self) -> bool {
        point!(Arm);
        self.ring.head().readiness.mark.arm();
        point!(SecondLook);
        // The second look that `wake` draws as R3. A commit that makes no sense is something, too.
        if matches!(self.look(), Ok(None)) {
            true
        } else {
            self.go_hot();
            false
        }
    }

    /// Is looked at directly again.
    pub(crate) fn go_hot(&self) {
        point!(Disarm);
        self.ring.head().readiness.mark.disarm();
    }

    #[cfg(all(any(test, fuzzing), not(loom)))]
    pub(super) fn ring_for_tests(&self) -> &Ring {
        &self.ring
    }

    #[cfg(all(any(test, fuzzing), not(loom)))]
    pub(super) fn next_for_tests(&self) -> u64 {
        self.next
    }
}
