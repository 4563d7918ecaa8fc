//! Attacks of a process on another over a link: forged messages and files.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::context::peer::Peer;
use super::hostile::{PSN, Side, node};
use super::process::greeting::{Layouts, Limits, Refusal};
use super::process::inbound;
use super::process::link::{LinkSocket, Packet};
use super::process::link_message::LinkMessage;
use super::process::outbound::Link;
use super::shared::announcements::AnnouncementPage;
use super::shared::memory::SharedMemory;
use super::shared::published::ContextNotes;
use super::shared::ring::hostile::scribble;
use super::shared::ring::{RING_LEN, RingReceiver};
use super::shared::wake_socket::WakeSockets;
use crate::QpNum;
use crate::testing::Script;

/// Sends forged packets and files to a process with a queue pair that waits for a peer.
pub fn soft_link(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let mut side = Side::new(false);
    let own = side.qp.qp_num();
    // Connected to itself: this process may later create a queue pair with any other number.
    side.connect(own);
    // Before anything is forged: an invalid ring closes the link that it arrived on, which here is
    // this process's own.
    side.wait_for_ring();
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let (theirs, ours) = pair.expect("a pair of sockets");
    let raw = theirs.try_clone().expect("a descriptor");
    let outgoing = LinkSocket::adopt(theirs);
    // Not the node's own entry for this process, which would outlive this test.
    let peer = Arc::new(Peer::new(side.gid()));
    let link = Link::new(peer, u64::MAX, true, LinkSocket::adopt(ours), Limits::OWN);
    let forged = RingReceiver::new(PSN, script.byte() & 1 == 0).expect("memory for a ring");
    forged.set_ready();
    while let Some(step) = script.step() {
        match step % 8 {
            0 => side.act(step >> 3, &mut script),
            1 => forged.forge(&mut script),
            2 => side.forge(step, &mut script),
            3 => drop(rustix::io::write(&raw, script.piece())),
            _ => {
                let message = message(step, own, &side, &mut script);
                let files = files(message, &forged, &mut script);
                let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
                // If the socket is full, the loop below empties it.
                let _ = outgoing.send(message, &files);
            }
        }
        loop {
            match link.receive() {
                Ok(Packet::Empty) => break,
                Ok(Packet::End) | Err(_) => return side.end(),
                Ok(packet) => {
                    if inbound::handle(&node(), &link, packet).is_err() {
                        return side.end();
                    }
                    // As the engine does after an arena.
                    node().arena_arrived();
                }
            }
        }
        // What the link answers is not read; it must not make the link wait.
        let _ = link.flush(Instant::now());
    }
    side.end();
}

fn message(step: u8, own: QpNum, side: &Side, script: &mut Script<'_>) -> LinkMessage {
    let number = u64::from(script.byte());
    match step % 8 {
        4 => LinkMessage::Arena { number },
        5 if step & 8 == 0 => LinkMessage::ArenaGone { number },
        6 if step & 8 == 0 => refusal_or_greeting(step, own, side, script),
        7 if step & 64 != 0 => LinkMessage::ContextGone {
            number: u32::from(script.byte() % 4),
        },
        6 if step & 16 == 0 => LinkMessage::Wake,
        7 if step & 8 == 0 => LinkMessage::Context {
            number: u32::from(script.byte() % 4),
        },
        _ => LinkMessage::Attach {
            from: if step & 16 == 0 {
                own.0
            } else {
                u32::from(script.byte())
            },
            to: own.0,
            context: u32::from(script.byte() % 4),
            from_index: u32::from(script.short()),
        },
    }
}

/// Returns a message that refuses something, or greets.
fn refusal_or_greeting(step: u8, own: QpNum, side: &Side, script: &mut Script<'_>) -> LinkMessage {
    let number = script.byte();
    let (layouts, limits) = (Layouts::OWN, Limits::OWN);
    match number % 8 {
        0 => LinkMessage::Hello {
            layouts,
            gid: side.gid(),
            limits,
        },
        1 | 2 => LinkMessage::Welcome {
            layout: layouts.max,
            limits,
        },
        3 => LinkMessage::Refused(Refusal::OtherProcess),
        4 => LinkMessage::ArenaRefused {
            number: number.into(),
        },
        5 => LinkMessage::ContextRefused {
            number: number.into(),
        },
        _ => LinkMessage::AttachRefused {
            from: if step & 16 == 0 { own.0 } else { number.into() },
            to: own.0,
        },
    }
}

