//! [`Batch`]: the messages that one system call writes.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags};

use crate::provider::soft::capacities::MAX_SGE;
use crate::provider::soft::context::tcp_link::PartialKind;
use crate::provider::soft::wire::header::EncodedHeader;

/// Maximum number of messages in a batch.
pub(super) const MAX_MESSAGES: usize = 32;
/// Maximum number of parts in a batch: a header and two elements for each message on average.
const MAX_PARTS: usize = 3 * MAX_MESSAGES;
/// Parts that one message needs at most.
const PARTS_OF_ONE: usize = 1 + MAX_SGE;

/// A range of memory, as the kernel takes it (`struct iovec`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Part {
    start: *const u8,
    len: usize,
}

/// Ranges of memory, in order.
#[derive(Debug)]
pub(super) struct Parts<const N: usize> {
    /// The first `count` are initialized.
    parts: [MaybeUninit<Part>; N],
    count: usize,
    pub(super) bytes: usize,
}

impl<const N: usize> Parts<N> {
    pub(super) fn new() -> Self {
        Self {
            parts: [const { MaybeUninit::uninit() }; N],
            count: 0,
            bytes: 0,
        }
    }

    pub(super) fn push(&mut self, start: NonNull<u8>, len: usize) {
        self.parts[self.count].write(Part {
            start: start.as_ptr(),
            len,
        });
        self.count += 1;
        self.bytes += len;
    }

    /// Returns the only part, if there is one only.
    fn only(&self) -> Option<Part> {
        // SAFETY: the first part is initialized.
        (self.count == 1).then(|| unsafe { self.parts[0].assume_init() })
    }

    /// Writes as much as the socket takes. Returns the number of bytes.
    ///
    /// # Safety
    ///
    /// Every part is readable until this returns.
    unsafe fn write(&self, socket: BorrowedFd<'_>) -> Result<usize, Errno> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        if let Some(Part { start, len }) = self.only() {
            // The usual case, for which the kernel has a shorter way.
            // SAFETY: the caller guarantees that the only part is readable. If the application
            // changes registered memory meanwhile, the kernel sends some mix of the bytes.
            let part = unsafe { std::slice::from_raw_parts(start, len) };
            return rustix::net::send(socket, part, flags);
        }
        let parts: *const IoSlice<'_> = self.parts.as_ptr().cast();
        // SAFETY: `IoSlice` has the layout of `struct iovec`, as has `Part`, and the first `count`
        // parts are initialized. No byte of them is accessed through a reference: the slices are
        // only passed to the kernel, which the caller's guarantee covers.
        let parts = unsafe { std::slice::from_raw_parts(parts, self.count) };
        rustix::net::sendmsg(socket, parts, &mut SendAncillaryBuffer::default(), flags)
    }

    /// Reads what has arrived into the parts, in order. Returns the number of bytes; 0 at the end of
    /// the connection.
    ///
    /// # Safety
    ///
    /// Every part is writable until this returns, and no reference to plain bytes of it is in use.
    pub(super) unsafe fn read(&mut self, socket: BorrowedFd<'_>) -> Result<usize, Errno> {
        if let Some(Part { start, len }) = self.only() {
            // The usual case, for which the kernel has a shorter way.
            // SAFETY: the caller guarantees that the only part is writable and not in use; the kernel
            // initializes as much of it as it returns.
            let part = unsafe {
                std::slice::from_raw_parts_mut(start.cast_mut().cast::<MaybeUninit<u8>>(), len)
            };
            let (_, received) = rustix::net::recv(socket, part, RecvFlags::DONTWAIT)?;
            return Ok(received);
        }
        let parts: *mut IoSliceMut<'_> = self.parts.as_mut_ptr().cast();
        // SAFETY: as in `write`, for `IoSliceMut`.
        let parts = unsafe { std::slice::from_raw_parts_mut(parts, self.count) };
        let mut none = RecvAncillaryBuffer::default();
        rustix::net::recvmsg(socket, parts, &mut none, RecvFlags::DONTWAIT)
            .map(|received| received.bytes)
    }
}

/// The messages that one system call writes. A message's header is held here, so a batch is not
/// moved while it has messages.
pub(super) struct Batch {
    parts: Parts<MAX_PARTS>,
    headers: [MaybeUninit<EncodedHeader>; MAX_MESSAGES],
    /// The first `count` are initialized, as are their headers.
    messages: [MaybeUninit<Batched>; MAX_MESSAGES],
    count: usize,
}

/// One message of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batched {
    pub(super) kind: PartialKind,
    /// Bytes of the message that an earlier batch has written.
    pub(super) written: usize,
    /// Bytes of header and payload.
    pub(super) len: usize,
}

impl Batch {
    pub(super) fn new() -> Self {
        Self {
            parts: Parts::new(),
            headers: [const { MaybeUninit::uninit() }; MAX_MESSAGES],
            messages: [const { MaybeUninit::uninit() }; MAX_MESSAGES],
            count: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the number of bytes to write.
    pub(super) fn bytes(&self) -> usize {
        self.parts.bytes
    }

    /// Returns true if any message still fits.
    pub(super) fn has_room(&self) -> bool {
        self.count < MAX_MESSAGES && self.parts.count + PARTS_OF_ONE <= MAX_PARTS
    }

    /// Adds a message, for which there is room, without its first `written` bytes. `payload_len`
    /// bytes of payload follow the header: see [`add_payload`](Self::add_payload).
    pub(super) fn add(
        &mut self,
        kind: PartialKind,
        header: EncodedHeader,
        written: usize,
        payload_len: usize,
    ) {
        let header = self.headers[self.count].write(header).as_bytes();
        let rest = &header[written.min(header.len())..];
        self.messages[self.count].write(Batched {
            kind,
            written,
            len: header.len() + payload_len,
        });
        if !rest.is_empty() {
            self.parts.push(NonNull::from(rest).cast(), rest.len());
        }
        self.count += 1;
    }

    /// Adds a message, for which there is room, whose header and payload are `bytes`.
    pub(super) fn add_whole(&mut self, kind: PartialKind, header: EncodedHeader, bytes: &[u8]) {
        self.headers[self.count].write(header);
        self.messages[self.count].write(Batched {
            kind,
            written: 0,
            len: bytes.len(),
        });
        self.parts.push(NonNull::from(bytes).cast(), bytes.len());
        self.count += 1;
    }

    /// Adds a part of the payload of the message that was added last.
    pub(super) fn add_payload(&mut self, start: NonNull<u8>, len: usize) {
        self.parts.push(start, len);
    }

    /// Returns true if there is a message of this kind.
    pub(super) fn holds(&self, kind: PartialKind) -> bool {
        self.messages().any(|(message, _)| message.kind == kind)
    }

    /// Returns the messages, each with its header.
    pub(super) fn messages(&self) -> impl Iterator<Item = (Batched, &EncodedHeader)> {
        let filled = self.messages[..self.count].iter().zip(&self.headers);
        // SAFETY: `add` and `add_whole` have initialized the first `count` messages and headers.
        filled.map(|(message, header)| unsafe { (message.assume_init(), header.assume_init_ref()) })
    }

    /// Writes as much as the socket takes. Returns the number of bytes.
    ///
    /// # Safety
    ///
    /// Every part of a payload is readable until this returns.
    pub(super) unsafe fn write(&self, socket: BorrowedFd<'_>) -> Result<usize, Errno> {
        // SAFETY: the headers are held by this batch, which has not moved since they were added: it
        // was only lent. The caller guarantees the rest.
        unsafe { self.parts.write(socket) }
    }
}
