//! [`Window`]: the bytes that a peer may send on a stream.

use std::mem;

/// The largest window, unless the initial one is larger.
const MAX_WINDOW: u32 = 256 * 1024;

/// The bytes that the peer may send.
#[derive(Debug, Default)]
pub(super) struct Window {
    pub(super) initial: u32,
    pub(super) size: u32,
    /// Bytes that the peer may still send, according to the grants sent to it.
    pub(super) available: u32,
    /// Bytes that have been taken and not been granted again.
    pub(super) owed: u32,
    /// The peer has used all of the window since the reader last took.
    was_used_up: bool,
    /// The reader has waited for messages since it last took some: it keeps up.
    pub(super) reader_waits: bool,
}

/// The peer has sent more than its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowExceeded {
    pub(crate) sent: usize,
    pub(crate) available: u32,
}

impl Window {
    /// Takes bytes that have arrived.
    pub(super) fn consume(&mut self, len: usize) -> Result<(), WindowExceeded> {
        let exceeded = WindowExceeded {
            sent: len,
            available: self.available,
        };
        let len = u32::try_from(len).map_err(|_| exceeded)?;
        self.available = self.available.checked_sub(len).ok_or(exceeded)?;
        // The next batch may not fit.
        self.was_used_up |= self.available < self.size / 4;
        Ok(())
    }

    /// Owes bytes that the reader has taken. The window grows if the sender uses all of it and the reader
    /// keeps up.
    pub(super) fn took(&mut self, len: usize) {
        self.owed += len as u32;
        let was_used_up = mem::take(&mut self.was_used_up);
        let keeps_up = mem::take(&mut self.reader_waits);
        if was_used_up && keeps_up && self.size < MAX_WINDOW {
            let growth = self.size.min(MAX_WINDOW - self.size);
            self.size += growth;
            self.owed += growth;
        }
    }
}
