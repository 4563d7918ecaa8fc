//! [`LinkStream`]: the bytes of one link over TCP, in both directions.
//!
//! Whatever a queue pair says to its peer goes through this type: as it is, or in the records of a
//! [`RecordLayer`]. Others touch the sockets of links: the engine and
//! [`tcp_port`](crate::provider::soft::process::tcp_port) for the hello of a link, which comes before
//! its bytes; [`link`](super::link), which asks whether one that waits has been closed;
//! and [`TcpLinks`](super::tcp_links::TcpLinks), which watches them, and discards what
//! arrives on those that only wait for their end.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
#[cfg(any(test, feature = "test-util"))]
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, Shutdown};

use super::parts::Part;
use super::sealed_stream::{SEND_FLAGS, SealedStream};
use crate::record_layer::{ReadAhead, RecordLayer};
#[cfg(any(test, feature = "test-util"))]
use crate::types::LinkRecords;
use crate::types::SoftOptions;

/// The bytes of one link.
#[derive(Debug)]
pub(crate) enum LinkStream {
    /// They travel as they are.
    Plain(OwnedFd),
    /// They travel in records.
    Sealed(Box<SealedStream>),
    /// The queue pair is connected to itself: it writes into one end and reads from the other.
    ToItself { written: OwnedFd, read: OwnedFd },
}

impl LinkStream {
    /// The bytes of a link of a context with these options.
    #[cfg_attr(
        not(any(test, feature = "test-util")),
        expect(unused_variables, reason = "the only option is for tests")
    )]
    pub(crate) fn new(socket: OwnedFd, options: &SoftOptions) -> Self {
        #[cfg(any(test, feature = "test-util"))]
        if let Some(LinkRecords(of)) = options.link_records {
            let socket = TcpStream::from(socket);
            return match (socket.local_addr(), socket.peer_addr()) {
                (Ok(own), Ok(peer)) => {
                    Self::sealed(socket.into(), of(own, peer), ReadAhead::default())
                }
                // The connection was reset, so nothing travels.
                _ => Self::Plain(socket.into()),
            };
        }
        Self::Plain(socket)
    }

    pub(crate) fn sealed(
        socket: OwnedFd,
        layer: Box<dyn RecordLayer>,
        read_ahead: ReadAhead,
    ) -> Self {
        Self::Sealed(Box::new(SealedStream::new(socket, layer, read_ahead)))
    }

    /// Writes as much as the link takes. Returns the number of bytes.
    ///
    /// # Safety
    ///
    /// Every part is readable until this returns.
    pub(crate) unsafe fn write(&mut self, parts: &[Part]) -> Result<usize, Errno> {
        let socket = match self {
            Self::Plain(socket) => socket,
            Self::ToItself { written, .. } => written,
            // SAFETY: the caller guarantees it.
            Self::Sealed(stream) => return unsafe { stream.write(parts) },
        };
        // SAFETY: as above.
        unsafe { write_plain(socket.as_fd(), parts) }
    }

    /// Reads what has arrived into the parts, in order. Returns the number of bytes; 0 at the end of
    /// the connection.
    ///
    /// # Safety
    ///
    /// Every part is writable until this returns, and no reference to plain bytes of it is in use.
    pub(crate) unsafe fn read(&mut self, parts: &mut [Part]) -> Result<usize, Errno> {
        let socket = match self {
            Self::Plain(socket) => socket,
            Self::ToItself { read, .. } => read,
            // SAFETY: the caller guarantees it.
            Self::Sealed(stream) => return unsafe { stream.read(parts) },
        };
        // SAFETY: as above.
        unsafe { read_plain(socket.as_fd(), parts) }
    }

    /// Writes a message that is not worth a batch. Returns true if the socket has taken all of it.
    pub(crate) fn write_message(&mut self, message: &[u8]) -> bool {
        let part = Part {
            start: NonNull::from(message).cast(),
            len: message.len(),
        };
        // SAFETY: the only part is `message`.
        let written = unsafe { self.write(&[part]) };
        written == Ok(message.len()) && !self.holds_unsent()
    }

    /// Sends what an earlier write has taken, and the socket has not. Fails with `EAGAIN` if it still
    /// does not take all of it.
    pub(crate) fn flush(&mut self) -> Result<(), Errno> {
        match self {
            Self::Sealed(stream) => stream.flush(),
            Self::Plain(_) | Self::ToItself { .. } => Ok(()),
        }
    }

    /// Returns true if the socket has not taken all that was written.
    pub(crate) fn holds_unsent(&self) -> bool {
        matches!(self, Self::Sealed(stream) if stream.holds_unsent())
    }

    /// Returns true if something is to be read that no file tells of.
    pub(crate) fn holds_unread(&self) -> bool {
        matches!(self, Self::Sealed(stream) if stream.holds_unread())
    }

    /// Returns true if a read that found less than it asked for may be followed by another.
    pub(crate) fn may_have_more(&self) -> bool {
        matches!(self, Self::Sealed(stream) if stream.may_have_more())
    }

    /// Returns the file that can be read from when something has arrived.
    pub(crate) fn readable(&self) -> BorrowedFd<'_> {
        match self {
            Self::Plain(socket) => socket.as_fd(),
            Self::ToItself { read, .. } => read.as_fd(),
            Self::Sealed(stream) => stream.socket(),
        }
    }

    fn writable(&self) -> BorrowedFd<'_> {
        match self {
            Self::Plain(socket) => socket.as_fd(),
            Self::ToItself { written, .. } => written.as_fd(),
            Self::Sealed(stream) => stream.socket(),
        }
    }

    pub(crate) fn is_to_itself(&self) -> bool {
        matches!(self, Self::ToItself { .. })
    }

    /// Tells the peer that nothing more follows, if the layer has a way to say so.
    fn end(&mut self) {
        if let Self::Sealed(stream) = self {
            stream.end();
        }
    }

    /// Returns the socket to the peer. What it does not take is lost.
    pub(crate) fn into_socket(mut self) -> Option<OwnedFd> {
        self.end();
        match self {
            Self::Plain(socket) => Some(socket),
            Self::ToItself { .. } => None,
            Self::Sealed(stream) => Some(stream.into_socket()),
        }
    }

    /// Closes the connection for all copies of its files, such as those of a forked process. What the
    /// socket does not take is lost.
    pub(crate) fn shut_down(&mut self) {
        self.end();
        for file in [self.readable(), self.writable()] {
            // The peer may have closed it.
            let _ = rustix::net::shutdown(file, Shutdown::Both);
        }
    }
}

