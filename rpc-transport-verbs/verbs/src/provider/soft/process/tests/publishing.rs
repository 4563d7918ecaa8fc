//! The notes of a peer's context.

use super::super::inbound::handle;
use super::super::link::tests::pair;
use super::super::outbound::Link;
use super::*;
use crate::provider::soft::context::peer::Peer;
use crate::provider::soft::shared::announcements::AnnouncementPage;
use crate::provider::soft::shared::memory::{Mapping, PeerMemory, SharedMemory};
use crate::provider::soft::shared::published::ContextNotes;
use crate::provider::soft::shared::ring::{RING_LEN, RingNotifier, RingReceiver, RingSender};
use crate::provider::soft::shared::wake::SleepNote;
use crate::provider::soft::shared::wake_socket::WakeSockets;

/// Announces a context with notes of this length. Returns what READs through the context look up;
/// `None` if the link has to be closed.
fn announce(len: usize, is_sealed: bool) -> Option<RingSender> {
    let node = Accepting::new();
    let peer = Arc::new(Peer::new(gid()));
    let link = Link::new(Arc::clone(&peer), u64::MAX, true, pair().0, Limits::OWN);
    let page = SharedMemory::for_writers("test", size_of::<AnnouncementPage>()).unwrap();
    let notes = match is_sealed {
        true => SharedMemory::for_readers("test", len).unwrap(),
        false => SharedMemory::for_writers("test", len).unwrap(),
    };
    let (_, wake) = WakeSockets::new().unwrap().add().unwrap();
    let files = [page.fd, notes.fd, wake].map(Into::into).into();
    let message = Packet::Message(LinkMessage::Context { number: 6 }, files);
    handle(&node.node, &link, message).ok()?;
    let notifier = RingNotifier::new(peer.context(6).expect("it is known"), 3);
    let receiver = RingReceiver::new(0, false).unwrap();
    let ring = Mapping::from_peer(receiver.fd(), RING_LEN, PeerMemory::Ring).unwrap();
    Some(RingSender::new(ring, notifier).unwrap())
}

#[test]
fn a_context_publishes_its_keys_in_its_notes() {
    let sender = announce(size_of::<ContextNotes>(), true).unwrap();
    assert_eq!(sender.published().1, 3);
}

#[test]
fn notes_of_another_length_or_that_others_can_write_close_the_link() {
    let notes = size_of::<ContextNotes>();
    for len in [size_of::<SleepNote>(), notes - 4096, notes + 4096] {
        assert!(announce(len, true).is_none(), "{len} bytes");
    }
    assert!(announce(notes, false).is_none());
}
