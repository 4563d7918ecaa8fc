//! The accepter's side of a greeting, in the engine.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::epoll;

use super::greeting::{Layouts, Limits, Refusal};
use super::link::{LinkSocket, Packet, Sent};
use super::link_message::LinkMessage;
use super::newcomers::{ACCEPT_PAUSE, Newcomer, Newcomers, limit_of_files};
use super::node::{Node, TOKEN_LISTENER};
use super::outbound::Link;
use crate::provider::soft::shared::peer_file::must_take_no_more;
use crate::system_error::not_watched;
use crate::types::Gid;

/// Maximum number of sockets that are accepted in a row, before the engine does its other work.
const ACCEPTS_PER_EVENT: usize = 64;

/// Maximum number of links that other processes may have to this one.
const MAX_INCOMING: usize = 1024;

/// Maximum number of links of one other process. A process needs one, and a second one while this
/// process has not noticed the end of the first. Simulated processes, all of one process, have a
/// link each.
const MAX_INCOMING_OF_PROCESS: usize = match cfg!(any(test, feature = "test-util")) {
    true => 128,
    false => 2,
};

/// Accepts links, and greets them.
#[derive(Debug, Default)]
pub(crate) struct Accepter {
    newcomers: Newcomers,
    /// While accepting pauses: its end.
    paused_until: Option<Instant>,
}

impl Accepter {
    /// Returns true if something is to be done at a time.
    pub(crate) fn is_busy(&self) -> bool {
        !self.newcomers.is_empty() || self.paused_until.is_some()
    }

    /// Returns true while accepting pauses.
    #[cfg(test)]
    pub(crate) fn has_paused(&self) -> bool {
        self.paused_until.is_some()
    }

    /// Accepts the sockets that wait, and greets those that have said enough.
    pub(crate) fn accept(&mut self, node: &Node, now: Instant) {
        for _ in 0..ACCEPTS_PER_EVENT {
            if must_take_no_more() {
                log_limited!(
                    warn,
                    "links of the software device are not accepted: files of other processes block the threads that close them"
                );
                self.pause(node, now);
                return;
            }
            match node.listener.accept() {
                Ok(Some(socket)) => self.add(node, socket, now),
                Ok(None) => return,
                Err(error) => {
                    let error = io::Error::from(error);
                    log_limited!(warn, %error, limit = limit_of_files(&error), "links of the software device cannot be accepted: trying again");
                    self.pause(node, now);
                    return;
                }
            }
        }
    }

    /// Stops watching the listener for a while: it stays readable.
    fn pause(&mut self, node: &Node, now: Instant) {
        if watch_listener(node, epoll::EventFlags::empty()) {
            self.paused_until = Some(now + ACCEPT_PAUSE);
        }
    }

    fn add(&mut self, node: &Node, socket: LinkSocket, now: Instant) {
        let credentials = match socket.credentials() {
            Ok(credentials) if credentials.is_our_user() => credentials,
            other => {
                let stranger = other.as_ref().ok();
                let (uid, pid) = (stranger.map(|it| it.uid), stranger.map(|it| it.pid));
                log_limited!(
                    warn,
                    uid,
                    pid,
                    "closed links of other users to the software device"
                );
                return;
            }
        };
        let token = node.next_token();
        if let Err(error) = node.watch(&socket, token).map_err(not_watched) {
            log_limited!(warn, %error, "links of the software device cannot be watched: closed them");
            return;
        }
        let newcomer = Newcomer {
            socket,
            pid: credentials.pid,
            since: now,
        };
        if let Some(removed) = self.newcomers.add(token, newcomer) {
            let reason = "too many links wait for their greeting, and its process has most of them";
            self.reject(node, &removed, reason);
        }
        self.greet(node, token);
    }

    /// Removes the sockets that took too long, and accepts again after a pause.
    pub(crate) fn tick(&mut self, node: &Node, now: Instant) {
        for newcomer in self.newcomers.expire(now) {
            self.reject(node, &newcomer, "it did not greet in time");
        }
        if self.paused_until.is_some_and(|until| now >= until)
            && watch_listener(node, epoll::EventFlags::IN)
        {
            self.paused_until = None;
        }
    }

    /// Greets all that wait. In a simulation, a dialer calls this while it waits.
    #[cfg(feature = "test-util")]
    pub(crate) fn greet_all(&mut self, node: &Node, now: Instant) {
        self.accept(node, now);
        for token in self.newcomers.tokens() {
            self.greet(node, token);
        }
    }

