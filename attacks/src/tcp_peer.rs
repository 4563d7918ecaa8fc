//! [`TcpPeer`]: a process that speaks to a server by the rules over TCP, up to the moment when it
//! does not.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::formats::handshake::{self, Body, ServerHello};
use super::formats::tcp::{self, BASE_LEN, Header};
use super::peer::{PSN, QP_NUMBER};
use crate::attack::Target;
use benches::Outcome;
use benches::spin::Work;

/// Offers a queue pair that is connected over TCP. Returns the server's welcome.
///
/// # Errors
///
/// Fails if the server refuses the peer.
pub(crate) fn offer(stream: &TcpStream) -> Outcome<ServerHello> {
    let hello = handshake::client_hello("tcp", &tcp::own_gid(), QP_NUMBER, PSN);
    handshake::send_frame(stream, hello)?;
    match handshake::receive_frame(stream)? {
        Body::ServerHello(welcome) => Ok(welcome),
        Body::Refusal(refusal) => Err(refusal.reason.into()),
        other => Err(format!("the server answered {other:?}").into()),
    }
}

/// Opens a TCP connection to the server at an address.
pub(crate) type Dial = fn(&str) -> io::Result<TcpStream>;

/// A peer with an open connection, which has been answered.
#[derive(Debug)]
pub(crate) struct TcpPeer {
    link: TcpStream,
    method: u16,
    /// Sequence number of the next request.
    pub(crate) next_request: u32,
    /// Sequence number of the server's next request.
    pub(crate) next_message: u32,
    // Open as long as the connection.
    _handshake: TcpStream,
}

impl TcpPeer {
    /// Connects and makes a call.
    ///
    /// # Errors
    ///
    /// Fails if the server does not admit the peer.
    pub(crate) fn connect(target: &Target, dial: Dial) -> Outcome<Self> {
        let mut peer = Self::connect_silently(target, dial)?;
        peer.request()?;
        while peer.receive()? != tcp::SEND {}
        Ok(peer)
    }

    /// Connects and makes no call.
    ///
    /// # Errors
    ///
    /// Fails if the server does not admit the peer.
    pub(crate) fn connect_silently(target: &Target, dial: Dial) -> Outcome<Self> {
        let stream = dial(&target.address)?;
        let welcome = offer(&stream)?;
        let mut link = dial(&target.address)?;
        link.set_nodelay(true)?;
        link.write_all(&tcp::hello(&welcome.link_secret))?;
        let mut peer = Self {
            method: handshake::method_number(&welcome.session, "verbline.bench.Bench/EchoFixed")?,
            link,
            next_request: PSN,
            next_message: welcome.endpoint.unwrap_or_default().psn,
            _handshake: stream,
        };
        peer.link.read_exact(&mut [0; tcp::ANSWER_LEN])?;
        handshake::send_frame(&peer._handshake, Body::Ready(handshake::Ready {}))?;
        Ok(peer)
    }

    /// Sends bytes.
    ///
    /// # Errors
    ///
    /// Fails if the link is closed, or if the server reads nothing for a while.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.link.write_all(bytes)
    }

    /// Sends a request of the core.
    ///
    /// # Errors
    ///
    /// Fails as [`send`](Self::send) does.
    pub(crate) fn request(&mut self) -> io::Result<()> {
        let work = Work {
            phase: 0,
            spin: Duration::ZERO,
        };
        let generation = self.next_request & 0xfff;
        let frame = handshake::request(self.method, generation, &work.to_message());
        let header = Header::send(frame.len(), self.next_request, self.next_message);
        self.next_request = self.next_request.wrapping_add(1);
        self.send(&[header.encode(), frame].concat())
    }

    /// Receives a message, and returns its kind.
    ///
    /// # Errors
    ///
    /// Fails if the link is closed, or if nothing comes for a while.
    pub(crate) fn receive(&mut self) -> Outcome<u8> {
        let mut header = [0; BASE_LEN];
        self.link.read_exact(&mut header)?;
        let (opcode, len, sequence) = Header::decode(header);
        let mut payload = vec![0; len.min(1 << 16) as usize];
        self.link.read_exact(&mut payload)?;
        if opcode == tcp::SEND {
            self.next_message = sequence.wrapping_add(1);
        }
        Ok(opcode)
    }

    /// Waits until the server ends the link.
    ///
    /// # Errors
    ///
    /// Fails if it does not for a while.
    pub(crate) fn wait_for_end(&mut self) -> io::Result<()> {
        match io::copy(&mut self.link, &mut io::sink()) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(()),
            Err(error) => Err(error),
        }
    }
}
