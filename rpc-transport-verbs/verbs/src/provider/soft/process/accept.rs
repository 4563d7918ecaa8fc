//! How the engine accepts those who dial this process. Until they are greeted, they are strangers.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use rustix::event::epoll;
use rustix::io::Errno;

use super::node::Node;
use crate::strangers::{ACCEPTS_IN_A_ROW, Limits, Room, Strangers, resume};
use crate::system_error::epoll_add;

/// The dialers that count as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Origin {
    /// A process of this machine.
    Process(u32),
    /// All processes of this host, whoever their users are.
    Host(IpAddr),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(pid) => write!(f, "process {pid}"),
            Self::Host(address) => write!(f, "host {address}"),
        }
    }
}

/// A socket that has been accepted, and whose dialer has not been greeted.
pub(crate) trait Newcomer: Sized {
    /// What the listener accepts.
    type Socket;
    /// What a dialer has to say.
    type Greeting;

    /// What it has been accepted from, for logs, each of which has limits of its own for it.
    const DOOR: &'static str;

    /// The limits of those that have not been greeted.
    const LIMITS: Limits;

    /// Returns the listener, with the engine's event token for it.
    fn listener(node: &Node) -> Option<(BorrowedFd<'_>, u64)>;

    /// Accepts the next socket, if one is waiting.
    fn accept(node: &Node) -> io::Result<Option<Self::Socket>>;

    /// Returns the newcomer, or `None` if its dialer has no business here.
    fn new(socket: Self::Socket) -> Option<Self>;

    fn socket(&self) -> BorrowedFd<'_>;

    fn origin(&self) -> Origin;

    /// Receives what its dialer says. Returns the greeting once it is complete, or why the socket is to
    /// be closed.
    fn greet(&mut self, node: &Node) -> Result<Option<Self::Greeting>, String>;

    /// Turns the socket into a link. The engine watches it under this token until then.
    fn enter(self, node: &Node, token: u64, greeting: Self::Greeting);
}

/// Accepts sockets, and greets them.
#[derive(Debug)]
pub(crate) struct Accepter<N> {
    /// By the engine's event token.
    newcomers: BTreeMap<u64, N>,
    strangers: Strangers<Origin>,
}

impl<N: Newcomer> Accepter<N> {
    pub(crate) fn new() -> Self {
        Self {
            newcomers: BTreeMap::new(),
            strangers: Strangers::new(N::LIMITS),
        }
    }

    /// Returns true if something is to be done at a time.
    pub(crate) fn is_busy(&self) -> bool {
        self.strangers.awaits_time()
    }

    /// Returns true while accepting pauses.
    #[cfg(test)]
    pub(crate) fn has_paused(&self) -> bool {
        self.strangers.has_paused()
    }

    /// Accepts the sockets that wait, and greets those that have said enough.
    pub(crate) fn accept(&mut self, node: &Node) {
        for _ in 0..ACCEPTS_IN_A_ROW {
            match N::accept(node) {
                Ok(Some(socket)) => {
                    if let Some(newcomer) = N::new(socket) {
                        self.add(node, newcomer);
                    }
                }
                Ok(None) => return,
                Err(error) => {
                    log_limited!(warn, for N::DOOR, door = N::DOOR, %error, limit = limit_of_files(&error), "links of the software device cannot be accepted: trying again");
                    if let Some((listener, token)) = N::listener(node) {
                        self.strangers.pause(&node.epoll, listener, token);
                    }
                    return;
                }
            }
        }
    }

    pub(super) fn add(&mut self, node: &Node, newcomer: N) {
        let token = node.next_token();
        let data = epoll::EventData::new_u64(token);
        let flags = epoll::EventFlags::IN;
        if let Err(error) = epoll_add(&node.epoll, newcomer.socket(), data, flags) {
            log_limited!(warn, for N::DOOR, door = N::DOOR, %error, "links of the software device cannot be watched: closed them");
            return;
        }
        let origin = newcomer.origin();
        if let Room::InPlaceOf(oldest) = self.strangers.room_for(origin) {
            let reason = "too many links wait for their greeting, and most of them come from there";
            self.reject(node, oldest, reason);
        }
        self.strangers.enter(token, origin, ());
        self.newcomers.insert(token, newcomer);
        // Mostly its greeting is there already.
        self.greet(node, token);
    }

    /// Rejects those that took too long, and accepts again after a pause.
    pub(crate) fn tick(&mut self, node: &Node, now: Instant) {
        self.strangers.advance(now);
        while let Some(token) = self.strangers.expired() {
            self.reject(node, token, "it did not greet in time");
        }
        if self.strangers.rested().is_some()
            && let Some((listener, token)) = N::listener(node)
        {
            resume(&node.epoll, listener, token);
        }
    }

    /// Greets all that wait. In a simulation, a dialer calls this while it waits.
    #[cfg(feature = "test-util")]
    pub(crate) fn greet_all(&mut self, node: &Node) {
        self.accept(node);
        let tokens: Vec<_> = self.newcomers.keys().copied().collect();
        for token in tokens {
            self.greet(node, token);
        }
    }

    /// Handles an event of a socket that has not been greeted. Returns false if it is none of
    /// these.
    pub(crate) fn greet(&mut self, node: &Node, token: u64) -> bool {
        let Some(newcomer) = self.newcomers.get_mut(&token) else {
            return false;
        };
        match newcomer.greet(node) {
            Ok(None) => {}
            Ok(Some(greeting)) => {
                if let Some(newcomer) = self.remove(token) {
                    newcomer.enter(node, token, greeting);
                }
            }
            Err(reason) => self.reject(node, token, &reason),
        }
        true
    }

    fn remove(&mut self, token: u64) -> Option<N> {
        self.strangers.remove(token);
        self.newcomers.remove(&token)
    }

    fn reject(&mut self, node: &Node, token: u64, reason: &str) {
        let Some(newcomer) = self.remove(token) else {
            return;
        };
        // Closing the socket is not enough if a forked process has it too.
        let _ = epoll::delete(&node.epoll, newcomer.socket());
        log_limited!(
            warn,
            for N::DOOR,
            from = %newcomer.origin(),
            reason,
            "closed links to the software device that were not greeted"
        );
    }
}

/// Returns what to do about an accept that failed for want of files, for the log.
fn limit_of_files(error: &io::Error) -> Option<&'static str> {
    match error.raw_os_error().map(Errno::from_raw_os_error)? {
        Errno::MFILE => Some("raise the limit of files of this process (`ulimit -n`)"),
        Errno::NFILE => Some("raise the limit of files of this machine (sysctl fs.file-max)"),
        _ => None,
    }
}
