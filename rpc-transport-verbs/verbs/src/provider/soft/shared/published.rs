//! The keys and queue pairs that a context publishes, for peers that execute READs themselves.
//!
//! A READ needs nothing of the process that owns the memory: the reader has mapped the arena. So the
//! reader looks up the key here, copies from the arena to its destination, and looks again: see
//! [`Record`].
//!
//! ```text
//!      0  SleepNote
//!     64  REGIONS × 64 bytes: key, domain, rights, arena, offset in it, address, length
//!  32832  WINDOWS × 64 bytes: the same, and the queue pair that a type 2 window is tied to
//!  98368  QUEUE_PAIRS × 32 bytes: number, remote number, domain, READs at a time
//! ```
//!
//! Only the owner can write the memory, which has all of its pages from the beginning. Each table
//! has a fixed number of entries, selected by the index in a key, or the index of a queue pair. An
//! object with a higher index has no entry. Only what permits READs is published. Whatever a reader
//! does not find, it leaves to the owner: it sends the READ as a request, which the owner checks,
//! executes or rejects. So a record can permit a READ, and never rejects one.
//!
//! Everything here is a claim of the peer. A peer can claim rights to its own memory only: the
//! reader checks the range against the arena that it has mapped. The bytes themselves are the peer's
//! in any case.

use super::sequence_lock::{Record, Stamp};
use super::wake::{InSharedMemory, SleepNote};
use crate::types::{QpNum, RemoteKey, RemoteMemory};

/// The highest bit of a remote key; set in the keys of memory windows.
pub(crate) const WINDOW_BIT: u32 = 1 << 31;
/// Lowest bits of a region's keys: the region's index.
pub(crate) const REGION_INDEX_BITS: u32 = 12;
/// The lowest bits of a window's key, which the application chooses.
pub(crate) const TAG_BITS: u32 = 8;
/// The next bits of the key: the window's index.
pub(crate) const WINDOW_INDEX_BITS: u32 = 12;

/// Returns the index of the region with this key.
#[inline]
pub(crate) fn region_index(key: u32) -> usize {
    key as usize & ((1 << REGION_INDEX_BITS) - 1)
}

/// Returns the index of the window with this key.
#[inline]
pub(crate) fn window_index(key: RemoteKey) -> usize {
    (key.0 >> TAG_BITS) as usize & ((1 << WINDOW_INDEX_BITS) - 1)
}

const REGIONS: usize = 512;
const WINDOWS: usize = 1024;
const QUEUE_PAIRS: usize = 2048;

/// The rights of a published key.
const PERMITS_READS: u32 = 1;

/// The memory of a context that its peers map for reading.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct ContextNotes {
    pub(crate) sleep: SleepNote,
    pub(crate) published: Published,
}

// SAFETY: the type consists of the note and of records, all of whose fields are atomics, and its
// alignment is 64 bytes, less than a page's.
unsafe impl InSharedMemory for ContextNotes {}

/// The published keys and queue pairs of a context.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Published {
    regions: [KeyRecord; REGIONS],
    windows: [KeyRecord; WINDOWS],
    queue_pairs: [QueuePairRecord; QUEUE_PAIRS],
}

#[repr(C, align(64))]
#[derive(Debug)]
struct KeyRecord(Record<6>);

#[repr(C, align(32))]
#[derive(Debug)]
struct QueuePairRecord(Record<2>);

const _: () = assert!(
    size_of::<KeyRecord>() == 64
        && size_of::<QueuePairRecord>() == 32
        && std::mem::offset_of!(ContextNotes, published) == 64
        && std::mem::offset_of!(Published, queue_pairs) + 64 == 98368
);

/// A key that permits READs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PublishedKey {
    pub(crate) key: RemoteKey,
    pub(crate) domain: u32,
    /// The only queue pair through which the key can be used. No queue pair has number 0.
    pub(crate) only_through: Option<QpNum>,
    pub(crate) arena: u64,
    /// Bytes from the arena's start to the first byte of the key.
    pub(crate) offset: u64,
    /// Remote address of the first byte of the key.
    pub(crate) start: u64,
    pub(crate) len: u64,
}

/// A queue pair through which READs are permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PublishedQueuePair {
    pub(crate) number: QpNum,
    /// Number of the queue pair that it is connected to.
    pub(crate) remote: QpNum,
    pub(crate) domain: u32,
    /// READs and atomics that it accepts at a time.
    pub(crate) depth: u8,
}

/// A READ, as its requester knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadRequest {
    pub(crate) memory: RemoteMemory,
    pub(crate) len: u64,
    /// READs and atomics in flight, including this one.
    pub(crate) outstanding: u8,
    /// Number of the requester's queue pair.
    pub(crate) from: QpNum,
    /// Number of the owner's queue pair, and its index in the owner's context.
    pub(crate) to: QpNum,
    pub(crate) to_index: usize,
}

