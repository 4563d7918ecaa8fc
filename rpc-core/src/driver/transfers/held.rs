//! [`Account`]: the bytes that the application keeps of the messages of one connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

/// The bytes that the application keeps of all messages of a poller.
#[derive(Debug, Default)]
pub(super) struct PollerMemory {
    held: AtomicU64,
}

/// The bytes that the application keeps of the messages of one connection. It outlives connection
/// and poller, as long as there are such bytes.
#[derive(Debug)]
pub(super) struct Account {
    held: AtomicU64,
    poller: Arc<PollerMemory>,
}

/// A message that the application has got, until it drops the last slice of it, on whatever thread.
struct Held {
    bytes: Bytes,
    account: Arc<Account>,
}

impl PollerMemory {
    pub(super) fn held(&self) -> u64 {
        // The count publishes nothing else.
        self.held.load(Ordering::Relaxed)
    }
}

impl Account {
    pub(super) fn new(poller: Arc<PollerMemory>) -> Arc<Self> {
        Arc::new(Self {
            held: AtomicU64::new(0),
            poller,
        })
    }

    pub(super) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Counts a message as held until the last slice of the result is dropped.
    pub(super) fn hold(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        let len = bytes.len() as u64;
        self.held.fetch_add(len, Ordering::Relaxed);
        self.poller.held.fetch_add(len, Ordering::Relaxed);
        let account = Arc::clone(self);
        Bytes::from_owner(Held { bytes, account })
    }
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let len = self.bytes.len() as u64;
        // The memory goes back before it is counted as free: a message that sees the lower count
        // finds the memory.
        self.bytes = Bytes::new();
        self.account.held.fetch_sub(len, Ordering::Release);
        self.account.poller.held.fetch_sub(len, Ordering::Release);
    }
}
