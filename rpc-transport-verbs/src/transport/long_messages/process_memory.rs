//! [`ProcessMemory`]: how many bytes this process has registered for messages, within its limit.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The purpose of registered memory. Each purpose has its own chunks: otherwise, a message to send
/// could occupy a part of a chunk that messages to receive need, while its peer waits to send
/// these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Messages that are made or sent.
    Sending,
    /// Messages that arrive.
    Receiving,
}

impl Purpose {
    /// Returns how much of `limit` bytes may be used for this. Messages to send use half at most,
    /// so that messages that arrive find memory; these leave an eighth for messages to send.
    pub(super) fn share_of(self, limit: u64) -> u64 {
        match self {
            Self::Sending => limit / 2,
            Self::Receiving => limit - limit / 8,
        }
    }
}

/// The registered bytes, by their purpose.
#[derive(Clone, Copy, Debug, Default)]
struct Registered {
    sending: u64,
    receiving: u64,
}

impl Registered {
    fn of(&mut self, purpose: Purpose) -> &mut u64 {
        match purpose {
            Purpose::Sending => &mut self.sending,
            Purpose::Receiving => &mut self.receiving,
        }
    }
}

/// The bytes registered for messages by all pollers of a process, without the memory that each lane
/// may have beyond the limit (see `pools`).
#[derive(Debug, Default)]
pub(crate) struct ProcessMemory {
    registered: Mutex<Registered>,
    /// The bytes of chunks with blocks that the application keeps.
    kept: AtomicU64,
    /// True if a limit was reached when the registrar last served the pools: each chunk that
    /// becomes free is then reported to it.
    is_short: AtomicBool,
}

impl ProcessMemory {
    /// Returns the count of this process. Each process of a simulation has its own.
    pub(crate) fn of_this_process() -> Arc<Self> {
        static ONE: OnceLock<Arc<ProcessMemory>> = OnceLock::new();
        #[cfg(feature = "test-util")]
        if verbline_verbs::for_transport::hooks::is_simulated() {
            return Arc::default();
        }
        Arc::clone(ONE.get_or_init(Arc::default))
    }

    fn change<R>(&self, change: impl FnOnce(&mut Registered) -> R) -> R {
        // A poisoned lock is usable: the numbers are changed in one step.
        let mut registered = self
            .registered
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        change(&mut registered)
    }

    /// Counts `len` more bytes until the returned value is dropped, if there are then at most
    /// `share` bytes for this purpose, and at most `limit` in total.
    pub(super) fn reserve(
        self: &Arc<Self>,
        purpose: Purpose,
        len: u64,
        (share, limit): (u64, u64),
    ) -> Result<CountedBytes, Full> {
        self.change(|registered| {
            let total = registered.sending + registered.receiving;
            let of_purpose = registered.of(purpose);
            if of_purpose.saturating_add(len) > share {
                return Err(Full::Share);
            }
            if total.saturating_add(len) > limit {
                return Err(Full::Limit);
            }
            *of_purpose += len;
            Ok(())
        })?;
        let memory = Arc::clone(self);
        Ok(CountedBytes {
            purpose,
            len,
            memory,
            kept: AtomicUsize::new(0),
        })
    }

    /// Returns the bytes of all chunks that contain a received message which is still used. A chunk
    /// counts with all of its blocks, because it cannot be deregistered.
    pub(super) fn kept(&self) -> u64 {
        // The count publishes nothing else.
        self.kept.load(Ordering::Relaxed)
    }

    /// Records whether a pool has reached a limit, so that chunks that become free are of use to
    /// it.
    pub(super) fn set_short(&self, is_short: bool) {
        // Relaxed: the registrar sets it before it locks each pool to look for free chunks, and a
        // thread that frees a chunk reads it after it has locked the pool. The lock orders the two.
        self.is_short.store(is_short, Ordering::Relaxed);
    }

    pub(super) fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Relaxed)
    }
}

/// The reason that no more bytes may be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    /// The purpose has all of its share.
    Share,
    /// The process has all that it may register.
    Limit,
}

/// Bytes that are counted as registered.
#[derive(Debug)]
pub(super) struct CountedBytes {
    purpose: Purpose,
    len: u64,
    memory: Arc<ProcessMemory>,
    /// Blocks with received messages. While there are some, `memory` counts all bytes as kept.
    kept: AtomicUsize,
}

/// Counts a block as kept until it is dropped.
#[derive(Debug)]
pub(super) struct Kept(Arc<CountedBytes>);

impl CountedBytes {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Counts a block as kept until the result is dropped. Returns `None` for the block of a
    /// message to send.
    pub(super) fn keep(self: &Arc<Self>) -> Option<Kept> {
        if self.purpose != Purpose::Receiving {
            return None;
        }
        if self.kept.fetch_add(1, Ordering::Relaxed) == 0 {
            self.memory.kept.fetch_add(self.len, Ordering::Relaxed);
        }
        Some(Kept(Arc::clone(self)))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let Self(counted) = self;
        if counted.kept.fetch_sub(1, Ordering::Relaxed) == 1 {
            counted
                .memory
                .kept
                .fetch_sub(counted.len, Ordering::Relaxed);
        }
    }
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        self.memory
            .change(|registered| *registered.of(self.purpose) -= self.len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_the_limit_is_counted() {
        let memory = Arc::new(ProcessMemory::default());
        let reserve = |len, limit| memory.reserve(Purpose::Receiving, len, (u64::MAX, limit));
        let first = reserve(60, 100).unwrap();
        assert_eq!(reserve(41, 100).unwrap_err(), Full::Limit);
        let _second = reserve(40, 100).unwrap();
        assert!(reserve(u64::MAX, u64::MAX - 1).is_err());
        drop(first);
        let _third = reserve(60, 100).unwrap();
        assert!(reserve(1, 50).is_err(), "another limit");
    }

    #[test]
    fn neither_purpose_takes_all() {
        let memory = Arc::new(ProcessMemory::default());
        let reserve =
            |purpose: Purpose, len| memory.reserve(purpose, len, (purpose.share_of(80), 80));
        let sending = reserve(Purpose::Sending, 40).unwrap();
        assert_eq!(reserve(Purpose::Sending, 1).unwrap_err(), Full::Share);
        let _receiving = reserve(Purpose::Receiving, 40).unwrap();
        assert_eq!(reserve(Purpose::Receiving, 1).unwrap_err(), Full::Limit);
        drop(sending);
        let _rest = reserve(Purpose::Receiving, 30).unwrap();
        assert_eq!(reserve(Purpose::Receiving, 1).unwrap_err(), Full::Share);
        let _some = reserve(Purpose::Sending, 10).unwrap();
    }
}
