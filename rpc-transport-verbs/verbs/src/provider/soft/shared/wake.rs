//! How a sender reaches a receiver that no longer polls its ring.
//!
//! A poller directly polls a few *hot* rings. A ring that others outpace becomes *cold*: its receiver
//! arms a mark in the ring, and from then on relies on the [`announcements`](super::announcements) of
//! the ring's sender. Each pair of a context and a peer process has a page of them, which only that
//! peer maps: a peer that clears it or announces without end delays its own messages.
//!
//! ```text
//!  receiver                              sender
//!  R1 mark = ARMED                       S1 commit the message
//!  R2 fence                              S2 load the mark; if it is armed, announce the ring
//!  R3 load the commit word again         S3 fence
//!                                        S4 load the mark; if it is not armed, end here
//!                                        S5 unless S2 has announced every message: announce, fence
//! ```
//!
//! S1 and S2 are repeated for several messages, of one ring or of many, before the doorbell, which
//! begins with S3: its fence orders the commits of all of them before S4. Until then, a receiver sees
//! them that polls the ring or, if the ring has been cold for long, its announcements. Announcements
//! of many rings are written without a fence in between: each fence would wait until the receiver,
//! which polls their cache line, has given it up again.
//!
//! Without the fences both loads could miss: the sender's store of the commit word and the
//! receiver's store of the mark may each wait in a store buffer while the other side's word is
//! loaded (R3 before S1 is visible, S4 before R1 is visible). The message would then stay in the
//! ring forever. Both fences are sequentially consistent, so whichever comes second sees the other
//! side's store: either R3 finds the message, or S4 finds the mark and the ring has been announced.
//!
//! S2 decides nothing. A ring that was cold is cold still in most cases, and its announcement then
//! needs no fence of its own. An announcement of a ring that is hot by now does no harm.
//!
//! # Sleep
//!
//! A context whose completion queues are armed does not poll. It records this in its sleep note,
//! which peers map read-only, makes every ring cold, and relies on its
//! [`wake sockets`](super::wake_socket), one for each peer:
//!
//! ```text
//!  receiver                              sender, whose S4 has found the mark
//!  A1 asleep = 1                         S2 or S5: the announcement, and a fence after it
//!  A2 fence                              S6 load asleep; if it is 1, write the file
//!  A3 take the announcements of all peers
//!  A4 make each hot ring cold: R1 R2 R3
//!  A5 wait for the files
//! ```
//!
//! A ring whose next message names an arena that has not arrived needs no R3: only the arena's arrival, of
//! which the engine tells the context, lets anything be received from it.
//!
//! No message is lost during sleep. If the sender's S4 finds a ring hot, then R3, in A4, finds its
//! message, as above. If S4 finds it cold, the two fences order the rest: if A3 missed the
//! announcement *and* S6 missed the note, each side's load would have come before the other side's
//! store was visible. Two sequentially consistent fences between store and load rule that out.
//!
//! While the note is set, A3 and A4 may be repeated without A1 and A2: if a sender's S6 misses the
//! note, its fence comes before A2, so every load after A2 sees its announcement. A woken thread
//! empties the file *before* A3. A sender whose write is emptied has announced before, so A3 finds
//! that; a later write remains for the next wait. In the opposite order, emptying the file could
//! discard the write for an announcement that was made after A3.
//!
//! Senders can only read the note. If they cleared it, so that only one of many senders writes the
//! file, a sender that was killed or stopped between the two steps would leave the other senders'
//! messages unnoticed. So a sleeper may be notified more than once before it resumes. Of all this, a
//! message to a hot ring pays for S3 and two loads.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use super::memory::Mapping;
use super::sync::{AtomicU32, Ordering, fence};

const HOT: u32 = 0;
const ARMED: u32 = 1;

/// A ring's mark. Only the ring's receiver writes it.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Mark(AtomicU32);

impl Mark {
    #[cfg(loom)]
    fn new() -> Self {
        Self(AtomicU32::new(HOT))
    }

