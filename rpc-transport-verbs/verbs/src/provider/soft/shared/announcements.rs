//! Announcements: how a sending process tells a context which cold rings have messages.
//!
//! ```text
//!     0  overflow  set by the sender: there was no room, so any ring may have a message
//!    64  taken     written by the receiver: how many entries it has taken
//!   128  entries   written by the sender: one bit of the lap, and the index of the queue pair
//! ```
//!
//! The sender appends an entry for each batch of messages that it has written into a cold ring. The receiver
//! looks at one entry to know whether any of the sender's cold rings has something, however many there are. An
//! entry is there once its bit is that of the receiver's lap: memory that is fresh has 0, and the first lap
//! has 1. A ring may be announced several times; the receiver then finds it empty.
//!
//! When all entries are used, the sender does not wait:
//!
//! ```text
//!  sender                                receiver
//!  V1 overflow = 1                       W1 taken = …
//!  V2 fence                              W2 fence
//!  V3 load taken: if there is room now,  W3 swap overflow for 0: if it was 1,
//!     append the entry after all            look at all rings
//! ```
//!
//! W runs once in a quarter of the entries. If the sender finds no room in V3, the receiver has not executed
//! W1 for a later entry, so its next W3 sees V1.

use super::sync::{AtomicU16, AtomicU32, Ordering, fence};
use super::wake::InSharedMemory;
use crate::hooks::point;

/// The entries of a page: a power of two.
pub(crate) const ENTRIES: usize = 1024;

/// Maximum number of queue pairs of one context, whose indices fit an entry.
pub(crate) const MAX_QUEUE_PAIRS: usize = 1 << LAP_SHIFT;

const LAP_SHIFT: u32 = 15;
const LAP: u16 = 1 << LAP_SHIFT;

/// The announcements of one process to one context, in memory that both map.
pub(crate) type AnnouncementPage = Announcements<ENTRIES>;

/// As [`AnnouncementPage`], with any power of two of entries.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Announcements<const N: usize> {
    overflow: Line,
    taken: Line,
    entries: [AtomicU16; N],
}

/// A word with a cache line of its own.
#[repr(C, align(64))]
#[derive(Debug)]
struct Line(AtomicU32);

// SAFETY: all fields are atomics, for which all bit patterns are valid, and the alignment is 64 bytes, less
// than a page's.
unsafe impl InSharedMemory for AnnouncementPage {}

/// How many entries a side has passed, modulo 2³².
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count(u32);

impl Count {
    #[inline(always)]
    fn place<const N: usize>(self) -> usize {
        const { assert!(N.is_power_of_two()) };
        self.0 as usize % N
    }

    /// Returns the bit of the entry that was at this place before: 0 in fresh memory.
    #[inline(always)]
    fn old_lap<const N: usize>(self) -> u16 {
        ((self.0 / N as u32) << LAP_SHIFT) as u16
    }

    /// Returns true if the next entry is there, of which this was read.
    #[inline(always)]
    fn is_next<const N: usize>(self, entry: u16) -> bool {
        (entry ^ self.old_lap::<N>()) & LAP != 0
    }

    #[inline(always)]
    fn advance(&mut self) {
        self.0 = self.0.wrapping_add(1);
    }

    fn since(self, earlier: Self) -> usize {
        self.0.wrapping_sub(earlier.0) as usize
    }
}

/// The sending half.
#[derive(Debug, Default)]
pub(crate) struct Announcer {
    next: Count,
    /// What the receiver had taken when this side last looked.
    taken: Count,
}

/// The receiving half.
#[derive(Debug, Default)]
pub(crate) struct Announced {
    next: Count,
}

/// What a receiver finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Announcement {
    /// The ring of the queue pair with this index, which is a claim of the peer.
    Ring(u32),
    /// Any ring of the peer.
    Any,
}

