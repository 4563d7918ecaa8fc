//! The accepter's side of a greeting at the process's Unix socket.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::accept::{Newcomer, Origin};
use super::greeting::{GREETING_TIME, Layouts, Limits, Refusal};
use super::link::{LinkSocket, Packet, Sent};
use super::link_message::LinkMessage;
use super::node::{Node, TOKEN_LISTENER};
use super::outbound::Link;
use crate::provider::soft::context::peer::Peer;
use crate::provider::soft::shared::peer_file::must_take_no_more;
use crate::strangers;
use crate::types::Gid;

/// Maximum number of sockets that have not been greeted. A dialer greets at once after it has
/// connected, so more than a few at a time mean that something is wrong with the dialers.
pub(super) const MAX_NEWCOMERS: usize = 64;

/// Maximum number of links that other processes may have to this one.
const MAX_INCOMING: usize = 1024;

/// Maximum number of links of one other process. A process needs one, and a second one while this
/// process has not noticed the end of the first. Simulated processes, all of one process, have a
/// link each.
const MAX_INCOMING_OF_PROCESS: usize = match cfg!(any(test, feature = "test-util")) {
    true => 128,
    false => 2,
};

/// A socket of a process of this user.
#[derive(Debug)]
pub(crate) struct UnixNewcomer {
    socket: LinkSocket,
    pid: u32,
}

/// The process that has been welcomed, and its limits.
pub(crate) struct Welcomed(Arc<Peer>, Limits);

impl Newcomer for UnixNewcomer {
    type Socket = LinkSocket;
    type Greeting = Welcomed;

    const DOOR: &'static str = "Unix socket";

    const LIMITS: strangers::Limits = strangers::Limits {
        total: MAX_NEWCOMERS,
        of_one: MAX_NEWCOMERS,
        time: GREETING_TIME,
    };

    fn listener(node: &Node) -> Option<(BorrowedFd<'_>, u64)> {
        Some((node.listener.as_fd(), TOKEN_LISTENER))
    }

    fn accept(node: &Node) -> io::Result<Option<LinkSocket>> {
        if must_take_no_more() {
            let why = "files of other processes block the threads that close them";
            return Err(io::Error::other(why));
        }
        node.listener.accept()
    }

    fn new(socket: LinkSocket) -> Option<Self> {
        match socket.credentials() {
            Ok(credentials) if credentials.is_our_user() => Some(Self {
                socket,
                pid: credentials.pid,
            }),
            other => {
                let stranger = other.as_ref().ok();
                let (uid, pid) = (stranger.map(|it| it.uid), stranger.map(|it| it.pid));
                log_limited!(
                    warn,
                    uid,
                    pid,
                    "closed links of other users to the software device"
                );
                None
            }
        }
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn origin(&self) -> Origin {
        Origin::Process(self.pid)
    }

    fn greet(&mut self, node: &Node) -> Result<Option<Welcomed>, String> {
        let hello = match self.socket.receive() {
            Ok(Packet::Message(message, _)) => message,
            Ok(Packet::Empty) => return Ok(None),
            Ok(Packet::End) => return Err("it ended during the greeting".to_owned()),
            Ok(_) => return Err("it sent an invalid message".to_owned()),
            Err(error) => return Err(error.to_string()),
        };
        let LinkMessage::Hello {
            layouts,
            gid,
            limits,
        } = hello
        else {
            return Err("it did not greet".to_owned());
        };
        let credentials = self.socket.credentials();
        if !credentials.is_ok_and(|credentials| credentials.is_process_of(gid)) {
            let reason = format!("it is not the process of {gid}");
            return Err(self.refuse(Refusal::OtherProcess, reason));
        }
        let Some(layout) = Layouts::OWN.choose(layouts) else {
            let reason = Refusal::Layouts(layouts).to_string();
            return Err(self.refuse(Refusal::Layouts(Layouts::OWN), reason));
        };
        let peer = self.welcome(node, gid, layout)?;
        Ok(Some(Welcomed(peer, limits)))
    }

    fn enter(self, node: &Node, token: u64, Welcomed(peer, limits): Welcomed) {
        // If another thread has ended the peer meanwhile, the process sees the end of its link, which
        // is no longer watched, and makes a new one.
        let link = Arc::new(Link::new(peer, token, true, self.socket, limits));
        if !node.links.add_incoming(&link) {
            node.unwatch(link.socket());
        }
    }
}

impl UnixNewcomer {
    /// Welcomes a process whose terms fit, if there is room for its link.
    fn welcome(&self, node: &Node, gid: Gid, layout: u32) -> Result<Arc<Peer>, String> {
        // The process has a new link, so its old one is of no use to it, or has just been closed.
        for link in node.links.of_gid(gid) {
            if link.is_incoming || link.has_ended() {
                node.end_peer(&link.peer);
            }
        }
        let (all, of_process) = node.links.count_incoming(gid);
        let too_many = || format!("there are too many: {all}, of its process {of_process}");
        if all >= MAX_INCOMING {
            let limit = MAX_INCOMING as u64;
            return Err(self.refuse(Refusal::TooManyLinks { limit }, too_many()));
        }
        if of_process >= MAX_INCOMING_OF_PROCESS {
            let limit = MAX_INCOMING_OF_PROCESS as u64;
            return Err(self.refuse(Refusal::TooManyLinksOfProcess { limit }, too_many()));
        }
        // The process is this user's, and sends files as soon as it is welcomed.
        self.socket
            .take_files()
            .map_err(|error| error.to_string())?;
        // The peer is known before it is welcomed, so it finds its entry whatever it sends next.
        let peer = node.peer(gid);
        let welcome = LinkMessage::Welcome {
            layout,
            limits: Limits::OWN,
        };
        match self.socket.send(welcome, &[]) {
            Ok(Sent::Whole) => Ok(peer),
            _ => Err("it does not receive".to_owned()),
        }
    }

