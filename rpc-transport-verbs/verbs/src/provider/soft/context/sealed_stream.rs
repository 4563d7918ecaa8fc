//! [`SealedStream`]: the bytes of a link, in the records of a layer.
//!
//! A record is opened as a whole and sealed as a whole, so the stream holds what the link has not taken
//! yet, and what the socket has not. No file tells of either, hence three rules:
//!
//! * Of what has arrived, a record with bytes is open as long as there is one, so it is known whether
//!   something is [held](SealedStream::holds_unread). Whoever reads goes on until nothing is: then
//!   the rest of a record is what the link waits for, which the socket tells of.
//! * While something is [unsent](SealedStream::holds_unsent), the link is blocked, and watched until
//!   its socket takes more. What is unsent is bounded.
//! * Whoever closes the link [flushes](SealedStream::flush) it.
//!
//! The layer copies payloads, where the kernel does without it. So memory that cannot be read, such as
//! that behind the end of a file that was cut short, is a `SIGBUS` here and `EFAULT` there.

use std::fmt;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::parts::{Part, Pieces};
use crate::provider::soft::shared::copy::copy_buffered;
use crate::record_layer::{
    BadRecord, MAX_PLAIN, MAX_RECORD, MOST_EMPTY, Opened, ReadAhead, RecordLayer,
};

/// How the streams of links are written.
pub(super) const SEND_FLAGS: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);

/// Bytes of records that are sent with one system call, and read with one. A connection that has no more
/// to read at a time has less memory for it.
const MOST_SENT: usize = 64 * 1024;
const LEAST_READ: usize = 4 * 1024;
const MOST_READ: usize = 64 * 1024;

/// The bytes of a link, in records.
pub(crate) struct SealedStream {
    socket: OwnedFd,
    layer: Box<dyn RecordLayer>,
    /// Records, of which the socket has taken `sent` bytes.
    unsent: Vec<u8>,
    sent: usize,
    /// What has arrived. The records in `sealed` have not been opened; `opened` are bytes of the record
    /// before them.
    arrived: Vec<u8>,
    sealed: Range<usize>,
    opened: Range<usize>,
    /// Records in a row without bytes.
    empty: u32,
    /// What a read finds behind the opened bytes, if nothing follows them.
    end: Option<Result<usize, Errno>>,
    /// The socket may hold more than the last read has taken.
    is_more_there: bool,
}