impl Announcer {
    /// Announces the ring of the queue pair with this index, in which messages have been committed. The
    /// receiver ignores an index that it does not have.
    #[inline]
    pub(crate) fn announce<const N: usize>(&mut self, page: &Announcements<N>, index: usize) {
        if !self.has_room::<N>() && !self.find_room(page) {
            return;
        }
        let index = (index % MAX_QUEUE_PAIRS) as u16;
        let entry = (self.next.old_lap::<N>() ^ LAP) & LAP | index;
        // Release: a receiver that sees the entry sees the commits.
        page.entries[self.next.place::<N>()].store(entry, Ordering::Release);
        self.next.advance();
    }

    #[inline]
    fn has_room<const N: usize>(&self) -> bool {
        self.next.since(self.taken) < N
    }

    /// Looks at what the receiver has taken. Returns false, and has told the receiver, if there is no room.
    #[cold]
    #[inline(never)]
    fn find_room<const N: usize>(&mut self, page: &Announcements<N>) -> bool {
        self.look_at_taken(page);
        if self.has_room::<N>() {
            return true;
        }
        // Release: as for an entry.
        page.overflow.0.store(1, Ordering::Release);
        fence(Ordering::SeqCst);
        self.look_at_taken(page);
        self.has_room::<N>()
    }

    fn look_at_taken<const N: usize>(&mut self, page: &Announcements<N>) {
        // Acquire: the receiver has read the entries before this side writes them again.
        let taken = Count(page.taken.0.load(Ordering::Acquire));
        // A peer that claims to have taken what was not announced gets fewer entries.
        if self.next.since(taken) <= N {
            self.taken = taken;
        }
    }
}

impl Announced {
    /// Entries after which the sender is told that they are free.
    const fn interval(entries: usize) -> u32 {
        if entries < 4 { 1 } else { entries as u32 / 4 }
    }

    /// Returns true if there is an announcement.
    #[inline(always)]
    pub(crate) fn has_next<const N: usize>(&self, page: &Announcements<N>) -> bool {
        let entry = page.entries[self.next.place::<N>()].load(Ordering::Relaxed);
        self.next.is_next::<N>(entry)
    }

    /// Takes the next announcement, if there is one.
    #[inline]
    pub(crate) fn next<const N: usize>(&mut self, page: &Announcements<N>) -> Option<Announcement> {
        // Acquire: pairs with the store of the entry.
        let entry = page.entries[self.next.place::<N>()].load(Ordering::Acquire);
        if !self.next.is_next::<N>(entry) {
            return None;
        }
        point!(TakeAnnouncement);
        self.next.advance();
        if self.next.0.is_multiple_of(Self::interval(N)) && self.free(page) {
            return Some(Announcement::Any);
        }
        Some(Announcement::Ring(
            u32::from(entry) % MAX_QUEUE_PAIRS as u32,
        ))
    }

    /// Tells the sender what has been taken. Returns true if it had found no room.
    #[cold]
    #[inline(never)]
    fn free<const N: usize>(&self, page: &Announcements<N>) -> bool {
        // Release: the entries were read before.
        page.taken.0.store(self.next.0, Ordering::Release);
        fence(Ordering::SeqCst);
        // A plain look first: the line is the sender's.
        page.overflow.0.load(Ordering::Relaxed) != 0
            // Acquire: of all stores of the flag up to now, so that the commits before them are found. A later
            // one finds the flag clear, and `taken` as it is now.
            && page.overflow.0.swap(0, Ordering::AcqRel) != 0
    }
}

#[cfg(any(test, loom))]
impl<const N: usize> Announcements<N> {
    pub(super) fn new() -> Self {
        let line = || Line(AtomicU32::new(0));
        Self {
            overflow: line(),
            taken: line(),
            entries: std::array::from_fn(|_| AtomicU16::new(0)),
        }
    }
}

#[cfg(all(test, loom))]
mod loom_models;
#[cfg(all(test, not(loom)))]
mod tests;