    /// Handles an event of a socket that has not been greeted. Returns false if it is none of
    /// these.
    pub(crate) fn greet(&mut self, node: &Node, token: u64) -> bool {
        let Some(newcomer) = self.newcomers.get(token) else {
            return false;
        };
        let greeted = match newcomer.socket.receive() {
            Ok(Packet::Message(message, _)) => newcomer.greet(message),
            Ok(Packet::Empty) => return true,
            Ok(Packet::End) => Err("it ended during the greeting".to_owned()),
            Ok(_) => Err("it sent an invalid message".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        if let Some(newcomer) = self.newcomers.remove(token) {
            match greeted {
                Ok(greeted) => self.welcome(node, token, newcomer, greeted),
                Err(reason) => self.reject(node, &newcomer, &reason),
            }
        }
        true
    }

    /// Turns a socket whose terms fit into a link.
    fn welcome(&self, node: &Node, token: u64, newcomer: Newcomer, greeted: Greeted) {
        let Greeted {
            gid,
            layout,
            limits,
        } = greeted;
        // The process has a new link, so its old one is of no use to it, or has just been closed.
        for link in node.links.of_gid(gid) {
            if link.is_incoming || link.has_ended() {
                node.end_peer(&link.peer);
            }
        }
        let (all, of_process) = node.links.count_incoming(gid);
        let refusal = if all >= MAX_INCOMING {
            Some(Refusal::TooManyLinks {
                limit: MAX_INCOMING as u64,
            })
        } else if of_process >= MAX_INCOMING_OF_PROCESS {
            Some(Refusal::TooManyLinksOfProcess {
                limit: MAX_INCOMING_OF_PROCESS as u64,
            })
        } else {
            None
        };
        if let Some(refusal) = refusal {
            let _ = newcomer.socket.send(LinkMessage::Refused(refusal), &[]);
            let reason = format!("there are too many: {all}, of its process {of_process}");
            return self.reject(node, &newcomer, &reason);
        }
        let welcome = LinkMessage::Welcome {
            layout,
            limits: Limits::OWN,
        };
        // The process is this user's, and sends files as soon as it is welcomed.
        if let Err(error) = newcomer.socket.take_files() {
            return self.reject(node, &newcomer, &error.to_string());
        }
        // The peer is known before it is welcomed, so it finds its entry whatever it sends next.
        let peer = node.peer(gid);
        if newcomer.socket.send(welcome, &[]) != Ok(Sent::Whole) {
            return self.reject(node, &newcomer, "it does not receive");
        }
        // If another thread has ended the peer meanwhile, the process sees the end of its link, which
        // is no longer watched, and makes a new one.
        let link = Arc::new(Link::new(peer, token, true, newcomer.socket, limits));
        if !node.links.add_incoming(&link) {
            node.unwatch(link.socket());
        }
    }

    fn reject(&self, node: &Node, newcomer: &Newcomer, reason: &str) {
        node.unwatch(&newcomer.socket);
        log_limited!(
            warn,
            pid = newcomer.pid,
            reason,
            "closed links to the software device that were not greeted"
        );
    }
}

/// The terms of a socket whose greeting is complete.
struct Greeted {
    gid: Gid,
    layout: u32,
    limits: Limits,
}

fn watch_listener(node: &Node, interest: epoll::EventFlags) -> bool {
    let data = epoll::EventData::new_u64(TOKEN_LISTENER);
    epoll::modify(&node.epoll, &node.listener, data, interest).is_ok()
}

impl Newcomer {
    /// Handles the greeting. Returns its terms, or the reason to close the socket, after sending it.
    fn greet(&self, message: LinkMessage) -> Result<Greeted, String> {
        let LinkMessage::Hello {
            layouts,
            gid,
            limits,
        } = message
        else {
            return Err("it did not greet".to_owned());
        };
        let credentials = self.socket.credentials();
        if !credentials.is_ok_and(|credentials| credentials.is_process_of(gid)) {
            self.refuse(Refusal::OtherProcess);
            return Err(format!("it is not the process of {gid}"));
        }
        let Some(layout) = Layouts::OWN.choose(layouts) else {
            self.refuse(Refusal::Layouts(Layouts::OWN));
            return Err(format!(
                "it has {layouts}, this process has {}: run the same version of Verbline on both sides",
                Layouts::OWN
            ));
        };
        Ok(Greeted {
            gid,
            layout,
            limits,
        })
    }

    fn refuse(&self, refusal: Refusal) {
        // A peer that does not receive only learns that the link was closed.
        let _ = self.socket.send(LinkMessage::Refused(refusal), &[]);
    }
}
