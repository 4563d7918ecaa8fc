//! The ring of one direction of a connection: shared memory that the receiver makes and the sender
//! writes.
//!
//! ```text
//!     0  Preamble   what it is; written once by the receiver before the sender has it
//!    64  Progress   receiver's: acknowledgement, verdict, receiver-not-ready
//!   128  Readiness  receiver's: state, mark; read by the sender at each doorbell, rarely written
//!   192  Notices    sender's: retry, closed
//!   256  slots      SLOT_COUNT × 256 bytes: commit word, request word, up to 240 bytes of payload
//! 36864  staging    where READs are permitted: STAGES × 64 KiB of the receiver's, for answers that do not fit
//!                   a slot
//! ```
//!
//! Each line has one writer. A message takes the slot of its sequence number; a fixed stride keeps
//! a payload from ever lying where a commit word is looked for. One message of up to 48 bytes moves
//! one cache line, one of 112 bytes two; nothing else moves while both sides poll, but for the
//! acknowledgement now and then.

mod closed;
mod receiver;
mod sender;

use std::io;
use std::mem::offset_of;
use std::ptr::NonNull;

pub(crate) use receiver::{Incoming, RingReceiver};
pub(crate) use sender::{Bell, ContextBell, Doorbell, RingSender};

use self::closed::Closed;
use super::commit::{AckWord, CommitWord};
use super::memory::Mapping;
use super::sync::{AtomicU32, AtomicU64};
use super::wake::Mark;

/// Slots of a ring: a power of two. 128 hide the acknowledgement's way back at the rates that two
/// cores reach, at 32 KiB a direction, of which an idle connection touches a page or two.
pub(crate) const SLOT_COUNT: u64 = 128;
/// Bytes of a slot: four cache lines, so that slots share none.
const SLOT_LEN: usize = 256;
/// Bytes before a slot's payload: commit word and request word.
const SLOT_HEADER_LEN: usize = 16;
/// The longest message that travels in the ring itself.
pub(crate) const MAX_IN_RING: usize = SLOT_LEN - SLOT_HEADER_LEN;
const SLOTS_OFFSET: usize = 256;
/// Bytes of a whole ring, without its staging memory.
pub(crate) const RING_LEN: usize = SLOTS_OFFSET + SLOT_COUNT as usize * SLOT_LEN;

/// Bytes of a piece of a READ, and of a place for one: enough that its slot's way there and back is little
/// beside copying it.
pub(crate) const STAGE_LEN: usize = 64 << 10;
/// Pieces of READs that can be under way: while one is copied out, the next is copied in.
pub(crate) const STAGES: u64 = 4;
/// At a page, after the slots.
const STAGING_OFFSET: usize = RING_LEN.next_multiple_of(4096);
/// Bytes of a ring with its staging memory.
const RING_AND_STAGING_LEN: usize = STAGING_OFFSET + STAGES as usize * STAGE_LEN;

const MAGIC: u64 = u64::from_le_bytes(*b"VBLNring");
/// To be raised with every change of what this module draws, and of the ready bits and the link messages.
pub(crate) const LAYOUT_VERSION: u32 = 3;

#[repr(C, align(64))]
struct Preamble {
    magic: AtomicU64,
    version: AtomicU32,
    slot_count: AtomicU32,
    /// The sequence number before the first one: the receiver's RQ_PSN.
    psn: AtomicU64,
}

#[repr(C, align(64))]
struct Progress {
    ack: AckWord,
    /// 0, or `sequence << 8 | code` of the message that was refused for good.
    verdict: AtomicU64,
    /// `count << 8 | timer code` of the latest "receiver not ready".
    nak: AtomicU64,
}

#[repr(C, align(64))]
struct Readiness {
    /// One of `NOT_READY`, `READY`, `OVER`, in this order.
    state: AtomicU32,
    mark: Mark,
}

/// Made, and not yet in use.
const NOT_READY: u32 = 0;
/// Messages are taken.
const READY: u32 = 1;
/// The receiving queue pair has failed, was reset or destroyed: nothing is taken any more.
const OVER: u32 = 2;

#[repr(C, align(64))]
struct Notices {
    /// The count of the "receiver not ready" that the sender has waited for.
    retry: AtomicU64,
    /// Not 0 once the sender may have its memory back: descriptors are void.
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

/// A mapped ring, from either side.
#[derive(Debug)]
struct Ring {
    mapping: Mapping,
}

impl Ring {
    fn new(mapping: Mapping) -> io::Result<Self> {
        if mapping.len() < RING_LEN {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a ring is shorter than it has to be",
            ));
        }
        Ok(Self { mapping })
    }

    fn head(&self) -> &Head {
        // SAFETY: `new` saw that the mapping is long enough, mmap aligns it to a page, and it lives
        // as long as `self`. `Head` is atomics only, for which any bytes are values and any other
        // writer is allowed.
        unsafe { self.mapping.start().cast().as_ref() }
    }

    fn slot(&self, sequence: u64) -> NonNull<u8> {
        let index = (sequence % SLOT_COUNT) as usize;
        // SAFETY: index < SLOT_COUNT, so the slot ends within RING_LEN, which `new` checked.
        unsafe { self.mapping.start().add(SLOTS_OFFSET + index * SLOT_LEN) }
    }

    #[inline]
    fn commit_word(&self, sequence: u64) -> &CommitWord {
        // SAFETY: a slot begins with its commit word, at a multiple of 256 bytes; it is an atomic,
        // as in `head`.
        unsafe { self.slot(sequence).cast().as_ref() }
    }

    /// What a slot says of its request, if it is none of the plain ones. Written before the commit word is,
    /// which publishes it.
    fn request_word(&self, sequence: u64) -> &AtomicU64 {
        // SAFETY: the second word of a slot; as in `commit_word`.
        unsafe {
            self.slot(sequence)
                .add(size_of::<CommitWord>())
                .cast()
                .as_ref()
        }
    }

    /// A place of the staging memory, if the ring has any. It belongs to the receiver from the READ that
    /// names it until that is acknowledged, then to the sender until it names it again.
    fn stage(&self, place: u64) -> Option<NonNull<u8>> {
        let offset = STAGING_OFFSET + (place % STAGES) as usize * STAGE_LEN;
        // SAFETY: within the mapping, as is seen first.
        (offset + STAGE_LEN <= self.mapping.len())
            .then(|| unsafe { self.mapping.start().add(offset) })
    }

    /// The `MAX_IN_RING` payload bytes of a slot. They belong to the sender until it commits them,
    /// then to the receiver until it acknowledges them.
    #[inline]
    fn payload(&self, sequence: u64) -> NonNull<u8> {
        // SAFETY: within the slot.
        unsafe { self.slot(sequence).add(SLOT_HEADER_LEN) }
    }
}

#[cfg(all(any(test, fuzzing), not(loom)))]
pub(crate) mod hostile;
#[cfg(all(test, not(loom)))]
mod tests;
