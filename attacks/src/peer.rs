//! [`Peer`]: a process that speaks to a server by the rules, up to the moment when it does not.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::retry_on_intr;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, bind, connect, listen, recvmsg,
    sendmsg, socket_with, sockopt,
};

use super::formats::handshake::{self, Body};
use super::formats::links::{self, PeerFiles};
use super::formats::{self, Gid, memory};
use crate::attack::Target;
use benches::Outcome;
use benches::spin::Work;

/// Time after which a server's silence counts as its answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(6);

/// The queue pair that peers pretend to have.
pub(crate) const QP_NUMBER: u32 = 77;
/// First PSN of peers.
pub(crate) const PSN: u32 = 5;

/// Creates a socket for links.
///
/// # Errors
///
/// Fails if the system has no file left.
pub(crate) fn link_socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    let flags = flags | SocketFlags::CLOEXEC;
    Ok(socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        flags,
        None,
    )?)
}

/// Listens under the name of a GID.
///
/// # Errors
///
/// Fails if the name is taken.
pub(crate) fn listen_as(gid: &Gid, backlog: i32) -> io::Result<OwnedFd> {
    let socket = link_socket(SocketFlags::empty())?;
    bind(&socket, &formats::socket_of(gid)?)?;
    listen(&socket, backlog)?;
    Ok(socket)
}

/// Sends a message with files over a link.
///
/// # Errors
///
/// Fails if the link is closed, or if nothing can be sent for [`PATIENCE`].
pub(crate) fn send(link: impl AsFd, message: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(files));
    }
    let message = [IoSlice::new(message)];
    // The attacker is stopped and continued, so that it gets only a part of a core.
    retry_on_intr(|| sendmsg(&link, &message, &mut ancillary, SendFlags::NOSIGNAL))?;
    Ok(())
}

/// Receives a message with its files. An empty message is the end of the link.
///
/// # Errors
///
/// Fails if nothing comes for [`PATIENCE`].
pub(crate) fn receive(link: impl AsFd) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; links::MAX_PACKET];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut buffers = [IoSliceMut::new(&mut bytes)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = retry_on_intr(|| recvmsg(&link, &mut buffers, &mut ancillary, flags))?;
    let mut files = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            files.extend(received);
        }
    }
    bytes.truncate(received.bytes);
    Ok((bytes, files))
}

/// Connects a link to the process with this GID, and greets it.
///
/// # Errors
///
/// Fails if the process does not accept the link.
pub(crate) fn dial(to: &Gid, own: &Gid) -> Outcome<OwnedFd> {
    let link = link_socket(SocketFlags::empty())?;
    set_patience(&link)?;
    connect(&link, &formats::socket_of(to)?)?;
    send(&link, &links::greeting(own), &[])?;
    match receive(&link)?.0 {
        welcome if links::is_welcome(&welcome) => Ok(link),
        other => Err(format!("the server answered the greeting with {other:?}").into()),
    }
}

/// Sends a hello with the GID `own`, and proves the GID over a new link. Returns the link. What
/// remains of the handshake is to come over the TCP connection.
///
/// # Errors
///
/// Fails if the server refuses the GID.
pub(crate) fn offer(stream: &TcpStream, own: &Gid) -> Outcome<OwnedFd> {
    handshake::send_frame(stream, handshake::client_hello("soft", own, QP_NUMBER, PSN))?;
    match handshake::receive_frame(stream)? {
        Body::Challenge(challenge) => {
            let link = dial(&Gid::try_from(&challenge.gid[..])?, own)?;
            send(&link, &links::claim(&challenge.nonce, QP_NUMBER), &[])?;
            Ok(link)
        }
        other => Err(format!("the server answered {other:?}").into()),
    }
}

/// Limits the time that a socket waits.
///
/// # Errors
///
/// Fails if the system call fails.
pub(crate) fn set_patience(socket: impl AsFd) -> io::Result<()> {
    for timeout in [sockopt::Timeout::Send, sockopt::Timeout::Recv] {
        sockopt::set_socket_timeout(&socket, timeout, Some(PATIENCE))?;
    }
    Ok(())
}

/// Opens a TCP connection with time limits.
///
/// # Errors
///
/// Fails if the server does not accept it.
pub(crate) fn tcp(address: &str) -> io::Result<TcpStream> {
    with_patience(TcpStream::connect(address)?)
}

/// Like [`tcp`], as if from another host.
///
/// # Errors
///
/// Fails if the server cannot be reached.
pub(crate) fn tcp_from_another_host(address: &str) -> io::Result<TcpStream> {
    let server: SocketAddr = address.parse().map_err(io::Error::other)?;
    let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &SocketAddr::from((Ipv4Addr::new(127, 0, 0, 2), 0)))?;
    connect(&socket, &server)?;
    with_patience(TcpStream::from(socket))
}