/// Returns files to send beside the message: mostly of the right kinds.
fn files(message: LinkMessage, forged: &RingReceiver, script: &mut Script<'_>) -> Vec<OwnedFd> {
    let shape = script.byte();
    let right: &[u8] = match message {
        LinkMessage::Attach { .. } => &[0],
        LinkMessage::Context { .. } => &[1, 5, 2],
        LinkMessage::Arena { .. } => &[3],
        _ => &[],
    };
    if shape < 128 {
        return right
            .iter()
            .map(|kind| file(*kind, forged, script))
            .collect();
    }
    let count = usize::from(shape % 5);
    let kinds: Vec<_> = (0..count).map(|_| script.byte() % 7).collect();
    kinds
        .into_iter()
        .map(|kind| file(kind, forged, script))
        .collect()
}

/// Returns a file: a ring, a page of announcements, a socket to wake with, an arena with arbitrary contents, a
/// context's notes, or memory that is too short or without seals.
fn file(kind: u8, forged: &RingReceiver, script: &mut Script<'_>) -> OwnedFd {
    let shared = |len| SharedMemory::for_writers("forged", len).expect("memory");
    let again = |file: &dyn AsFd| file.as_fd().try_clone_to_owned().expect("a descriptor");
    match kind {
        0 => again(&forged.fd()),
        1 => shared(size_of::<AnnouncementPage>()).fd,
        2 => {
            let sockets = WakeSockets::new().expect("an epoll set");
            sockets.add().expect("a pair of sockets").1
        }
        3 | 5 => {
            let memory = match kind {
                3 => SharedMemory::arena(RING_LEN),
                _ => SharedMemory::for_readers("forged", size_of::<ContextNotes>()),
            };
            let SharedMemory { mapping, fd } = memory.expect("memory");
            scribble(&mapping, usize::from(script.short()), script.piece());
            fd
        }
        4 => shared(64).fd,
        _ => memfd_create("unsealed", MemfdFlags::ALLOW_SEALING).expect("a file"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{AsyncEvent, Psn, QpState, RemoteEndpoint, RtrAttributes};

    /// Sends the refusal of a queue pair's ring, as the process of its peer.
    fn refuse_ring(side: &Side) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let socket = LinkSocket::adopt(pair.expect("a pair of sockets").0);
        let peer = Arc::new(Peer::new(side.gid()));
        let link = Link::new(peer, u64::MAX, true, socket, Limits::OWN);
        let own = side.qp.qp_num().0;
        let refused = LinkMessage::AttachRefused { from: own, to: own };
        let packet = Packet::Message(refused, Vec::new());
        inbound::handle(&node(), &link, packet).expect("it may be refused");
    }

    fn assert_failed(side: Side) {
        assert_eq!(side.qp.state().expect("a state"), QpState::Error);
        let event = side.context.get_async_event(Some(Duration::ZERO));
        let qp_num = side.qp.qp_num();
        let failed = AsyncEvent::QpFatal { qp_num };
        assert_eq!(event.expect("no error"), Some(failed));
        side.end();
    }

    /// The peer would never send, so waiting for it would have no end.
    #[test]
    fn a_queue_pair_whose_ring_was_refused_fails() {
        let mut side = Side::new(false);
        side.connect(side.qp.qp_num());
        refuse_ring(&side);
        assert_failed(side);
    }

    #[test]
    fn a_refusal_that_comes_before_rtr_counts_too() {
        let mut side = Side::new(false);
        refuse_ring(&side);
        let remote = RemoteEndpoint {
            gid: side.gid(),
            lid: 0,
            qp_num: side.qp.qp_num(),
            psn: Psn::new(PSN),
        };
        side.qp.to_rtr(RtrAttributes::new(remote)).expect("RTR");
        assert_failed(side);
    }
}
