//! [`Account`]: the bytes that the application keeps of the messages of one connection.
//! [`Encoding`]: memory into which messages are encoded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use crate::peer_memory::Charge;
use crate::transport::MessageMemory;

/// The bytes that the application keeps of all messages of a poller.
#[derive(Debug, Default)]
pub(super) struct PollerMemory {
    held: AtomicU64,
    /// Bytes into which messages are encoded, until they have been sent.
    encoding: AtomicU64,
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
    /// What it uses of its host's share.
    _memory: [Charge; 2],
}

impl PollerMemory {
    pub(super) fn held(&self) -> u64 {
        // The count publishes nothing else.
        self.held.load(Ordering::Relaxed)
    }

    pub(super) fn encoding(&self) -> u64 {
        self.encoding.load(Ordering::Relaxed)
    }
}

/// Memory into which a message is encoded. It is counted until the message has been sent.
pub(super) struct Encoding<M> {
    memory: M,
    count: Encoded,
}

struct Encoded {
    len: u64,
    poller: Arc<PollerMemory>,
}

/// A message that was encoded.
struct Sending {
    bytes: Bytes,
    _count: Encoded,
}

impl<M: MessageMemory> Encoding<M> {
    pub(super) fn new(mut memory: M, poller: &Arc<PollerMemory>) -> Self {
        let len = memory.as_mut().len() as u64;
        poller.encoding.fetch_add(len, Ordering::Relaxed);
        let poller = Arc::clone(poller);
        Self {
            memory,
            count: Encoded { len, poller },
        }
    }
}

impl<M: MessageMemory> AsRef<[u8]> for Encoding<M> {
    fn as_ref(&self) -> &[u8] {
        self.memory.as_ref()
    }
}

impl<M: MessageMemory> AsMut<[u8]> for Encoding<M> {
    fn as_mut(&mut self) -> &mut [u8] {
        self.memory.as_mut()
    }
}

impl<M: MessageMemory> MessageMemory for Encoding<M> {
    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.memory.write(at, bytes);
    }

    fn freeze(self: Box<Self>, len: usize) -> Bytes {
        let bytes = Box::new(self.memory).freeze(len);
        Bytes::from_owner(Sending {
            bytes,
            _count: self.count,
        })
    }
}

impl AsRef<[u8]> for Sending {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Encoded {
    fn drop(&mut self) {
        self.poller.encoding.fetch_sub(self.len, Ordering::Relaxed);
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

    /// Counts a message as held until the last slice of the result is dropped, and keeps its charge until
    /// then.
    pub(super) fn hold(self: &Arc<Self>, bytes: Bytes, memory: [Charge; 2]) -> Bytes {
        let len = bytes.len() as u64;
        self.held.fetch_add(len, Ordering::Relaxed);
        self.poller.held.fetch_add(len, Ordering::Relaxed);
        let account = Arc::clone(self);
        Bytes::from_owner(Held {
            bytes,
            account,
            _memory: memory,
        })
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
        // The memory goes back before it is counted as free, so that the count is never lower than the
        // bytes in use. A reader on another thread may see the lower count first; it then finds no
        // memory and tries again.
        self.bytes = Bytes::new();
        self.account.held.fetch_sub(len, Ordering::Release);
        self.account.poller.held.fetch_sub(len, Ordering::Release);
    }
}
