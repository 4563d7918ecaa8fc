//! The sockets of links. A process has one socket that listens under a name derived from its GID,
//! and one socket to each process that it communicates with: the link. Either side may have dialed
//! it. `link_message` defines the messages, and `greeting` what is said first.
//!
//! No operation here waits, except for [`LinkSocket::wait`] and [`LinkSocket::wait_for_room`].

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType,
    accept_with, bind, connect, listen, recvmsg, sendmsg, shutdown, socket_with,
};

use super::credentials::Credentials;
use super::gid::address_of;
use super::link_message::{LinkMessage, MAX_FILES, MAX_PACKET};
use crate::fork_sockets::keep_from_children;
use crate::provider::soft::shared::peer_file::{PeerFile, set_takes_files};
use crate::strangers::accepted;
use crate::types::Gid;

/// Connections that may wait to be accepted; the kernel caps the number at `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// Maximum number of files that the kernel passes beside a packet (SCM_MAX_FD). The buffer has room
/// for them all: the kernel closes the others itself, in the call that receives, and that can block.
const MAX_FILES_OF_PACKET: usize = 253;

/// The socket on which other processes reach this one.
#[derive(Debug)]
pub(crate) struct Listener(OwnedFd);

impl Listener {
    pub(crate) fn bind(gid: Gid) -> rustix::io::Result<Self> {
        let socket = new_socket()?;
        bind(&socket, &address_of(gid)?)?;
        listen(&socket, BACKLOG)?;
        Ok(Self(socket))
    }

    /// Accepts the next connection, if one is waiting.
    pub(crate) fn accept(&self) -> io::Result<Option<LinkSocket>> {
        let socket = accept_with(&self.0, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
        let Some(socket) = accepted(socket.map_err(io::Error::from))? else {
            return Ok(None);
        };
        keep_from_children(&socket)?;
        Ok(Some(LinkSocket(Arc::new(socket.into()))))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns a socket that takes no files; those that it accepts take none either.
fn new_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    keep_from_children(&socket)?;
    set_takes_files(&socket, false)?;
    Ok(socket)
}

/// The result of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    Whole,
    /// Nothing was sent: the peer has to receive something first.
    NoRoom,
    /// Nothing was sent: this user has too many files in flight, to any process.
    TooManyFiles,
}

/// The result of receiving.
#[derive(Debug)]
pub(crate) enum Packet {
    /// A message, with the files that arrived beside it.
    Message(LinkMessage, Vec<PeerFile>),
    /// A message without its files: this process has no file descriptor left for them.
    WithoutFiles(LinkMessage),
    /// No packet is available now.
    Empty,
    /// The other process has ended or has closed the link.
    End,
    /// A packet that is not a message: the link has to be closed.
    Garbage,
}

/// One end of a link.
#[derive(Debug)]
pub(crate) struct LinkSocket(Arc<PeerFile>);

impl LinkSocket {
    /// Adopts a connected socket.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn adopt(socket: OwnedFd) -> Self {
        Self(Arc::new(socket.into()))
    }

    /// Connects to the listener of a GID. Fails with `EAGAIN` if too many connections wait there.
    pub(crate) fn connect(gid: Gid) -> rustix::io::Result<Self> {
        let socket = new_socket()?;
        connect(&socket, &address_of(gid)?)?;
        Ok(Self(Arc::new(socket.into())))
    }

    /// Takes files from now on. Until this is called, the kernel refuses the files that the process
    /// at the other end sends, since that process can be anyone's.
    pub(crate) fn take_files(&self) -> rustix::io::Result<()> {
        set_takes_files(&self.0, true)
    }

    /// Returns the socket, for calls of the peer's engine.
    pub(crate) fn shared(&self) -> Arc<PeerFile> {
        Arc::clone(&self.0)
    }

    /// Returns the process at the other end: the one that connected, or the one that listens.
    pub(crate) fn credentials(&self) -> rustix::io::Result<Credentials> {
        Credentials::of_peer(&self.0)
    }

    pub(crate) fn send(
        &self,
        message: LinkMessage,
        files: &[BorrowedFd<'_>],
    ) -> rustix::io::Result<Sent> {
        let bytes = message.encode();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
        loop {
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if !files.is_empty() {
                // The files fit: no message has more than MAX_FILES.
                ancillary.push(SendAncillaryMessage::ScmRights(files));
            }
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            return match sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut ancillary, flags) {
                Ok(_) => Ok(Sent::Whole),
                // A call that does not wait is not interrupted for long.
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => Ok(Sent::NoRoom),
                Err(Errno::TOOMANYREFS | Errno::NOBUFS) => Ok(Sent::TooManyFiles),
                Err(error) => Err(error),
            };
        }
    }

