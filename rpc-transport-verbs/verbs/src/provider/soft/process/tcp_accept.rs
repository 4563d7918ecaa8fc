//! The accepter's side of a greeting at the process's TCP port: the hello, which names the queue pair that
//! gets the connection.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::accept::{Newcomer, Origin};
use super::greeting::GREETING_TIME;
use super::node::Node;
use super::tcp_port::{TOKEN_TCP_LISTENER, set_up};
use crate::provider::soft::context::link::NewTcpLink;
use crate::provider::soft::wire::hello::{Answer, GreetingError, HELLO_LEN, Hello};
use crate::strangers::{Limits, accepted};

/// Maximum number of connections of one host whose hello has not arrived: half of all, so that a host
/// that fills its share leaves as much to the others. An honest dialer's hello follows its connection
/// at once.
pub(super) const MAX_NEWCOMERS_OF_HOST: usize = 128;

/// A connection whose hello has not arrived completely.
#[derive(Debug)]
pub(crate) struct TcpNewcomer {
    socket: TcpStream,
    host: IpAddr,
    hello: [u8; HELLO_LEN],
    arrived: usize,
}

impl Newcomer for TcpNewcomer {
    type Socket = (TcpStream, SocketAddr);
    type Greeting = Hello;

    const DOOR: &'static str = "TCP port";

    const LIMITS: Limits = Limits {
        total: 2 * MAX_NEWCOMERS_OF_HOST,
        of_one: MAX_NEWCOMERS_OF_HOST,
        time: GREETING_TIME,
    };

    fn listener(node: &Node) -> Option<(BorrowedFd<'_>, u64)> {
        let port = node.tcp_port()?;
        Some((port.listener.as_fd(), TOKEN_TCP_LISTENER))
    }

    fn accept(node: &Node) -> io::Result<Option<Self::Socket>> {
        match node.tcp_port() {
            Some(port) => accepted(port.listener.accept()),
            None => Ok(None),
        }
    }

    fn new((socket, peer): Self::Socket) -> Option<Self> {
        // This fails if the peer has closed it, or this process has no memory for it.
        set_up(&socket).ok()?;
        Some(Self {
            socket,
            host: peer.ip(),
            hello: [0; HELLO_LEN],
            arrived: 0,
        })
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn origin(&self) -> Origin {
        Origin::Host(self.host)
    }

    fn greet(&mut self, node: &Node) -> Result<Option<Hello>, String> {
        // Not a byte more than the hello.
        while self.arrived < HELLO_LEN {
            let rest = &mut self.hello[self.arrived..];
            match recv(&self.socket, rest, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Err("it ended before its hello".to_owned()),
                Ok((_, len)) => self.arrived += len,
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        self.check(node).map(Some)
    }

    fn enter(self, node: &Node, _: u64, hello: Hello) {
        // What follows the hello is for the queue pair's context to read.
        let _ = epoll::delete(&node.epoll, &self.socket);
        let link = NewTcpLink {
            gid: hello.from,
            qp_num: hello.from_qp_num,
            socket: self.socket.into(),
            peer_psn: hello.expected_psn,
        };
        if let Some((domain, qp_index)) = node.find_queue_pair(hello.to_qp_num)
            && let Ok(mut state) = domain.enter()
        {
            state.attach_tcp(qp_index, hello.to_qp_num, link);
        }
    }
}

impl TcpNewcomer {
    /// Checks that the hello is of this version, for this process and for one of its queue pairs. A peer that
    /// knows the process's GID, which has its secret, is told that its link is refused.
    fn check(&self, node: &Node) -> Result<Hello, String> {
        let to = Hello::to_in_every_version(&self.hello);
        let is_known = node.tcp_port().is_some_and(|port| port.gid == to);
        let hello = match Hello::parse(&self.hello) {
            Ok(hello) => hello,
            Err(error) => {
                if is_known && matches!(error, GreetingError::Version(_)) {
                    self.refuse();
                }
                return Err(error.to_string());
            }
        };
        if !is_known {
            return Err("it does not know this process's GID".to_owned());
        }
        if node.find_queue_pair(hello.to_qp_num).is_none() {
            self.refuse();
            return Err(format!("there is no queue pair {}", hello.to_qp_num));
        }
        Ok(hello)
    }

    /// Answers with this side's version and a refusal. A peer that does not receive only learns that the
    /// connection was closed.
    fn refuse(&self) {
        let refusal = Answer {
            is_accepted: false,
            expected_psn: 0,
        };
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let _ = send(&self.socket, &refusal.encode(), flags);
    }
}