fn with_patience(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Returns the files of the server's messages on a link up to its attachment, and the index of the
/// server's queue pair.
fn attachment(link: &OwnedFd) -> Outcome<(PeerFiles, u32)> {
    let mut context = Vec::new();
    loop {
        let (message, files) = receive(link)?;
        if message.is_empty() {
            return Err("the server closed its link before it attached".into());
        }
        if let Some(index) = links::attached_index(&message) {
            return Ok((PeerFiles::of(context, files)?, index));
        }
        if links::is_context(&message) {
            context = files;
        }
    }
}

/// A peer with an open connection, which has attached.
#[derive(Debug)]
pub(crate) struct Peer {
    /// The server's files: what this peer can write, and the server reads.
    pub(crate) theirs: PeerFiles,
    /// This peer's files: what the server writes.
    pub(crate) ours: PeerFiles,
    method: u16,
    qp_index: u32,
    /// Sequence number of the next request.
    next_request: u64,
    /// Sequence number of the server's next message.
    next_message: u64,
    // Open as long as the connection.
    _sockets: (TcpStream, OwnedFd),
}

impl Peer {
    /// Connects and makes a call. The server writes `wake` to wake this peer.
    ///
    /// # Errors
    ///
    /// Fails if the server does not admit the peer, or does not answer it.
    pub(crate) fn connect(target: &Target, wake: OwnedFd) -> Outcome<Self> {
        let mut peer = Self::attach(target, wake)?;
        peer.request()?;
        let end = Instant::now() + PATIENCE;
        while peer.take_messages()? == 0 {
            if Instant::now() >= end {
                return Err("the server attached, and does not answer a call".into());
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(peer)
    }

    /// Connects as [`connect`](Self::connect) does, and makes no call. The server may close the link
    /// as soon as it has looked at what this peer has sent.
    ///
    /// # Errors
    ///
    /// Fails if the server refuses the peer before that.
    pub(crate) fn attach(target: &Target, wake: OwnedFd) -> Outcome<Self> {
        let server = formats::gids_of(target.pid)?[0];
        let gid = formats::own_gid(&server, 1);
        let stream = tcp(&target.address)?;
        let link = offer(&stream, &gid)?;
        let (theirs, qp_index) = attachment(&link)?;
        let welcome = match handshake::receive_frame(&stream)? {
            Body::ServerHello(welcome) => welcome,
            other => return Err(format!("the server answered {other:?}").into()),
        };
        let endpoint = welcome.endpoint.unwrap_or_default();
        let (announcements, note) = memory::sleeping_context()?;
        let ours = PeerFiles {
            ring: memory::ring(endpoint.psn)?,
            announcements,
            note,
            wake,
        };
        let context = [
            ours.announcements.as_fd(),
            ours.note.as_fd(),
            ours.wake.as_fd(),
        ];
        send(&link, &links::context(), &context)?;
        let attach = links::attach(QP_NUMBER, endpoint.qp_number);
        send(&link, &attach, &[ours.ring.as_fd()])?;
        handshake::send_frame(&stream, Body::Ready(handshake::Ready {}))?;
        Ok(Self {
            theirs,
            ours,
            method: handshake::method_number(&welcome.session, "verbline.bench.Bench/EchoFixed")?,
            qp_index,
            next_request: memory::FIRST_SEQUENCE,
            next_message: memory::FIRST_SEQUENCE,
            _sockets: (stream, link),
        })
    }

    /// Sends a request.
    ///
    /// # Errors
    ///
    /// Fails if the server's ring cannot be written.
    pub(crate) fn request(&mut self) -> io::Result<()> {
        let work = Work {
            phase: 0,
            spin: Duration::ZERO,
        };
        let generation = self.next_request as u32 & 0xfff;
        let frame = handshake::request(self.method, generation, &work.to_message());
        memory::commit(&self.theirs.ring, self.next_request, &frame)?;
        self.next_request += 1;
        memory::announce(&self.theirs, self.qp_index)
    }

    /// Acknowledges the server's messages so far, and returns their number.
    ///
    /// # Errors
    ///
    /// Fails if the ring cannot be read.
    pub(crate) fn take_messages(&mut self) -> io::Result<u64> {
        let mut taken = 0;
        while memory::is_committed(&self.ours.ring, self.next_message)? {
            let ack = self.next_message.to_le_bytes();
            memory::write_at(&self.ours.ring, &ack, memory::ACK_OFFSET)?;
            self.next_message += 1;
            taken += 1;
        }
        Ok(taken)
    }
}
