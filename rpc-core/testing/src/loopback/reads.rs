//! Long messages on a loopback: memory with a limit, exposed segments, and READs.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use rpc_core::transport::{
    AllocateError, Chunks, ExposeError, Exposed, ExposureKey, FetchKey, MemoryByOwner,
    MessageMemory, RemoteSegment,
};

use super::{CloseReason, ConnectionId, Endpoint, Event, Loopback, Wires};

/// The distance between the addresses of two segments.
const SPACING: u64 = 1 << 32;

/// Memory of an endpoint, which counts it.
#[derive(Debug)]
pub struct LoopbackMemory {
    bytes: Vec<u8>,
    /// Counts them until this is dropped.
    _in_use: InUse,
}

/// Bytes of a count, until dropped.
#[derive(Debug)]
struct InUse {
    len: u64,
    all: Arc<AtomicU64>,
}

/// Memory that can be shared.
struct Frozen {
    memory: LoopbackMemory,
    len: usize,
}

/// The long messages of an endpoint.
#[derive(Debug, Default)]
pub(super) struct Reads {
    /// Bytes of memory in use for messages that are made or sent, at most half of the limit.
    sending: Arc<AtomicU64>,
    /// Bytes of memory in use for messages that arrive or have arrived.
    receiving: Arc<AtomicU64>,
    /// Bytes of a piece that was copied beyond that half, because its receiver waits for no memory.
    accepted: Arc<AtomicU64>,
    next_key: u32,
    exposed: HashMap<u32, Exposure>,
    fetches: HashMap<u32, Fetch>,
    /// READs and cancellations that have not been executed.
    queue: VecDeque<Read>,
}

#[derive(Debug)]
struct Exposure {
    connection: ConnectionId,
    bytes: Bytes,
    /// That of a copy.
    _in_use: Option<InUse>,
}

#[derive(Debug)]
struct Fetch {
    connection: ConnectionId,
    memory: LoopbackMemory,
    outstanding: u32,
    is_cancelled: bool,
}

#[derive(Debug)]
enum Read {
    Segment {
        fetch: u32,
        segment: RemoteSegment,
        at: usize,
    },
    Cancel {
        fetch: u32,
    },
}

impl InUse {
    fn new(all: &Arc<AtomicU64>, len: usize) -> Self {
        let len = len as u64;
        all.fetch_add(len, Ordering::Relaxed);
        let all = Arc::clone(all);
        Self { len, all }
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.all.fetch_sub(self.len, Ordering::Relaxed);
    }
}

impl LoopbackMemory {
    fn new(len: usize, count: &Arc<AtomicU64>) -> Self {
        Self {
            bytes: vec![0; len],
            _in_use: InUse::new(count, len),
        }
    }
}

impl AsRef<[u8]> for LoopbackMemory {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsMut<[u8]> for LoopbackMemory {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl MessageMemory for LoopbackMemory {
    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn freeze(self: Box<Self>, len: usize) -> Bytes {
        assert!(len <= self.bytes.len(), "fewer than {len} bytes");
        Bytes::from_owner(Frozen { memory: *self, len })
    }
}

impl AsRef<[u8]> for Frozen {
    fn as_ref(&self) -> &[u8] {
        &self.memory.bytes[..self.len]
    }
}

impl Reads {
    /// Returns the numbers of segments exposed and messages fetched, and the bytes in use.
    pub(super) fn counts(&self) -> (usize, usize, u64) {
        (self.exposed.len(), self.fetches.len(), self.in_use())
    }

    fn in_use(&self) -> u64 {
        let counts = [&self.sending, &self.receiving, &self.accepted];
        counts
            .map(|count| count.load(Ordering::Relaxed))
            .iter()
            .sum()
    }

    pub(super) fn memory_by_owner(&self) -> MemoryByOwner {
        let exposed = self.exposed.values();
        let fetching = self.fetches.values();
        MemoryByOwner {
            registered: self.in_use(),
            exposed: exposed.map(|exposure| exposure.bytes.len() as u64).sum(),
            fetching: fetching.map(|fetch| fetch.memory.bytes.len() as u64).sum(),
            held: 0,
        }
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.queue.is_empty()
    }

    fn allocate_to_send(&self, len: usize, limit: u64) -> Result<LoopbackMemory, AllocateError> {
        let share = limit / 2;
        if len as u64 > share {
            let limit = share as usize;
            return Err(AllocateError::TooLong { len, limit });
        }
        let of_sending = self.sending.load(Ordering::Relaxed) + len as u64;
        if of_sending > share || self.in_use() + len as u64 > limit {
            return Err(AllocateError::InUse);
        }
        Ok(LoopbackMemory::new(len, &self.sending))
    }

