//! [`PeerMemory`]: memory that pollers use on behalf of peers, shared by their hosts.
//!
//! Hosts share two kinds of memory: the heap, for what waits for readers and for peers, and the registered
//! memory for long messages that arrive. A host may use [`SHARE`] times what it leaves to all others. So one
//! host uses at most three quarters of it, two that want all have three sevenths each, and something is always
//! left for a host that uses little. Choudhury and Hahne, "Dynamic Queue Length Thresholds for
//! Shared-Memory Packet Switches", IEEE/ACM Transactions on Networking, 1998.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::peer::Host;

/// A host may use this many times what is left for others.
const SHARE: u64 = 3;

/// Until a host has left one in this many bytes unread of what it leaves to others, the streams of its clients
/// may leave several long messages unread; then one each.
const UNREAD_PART: u64 = 4;

/// Bytes that are much: malloc may keep so many that are free.
const BURST: u64 = 16 << 20;

/// What the memory is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Streams, frames and messages that wait, on the heap.
    Heap,
    /// Registered memory of a long message that arrives.
    Arriving,
    /// Registered memory of a message of which the application keeps something.
    Kept,
    /// Long messages of a server's streams, until its clients have them. They are the application's memory, which
    /// several may share, so they are counted apart.
    Unread,
}

/// Bytes by their use.
#[derive(Debug, Default)]
struct BytesInUse([AtomicU64; 4]);

impl BytesInUse {
    fn of(&self, kind: Use) -> u64 {
        // The counts publish nothing else.
        self.0[kind as usize].load(Ordering::Relaxed)
    }

    fn registered(&self) -> u64 {
        self.of(Use::Arriving) + self.of(Use::Kept)
    }