    pub(crate) fn receive(&self) -> rustix::io::Result<Packet> {
        let mut bytes = [0; MAX_PACKET];
        let mut space =
            [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES_OF_PACKET))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let mut receive = || {
            let mut space = [IoSliceMut::new(&mut bytes)];
            recvmsg(&self.0, &mut space, &mut ancillary, flags)
        };
        let received = match receive() {
            // The other side closed the link before it had received everything. It may have said
            // why: the kernel reports this once, before the packets.
            Err(Errno::CONNRESET) => receive(),
            other => other,
        };
        let received = match received {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Packet::Empty),
            Err(Errno::CONNRESET) => return Ok(Packet::End),
            Err(error) => return Err(error),
        };
        let mut files = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                files.extend(received.map(PeerFile::from));
            }
        }
        if received.bytes == 0 {
            return Ok(Packet::End);
        }
        let message = LinkMessage::parse(&bytes[..received.bytes.min(MAX_PACKET)]);
        let lost_files = received.flags.contains(ReturnFlags::CTRUNC);
        Ok(match message {
            Some(_) if received.flags.contains(ReturnFlags::TRUNC) => Packet::Garbage,
            Some(message) if files.len() == message.file_count() && !lost_files => {
                Packet::Message(message, files)
            }
            // The kernel drops files for which there is no room in the buffer, or no descriptor.
            // The buffer has room for all files, so this process has no descriptor left.
            Some(message) if files.len() < message.file_count() && lost_files => {
                Packet::WithoutFiles(message)
            }
            _ => Packet::Garbage,
        })
    }

    /// Returns true if the other process has received all packets that were sent.
    pub(crate) fn is_all_received(&self) -> bool {
        let mut bytes: libc::c_int = 0;
        // SAFETY: the kernel writes an int to the address of `bytes`, which lives until the call has
        // returned.
        let result =
            unsafe { libc::ioctl(self.0.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
        result == 0 && bytes == 0
    }

    /// Waits until a packet or the end of the link has arrived. Returns false if `timeout` has
    /// passed.
    pub(crate) fn wait(&self, timeout: Duration) -> rustix::io::Result<bool> {
        self.poll(PollFlags::IN, timeout)
    }

    /// Waits until the peer has received some packets, or has ended, or `timeout` has passed.
    pub(crate) fn wait_for_room(&self, timeout: Duration) -> rustix::io::Result<bool> {
        self.poll(PollFlags::OUT, timeout)
    }

    fn poll(&self, awaited: PollFlags, timeout: Duration) -> rustix::io::Result<bool> {
        let timeout = Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        match poll(&mut [PollFd::new(&self.0, awaited)], Some(&timeout)) {
            Ok(count) => Ok(count > 0),
            // The caller looks at its clock and comes again.
            Err(Errno::INTR) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Returns true if the other process has ended or has closed the link.
    pub(crate) fn has_ended(&self) -> bool {
        let mut polled = [PollFd::new(&self.0, PollFlags::RDHUP)];
        let ends = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        poll(&mut polled, Some(&Timespec::default())).is_ok_and(|count| count > 0)
            && polled[0].revents().intersects(ends)
    }

    /// Closes the link for both sides, although other threads may still refer to the socket.
    pub(crate) fn shut_down(&self) {
        // This fails only if the other side has closed the link already.
        let _ = shutdown(&self.0, Shutdown::Both);
    }
}

/// The file is closed later, on another thread, so this tells the other side.
impl Drop for LinkSocket {
    fn drop(&mut self) {
        self.shut_down();
    }
}

impl AsFd for LinkSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use rustix::fs::{MemfdFlags, memfd_create};
    use rustix::net::socketpair;

    use super::*;

    pub(crate) fn pair() -> (LinkSocket, LinkSocket) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (here, there) = pair.expect("a pair of sockets");
        (LinkSocket::adopt(here), LinkSocket::adopt(there))
    }

    fn file() -> OwnedFd {
        memfd_create("test", MemfdFlags::CLOEXEC).expect("a file")
    }

    const ARENA: LinkMessage = LinkMessage::Arena { number: 1 };

    #[test]
    fn a_peer_that_does_not_receive_makes_no_sender_wait() {
        let (here, there) = pair();
        let file = file();
        let mut sent = 0;
        while here.send(ARENA, &[file.as_fd()]) == Ok(Sent::Whole) {
            sent += 1;
            assert!(sent < 10_000, "the buffer has no end");
        }
        assert_eq!(here.send(ARENA, &[file.as_fd()]), Ok(Sent::NoRoom));
        for _ in 0..sent {
            assert!(matches!(there.receive(), Ok(Packet::Message(ARENA, _))));
        }
        assert!(matches!(there.receive(), Ok(Packet::Empty)));
        assert_eq!(here.send(ARENA, &[file.as_fd()]), Ok(Sent::Whole));
    }

    #[test]
    fn too_many_files_and_too_few_are_garbage() {
        let (here, there) = pair();
        let file = file();
        for count in [0, 2, 3] {
            here.send(ARENA, &vec![file.as_fd(); count]).unwrap();
            let packet = there.receive();
            assert!(matches!(packet, Ok(Packet::Garbage)), "{count}: {packet:?}");
        }
    }

    #[test]
    fn the_end_of_the_other_side_is_seen() {
        let (here, there) = pair();
        assert!(!here.has_ended());
        assert_eq!(here.wait(Duration::ZERO), Ok(false));
        drop(there);
        assert!(here.has_ended());
        assert_eq!(here.wait(Duration::MAX), Ok(true));
        assert!(matches!(here.receive(), Ok(Packet::End)));
    }
}
