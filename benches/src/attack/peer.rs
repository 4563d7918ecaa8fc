//! [`Peer`]: a process that speaks to a server by the rules, up to the moment when it does not.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, accept_with, bind, connect, listen,
    recvmsg, sendmsg, socket_with, sockopt,
};

use super::formats::{self, Body, Gid, PeerFiles};
use crate::Outcome;
use crate::spin::Work;

/// Time after which a server's silence counts as its answer.
pub const PATIENCE: Duration = Duration::from_secs(6);

/// The queue pair that peers pretend to have, and its first PSN.
const QP_NUMBER: u32 = 77;
const PSN: u32 = 5;

/// Creates a socket for links.
///
/// # Errors
///
/// Fails if the system has no file left.
pub fn link_socket(flags: SocketFlags) -> io::Result<OwnedFd> {
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
pub fn listen_as(gid: &Gid, backlog: i32) -> io::Result<OwnedFd> {
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
pub fn send(link: impl AsFd, message: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(files));
    }
    let message = [IoSlice::new(message)];
    sendmsg(link, &message, &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a message with its files. An empty message is the end of the link.
///
/// # Errors
///
/// Fails if nothing comes for [`PATIENCE`].
pub fn receive(link: impl AsFd) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; formats::MAX_PACKET];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut buffers = [IoSliceMut::new(&mut bytes)];
    let received = recvmsg(link, &mut buffers, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut files = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            files.extend(received);
        }
    }
    bytes.truncate(received.bytes);
    Ok((bytes, files))
}

/// Connects a link to the process with this GID and greets it.
///
/// # Errors
///
/// Fails if the process does not accept the link.
pub fn dial(to: &Gid, own: &Gid) -> io::Result<OwnedFd> {
    let link = link_socket(SocketFlags::empty())?;
    sockopt::set_socket_timeout(&link, sockopt::Timeout::Send, Some(PATIENCE))?;
    sockopt::set_socket_timeout(&link, sockopt::Timeout::Recv, Some(PATIENCE))?;
    connect(&link, &formats::socket_of(to)?)?;
    send(&link, &formats::link_hello(own), &[])?;
    Ok(link)
}

/// Opens a TCP connection with time limits.
///
/// # Errors
///
/// Fails if the server does not accept it.
pub fn tcp(address: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Returns the files of the server's messages on a link up to its attachment, and the index of the
/// ready bit.
fn attachment(link: &OwnedFd) -> Outcome<(PeerFiles, u32)> {
    loop {
        let (message, files) = receive(link)?;
        if message.is_empty() {
            return Err("the server closed its link before it attached".into());
        }
        if let Some(index) = formats::ready_index(&message) {
            return Ok((PeerFiles::of(files)?, index));
        }
    }
}

/// A peer with an open connection.
#[derive(Debug)]
pub struct Peer {
    /// The server's files: what this peer can write, and the server reads.
    pub theirs: PeerFiles,
    /// This peer's files: what the server writes.
    pub ours: PeerFiles,
    method: u16,
    ready_index: u32,
    /// Sequence number of the next request.
    next_request: u64,
    /// Sequence number of the server's next message.
    next_message: u64,
    // Open as long as the connection.
    _sockets: (TcpStream, OwnedFd, OwnedFd, OwnedFd),
}

impl Peer {
    /// Connects. `wake` are the files that the server writes to wake this peer.
    ///
    /// # Errors
    ///
    /// Fails if the server does not admit the peer.
    pub fn connect(address: &str, number: u32, wake: Vec<OwnedFd>) -> Outcome<Self> {
        let gid = formats::own_gid(number)?;
        let listener = listen_as(&gid, 5)?;
        sockopt::set_socket_timeout(&listener, sockopt::Timeout::Recv, Some(PATIENCE))?;
        let stream = tcp(address)?;
        formats::send_frame(&stream, formats::client_hello(&gid, QP_NUMBER, PSN))?;
        let from_server = accept_with(&listener, SocketFlags::CLOEXEC)
            .map_err(|error| format!("the server made no link: {error}"))?;
        sockopt::set_socket_timeout(&from_server, sockopt::Timeout::Recv, Some(PATIENCE))?;
        let (theirs, ready_index) = attachment(&from_server)?;
        let welcome = match formats::receive_frame(&stream)? {
            Body::ServerHello(welcome) => welcome,
            other => return Err(format!("the server answered {other:?}").into()),
        };
        let endpoint = welcome.endpoint.unwrap_or_default();
        let server = Gid::try_from(&endpoint.gid[..])?;
        let to_server = dial(&server, &gid)?;
        let ours = PeerFiles {
            ring: formats::ring(endpoint.psn)?,
            ready_bits: formats::sleeping_bits()?,
            wake,
        };
        let files: Vec<_> = [ours.ring.as_fd(), ours.ready_bits.as_fd()]
            .into_iter()
            .chain(ours.wake.iter().map(AsFd::as_fd))
            .collect();
        send(
            &to_server,
            &formats::link_attach(QP_NUMBER, endpoint.qp_number),
            &files,
        )?;
        formats::send_frame(&stream, Body::Ready(formats::Ready {}))?;
        Ok(Self {
            theirs,
            ours,
            method: formats::method_number(&welcome.session, "verbline.bench.Bench/EchoFixed")?,
            ready_index,
            next_request: u64::from(PSN) + 1,
            next_message: u64::from(endpoint.psn) + 1,
            _sockets: (stream, listener, from_server, to_server),
        })
    }

    /// Sends a request.
    ///
    /// # Errors
    ///
    /// Fails if the server's ring cannot be written.
    pub fn request(&mut self) -> io::Result<()> {
        let work = Work {
            phase: 0,
            spin: Duration::ZERO,
            give_up: None,
        };
        let generation = self.next_request as u32 & 0xfff;
        let frame = formats::request(self.method, generation, &work.to_message());
        formats::commit(&self.theirs.ring, self.next_request, &frame)?;
        self.next_request += 1;
        formats::announce(&self.theirs, self.ready_index)
    }

    /// Acknowledges the server's messages so far, and returns their number.
    ///
    /// # Errors
    ///
    /// Fails if the ring cannot be read.
    pub fn take_messages(&mut self) -> io::Result<u64> {
        let mut taken = 0;
        while formats::is_committed(&self.ours.ring, self.next_message)? {
            let ack = self.next_message.to_le_bytes();
            formats::write_at(&self.ours.ring, &ack, formats::ACK_OFFSET)?;
            self.next_message += 1;
            taken += 1;
        }
        Ok(taken)
    }
}
