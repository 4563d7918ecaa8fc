//! Accepts TCP connections for the engine, and hands each to the queue pair that its hello names.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::accept::limit_of_files;
use super::greeting::GREETING_TIME;
use super::node::Node;
use super::tcp_port::set_up;
use crate::provider::soft::context::link::NewTcpLink;
use crate::provider::soft::wire::hello::{Answer, GreetingError, HELLO_LEN, Hello};
use crate::strangers::PAUSE;
use crate::system_error::epoll_add;

/// Maximum number of connections whose hello has not arrived. When there are more, the oldest makes
/// room: an honest dialer's hello follows its connection at once.
pub(super) const MAX_NEWCOMERS: usize = 256;

/// Maximum number of connections that are accepted in a row, before the engine does its other work.
const ACCEPTS_PER_EVENT: usize = 64;

/// A connection whose hello has not arrived completely.
#[derive(Debug)]
struct Newcomer {
    socket: TcpStream,
    peer: SocketAddr,
    since: Instant,
    hello: [u8; HELLO_LEN],
    arrived: usize,
}

/// Accepts connections for the engine.
#[derive(Debug, Default)]
pub(crate) struct TcpAccepter {
    /// By the engine's event token: later ones have higher tokens.
    newcomers: BTreeMap<u64, Newcomer>,
    paused_until: Option<Instant>,
}

impl TcpAccepter {
    /// Returns true if something is to be done at a time.
    pub(crate) fn is_busy(&self) -> bool {
        !self.newcomers.is_empty() || self.paused_until.is_some()
    }

    pub(crate) fn accept(&mut self, node: &Node, now: Instant) {
        let Some(port) = node.tcp_port() else { return };
        for _ in 0..ACCEPTS_PER_EVENT {
            match port.listener.accept() {
                Ok((socket, peer)) => self.add(node, socket, peer, now),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted
                    ) => {}
                Err(error) => {
                    log_limited!(warn, %error, limit = limit_of_files(&error), "links over TCP cannot be accepted: trying again");
                    port.set_watched(&node.epoll, false);
                    self.paused_until = Some(now + PAUSE);
                    return;
                }
            }
        }
    }

    fn add(&mut self, node: &Node, socket: TcpStream, peer: SocketAddr, now: Instant) {
        let token = node.next_token();
        let data = epoll::EventData::new_u64(token);
        let watched = set_up(&socket)
            .and_then(|()| epoll_add(&node.epoll, &socket, data, epoll::EventFlags::IN));
        if watched.is_err() {
            // The peer has closed it, or this process has no memory for it.
            return;
        }
        if self.newcomers.len() >= MAX_NEWCOMERS
            && let Some((_, oldest)) = self.newcomers.pop_first()
        {
            self.reject(&oldest, "too many connections have said nothing");
        }
        let newcomer = Newcomer {
            socket,
            peer,
            since: now,
            hello: [0; HELLO_LEN],
            arrived: 0,
        };
        self.newcomers.insert(token, newcomer);
        // Mostly its hello is there already.
        self.greet(node, token);
    }

    /// Handles an event of a connection whose hello has not arrived, if it is one of these.
    pub(crate) fn greet(&mut self, node: &Node, token: u64) {
        let Some(newcomer) = self.newcomers.get_mut(&token) else {
            return;
        };
        let hello = match newcomer.read() {
            Ok(None) => return,
            Ok(Some(hello)) => Ok(hello),
            Err(reason) => Err(reason),
        };
        let Some(newcomer) = self.newcomers.remove(&token) else {
            return;
        };
        // What follows the hello is for the queue pair's context to read.
        let _ = epoll::delete(&node.epoll, &newcomer.socket);
        match hello.and_then(|hello| newcomer.check(node, &hello)) {
            Ok(hello) => hand_over(node, newcomer.socket, &hello),
            Err(reason) => self.reject(&newcomer, &reason),
        }
    }

    /// Closes connections that took too long, and accepts again after a pause.
    pub(crate) fn tick(&mut self, node: &Node, now: Instant) {
        let is_late =
            |newcomer: &Newcomer| now.saturating_duration_since(newcomer.since) >= GREETING_TIME;
        while let Some(oldest) = self.newcomers.first_entry()
            && is_late(oldest.get())
        {
            let late = oldest.remove();
            self.reject(&late, "it did not say hello in time");
        }
        if self.paused_until.is_some_and(|until| now >= until)
            && let Some(port) = node.tcp_port()
        {
            port.set_watched(&node.epoll, true);
            self.paused_until = None;
        }
    }

    fn reject(&self, newcomer: &Newcomer, reason: &str) {
        log_limited!(warn, peer = %newcomer.peer, reason, "closed connections that are no links of the software device");
    }
}

impl Newcomer {
    /// Reads the hello, and not a byte more. Returns it once it is complete.
    fn read(&mut self) -> Result<Option<[u8; HELLO_LEN]>, String> {
        while self.arrived < HELLO_LEN {
            match recv(
                &self.socket,
                &mut self.hello[self.arrived..],
                RecvFlags::DONTWAIT,
            ) {
                Ok((_, 0)) => return Err("it ended before its hello".to_owned()),
                Ok((_, len)) => self.arrived += len,
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(Some(self.hello))
    }

    /// Checks that the hello is of this version, for this process and for one of its queue pairs. A peer that
    /// knows the process's GID, which has its secret, is told that its link is refused.
    fn check(&self, node: &Node, hello: &[u8; HELLO_LEN]) -> Result<Hello, String> {
        let to = Hello::to_in_every_version(hello);
        let is_known = node.tcp_port().is_some_and(|port| port.gid == to);
        let hello = match Hello::parse(hello) {
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

fn hand_over(node: &Node, socket: TcpStream, hello: &Hello) {
    let link = NewTcpLink {
        gid: hello.from,
        qp_num: hello.from_qp_num,
        socket: socket.into(),
        peer_psn: hello.expected_psn,
    };
    if let Some((domain, qp_index)) = node.find_queue_pair(hello.to_qp_num)
        && let Ok(mut state) = domain.enter()
    {
        state.attach_tcp(qp_index, hello.to_qp_num, link);
    }
}
