//! The sending half of a ring: the peer's memory, mapped here.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::super::commit::{Commit, Flags};
use super::super::descriptor::{DESCRIPTOR_LEN, Descriptor};
use super::super::sync::{AtomicU64, Ordering};
use super::super::wake::DomainReadyBits;
use super::{LAYOUT_VERSION, MAGIC, MAX_IN_RING, OVER, READY, Ring, SLOT_COUNT};
use crate::event_fd::EventFd;
use crate::hooks::point;
use crate::provider::soft::shared::copy::copy_shared;
use crate::provider::soft::shared::memory::Mapping;

/// The sending half of a ring.
#[derive(Debug)]
pub(crate) struct RingSender {
    ring: Ring,
    /// Sequence number of the first message.
    first: u64,
    /// Sequence number of the next message.
    next: u64,
    /// The receiver's acknowledgement when it was last looked at: never more than was sent.
    acked: u64,
    /// Answers are awaited in slots: no slot may be written again before they were read, so that
    /// acknowledgements are collected only by who reads them.
    is_held: bool,
    bell: Bell,
}

/// How a context that does not look at its rings is told, and woken if it sleeps.
#[derive(Debug)]
pub(crate) struct ContextBell {
    bits: Mapping,
    file: EventFd,
    /// Has the process's engine look at its contexts.
    engine: EventFd,
}

impl ContextBell {
    /// `None` if the memory is too short for a domain's ready bits.
    pub(crate) fn new(bits: Mapping, file: EventFd, engine: EventFd) -> Option<Self> {
        let is_long_enough = bits.len() >= size_of::<DomainReadyBits>();
        is_long_enough.then_some(Self { bits, file, engine })
    }

    fn bits(&self) -> &DomainReadyBits {
        // SAFETY: `new` saw that the mapping is long enough, mmap aligns it to a page, it lives as long as
        // `self`, and the bits are atomics, for which any bytes are values.
        unsafe { self.bits.start().cast().as_ref() }
    }
}

/// The same for one of its rings.
#[derive(Clone, Debug)]
pub(crate) struct Bell {
    context: Arc<ContextBell>,
    index: usize,
}

/// What the doorbell had to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doorbell {
    /// Nothing: the receiver looks at the ring.
    Hot,
    /// It looks at its ready bits.
    Cold,
    /// It sleeps, and has been woken.
    Asleep,
}

impl Bell {
    /// Whatever a peer gave as `index` is bounded when used.
    pub(crate) fn new(context: Arc<ContextBell>, index: usize) -> Self {
        Self { context, index }
    }

    #[cold]
    fn ring(&self) -> Doorbell {
        point!(ReadyBit);
        if self.context.bits().announce(self.index) {
            point!(Wake);
            self.context.file.write();
            Doorbell::Asleep
        } else {
            Doorbell::Cold
        }
    }

    #[cold]
    fn call_engine(&self) {
        if self.context.bits().note.is_unattended_after_commit() {
            self.context.engine.write();
        }
    }
}

/// "Receiver not ready": how many there have been, and the receiver's timer code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Nak {
    pub(crate) count: u64,
    pub(crate) timer: u8,
}

impl RingSender {
    /// Takes a ring that a peer made, after checking that it is one.
    pub(crate) fn new(mapping: Mapping, bell: Bell) -> io::Result<Self> {
        let ring = Ring::new(mapping)?;
        let preamble = &ring.head().preamble;
        let is_ours = preamble.magic.load(Ordering::Relaxed) == MAGIC
            && preamble.version.load(Ordering::Relaxed) == LAYOUT_VERSION
            && u64::from(preamble.slot_count.load(Ordering::Relaxed)) == SLOT_COUNT;
        if !is_ours {
            let reason = "a ring has another layout: both sides have to run the same version";
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        }
        let psn = preamble.psn.load(Ordering::Relaxed) & 0x00ff_ffff;
        Ok(Self {
            ring,
            first: psn + 1,
            next: psn + 1,
            acked: psn,
            is_held: false,
            bell,
        })
    }

    /// The PSN that the receiver expects first: it would drop anything else silently.
    pub(crate) fn expected_psn(&self) -> u32 {
        // Masked to 24 bits in `new`.
        (self.first - 1) as u32
    }

    /// Whether the receiver takes messages; one that is not ready drops them silently.
    pub(crate) fn is_ready(&self) -> bool {
        self.ring.head().readiness.state.load(Ordering::Acquire) == READY
    }

    /// Whether the receiver will never take a message again.
    pub(crate) fn is_over(&self) -> bool {
        self.ring.head().readiness.state.load(Ordering::Acquire) == OVER
    }

    /// Whether anything was ever sent.
    pub(crate) fn is_used(&self) -> bool {
        self.next != self.first
    }

    /// Messages sent and not known to be acknowledged.
    pub(crate) fn unacked(&self) -> u64 {
        self.next - 1 - self.acked
    }

    /// Whether a message fits, looking at the acknowledgement only if it seems not to.
    #[inline]
    pub(crate) fn has_room(&mut self) -> bool {
        self.unacked() < SLOT_COUNT
            || !self.is_held && {
                // A wrong acknowledgement is reported where acknowledgements are collected.
                let _ = self.collect_ack();
                self.unacked() < SLOT_COUNT
            }
    }

