//! [`LinkStreams`]: the streams of one connection, by number.

use std::collections::HashMap;

use super::table::table_key;
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
    pub(super) inbound_window: u32,
    pub(super) outbound_window: u32,
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

    /// Forgets a stream that has ended.
    pub(super) fn end_served(&mut self, call: CallId) {
        self.served.remove(&call);
        self.latest = None;
    }
}
