//! [`Entries`]: what the next control frames of a connection say.

use std::collections::VecDeque;

use crate::protocol::frame::{CallId, ControlEntry, ControlRequest, ENTRY_LEN};

/// Cancels that wait for a control frame, though some of their calls may have ended.
const FEW_CANCELS: usize = 64;

/// The entries of the next control frames of a connection.
#[derive(Debug, Default)]
pub(super) struct Entries {
    /// Client: calls that are to be cancelled.
    cancels: Vec<CallId>,
    /// The other entries, oldest first.
    others: VecDeque<ControlEntry>,
}

impl Entries {
    /// Adds the cancel of a call. `may_end` tells of a call whether it is still to be answered: a server
    /// that acknowledges no control frame may answer the calls meanwhile.
    pub(super) fn cancel(
        &mut self,
        call: CallId,
        in_flight: usize,
        may_end: impl Fn(CallId) -> bool,
    ) {
        if self.cancels.len() >= FEW_CANCELS && self.cancels.len() > in_flight {
            self.cancels.retain(|call| may_end(*call));
        }
        self.cancels.push(call);
    }

    /// Adds an entry. Called only when a control frame may be sent, so that a peer that never
    /// acknowledges one leaves no more here than its open streams and messages owe.
    pub(super) fn push(&mut self, entry: ControlEntry) {
        self.others.push_back(entry);
    }

    /// Makes entries of the cancels, because a control frame may be sent.
    pub(super) fn collect_cancels(&mut self) {
        let entry = |call| ControlEntry {
            call,
            request: ControlRequest::Cancel,
        };
        self.others.extend(self.cancels.drain(..).map(entry));
    }

    /// Returns the number of entries.
    pub(super) fn len(&self) -> usize {
        self.others.len() + self.cancels.len()
    }

    /// Returns the number of entries that a control frame with a body of at most `room` bytes takes.
    pub(super) fn within(&self, room: usize) -> usize {
        self.others.len().min(room / ENTRY_LEN)
    }

    /// Writes the oldest `count` entries, and removes them.
    pub(super) fn write(&mut self, count: usize, body: &mut [u8]) {
        let entries = self.others.drain(..count);
        for (entry, out) in entries.zip(body.chunks_exact_mut(ENTRY_LEN)) {
            out.copy_from_slice(&entry.encode());
        }
    }
}