    fn allocate_to_receive(&self, len: usize, limit: u64) -> Result<LoopbackMemory, AllocateError> {
        if len as u64 > limit {
            let limit = limit as usize;
            return Err(AllocateError::TooLong { len, limit });
        }
        let is_only = self.receiving.load(Ordering::Relaxed) == 0;
        if !is_only && self.in_use() + len as u64 > limit {
            return Err(AllocateError::InUse);
        }
        Ok(LoopbackMemory::new(len, &self.receiving))
    }

    /// Returns what counts a copy of a piece, if there is memory for it.
    fn count_for_piece(
        &self,
        len: usize,
        limit: u64,
        is_accepted: bool,
    ) -> Option<&Arc<AtomicU64>> {
        let len = len as u64;
        let of_sending = self.sending.load(Ordering::Relaxed) + len;
        if of_sending <= limit / 2 && self.in_use() + len <= limit {
            return Some(&self.sending);
        }
        let is_free = self.accepted.load(Ordering::Relaxed) == 0;
        (is_accepted && is_free).then_some(&self.accepted)
    }

    /// Exposes bytes to the peer of a connection.
    fn expose(
        &mut self,
        connection: ConnectionId,
        bytes: Bytes,
        in_use: Option<InUse>,
    ) -> (RemoteSegment, ExposureKey) {
        let key = self.next_key;
        self.next_key = key.wrapping_add(1);
        let segment = RemoteSegment {
            address: SPACING * (u64::from(key) + 1),
            key,
            len: bytes.len() as u32,
        };
        let exposure = Exposure {
            connection,
            _in_use: in_use,
            bytes,
        };
        self.exposed.insert(key, exposure);
        (segment, ExposureKey(key))
    }

    /// Returns the bytes that a peer may read.
    fn read(&self, connection: ConnectionId, segment: RemoteSegment) -> Option<Bytes> {
        let exposure = self.exposed.get(&segment.key)?;
        let base = SPACING * (u64::from(segment.key) + 1);
        let from = usize::try_from(segment.address.checked_sub(base)?).ok()?;
        let end = from.checked_add(segment.len as usize)?;
        let is_within = exposure.connection == connection && end <= exposure.bytes.len();
        is_within.then(|| exposure.bytes.slice(from..end))
    }

    /// Forgets what belongs to a connection that has ended.
    pub(super) fn end(&mut self, connection: ConnectionId) {
        let fetches = &mut self.fetches;
        fetches.retain(|_, fetch| fetch.connection != connection);
        self.queue.retain(|read| {
            let (Read::Segment { fetch, .. } | Read::Cancel { fetch }) = read;
            fetches.contains_key(fetch)
        });
    }
}

impl Wires {
    /// Executes the oldest READ of an endpoint. Returns false if there is none.
    fn execute_read(&mut self, index: usize) -> bool {
        if self.reads_left == Some(0) {
            return false;
        }
        let endpoint = &mut self.endpoints[index];
        let Some(read) = endpoint.reads.queue.pop_front() else {
            return false;
        };
        if let Some(left) = &mut self.reads_left {
            *left -= 1;
        }
        match read {
            Read::Cancel { fetch } => {
                if let Some(cancelled) = endpoint.reads.fetches.remove(&fetch) {
                    endpoint.incoming.push_back(Event::FetchCancelled {
                        connection: cancelled.connection,
                        fetch: FetchKey(fetch),
                    });
                }
            }
            Read::Segment { fetch, segment, at } => {
                let Some(entry) = endpoint.reads.fetches.get(&fetch) else {
                    return true;
                };
                let connection = entry.connection;
                let peer = endpoint.connections[connection.index as usize].peer;
                let Some((peer, remote)) = peer else {
                    return true;
                };
                let Some(bytes) = self.endpoints[peer].reads.read(remote, segment) else {
                    let failed = CloseReason::Failed(Arc::from(Box::from(
                        "remote access error: the peer read memory that was not exposed to it",
                    )));
                    self.close(index, connection, &failed, &failed);
                    return true;
                };
                let endpoint = &mut self.endpoints[index];
                if let Some(entry) = endpoint.reads.fetches.get_mut(&fetch) {
                    entry.outstanding -= 1;
                    entry.memory.bytes[at..at + bytes.len()].copy_from_slice(&bytes);
                    if !entry.is_cancelled {
                        endpoint.incoming.push_back(Event::Fetched {
                            connection,
                            fetch: FetchKey(fetch),
                            len: segment.len,
                        });
                    }
                }
            }
        }
        true
    }
}

impl Endpoint {
    fn begin_fetch(&mut self, connection: ConnectionId, memory: LoopbackMemory) -> FetchKey {
        let key = self.reads.next_key;
        self.reads.next_key = key.wrapping_add(1);
        let fetch = Fetch {
            connection,
            memory,
            outstanding: 0,
            is_cancelled: false,
        };
        self.reads.fetches.insert(key, fetch);
        FetchKey(key)
    }
}

impl Loopback {
    /// Executes some of the READs that were posted.
    pub(super) fn execute_reads(&mut self) {
        while !self.random.happens(self.faults.late) {
            if !self.wires.borrow_mut().execute_read(self.index) {
                return;
            }
        }
    }

