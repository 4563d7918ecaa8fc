//! [`Unread`]: the long messages of a server's stream that its client has not read.
//!
//! They are the application's memory, which its peers make it use. While the host of the client leaves much
//! unread, a stream makes one long message at a time. So it goes on as its client reads, whatever other streams
//! of the host do.

use crate::peer_memory::{Charge, HostMemory, Use};

/// What a client has not read of the long messages of its stream. Of a client's own stream, nothing is counted.
#[derive(Debug, Default)]
pub(super) struct Unread {
    /// Counts the message that waits to be sent.
    queued: Charge,
    /// Something of other messages is under way. They are counted there.
    is_under_way: bool,
    /// The sender waits to make the next one.
    is_awaited: bool,
}

impl Unread {
    /// Begins with the stream of a client of this host, or with one of this side if there is none.
    pub(super) fn begin(&mut self, host: Option<&'static HostMemory>) {
        self.queued.rebind(host, Use::Unread);
        self.is_under_way = false;
    }

    /// Notes that a message of `len` bytes waits to be sent.
    pub(super) fn note_queued(&mut self, len: usize) {
        self.queued.set(len as u64);
    }

    /// Notes that the message which has waited is under way.
    pub(super) fn note_sent(&mut self) {
        self.queued.set(0);
        self.is_under_way = true;
    }

    /// Notes whether something of messages is under way.
    #[inline]
    pub(super) fn note_under_way(&mut self, any: bool) {
        self.is_under_way = any;
    }

    /// Returns true if the sender has to wait before it makes another message, and remembers it.
    pub(super) fn must_wait(&mut self) -> bool {
        let has_any = self.is_under_way || self.queued.bytes() > 0;
        self.is_awaited = has_any && self.queued.has_much_unread();
        self.is_awaited
    }

    /// Returns true if the sender waits.
    pub(super) fn is_awaited(&self) -> bool {
        self.is_awaited
    }

    /// Ends with its stream.
    pub(super) fn end(&mut self) {
        self.queued.set(0);
        self.is_awaited = false;
    }
}