    /// Adds bytes, or subtracts them: two's complement.
    fn add(&self, kind: Use, bytes: u64) {
        self.0[kind as usize].fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Memory that pollers use on behalf of peers. Pollers that have copies of it share it: mostly, those of a
/// process.
// Never freed: there is one for each process, or for each that a test simulates.
#[derive(Clone, Copy, Debug)]
pub struct PeerMemory(&'static SharedByHosts);

#[derive(Debug, Default)]
struct SharedByHosts {
    /// What all hosts use.
    bytes: BytesInUse,
    /// The bytes of the heap that hosts share.
    heap: AtomicU64,
    hosts: Mutex<Hosts>,
    /// The most bytes of the heap in use since the latest burst.
    peak: AtomicU64,
    on_burst_end: OnceLock<fn()>,
}

#[derive(Debug, Default)]
struct Hosts {
    known: HashMap<Host, &'static HostMemory>,
    /// Those of connections of which the host is not known: each counts as a host of its own.
    unknown: Vec<&'static HostMemory>,
    /// Those that no connection has and of which nothing is in use.
    free: Vec<&'static HostMemory>,
}

/// What the peers of one host use. It is never freed, but used for another host when no connection has it and
/// nothing of it is in use: so streams and messages name it without counting who does.
#[derive(Debug)]
pub(crate) struct HostMemory {
    bytes: BytesInUse,
    connections: AtomicU64,
    all: &'static SharedByHosts,
}

/// A connection's hold of the memory of its host.
#[derive(Debug)]
pub(crate) struct HoldOfHost(&'static HostMemory);

#[cfg(any(test, feature = "test-util"))]
impl Default for PeerMemory {
    /// Returns memory that no other poller shares, as if they were of another process.
    fn default() -> Self {
        // Listed, so that leak checkers find what is never freed.
        static ALL: Mutex<Vec<PeerMemory>> = Mutex::new(Vec::new());
        let this = Self(Box::leak(Box::default()));
        ALL.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(this);
        this
    }
}

impl PeerMemory {
    /// Returns the memory that the pollers of this process share.
    #[must_use]
    pub fn of_process() -> Self {
        static OF_PROCESS: OnceLock<PeerMemory> = OnceLock::new();
        *OF_PROCESS.get_or_init(|| Self(Box::leak(Box::default())))
    }

    /// Lets hosts share at least this many bytes of the heap: those of the poller with the most.
    pub(crate) fn share_heap(self, bytes: u64) {
        self.0.heap.fetch_max(bytes, Ordering::Relaxed);
    }

    /// Calls `act` from now on when most of what was in use on the heap is free again, and that was much. It
    /// is called on any thread, mostly in a poller's turn. Does nothing if there is such a function already.
    pub fn on_burst_end(self, act: fn()) {
        let _ = self.0.on_burst_end.set(act);
    }

    /// Sets the bytes of the heap that hosts share, until the next poller is made.
    #[cfg(any(test, feature = "test-util"))]
    pub fn limit_heap(self, bytes: u64) {
        self.0.heap.store(bytes, Ordering::Relaxed);
    }

    /// Returns the bytes of long messages of streams that clients have not read.
    #[cfg(any(test, feature = "test-util"))]
    #[must_use]
    pub fn unread(self) -> u64 {
        self.0.bytes.of(Use::Unread)
    }

    /// Returns the bytes of the heap that are in use.
    #[cfg(any(test, feature = "test-util"))]
    #[must_use]
    pub fn heap_in_use(self) -> u64 {
        self.0.bytes.of(Use::Heap)
    }

    /// Returns the memory of the host of a new connection, which all connections of a host have in common.
    pub(crate) fn of(self, host: Option<Host>) -> HoldOfHost {
        let mut hosts = self.0.lock();
        let known = host.and_then(|host| hosts.known.get(&host).copied());
        let memory = known.unwrap_or_else(|| hosts.add(host, self.0));
        memory.connections.fetch_add(1, Ordering::Relaxed);
        HoldOfHost(memory)
    }
}

impl Hosts {
    fn add(&mut self, host: Option<Host>, all: &'static SharedByHosts) -> &'static HostMemory {
        if self.free.is_empty() {
            self.find_free();
        }
        let memory = self.free.pop().unwrap_or_else(|| {
            Box::leak(Box::new(HostMemory {
                bytes: BytesInUse::default(),
                connections: AtomicU64::new(0),
                all,
            }))
        });
        match host {
            Some(host) => _ = self.known.insert(host, memory),
            None => self.unknown.push(memory),
        }
        memory
    }

    /// Finds what is not used any more.
    fn find_free(&mut self) {
        let Self {
            known,
            unknown,
            free,
        } = self;
        let mut is_used = |memory: &&'static HostMemory| {
            let is_used = memory.is_used();
            if !is_used {
                free.push(memory);
            }
            is_used
        };
        known.retain(|_, memory| is_used(memory));
        unknown.retain(is_used);
    }
}

impl Deref for HoldOfHost {
    type Target = &'static HostMemory;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Drop for HoldOfHost {
    fn drop(&mut self) {
        // Whoever finds it unused has the lock, and adds connections with it.
        let _hosts = self.0.all.lock();
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl SharedByHosts {
    /// Notes that more of the heap is in use, or less.
    fn note_heap(&self, is_more: bool) {
        let now = self.bytes.of(Use::Heap) + self.bytes.of(Use::Unread);
        let peak = self.peak.load(Ordering::Relaxed);
        if is_more {
            if now > peak {
                self.peak.fetch_max(now, Ordering::Relaxed);
            }
        } else if peak.saturating_sub(now) >= BURST.max(peak / 2) {
            // Of several threads, one has ended it.
            let ended = self
                .peak
                .compare_exchange(peak, now, Ordering::Relaxed, Ordering::Relaxed);
            if let (Ok(_), Some(act)) = (ended, self.on_burst_end.get()) {
                act();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Hosts> {
        // Under this lock only the allocator can panic.
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HostMemory {
    /// Returns true if the host may use no more of the heap.
    #[inline]
    fn is_at_heap_limit(&self) -> bool {
        !self.has_heap(0)
    }

    fn has_heap(&self, bytes: u64) -> bool {
        let (own, all) = (self.bytes.of(Use::Heap), self.all.bytes.of(Use::Heap));
        is_within_share(own, all, bytes, self.all.heap.load(Ordering::Relaxed))
    }

    /// Returns the bytes of registered memory that the host uses, and those that all hosts use.
    pub(crate) fn registered(&self) -> (u64, u64) {
        (self.bytes.registered(), self.all.bytes.registered())
    }

    /// Returns true if a long message that arrives may have registered memory, of `capacity` bytes. One at a
    /// time of each host may, whatever the application keeps.
    pub(crate) fn has_registered(&self, len: u64, capacity: u64) -> bool {
        let (own, all) = (self.bytes.registered(), self.all.bytes.registered());
        self.bytes.of(Use::Arriving) == 0 || is_within_share(own, all, len, capacity)
    }

    /// Returns true if the clients of the host have left so much unread that each of their streams should have one
    /// long message. As much may be unread as may wait on the heap.
    pub(crate) fn has_much_unread(&self) -> bool {
        let (own, all) = (self.bytes.of(Use::Unread), self.all.bytes.of(Use::Unread));
        let left = self.all.heap.load(Ordering::Relaxed).saturating_sub(all);
        own.saturating_mul(UNREAD_PART) > left
    }

    /// Returns true if a connection has it, or something of it is in use.
    fn is_used(&self) -> bool {
        let in_use =
            self.bytes.registered() | self.bytes.of(Use::Heap) | self.bytes.of(Use::Unread);
        self.connections.load(Ordering::Relaxed) | in_use != 0
    }

    /// Counts bytes for a use of this host.
    pub(crate) fn charge(&'static self, kind: Use, bytes: u64) -> Charge {
        let mut charge = Charge {
            host: Some(self),
            kind,
            bytes: 0,
        };
        charge.set(bytes);
        charge
    }
}

/// Returns true if a host that uses `own` of the `all` bytes in use may have `more`.
fn is_within_share(own: u64, all: u64, more: u64, capacity: u64) -> bool {
    let left = capacity.saturating_sub(all.saturating_add(more));
    own.saturating_add(more) <= left.saturating_mul(SHARE)
}

/// Returns the memory of a host that may use all there is.
#[cfg(test)]
pub(crate) fn memory_of_a_host() -> &'static HostMemory {
    let memory = PeerMemory::default();
    memory.share_heap(u64::MAX);
    *memory.of(None)
}

/// Bytes that are in use. Dropping it gives them back.
#[derive(Debug)]
pub(crate) struct Charge {
    /// `None` if nothing has been charged.
    host: Option<&'static HostMemory>,
    kind: Use,
    bytes: u64,
}

impl Default for Charge {
    fn default() -> Self {
        Self {
            host: None,
            kind: Use::Heap,
            bytes: 0,
        }
    }
}

impl Charge {
    /// Counts for another host from now on, or for none. Nothing is counted at the moment.
    #[inline]
    pub(crate) fn rebind(&mut self, host: Option<&'static HostMemory>, kind: Use) {
        debug_assert_eq!(self.bytes, 0, "bytes that are still in use");
        (self.host, self.kind) = (host, kind);
    }

    /// Returns the bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns true if the host may use no more of the heap.
    #[inline]
    pub(crate) fn is_at_heap_limit(&self) -> bool {
        self.host
            .as_ref()
            .is_some_and(|host| host.is_at_heap_limit())
    }

    /// Returns true if the host has left so much unread that each stream should have one long message.
    pub(crate) fn has_much_unread(&self) -> bool {
        self.host.is_some_and(HostMemory::has_much_unread)
    }

    /// Changes the number of bytes, whether there is room for them or not.
    #[inline]
    pub(crate) fn set(&mut self, bytes: u64) {
        if bytes != self.bytes {
            self.change(bytes);
        }
    }

    fn change(&mut self, bytes: u64) {
        if let Some(host) = &self.host {
            // Two's complement: a smaller number wraps around, and subtracts.
            let more = bytes.wrapping_sub(self.bytes);
            host.bytes.add(self.kind, more);
            host.all.bytes.add(self.kind, more);
            let is_more = bytes > self.bytes;
            self.bytes = bytes;
            if let Use::Heap | Use::Unread = self.kind {
                host.all.note_heap(is_more);
            }
        }
    }

    /// Changes the number of bytes of the heap, unless the host may have no more. Returns false, and changes
    /// nothing, if so.
    #[must_use]
    pub(crate) fn resize(&mut self, bytes: u64) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let has_room = more == 0 || self.host.as_ref().is_none_or(|host| host.has_heap(more));
        if has_room {
            self.set(bytes);
        }
        has_room
    }

    /// Notes that a message has arrived: what it uses of registered memory is kept from now on.
    pub(crate) fn arrived(&mut self) {
        if self.kind == Use::Arriving {
            let bytes = self.bytes;
            self.set(0);
            self.kind = Use::Kept;
            self.set(bytes);
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests;