    pub(super) fn allocate_to_send(&mut self, len: usize) -> Result<LoopbackMemory, AllocateError> {
        if self.random.happens(self.faults.no_memory) {
            return Err(AllocateError::NotNow);
        }
        let limit = self.limits.message_memory;
        self.with_endpoint(|endpoint| endpoint.reads.allocate_to_send(len, limit))
    }

    pub(super) fn allocate_to_receive(
        &mut self,
        len: usize,
    ) -> Result<LoopbackMemory, AllocateError> {
        if self.random.happens(self.faults.no_memory) {
            return Err(AllocateError::NotNow);
        }
        let limit = self.limits.message_memory;
        self.with_endpoint(|endpoint| endpoint.reads.allocate_to_receive(len, limit))
    }

    pub(super) fn expose_piece(
        &mut self,
        connection: ConnectionId,
        message: &mut Chunks,
        is_accepted: bool,
    ) -> Result<Exposed, ExposeError> {
        if self.random.happens(self.faults.no_memory) {
            return Err(ExposeError::NotNow);
        }
        if let Some(may_come) = self.wires.borrow().no_window {
            return Err(ExposeError::NoWindow { may_come });
        }
        let (piece_len, limit) = (self.limits.piece_len, self.limits.message_memory);
        self.with_endpoint(|endpoint| {
            if endpoint.connections[connection.index as usize]
                .peer
                .is_none()
            {
                return Err(ExposeError::Closed);
            }
            let was_copied = !message.front_is_reference();
            let reads = &mut endpoint.reads;
            let count = reads.count_for_piece(piece_len, limit, is_accepted);
            let count = count.cloned();
            if was_copied && count.is_none() {
                return Err(ExposeError::NotNow);
            }
            let piece = message.take_front(piece_len).unwrap_or_default();
            let (bytes, in_use) = match count {
                Some(count) if was_copied => {
                    let bytes = Bytes::copy_from_slice(&piece);
                    let in_use = InUse::new(&count, bytes.len());
                    (bytes, Some(in_use))
                }
                _ => (piece, None),
            };
            let (segment, key) = reads.expose(connection, bytes, in_use);
            Ok(Exposed {
                segment,
                key,
                was_copied,
            })
        })
    }

    pub(super) fn conceal_piece(&mut self, exposed: ExposureKey) {
        self.with_endpoint(|endpoint| {
            let concealed = endpoint.reads.exposed.remove(&exposed.0);
            assert!(concealed.is_some(), "a segment was concealed twice");
        });
    }

    pub(super) fn begin_fetching(
        &mut self,
        connection: ConnectionId,
        memory: LoopbackMemory,
    ) -> Result<FetchKey, LoopbackMemory> {
        let wires = self.wires.borrow();
        let reads = wires.reads && !wires.refuses_fetches;
        drop(wires);
        self.with_endpoint(|endpoint| {
            let is_up = endpoint.connections[connection.index as usize]
                .peer
                .is_some();
            match reads && is_up {
                true => Ok(endpoint.begin_fetch(connection, memory)),
                false => Err(memory),
            }
        })
    }

    pub(super) fn fetch_segment(&mut self, fetch: FetchKey, segment: RemoteSegment, at: usize) {
        self.with_endpoint(|endpoint| {
            let FetchKey(fetch) = fetch;
            if let Some(entry) = endpoint.reads.fetches.get_mut(&fetch) {
                assert!(!entry.is_cancelled, "fetched after it was cancelled");
                assert!(at + segment.len as usize <= entry.memory.bytes.len());
                entry.outstanding += 1;
                endpoint
                    .reads
                    .queue
                    .push_back(Read::Segment { fetch, segment, at });
            }
        });
    }

    pub(super) fn finish_fetching(&mut self, fetch: FetchKey) -> Option<LoopbackMemory> {
        self.with_endpoint(|endpoint| {
            let entry = endpoint.reads.fetches.remove(&fetch.0)?;
            assert_eq!(entry.outstanding, 0, "finished with READs outstanding");
            Some(entry.memory)
        })
    }

    pub(super) fn cancel_fetching(&mut self, fetch: FetchKey) {
        self.with_endpoint(|endpoint| {
            let FetchKey(fetch) = fetch;
            if let Some(entry) = endpoint.reads.fetches.get_mut(&fetch) {
                entry.is_cancelled = true;
                endpoint.reads.queue.push_back(Read::Cancel { fetch });
            }
        });
    }
}