    /// Looks at the acknowledgement. How many messages it newly covers, or an error if it covers
    /// what was never sent, or takes back what it covered.
    #[inline]
    pub(crate) fn collect_ack(&mut self) -> Result<u64, BadAck> {
        let ack = self.ring.head().progress.ack.look();
        // Both counts are far below 2⁶³, unless the peer lies.
        let newly = ack.wrapping_sub(self.acked);
        if newly > self.unacked() {
            return Err(BadAck);
        }
        self.acked = ack;
        Ok(newly)
    }

    /// Writes and commits a message. The caller has seen that there is room, that `len` is at most
    /// `MAX_IN_RING`, and owns the bytes at `from`.
    #[inline]
    pub(crate) fn send(&mut self, from: NonNull<u8>, len: usize, flags: u16) {
        debug_assert!(len <= MAX_IN_RING && self.unacked() < SLOT_COUNT);
        point!(Payload);
        let payload = self.ring.payload(self.next);
        // SAFETY: `from` is readable for `len` bytes (the caller's), which is at most a slot's
        // payload; the slot's last message was acknowledged, so the receiver does not read it; a
        // ring never overlaps registered memory.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), payload.as_ptr(), len) };
        self.commit(len, flags);
    }

    /// Writes and commits a descriptor in place of a long message.
    pub(crate) fn send_descriptor(&mut self, descriptor: Descriptor, flags: u16) {
        let bytes = descriptor.emit();
        self.send(
            NonNull::from(&bytes).cast(),
            DESCRIPTOR_LEN,
            flags | Flags::DESCRIPTOR,
        );
    }

    /// Writes and commits a request: its word, its prefix, and after that the bytes of `parts`. The caller has
    /// seen that there is room, and that all of it is at most `MAX_IN_RING` bytes.
    ///
    /// # Safety
    ///
    /// Each part is readable for its length, and reached by nobody through a reference that writes.
    pub(crate) unsafe fn send_request(
        &mut self,
        word: u64,
        prefix: &[u8],
        parts: impl Iterator<Item = (NonNull<u8>, usize)>,
        flags: u16,
    ) {
        let payload = self.ring.payload(self.next);
        let mut len = 0;
        for (from, part_len) in
            std::iter::once((NonNull::from(prefix).cast(), prefix.len())).chain(parts)
        {
            debug_assert!(len + part_len <= MAX_IN_RING);
            let part_len = part_len.min(MAX_IN_RING - len);
            // SAFETY: the part is readable, says the caller; it ends within the slot's payload; the slot's last
            // message was acknowledged, and its answer read.
            unsafe { copy_shared(from, payload.add(len), part_len) };
            len += part_len;
        }
        // Published by the commit word.
        self.ring
            .request_word(self.next)
            .store(word, Ordering::Relaxed);
        self.commit(len, flags | Flags::REQUEST);
    }

    /// The sequence number that the next message will have.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Messages up to this sequence number were acknowledged when that was last looked at.
    pub(crate) fn acked(&self) -> u64 {
        self.acked
    }

    pub(crate) fn set_held(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    /// What the receiver has answered in the slot of an acknowledged request.
    pub(crate) fn answer_in_slot(&self, sequence: u64) -> NonNull<u8> {
        self.ring.payload(sequence)
    }

    /// The same in the staging memory; `None` if the receiver made none.
    pub(crate) fn answer_in_stage(&self, place: u64) -> Option<NonNull<u8>> {
        self.ring.stage(place)
    }

    /// After the doorbell of one-sided requests: has the engine of the receiver's process look, if nobody
    /// else does.
    pub(crate) fn call_engine(&self) {
        self.bell.call_engine();
    }

    #[inline]
    fn commit(&mut self, len: usize, flags: u16) {
        // At most MAX_IN_RING.
        let commit = Commit {
            len: len as u16,
            flags: Flags(flags),
        };
        point!(Commit);
        self.ring.commit_word(self.next).publish(self.next, commit);
        self.next += 1;
    }

    /// The doorbell: once after a batch of messages.
    #[inline]
    pub(crate) fn ring_doorbell(&self) -> Doorbell {
        point!(Doorbell);
        if self.ring.head().readiness.mark.is_armed_after_commit() {
            self.bell.ring()
        } else {
            Doorbell::Hot
        }
    }

    /// The status with which the receiver has refused the oldest unacknowledged message for good.
    /// A verdict on any other message would be a peer's mistake, and means nothing.
    #[inline]
    pub(crate) fn verdict(&self) -> Option<u8> {
        let word = self.ring.head().progress.verdict.load(Ordering::Acquire);
        (word >> 8 == self.acked + 1).then_some(word as u8)
    }

    /// The latest "receiver not ready".
    #[inline]
    pub(crate) fn nak(&self) -> Nak {
        let word = self.ring.head().progress.nak.load(Ordering::Acquire);
        Nak {
            count: word >> 8,
            timer: word as u8 & 31,
        }
    }

    /// Lets the receiver try again the message that it was not ready for.
    pub(crate) fn allow_retry(&self, nak: Nak) {
        let retry: &AtomicU64 = &self.ring.head().notices.retry;
        point!(Retry);
        // Release: a receiver that sees it has its own `nak` answered; no data is published.
        retry.store(nak.count, Ordering::Release);
        self.ring_doorbell();
    }

    /// Voids all descriptors under way: after this, the memory that they name may be written again.
    pub(crate) fn close(&self) {
        point!(Close);
        self.ring.head().notices.closed.close();
    }
}

/// The acknowledgement of a peer makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadAck;