impl SealedStream {
    pub(crate) fn new(socket: OwnedFd, layer: Box<dyn RecordLayer>, read_ahead: ReadAhead) -> Self {
        let ReadAhead {
            opened: mut arrived,
            sealed,
        } = read_ahead;
        let opened = 0..arrived.len();
        arrived.extend(sealed);
        let sealed = opened.end..arrived.len();
        arrived.resize(sealed.end.max(LEAST_READ), 0);
        let mut stream = Self {
            socket,
            layer,
            unsent: Vec::new(),
            sent: 0,
            arrived,
            sealed,
            opened,
            empty: 0,
            end: None,
            is_more_there: false,
        };
        if stream.opened.is_empty() {
            stream.open_next();
        }
        stream
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(crate) fn into_socket(self) -> OwnedFd {
        self.socket
    }

    /// Seals as much as may be unsent, and sends it. Returns the number of bytes that were sealed;
    /// fails with `EAGAIN` while earlier ones are unsent.
    ///
    /// # Safety
    ///
    /// Every part is readable until this returns.
    pub(crate) unsafe fn write(&mut self, parts: &[Part]) -> Result<usize, Errno> {
        self.flush()?;
        let mut pieces = Pieces::of(parts);
        let mut left = parts.iter().map(|part| part.len).sum::<usize>();
        let all = left;
        loop {
            while left > 0 && self.unsent.len() < MOST_SENT {
                let len = left.min(MAX_PLAIN);
                // SAFETY: the caller guarantees that every part is readable until this returns.
                let mut fill = |record: &mut [u8]| unsafe { fill(record, &mut pieces) };
                let sealed = self.layer.seal_with(len, &mut fill, &mut self.unsent);
                sealed.map_err(tell)?;
                left -= len;
            }
            if self.unsent.is_empty() {
                return Ok(all - left);
            }
            match self.flush() {
                Ok(()) => {}
                // What was sealed must not be sealed again: the next flush meets the same error.
                Err(_) if left < all => return Ok(all - left),
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends what is unsent. Fails with `EAGAIN` if the socket does not take all of it.
    pub(crate) fn flush(&mut self) -> Result<(), Errno> {
        while self.sent < self.unsent.len() {
            match rustix::net::send(&self.socket, &self.unsent[self.sent..], SEND_FLAGS) {
                Ok(len) => self.sent += len,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        self.unsent.clear();
        self.sent = 0;
        Ok(())
    }

    pub(crate) fn holds_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Tells the peer that nothing more follows. What the socket does not take is lost.
    pub(crate) fn end(&mut self) {
        // A layer that seals nothing more says nothing more.
        let _ = self.layer.seal_end(&mut self.unsent);
        let _ = self.flush();
    }

    /// Returns true if the next read finds something without the socket: bytes, or the end.
    pub(crate) fn holds_unread(&self) -> bool {
        !self.opened.is_empty() || self.end.is_some()
    }

    /// Returns true if the next read may find something, here or in the socket.
    pub(crate) fn may_have_more(&self) -> bool {
        self.holds_unread() || self.is_more_there
    }

    /// Reads into the parts, in order; from the socket only if nothing is held, and once. Returns the
    /// number of bytes; 0 at the end of the connection. Fails with `EAGAIN` if there is nothing, and
    /// with `EBADMSG` if the next record cannot be opened.
    ///
    /// # Safety
    ///
    /// Every part is writable until this returns, and no reference to plain bytes of it is in use.
    pub(crate) unsafe fn read(&mut self, parts: &[Part]) -> Result<usize, Errno> {
        if !self.holds_unread() {
            self.receive()?;
        }
        let mut pieces = Pieces::of(parts);
        let mut taken = 0;
        loop {
            while let Some(Part { start, len }) = pieces.next(self.opened.len()) {
                let from = NonNull::from(&self.arrived[self.opened.start..][..len]).cast();
                // SAFETY: the caller guarantees that the piece is writable until this returns, and
                // that no reference to its plain bytes is in use. The source is borrowed from this
                // stream, whose memory is no part, so the two do not overlap.
                unsafe { copy_buffered(from, start, len) };
                self.opened.start += len;
                taken += len;
            }
            if !self.opened.is_empty() || !self.open_next() {
                break;
            }
        }
        if taken > 0 {
            return Ok(taken);
        }
        self.end.unwrap_or(Err(Errno::AGAIN))
    }

    /// Reads from the socket, behind what is still sealed, and opens the next record. Reads again if the
    /// memory was full before a record was complete: then the socket may hold its rest.
    fn receive(&mut self) -> Result<(), Errno> {
        loop {
            let left = self.sealed.len();
            self.arrived.copy_within(self.sealed.clone(), 0);
            self.sealed = 0..left;
            // What was read ahead may leave no room, and a read of nothing looks like the end.
            let is_full = left == self.arrived.len();
            if (self.is_more_there || is_full) && self.arrived.len() < MOST_READ {
                let len = (4 * self.arrived.len()).min(MOST_READ);
                self.arrived.resize(len, 0);
            }
            let room = &mut self.arrived[left..];
            let room_len = room.len();
            let (_, len) = rustix::net::recv(&self.socket, room, RecvFlags::DONTWAIT)
                .inspect_err(|_| self.is_more_there = false)?;
            self.is_more_there = len == room_len;
            self.sealed.end += len;
            if len == 0 {
                self.end = Some(Ok(0));
            }
            if self.open_next() || self.end.is_some() || !self.is_more_there {
                return Ok(());
            }
        }
    }

    /// Opens records up to the next one with bytes. Returns false if there is none.
    fn open_next(&mut self) -> bool {
        while self.end.is_none() {
            let sealed = &mut self.arrived[self.sealed.clone()];
            match self.layer.open(sealed) {
                Ok(None) if sealed.len() < MAX_RECORD => return false,
                Ok(Some(opened)) if opened.is_inside(sealed.len()) => {
                    let Opened { plain, len, is_end } = opened;
                    let start = self.sealed.start;
                    self.opened = start + plain.start..start + plain.end;
                    self.sealed.start += len;
                    if is_end {
                        self.end = Some(Ok(0));
                    }
                    if !self.opened.is_empty() {
                        self.empty = 0;
                        return true;
                    }
                    self.empty += 1;
                    if self.empty >= MOST_EMPTY {
                        self.end = Some(Err(Errno::BADMSG));
                    }
                }
                Err(error) => self.end = Some(Err(tell(error))),
                // A record that is longer than any may be.
                Ok(_) => self.end = Some(Err(Errno::BADMSG)),
            }
        }
        false
    }
}

// Without the bytes, which are not for logs.
impl fmt::Debug for SealedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealedStream")
            .field("socket", &self.socket)
            .field("layer", &self.layer)
            .finish_non_exhaustive()
    }
}

/// Writes the next bytes to where they are sealed.
///
/// # Safety
///
/// The parts of `pieces` are readable until this returns.
unsafe fn fill(mut record: &mut [u8], pieces: &mut Pieces<'_>) {
    while let Some(Part { start, len }) = pieces.next(record.len()) {
        let (now, later) = record.split_at_mut(len);
        // SAFETY: the caller guarantees that the piece is readable until this returns. The application
        // may change it meanwhile: then a mix of the bytes is sealed. The target is borrowed from the
        // stream, whose memory is no part, so the two do not overlap.
        unsafe { copy_buffered(start, NonNull::from(now).cast(), len) };
        record = later;
    }
    debug_assert!(
        record.is_empty(),
        "the layer asks for as many bytes as it was told"
    );
}

/// Tells the log why a link ends, which sees an error of the socket.
fn tell(error: BadRecord) -> Errno {
    tracing::debug!(%error, "a link ends");
    Errno::BADMSG
}

impl Opened {
    /// Returns true if a layer may say this of a record at the beginning of `len` bytes.
    fn is_inside(&self, len: usize) -> bool {
        let is_in_order = self.plain.start <= self.plain.end && self.plain.end <= self.len;
        is_in_order && self.len > 0 && self.len <= len
    }
}

#[cfg(test)]
mod tests;
