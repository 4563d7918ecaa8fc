//! Sockets between processes. Each process has one socket that listens under a name derived from
//! its GID, and one to each process that it sends to. `link_message` defines the messages.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    accept_with, bind, connect, listen, recvmsg, sendmsg, socket_with, sockopt,
};

use super::link_message::{LinkMessage, MAX_FILES, MAX_PACKET};
use crate::verbs::types::Gid;

/// Connections that may wait to be accepted; the kernel caps the number at `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// Returns the first bytes of the GIDs of this environment: the link-local prefix and a hash of the
/// environment. In a GID, the process id follows (4 bytes, big endian), then 6 random bytes,
/// because process ids are reused.
///
/// An environment is the scope in which processes can reach each other: one boot of one host, one
/// network namespace (which contains the abstract sockets) and one PID namespace (both sides verify
/// each other's process ids). Two processes whose GIDs have different prefixes cannot connect.
fn gid_prefix() -> [u8; 6] {
    static PREFIX: OnceLock<[u8; 6]> = OnceLock::new();
    *PREFIX.get_or_init(|| {
        let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let namespace = |name: &str| {
            let link = std::fs::read_link(format!("/proc/self/ns/{name}")).unwrap_or_default();
            link.into_os_string().into_encoded_bytes()
        };
        let location = [boot, namespace("net"), namespace("pid")].concat();
        let [a, b, c, d] = fnv_1a(&location).to_be_bytes();
        [0xfe, 0x80, a, b, c, d]
    })
}

/// Computes the 32-bit FNV-1a hash: it is the same in every build, which the standard library's
/// hashes need not be.
fn fnv_1a(bytes: &[u8]) -> u32 {
    let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    bytes.iter().fold(0x811c_9dc5, step)
}

/// Creates a GID for this process. No other process will ever have it.
pub(crate) fn new_gid() -> io::Result<Gid> {
    let mut gid = [0; 16];
    gid[..6].copy_from_slice(&gid_prefix());
    gid[6..10].copy_from_slice(&std::process::id().to_be_bytes());
    rustix::rand::getrandom(&mut gid[10..], rustix::rand::GetRandomFlags::empty())?;
    Ok(Gid(gid))
}

/// Returns the id of the process that a GID names; `None` for a GID of another kind of device.
fn process_of(gid: Gid) -> Option<u32> {
    let pid = gid.0.strip_prefix(&gid_prefix())?.first_chunk()?;
    Some(u32::from_be_bytes(*pid))
}

fn address_of(gid: Gid) -> io::Result<SocketAddrUnix> {
    use std::fmt::Write;
    let mut name = String::from("verbline-soft-");
    for byte in gid.0 {
        // Writing to a String never fails.
        let _ = write!(name, "{byte:02x}");
    }
    Ok(SocketAddrUnix::new_abstract_name(name.as_bytes())?)
}

/// The socket on which other processes reach this one.
#[derive(Debug)]
pub(crate) struct Listener(OwnedFd);

impl Listener {
    pub(crate) fn bind(gid: Gid) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        bind(&socket, &address_of(gid)?)?;
        listen(&socket, BACKLOG)?;
        Ok(Self(socket))
    }

    /// Accepts the next connection, if one is waiting.
    pub(crate) fn accept(&self) -> io::Result<Option<IncomingLink>> {
        match accept_with(&self.0, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => Ok(Some(IncomingLink { socket })),
            Err(Errno::AGAIN) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A link that another process made to this one: the other process sends, this one receives.
#[derive(Debug)]
pub(crate) struct IncomingLink {
    socket: OwnedFd,
}

/// Result of receiving from a link.
#[derive(Debug)]
pub(crate) enum Packet {
    /// A message, with the files that arrived beside it.
    Message(LinkMessage, Vec<OwnedFd>),
    /// No packet is available now.
    Empty,
    /// The other process has ended or has closed the link.
    End,
    /// A packet that is not a message: the link has to be closed.
    Garbage,
}

impl IncomingLink {
    #[cfg(all(any(test, fuzzing), not(loom)))]
    pub(crate) fn of_socket(socket: OwnedFd) -> Self {
        Self { socket }
    }

    pub(crate) fn receive(&self) -> io::Result<Packet> {
        let mut bytes = [0; MAX_PACKET];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(
            &self.socket,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
        );
        let received = match received {
            Ok(received) => received,
            Err(Errno::AGAIN) => return Ok(Packet::Empty),
            Err(Errno::INTR) => return Ok(Packet::Empty),
            Err(Errno::CONNRESET) => return Ok(Packet::End),
            Err(error) => return Err(error.into()),
        };
        let mut files = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                files.extend(received);
            }
        }
        if received.bytes == 0 {
            return Ok(Packet::End);
        }
        let whole = !received
            .flags
            .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
        Ok(
            match LinkMessage::parse(&bytes[..received.bytes.min(MAX_PACKET)]) {
                Some(message) if whole => Packet::Message(message, files),
                _ => Packet::Garbage,
            },
        )
    }

    /// Returns true if the process at the other end is the process that this GID names, and belongs
    /// to the same user.
    pub(crate) fn is_from(&self, gid: Gid) -> io::Result<bool> {
        is_process(self.socket.as_fd(), gid)
    }
}

impl AsFd for IncomingLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A link that this process made to another: this one sends.
#[derive(Debug)]
pub(crate) struct OutgoingLink {
    socket: Arc<OwnedFd>,
}

impl OutgoingLink {
    #[cfg(all(any(test, fuzzing), not(loom)))]
    pub(crate) fn of_socket(socket: OwnedFd) -> Self {
        Self {
            socket: Arc::new(socket),
        }
    }

    /// Returns the socket, for calls of the peer's engine.
    pub(crate) fn shared(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.socket)
    }

    /// Connects to the process that a GID names, and verifies that it is that process.
    pub(crate) fn connect(gid: Gid) -> io::Result<Self> {
        if process_of(gid).is_none() {
            let reason = "not the GID of a software device on this host";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        let socket = socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        connect(&socket, &address_of(gid)?)?;
        if !is_process(socket.as_fd(), gid)? {
            let reason = "the process there is not the one that the GID names, or another user's";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
        }
        // A stopped peer does not read its socket, so connecting a queue pair to it fails after
        // this time. The time is longer than any scheduling delay, but not too long for a person
        // who waits.
        sockopt::set_socket_timeout(
            &socket,
            sockopt::Timeout::Send,
            Some(std::time::Duration::from_secs(5)),
        )?;
        Ok(Self {
            socket: Arc::new(socket),
        })
    }

    pub(crate) fn send(&self, message: LinkMessage, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = message.encode();
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if !files.is_empty() {
                // The files fit: no message has more than MAX_FILES.
                ancillary.push(SendAncillaryMessage::ScmRights(files));
            }
            let sent = sendmsg(
                &self.socket,
                &[IoSlice::new(&bytes)],
                &mut ancillary,
                SendFlags::NOSIGNAL,
            );
            match sent {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                // The kernel limits the number of files in flight: the peer has to receive some of
                // them first.
                Err(Errno::TOOMANYREFS) => std::thread::yield_now(),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for OutgoingLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn is_process(socket: BorrowedFd<'_>, gid: Gid) -> io::Result<bool> {
    let credentials = sockopt::socket_peercred(socket)?;
    let pid = u32::try_from(credentials.pid.as_raw_nonzero().get()).ok();
    Ok(credentials.uid == rustix::process::geteuid() && pid.is_some() && pid == process_of(gid))
}