/// Writes as much as the socket takes.
///
/// # Safety
///
/// Every part is readable until this returns.
unsafe fn write_plain(socket: BorrowedFd<'_>, parts: &[Part]) -> Result<usize, Errno> {
    if let [Part { start, len }] = *parts {
        // The usual case, for which the kernel has a shorter way.
        // SAFETY: the caller guarantees that the only part is readable. If the application changes
        // registered memory meanwhile, the kernel sends some mix of the bytes.
        let part = unsafe { std::slice::from_raw_parts(start.as_ptr(), len) };
        return rustix::net::send(socket, part, SEND_FLAGS);
    }
    let first: *const IoSlice<'_> = parts.as_ptr().cast();
    // SAFETY: `IoSlice` has the layout of `struct iovec`, as has `Part`. No byte of the parts is
    // accessed through a reference: the slices are only passed to the kernel, which the caller's
    // guarantee covers.
    let parts = unsafe { std::slice::from_raw_parts(first, parts.len()) };
    rustix::net::sendmsg(
        socket,
        parts,
        &mut SendAncillaryBuffer::default(),
        SEND_FLAGS,
    )
}

/// Reads what has arrived; returns 0 at the end of the connection.
///
/// # Safety
///
/// Every part is writable until this returns, and no reference to plain bytes of it is in use.
unsafe fn read_plain(socket: BorrowedFd<'_>, parts: &mut [Part]) -> Result<usize, Errno> {
    if let [Part { start, len }] = *parts {
        // The usual case, for which the kernel has a shorter way.
        // SAFETY: the caller guarantees that the only part is writable and not in use; the kernel
        // initializes as much of it as it returns.
        let part = unsafe {
            std::slice::from_raw_parts_mut(start.as_ptr().cast::<MaybeUninit<u8>>(), len)
        };
        let (_, received) = rustix::net::recv(socket, part, RecvFlags::DONTWAIT)?;
        return Ok(received);
    }
    let first: *mut IoSliceMut<'_> = parts.as_mut_ptr().cast();
    // SAFETY: as in `write_plain`, for `IoSliceMut`.
    let parts = unsafe { std::slice::from_raw_parts_mut(first, parts.len()) };
    let mut none = RecvAncillaryBuffer::default();
    rustix::net::recvmsg(socket, parts, &mut none, RecvFlags::DONTWAIT)
        .map(|received| received.bytes)
}