    /// Says why there is no link. Returns the reason for this side's log.
    fn refuse(&self, refusal: Refusal, reason: String) -> String {
        // A peer that does not receive only learns that the link was closed.
        let _ = self.socket.send(LinkMessage::Refused(refusal), &[]);
        reason
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::super::accept::Accepter;
    use super::super::link::tests::pair;
    use super::*;
    use crate::provider::fork_guard::ForkGuard;
    use crate::strangers::TICK;

    /// An accepter, and the other ends of the sockets that were added to it.
    struct Added {
        node: Node,
        accepter: Accepter<UnixNewcomer>,
        ends: Vec<LinkSocket>,
    }

    impl Added {
        fn nobody() -> Self {
            let guard = ForkGuard::of_process().expect("a page");
            Self {
                node: Node::new(guard).expect("a node"),
                accepter: Accepter::new(),
                ends: Vec::new(),
            }
        }

        /// Adds a socket of a process that says nothing.
        fn add(&mut self, pid: u32) {
            let (socket, end) = pair();
            self.accepter.add(&self.node, UnixNewcomer { socket, pid });
            self.ends.push(end);
        }

        /// Returns which of the sockets were closed.
        fn closed(&self) -> Vec<usize> {
            let ends = self.ends.iter().enumerate();
            ends.filter(|(_, end)| end.has_ended())
                .map(|(index, _)| index)
                .collect()
        }
    }

    #[test]
    fn the_oldest_of_the_process_that_has_most_makes_room() {
        let mut added = Added::nobody();
        // The oldest of all is of a process that has few.
        added.add(7);
        added.add(7);
        for _ in 2..MAX_NEWCOMERS {
            added.add(9);
        }
        assert!(added.closed().is_empty());
        added.add(8);
        assert_eq!(added.closed(), [2], "the oldest of process 9");
    }

    #[test]
    fn a_socket_that_is_not_greeted_in_time_is_removed() {
        let mut added = Added::nobody();
        let start = Instant::now();
        let mut now = start;
        while now < start + GREETING_TIME {
            if [start, start + GREETING_TIME / 2].contains(&now) {
                added.add(7);
            }
            added.accepter.tick(&added.node, now);
            assert!(added.closed().is_empty());
            now += TICK;
        }
        added.accepter.tick(&added.node, now);
        assert_eq!(added.closed(), [0]);
        assert!(added.accepter.is_busy());
    }
}