    /// Executes R1 and R2: the receiver stops polling the ring. It must check the ring once more
    /// after this.
    pub(crate) fn arm(&self) {
        self.0.store(ARMED, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Records that the receiver polls the ring again: senders need not notify it.
    pub(crate) fn disarm(&self) {
        // Relaxed: a sender that still sees ARMED announces the ring needlessly.
        self.0.store(HOT, Ordering::Relaxed);
    }

    #[inline]
    fn is_armed(&self) -> bool {
        self.0.load(Ordering::Relaxed) == ARMED
    }
}

/// What a doorbell has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiverState {
    /// The receiver polls the ring.
    Hot,
    /// The receiver does not; the ring has been announced.
    Cold,
    /// So it is, and the receiver sleeps: it has to be woken.
    Asleep,
}

/// Executes S2, after each commit. Returns true if the ring has been announced.
#[inline]
pub(crate) fn announce_if_armed(mark: &Mark, announce: impl FnOnce()) -> bool {
    let is_armed = mark.is_armed();
    if is_armed {
        announce();
    }
    is_armed
}

/// Executes S3 to S6, once per batch of messages. `are_announced` says that S2 has announced all of them.
#[inline]
pub(crate) fn ring_doorbell(
    mark: &Mark,
    note: &SleepNote,
    are_announced: bool,
    announce: impl FnOnce(),
) -> ReceiverState {
    fence(Ordering::SeqCst);
    if !mark.is_armed() {
        return ReceiverState::Hot;
    }
    if !are_announced {
        announce();
        fence(Ordering::SeqCst);
    }
    match note.is_asleep() {
        true => ReceiverState::Asleep,
        false => ReceiverState::Cold,
    }
}

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;

/// A context's note that it sleeps or is unattended. Only the context's process can write it. It has
/// its own memory: senders read it after announcing a ring or committing a one-sided request.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct SleepNote {
    asleep: AtomicU32,
    /// Nonzero if no application thread polls the context. The handshake is the same as for a
    /// ring's mark, with the engine as the receiver: it writes the note, fences, and checks the
    /// rings once more before it sleeps.
    unattended: AtomicU32,
}

impl SleepNote {
    #[cfg(loom)]
    fn new() -> Self {
        Self {
            asleep: AtomicU32::new(AWAKE),
            unattended: AtomicU32::new(0),
        }
    }

    /// Leaves the context to the engine, which must check its rings once more after this.
    pub(crate) fn set_unattended(&self) {
        self.unattended.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Records that an application thread polls the context, or that the engine is working on it.
    pub(crate) fn set_attended(&self) {
        // Relaxed: a sender that sees this store late wakes the engine needlessly.
        self.unattended.store(0, Ordering::Relaxed);
    }

    /// Returns true if the engine has to be woken. Called after a commit and the fence of its
    /// notification.
    pub(crate) fn is_unattended_after_commit(&self) -> bool {
        fence(Ordering::SeqCst);
        self.unattended.load(Ordering::Relaxed) != 0
    }

    /// Executes A1 and A2. Before the context waits, it has to take what is announced and make its
    /// rings cold.
    pub(crate) fn fall_asleep(&self) {
        self.asleep.store(ASLEEP, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Records that the context polls again.
    pub(crate) fn wake_up(&self) {
        // Relaxed: a sender that still sees ASLEEP writes the file needlessly.
        self.asleep.store(AWAKE, Ordering::Relaxed);
    }

    fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::Relaxed) == ASLEEP
    }
}

/// The type of a value in shared memory: it consists of atomics, so all bit patterns are valid, and
/// its alignment is at most a page's.
///
/// # Safety
///
/// The type is as described.
pub(crate) unsafe trait InSharedMemory {}

// SAFETY: all fields of the type are atomics, and its alignment is 64 bytes, less than a page's.
unsafe impl InSharedMemory for SleepNote {}

/// A value at the beginning of a mapping, which it keeps alive.
#[derive(Debug)]
pub(crate) struct Mapped<T> {
    value: NonNull<T>,
    mapping: Arc<Mapping>,
}

// SAFETY: the pointer is an address of the process, the same from every thread. `new` is the only
// constructor, and its types are atomics.
unsafe impl<T: InSharedMemory> Send for Mapped<T> {}
// SAFETY: a shared reference only gives access to the value, which consists of atomics, as the
// implementation of `InSharedMemory` promises.
unsafe impl<T: InSharedMemory> Sync for Mapped<T> {}

impl<T: InSharedMemory> Mapped<T> {
    /// Returns `None` if the memory is too short for the value.
    pub(crate) fn new(mapping: Arc<Mapping>) -> Option<Self> {
        (mapping.len() >= size_of::<T>()).then(|| Self {
            value: mapping.start().cast(),
            mapping,
        })
    }
}

#[cfg(all(any(test, fuzzing), not(loom)))]
impl<T> Mapped<T> {
    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }
}

impl<T> Clone for Mapped<T> {
    fn clone(&self) -> Self {
        Self {
            value: self.value,
            mapping: Arc::clone(&self.mapping),
        }
    }
}

impl<T: InSharedMemory> Deref for Mapped<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: `new` checked that the memory is long enough, and mmap aligned it to a page; it
        // lives as long as `self`. `T` consists of atomics, for which all bit patterns are valid.
        unsafe { self.value.as_ref() }
    }
}

#[cfg(all(test, loom))]
mod loom_models;
