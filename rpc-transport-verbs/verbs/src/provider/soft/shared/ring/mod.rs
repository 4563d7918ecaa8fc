//! The ring of one direction of a connection: shared memory that the receiver creates and the
//! sender writes.
//!
//! ```text
//!     0  Preamble   identifies the layout; the receiver writes it once, before the sender has it
//!    64  Progress   written by the receiver: acknowledgement, fatal NAK, RNR NAK
//!   128  Readiness  written by the receiver, rarely: state, mark; the sender reads it
//!                   after each batch of messages
//!   192  Notices    written by the sender: retry, closed
//!   256  slots      SLOT_COUNT × 256 bytes: commit word, request word, up to 240 bytes of payload
//!  8448  buffer     32 KiB: the bytes of inline messages that do not fit a slot
//! 45056  staging    only where READs are permitted: STAGES × 64 KiB of the receiver's memory, for
//!                   responses that do not fit a slot
//! ```
//!
//! Each cache line has one writer. A message uses the slot that its sequence number selects. The
//! stride is fixed, so a payload never lies where the receiver expects a commit word. A message of
//! up to 48 bytes moves one cache line, and one of up to 112 bytes moves two. While both sides
//! poll, only an occasional acknowledgement moves in addition.
//!
//! Sequence numbers begin with 1 in each ring, whatever its PSN is. So the first slots are in the
//! page of the head, and a ring that is idle costs one page of memory.

mod buffer;
mod closed;
mod receiver;
mod sender;

use std::io;
use std::mem::offset_of;
use std::ptr::NonNull;

pub(crate) use receiver::{Incoming, NextMessage, RingReceiver};
pub(crate) use sender::{ContextNotifier, NotifierFiles, RingNotifier, RingSender, in_buffer};
#[cfg(test)]
pub(crate) use tests::pair;

use self::buffer::BUFFER_LEN;
use self::closed::Closed;
use super::commit::{AckWord, CommitWord};
use super::memory::Mapping;
use super::sync::{AtomicU32, AtomicU64};
use super::wake::Mark;

/// Slots of a ring: a power of two, and twice the messages between two acknowledgements. Each message takes
/// the next slot, so a ring passes through the caches as a whole: with 128 slots, calls over 256 and 1,000
/// connections in turn were a quarter slower, and those over one no faster.
pub(crate) const SLOT_COUNT: u64 = 32;
/// Bytes of a slot: four cache lines, so that two slots never share a line.
const SLOT_LEN: usize = 256;
/// Bytes before a slot's payload: the commit word and the request word.
const SLOT_HEADER_LEN: usize = 16;
/// Length in bytes of the longest message that is stored in the ring itself.
pub(crate) const MAX_IN_RING: usize = SLOT_LEN - SLOT_HEADER_LEN;
const SLOTS_OFFSET: usize = 256;
/// Sequence number of a ring's first message, whose slot is in the ring's first page.
const FIRST: u64 = 1;
/// Length in bytes of the longest message in the ring's buffer.
pub(crate) const MAX_BUFFERED: usize = 1024;
const BUFFER_OFFSET: usize = SLOTS_OFFSET + SLOT_COUNT as usize * SLOT_LEN;
/// Bytes of a ring without its staging memory.
pub(crate) const RING_LEN: usize = BUFFER_OFFSET + BUFFER_LEN;

/// Bytes of one piece of a READ, and of one stage. A piece is long enough that the round trip of
/// its slot costs little compared with copying it.
pub(crate) const STAGE_LEN: usize = 64 << 10;
/// Maximum number of READ pieces in flight: while one is copied out, the next is copied in.
pub(crate) const STAGES: u64 = 4;
/// Offset of the staging memory: the first page boundary after the buffer.
const STAGING_OFFSET: usize = RING_LEN.next_multiple_of(4096);
/// Bytes of a ring including its staging memory.
const RING_AND_STAGING_LEN: usize = STAGING_OFFSET + STAGES as usize * STAGE_LEN;

const MAGIC: u64 = u64::from_le_bytes(*b"VBLNring");
/// Version of the shared-memory layout. Raise it with every change to the layout above, to the
/// announcements, to the notes of a context, or to the link messages.
pub(crate) const LAYOUT_VERSION: u32 = 8;

#[repr(C, align(64))]
struct Preamble {
    magic: AtomicU64,
    version: AtomicU32,
    slot_count: AtomicU32,
    /// The receiver's RQ_PSN, for the sender to compare with its own: no slot depends on it.
    psn: AtomicU64,
}

