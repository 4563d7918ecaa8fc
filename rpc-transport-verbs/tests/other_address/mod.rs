//! Clients that come from other addresses of this host, as if from other hosts.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};

/// Connects from `127.0.0.<host>`.
pub(crate) fn connect_from(host: u8, server: SocketAddr) -> TcpStream {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
    let source = SocketAddr::from((Ipv4Addr::new(127, 0, 0, host), 0));
    bind(&socket, &source).unwrap();
    connect(&socket, &server).unwrap();
    TcpStream::from(socket)
}
