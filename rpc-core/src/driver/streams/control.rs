//! The entries of control frames: the grants and cancels of many streams and calls.

use super::super::link::LinkKey;
use super::{LinkStreams, Streams};
use crate::protocol::frame::{ControlEntry, ControlRequest, ENTRY_LEN};

impl LinkStreams {
    /// Makes entries of the grants that streams owe, unless a message has carried them, and of the
    /// cancels. Called only when a control frame may be sent, so that a peer that never acknowledges
    /// one leaves no more here than its open streams owe.
    pub(in super::super) fn collect_entries(&mut self, link: LinkKey, streams: &mut Streams) {
        while let Some(key) = streams.grants.pop(link) {
            let stream = &mut streams.entries[key];
            let Some(call) = stream.phase.call() else {
                continue;
            };
            let granted = stream.core.lock().inbound.take_due_grant();
            self.entries.extend(granted.map(|bytes| ControlEntry {
                call,
                request: ControlRequest::Grant(bytes),
            }));
        }
        self.entries
            .extend(self.cancels.drain(..).map(|call| ControlEntry {
                call,
                request: ControlRequest::Cancel,
            }));
    }

    /// Returns true if entries wait for a control frame.
    pub(in super::super) fn has_entries(&self) -> bool {
        !self.entries.is_empty()
    }

    /// Returns the number of entries, and of cancels of which none have been made.
    pub(in super::super) fn entries_owed(&self) -> usize {
        self.entries.len() + self.cancels.len()
    }

    /// Returns the number of entries that a control frame with a body of at most `room` bytes takes.
    pub(in super::super) fn entries_within(&self, room: usize) -> usize {
        self.entries.len().min(room / ENTRY_LEN)
    }

    /// Writes the oldest `count` entries, and removes them.
    pub(in super::super) fn write_entries(&mut self, count: usize, body: &mut [u8]) {
        for (entry, out) in self
            .entries
            .drain(..count)
            .zip(body.chunks_exact_mut(ENTRY_LEN))
        {
            out.copy_from_slice(&entry.encode());
        }
    }
}
