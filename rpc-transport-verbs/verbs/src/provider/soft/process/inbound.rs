//! Messages of a greeted link, as the engine handles them. Everything in them is a claim of the
//! peer.
//!
//! If the peer breaks the protocol, its link is closed. If this process lacks a resource, it
//! refuses the one message, and the peer decides what that means for it.

use std::io;

use rustix::io::Errno;

use super::greeting::{LimitReached, Limits};
use super::link::Packet;
use super::link_message::LinkMessage;
use super::node::Node;
use super::outbound::Link;
use super::usage::Usage;
use crate::provider::soft::context::link::NewRing;
use crate::provider::soft::shared::memory::{Mapping, PeerMemory};
use crate::provider::soft::shared::peer_file::PeerFile;
use crate::provider::soft::shared::ring::{ContextNotifier, RING_LEN, RingNotifier, RingSender};
use crate::system_error::errno;
use crate::types::{Gid, QpNum};

/// Why a message was not carried out.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// The peer broke the protocol.
    #[error("{0}")]
    Wrong(String),
    /// This process lacks a resource.
    #[error("{0}")]
    Lacking(String),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match errno(&error) {
            Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN) => {
                Self::Lacking(error.to_string())
            }
            _ => Self::Wrong(error.to_string()),
        }
    }
}

impl From<LimitReached> for Failure {
    fn from(error: LimitReached) -> Self {
        Self::Wrong(format!("it did not keep to the agreed limits: {error}"))
    }
}

/// Handles a packet of a link. An error is the reason to close the link.
pub(crate) fn handle(node: &Node, link: &Link, packet: Packet) -> Result<(), String> {
    let (message, done) = match packet {
        Packet::Message(message, files) => (message, carry_out(node, link, message, files)),
        Packet::WithoutFiles(message) => {
            let reason = "no file descriptor is left for its files: raise the limit (`ulimit -n`)"
                .to_owned();
            (message, Err(Failure::Lacking(reason)))
        }
        Packet::Garbage => return Err("it sent an invalid message".to_owned()),
        Packet::Empty | Packet::End => return Ok(()),
    };
    match done {
        Ok(()) => Ok(()),
        Err(Failure::Wrong(reason)) => Err(reason),
        Err(Failure::Lacking(reason)) => {
            log_limited!(warn, gid = ?link.peer.gid, ?message, reason, "refused a message of a peer of the software device, because this process lacks a resource");
            refuse(node, link, message)
        }
    }
}

/// Answers a message that cannot be carried out.
fn refuse(node: &Node, link: &Link, message: LinkMessage) -> Result<(), String> {
    let answer = match message {
        LinkMessage::Arena { number } => LinkMessage::ArenaRefused { number },
        LinkMessage::Context { number } => LinkMessage::ContextRefused { number },
        LinkMessage::Attach { from, to, .. } => LinkMessage::AttachRefused { from, to },
        // No other message needs a resource.
        _ => return Ok(()),
    };
    let sent = node.after_sending(link, link.respond(answer));
    sent.map_err(|error| error.to_string())
}

