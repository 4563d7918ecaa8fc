//! The notes of a peer's context, which the layout of the link determines.

use super::super::inbound::handle;
use super::super::link::tests::pair;
use super::super::outbound::Link;
use super::*;
use crate::provider::soft::context::peer::Peer;
use crate::provider::soft::shared::memory::{Mapping, PeerMemory, SharedMemory};
use crate::provider::soft::shared::published::ContextNotes;
use crate::provider::soft::shared::ring::{RING_LEN, RingNotifier, RingReceiver, RingSender};
use crate::provider::soft::shared::wake::{DomainReadyBits, SleepNote};
use crate::provider::soft::shared::wake_socket::WakeSockets;

/// Announces a context with notes of this length over a link of this layout. Returns whether READs
/// through the context can be executed in place; `None` if the link has to be closed.
fn announce(layout: u32, len: usize, is_sealed: bool) -> Option<bool> {
    let node = Accepting::new();
    let peer = Arc::new(Peer::new(gid()));
    let agreed = Agreed {
        layout,
        ..Agreed::OWN
    };
    let link = Link::new(Arc::clone(&peer), u64::MAX, true, pair().0, agreed);
    let bits = SharedMemory::for_writers("test", size_of::<DomainReadyBits>()).unwrap();
    let notes = match is_sealed {
        true => SharedMemory::for_readers("test", len).unwrap(),
        false => SharedMemory::for_writers("test", len).unwrap(),
    };
    let (_, wake) = WakeSockets::new().unwrap().add().unwrap();
    let files = [bits.fd, notes.fd, wake].map(Into::into).into();
    let message = Packet::Message(LinkMessage::Context { number: 6 }, files);
    handle(&node.node, &link, message).ok()?;
    let notifier = RingNotifier::new(peer.context(6).expect("it is known"), 3);
    let receiver = RingReceiver::new(0, false).unwrap();
    let ring = Mapping::from_peer(receiver.fd(), RING_LEN, PeerMemory::Ring).unwrap();
    let sender = RingSender::new(ring, notifier).unwrap();
    Some(sender.published().is_some())
}

#[test]
fn a_context_publishes_its_keys_if_the_layout_says_so() {
    let (older, newer) = (Layouts::OWN.min, Layouts::OWN.max);
    let (note, notes) = (size_of::<SleepNote>(), size_of::<ContextNotes>());
    assert_eq!(announce(older, note, true), Some(false));
    assert_eq!(announce(older, notes, true), Some(false));
    assert_eq!(announce(newer, notes, true), Some(true));
}

#[test]
fn notes_of_another_length_or_that_others_can_write_close_the_link() {
    let (older, newer) = (Layouts::OWN.min, Layouts::OWN.max);
    let notes = size_of::<ContextNotes>();
    for len in [size_of::<SleepNote>(), notes - 4096, notes + 4096] {
        assert_eq!(announce(newer, len, true), None, "{len} bytes");
    }
    assert_eq!(announce(newer, notes, false), None);
    assert_eq!(announce(older, notes, false), None);
}
