//! The TCP connections between processes: dialed at the address that a GID says, and accepted there.
//!
//! The dialer says which two queue pairs it means, and the secret of the accepter's GID. Nothing
//! else of what it sends is looked at before that: the engine hands the socket to the queue pair,
//! which answers if it is connected to the dialer's. A connection carries the requests of these two
//! queue pairs and of no others.

use std::io;
use std::net::{SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::epoll;
use rustix::net::{SendFlags, send, sockopt};

use super::greeting::GREETING_TIME;
use crate::fork_sockets::keep_from_children;
use crate::provider::soft::wire::hello::{HELLO_LEN, Hello, LinkAddress};
use crate::system_error::epoll_add;
use crate::types::Gid;

/// Time after which data that the peer's host does not take ends the connection
/// (`TCP_USER_TIMEOUT`). The kernel also counts the time in which a peer that is stopped leaves its
/// buffer full, so this is longer than the layer above waits for one. That a host is gone is noticed
/// earlier, on the connection of the handshake.
const USER_TIMEOUT: Duration = Duration::from_secs(60);

/// Time without traffic after which the kernel sends a probe, and the time between two: it keeps the
/// connection known to translators of addresses and to firewalls, and finds a host that is gone.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// The engine's event token of the listening socket.
pub(crate) const TOKEN_TCP_LISTENER: u64 = 2;

/// Where a process accepts connections.
#[derive(Debug)]
pub(crate) struct TcpPort {
    pub(super) listener: TcpListener,
    pub(super) gid: Gid,
}

impl TcpPort {
    pub(crate) fn bind(address: SocketAddrV4) -> io::Result<Self> {
        if address.ip().is_unspecified() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "it is no address that a peer can dial: name the address of one network interface",
            ));
        }
        let listener = TcpListener::bind(address)?;
        keep_from_children(&listener)?;
        listener.set_nonblocking(true)?;
        let SocketAddr::V4(bound) = listener.local_addr()? else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        Ok(Self {
            listener,
            gid: new_gid(bound)?,
        })
    }

    pub(crate) fn gid(&self) -> Gid {
        self.gid
    }

    pub(crate) fn watch(&self, files: &OwnedFd) -> io::Result<()> {
        let data = epoll::EventData::new_u64(TOKEN_TCP_LISTENER);
        epoll_add(files, &self.listener, data, epoll::EventFlags::IN)
    }
}

/// Creates a GID that says this address, with a secret of its own.
pub(crate) fn new_gid(address: SocketAddrV4) -> io::Result<Gid> {
    let mut secret = [0; 8];
    rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())?;
    Ok(LinkAddress { address, secret }.to_gid())
}

/// Prepares a connected socket for a link.
pub(crate) fn set_up(socket: &TcpStream) -> io::Result<()> {
    keep_from_children(socket)?;
    socket.set_nonblocking(true)?;
    socket.set_nodelay(true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE)?;
    let timeout = USER_TIMEOUT.as_millis() as u32;
    Ok(sockopt::set_tcp_user_timeout(socket, timeout)?)
}

/// Dials the process of `hello.to`, and says hello. The answer is the first that comes back on the
/// link.
pub(crate) fn dial(hello: &Hello) -> io::Result<OwnedFd> {
    let address = LinkAddress::of_gid(hello.to).ok_or(io::ErrorKind::InvalidInput)?;
    let socket = TcpStream::connect_timeout(&address.address.into(), GREETING_TIME)?;
    set_up(&socket)?;
    // A new socket has room for the hello.
    match send(&socket, &hello.encode(), SendFlags::NOSIGNAL)? {
        HELLO_LEN => Ok(socket.into()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}
