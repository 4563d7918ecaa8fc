//! [`LinkStreams`]: the streams of one connection, by number.

use std::collections::HashMap;

use super::table::table_key;
use crate::peer_memory::{Charge, HostMemory, Use};
use crate::protocol::frame::CallId;

table_key! {
    /// Identifies a stream in [`Streams`](super::streams::Streams).
    StreamKey
}

/// The streams of one connection.
#[derive(Debug, Default)]
pub(crate) struct LinkStreams {
    /// The number of streams.
    pub(super) open: u32,
    /// Server: the streams by the id of their call.
    pub(super) served: HashMap<CallId, StreamKey>,
    /// Server: the latest stream that was looked up. Messages come in groups.
    latest: Option<(CallId, StreamKey)>,
    /// Client: no channel uses the link any more. It is closed when its last stream has ended.
    pub(super) is_orphaned: bool,
    /// Client: the log says that streams wait for each other.
    pub(super) has_said_that_they_wait: bool,
    pub(super) inbound_window: u32,
    pub(super) outbound_window: u32,
    /// Server: the number of streams that have the memory that each needs.
    with_memory: u32,
    /// Server: what they use, and while the connection is in use, what the next one will.
    memory: Charge,
    /// What each stream uses, in bytes.
    of_each: u64,
}

impl LinkStreams {
    /// Creates the state of a link without streams. The windows are the initial ones of each stream,
    /// in bytes.
    pub(super) fn new(inbound_window: u32, outbound_window: u32) -> Self {
        Self {
            inbound_window,
            outbound_window,
            ..Self::default()
        }
    }
}

impl LinkStreams {
    /// Returns the stream of a call of the client. `call` comes from the peer and is not trusted.
    pub(super) fn served_stream(&mut self, call: CallId) -> Option<StreamKey> {
        match self.latest {
            Some((latest, key)) if latest == call => Some(key),
            _ => {
                let key = *self.served.get(&call)?;
                self.latest = Some((call, key));
                Some(key)
            }
        }
    }

    /// Adds a stream that a client's call has opened.
    pub(super) fn begin_served(&mut self, call: CallId, key: StreamKey) {
        self.served.insert(call, key);
        // Its request is served next.
        self.latest = Some((call, key));
    }

    /// Server: takes the memory that a stream needs in any case. Returns false if its host may use no more.
    pub(super) fn take_memory(&mut self, host: &'static HostMemory, of_each: u64) -> bool {
        let needed = u64::from(self.with_memory + 1) * of_each;
        if needed > self.memory.bytes() {
            if self.memory.bytes() == 0 {
                self.memory = host.charge(Use::Heap, 0);
            }
            if !self.memory.resize(needed) {
                return false;
            }
        }
        self.of_each = of_each;
        self.with_memory += 1;
        true
    }

    /// Gives the memory of a stream back. That of one more stays for the next stream.
    pub(super) fn give_memory_back(&mut self) {
        self.with_memory -= 1;
        let most = u64::from(self.with_memory + 1) * self.of_each;
        if self.memory.bytes() > most {
            self.memory.set(most);
        }
    }

    /// Gives the memory of the next stream back, because the connection is idle.
    pub(super) fn trim_memory(&mut self) {
        self.memory.set(u64::from(self.with_memory) * self.of_each);
    }

    /// Forgets a stream that has ended.
    pub(super) fn end_served(&mut self, call: CallId) {
        self.served.remove(&call);
        self.latest = None;
    }
}