fn carry_out(
    node: &Node,
    link: &Link,
    message: LinkMessage,
    files: Vec<PeerFile>,
) -> Result<(), Failure> {
    let peer = &link.peer;
    let wrong = |what: &str| Err(Failure::Wrong(what.to_owned()));
    let without = |_| Failure::Wrong("a message came without its files".to_owned());
    match message {
        LinkMessage::Hello { .. } | LinkMessage::Welcome { .. } | LinkMessage::Refused(_) => {
            return wrong("it greeted a second time");
        }
        LinkMessage::Arena { number } => {
            let [file] = files.try_into().map_err(without)?;
            map_arena(node, link, number, &file)?;
        }
        LinkMessage::ArenaGone { number } => peer.remove_arena(number),
        LinkMessage::ArenaRefused { number } => {
            link.arena_refused(number);
            // The engine announces it again later.
            let _ = node.after_sending(link, Ok(()));
        }
        LinkMessage::Context { number } => {
            let files: [PeerFile; 3] = files.try_into().map_err(without)?;
            LimitReached::check_contexts(Limits::OWN, peer.context_count() + 1)?;
            let more = Usage {
                contexts: 1,
                ..Usage::default()
            };
            check_totals(node, peer.gid, more)?;
            let notifier = ContextNotifier::from_peer(files, peer.engine.clone())?;
            peer.add_context(number, notifier);
        }
        LinkMessage::ContextGone { number } => peer.remove_context(number),
        LinkMessage::ContextRefused { number } => {
            if let Some(wake) = link.context_refused(number) {
                node.forget_in_context(peer.gid, (number, wake));
            }
        }
        // The engine handles it after the messages before it.
        LinkMessage::Wake => {}
        LinkMessage::Claim { nonce, qp_num } => {
            node.claims.claim(peer.gid, nonce, QpNum(qp_num));
        }
        LinkMessage::Attach {
            from,
            to,
            context,
            from_index,
        } => {
            let [ring] = files.try_into().map_err(without)?;
            // A queue pair that has been destroyed meanwhile needs no ring.
            let Some((domain, qp_index)) = node.find_queue_pair(to) else {
                return Ok(());
            };
            // The message of a context may have been refused.
            let Some(notifier) = peer.context(context) else {
                let reason = format!("its context {context} is not known");
                return Err(Failure::Lacking(reason));
            };
            let ring = Mapping::from_peer(&ring, RING_LEN, PeerMemory::Ring)?;
            let notifier = RingNotifier::new(notifier, from_index as usize);
            let ring = NewRing {
                gid: peer.gid,
                qp_num: from,
                sender: RingSender::new(ring, notifier)?,
            };
            if let Ok(mut state) = domain.enter() {
                state.attach(qp_index, to, ring);
            }
        }
        LinkMessage::AttachRefused { from, to } => {
            node.attach_refused(peer.gid, from, to);
        }
    }
    Ok(())
}

/// Checks what this process would keep with `more` for a peer.
fn check_totals(node: &Node, gid: Gid, more: Usage) -> Result<(), Failure> {
    let (all, of_process) = node.peer_usage(gid);
    let checked = (all + more).check(of_process + more);
    checked.map_err(Failure::Lacking)
}

fn map_arena(node: &Node, link: &Link, number: u64, file: &PeerFile) -> Result<(), Failure> {
    let peer = &link.peer;
    let (count, bytes) = peer.arena_usage();
    LimitReached::check_arenas(Limits::OWN, count + 1, bytes)?;
    let mapping = Mapping::from_peer(file, 1, PeerMemory::Arena)?;
    let bytes = bytes.saturating_add(mapping.len() as u64);
    LimitReached::check_arenas(Limits::OWN, count + 1, bytes)?;
    let more = Usage {
        arenas: 1,
        arena_bytes: mapping.len() as u64,
        contexts: 0,
    };
    check_totals(node, peer.gid, more)?;
    if !peer.add_arena(number, mapping) {
        let reason = format!("it announced its memory region {number} twice");
        return Err(Failure::Wrong(reason));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system_error::not_mapped;

    /// The link to a peer that has done nothing wrong stays.
    #[test]
    fn memory_that_cannot_be_mapped_is_a_lack_of_this_process_and_no_fault_of_the_peer() {
        // These say which limit it was.
        for number in [Errno::AGAIN, Errno::NOMEM] {
            let failure = Failure::from(not_mapped(number, 1));
            assert!(matches!(failure, Failure::Lacking(_)), "{failure}");
        }
        let failure = Failure::from(io::Error::from(io::ErrorKind::InvalidData));
        assert!(matches!(failure, Failure::Wrong(_)), "{failure}");
    }
}