#[repr(C, align(64))]
struct Progress {
    ack: AckWord,
    /// 0, or `sequence << 8 | code` of the message that got a fatal NAK.
    fatal_nak: AtomicU64,
    /// `count << 8 | timer code` of the latest RNR NAK ("receiver not ready").
    nak: AtomicU64,
}

#[repr(C, align(64))]
struct Readiness {
    /// One of `NOT_READY`, `READY`, `CLOSED`; it only changes in this order.
    state: AtomicU32,
    mark: Mark,
}

/// The ring has been created but does not accept messages yet.
const NOT_READY: u32 = 0;
/// The receiver accepts messages.
const READY: u32 = 1;
/// The receiving queue pair has failed, was reset or destroyed, and accepts no more messages.
const CLOSED: u32 = 2;

#[repr(C, align(64))]
struct Notices {
    /// The count of the latest RNR NAK whose delay the sender has waited out.
    retry: AtomicU64,
    /// Nonzero once the sender may reuse its memory: its descriptors are void.
    closed: Closed,
}

#[repr(C)]
struct Head {
    preamble: Preamble,
    progress: Progress,
    readiness: Readiness,
    notices: Notices,
}

const _: () = assert!(size_of::<Head>() == SLOTS_OFFSET && offset_of!(Head, notices) == 192);

/// A mapped ring, on either side.
#[derive(Debug)]
struct Ring {
    mapping: Mapping,
}

impl Ring {
    fn new(mapping: Mapping) -> io::Result<Self> {
        if mapping.len() < RING_LEN {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the peer's ring is too short",
            ));
        }
        Ok(Self { mapping })
    }

    #[inline]
    fn head(&self) -> &Head {
        // SAFETY: `new` checked that the mapping is long enough, mmap aligned it to a page, and it
        // lives as long as `self`. `Head` consists of atomics only, for which all bit patterns are
        // valid and concurrent writers are allowed.
        unsafe { self.mapping.start().cast().as_ref() }
    }

    #[inline]
    fn slot(&self, sequence: u64) -> NonNull<u8> {
        let index = (sequence % SLOT_COUNT) as usize;
        // SAFETY: index < SLOT_COUNT, so the slot ends within RING_LEN, which `new` checked.
        unsafe { self.mapping.start().add(SLOTS_OFFSET + index * SLOT_LEN) }
    }

    #[inline]
    fn commit_word(&self, sequence: u64) -> &CommitWord {
        // SAFETY: a slot begins with its commit word, aligned to 256 bytes, inside a mapping that
        // lives as long as `self`. The word is an atomic, so all bit patterns are valid, as in
        // `head`.
        unsafe { self.slot(sequence).cast().as_ref() }
    }

    /// Returns a slot's request word, which describes any request other than a plain message. The
    /// sender writes it before the commit word, which publishes it.
    fn request_word(&self, sequence: u64) -> &AtomicU64 {
        // SAFETY: the request word is the second word of a slot; the rest is as in `commit_word`.
        unsafe {
            self.slot(sequence)
                .add(size_of::<CommitWord>())
                .cast()
                .as_ref()
        }
    }

    /// Returns a stage of the staging memory, or `None` if the ring has none. The stage belongs to
    /// the receiver from the READ that names it until that READ is acknowledged, and then to the
    /// sender until it names the stage again.
    fn stage(&self, number: u64) -> Option<NonNull<u8>> {
        let offset = STAGING_OFFSET + (number % STAGES) as usize * STAGE_LEN;
        // SAFETY: the offset is used only after the check that the stage ends within the mapping.
        (offset + STAGE_LEN <= self.mapping.len())
            .then(|| unsafe { self.mapping.start().add(offset) })
    }

    /// Returns the bytes of the buffer from `offset` on, which is less than its length.
    fn buffer(&self, offset: usize) -> NonNull<u8> {
        debug_assert!(offset < BUFFER_LEN);
        // SAFETY: the buffer ends within RING_LEN, which `new` checked, and a piece of it begins within it.
        unsafe { self.mapping.start().add(BUFFER_OFFSET + offset) }
    }

    /// Returns the `MAX_IN_RING` payload bytes of a slot. They belong to the sender until it
    /// commits them, then to the receiver until it acknowledges them.
    #[inline]
    fn payload(&self, sequence: u64) -> NonNull<u8> {
        // SAFETY: the header is shorter than a slot, so the result stays within the slot.
        unsafe { self.slot(sequence).add(SLOT_HEADER_LEN) }
    }
}

#[cfg(test)]
mod experiment;
#[cfg(any(test, fuzzing))]
pub(crate) mod hostile;
#[cfg(test)]
mod tests;