/// Location of the bytes of a permitted READ, and the state of the records that permit it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Permission {
    pub(crate) arena: u64,
    pub(crate) offset: u64,
    queue_pair: Stamp,
    /// `None` for a READ of no bytes, which needs no key.
    key: Option<Stamp>,
}

impl Published {
    fn key_record(&self, key: RemoteKey) -> Option<&Record<6>> {
        let record = if key.0 & WINDOW_BIT == 0 {
            self.regions.get(region_index(key.0))
        } else {
            self.windows.get(window_index(key))
        };
        record.map(|record| &record.0)
    }

    /// Publishes a key, in place of that with the same index.
    pub(crate) fn publish_key(&self, key: &PublishedKey) {
        if let Some(record) = self.key_record(key.key) {
            record.write(key.encode());
        }
    }

    /// Withdraws a key. Once this has returned, no peer accepts bytes that it has copied by the
    /// key, and none finds the key: the second look of each READ that overlaps this
    /// returns false.
    pub(crate) fn withdraw_key(&self, key: RemoteKey) {
        if let Some(record) = self.key_record(key) {
            record.write([0; 6]);
        }
    }

    /// Publishes the state of a queue pair; `None` if it accepts no READs.
    pub(crate) fn publish_queue_pair(&self, index: usize, queue_pair: Option<PublishedQueuePair>) {
        if let Some(record) = self.queue_pairs.get(index) {
            let words = queue_pair.map_or([0; 2], |queue_pair| queue_pair.encode());
            record.0.write(words);
        }
    }

    /// Looks up whether a READ is permitted. Returns `None` if the owner has to decide.
    pub(crate) fn find(&self, request: &ReadRequest) -> Option<Permission> {
        let (words, queue_pair) = self.queue_pairs.get(request.to_index)?.0.read()?;
        let to = PublishedQueuePair::parse(words)?;
        let is_permitted =
            to.number == request.to && to.remote == request.from && request.outstanding <= to.depth;
        if !is_permitted {
            return None;
        }
        if request.len == 0 {
            return Some(Permission {
                arena: 0,
                offset: 0,
                queue_pair,
                key: None,
            });
        }
        let (words, stamp) = self.key_record(request.memory.key)?.read()?;
        let key = PublishedKey::parse(words)?;
        let start = request.memory.addr.wrapping_sub(key.start);
        let is_permitted = key.key == request.memory.key
            && key.domain == to.domain
            && key.only_through.is_none_or(|only| only == to.number)
            && start <= key.len
            && request.len <= key.len - start;
        if !is_permitted {
            return None;
        }
        Some(Permission {
            arena: key.arena,
            offset: key.offset.checked_add(start)?,
            queue_pair,
            key: Some(stamp),
        })
    }

    /// Looks again, after the copy. Returns true if the bytes are valid: neither the key nor the
    /// queue pair was withdrawn or changed meanwhile, also if it is published anew.
    pub(crate) fn permits_after_copy(
        &self,
        request: &ReadRequest,
        permission: &Permission,
    ) -> bool {
        if let Some(stamp) = permission.key {
            let record = self.key_record(request.memory.key);
            if !record.is_some_and(|record| record.holds_after_copy(stamp)) {
                return false;
            }
        }
        let record = self.queue_pairs.get(request.to_index);
        record.is_some_and(|record| record.0.holds_after_copy(permission.queue_pair))
    }
}

impl PublishedKey {
    fn encode(&self) -> [u64; 6] {
        let only_through = self.only_through.map_or(0, |only| only.0);
        [
            two(self.key.0, self.domain),
            two(PERMITS_READS, only_through),
            self.arena,
            self.offset,
            self.start,
            self.len,
        ]
    }

    /// Returns `None` if the record is of no key that permits READs.
    fn parse([identity, rights, arena, offset, start, len]: [u64; 6]) -> Option<Self> {
        let (key, domain) = halves(identity);
        let (permits, only_through) = halves(rights);
        (permits == PERMITS_READS).then_some(Self {
            key: RemoteKey(key),
            domain,
            only_through: (only_through != 0).then_some(QpNum(only_through)),
            arena,
            offset,
            start,
            len,
        })
    }
}

impl PublishedQueuePair {
    fn encode(self) -> [u64; 2] {
        [
            two(self.number.0, self.remote.0),
            two(self.domain, self.depth.into()),
        ]
    }

    /// Returns `None` if the record is of no queue pair, or not of this format.
    fn parse([numbers, state]: [u64; 2]) -> Option<Self> {
        let (number, remote) = halves(numbers);
        let (domain, depth) = halves(state);
        let depth = u8::try_from(depth).ok().filter(|depth| *depth > 0)?;
        Some(Self {
            number: QpNum(number),
            remote: QpNum(remote),
            domain,
            depth,
        })
    }
}

fn two(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

#[cfg(test)]
mod tests;
