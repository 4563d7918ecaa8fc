//! The announcements of one context, a page for each peer process, and the order in which polls look at
//! them.

#[cfg(test)]
use crate::provider::soft::shared::announcements::Announcer;
use crate::provider::soft::shared::announcements::{
    Announced, Announcement, AnnouncementPage, ENTRIES,
};
#[cfg(any(test, fuzzing))]
use crate::provider::soft::shared::ring::hostile::scribble;
use crate::provider::soft::shared::wake::Mapped;
use crate::provider::soft::shared::wake_socket::WakeToken;
use crate::types::Gid;

/// The announcements of one peer to the context.
#[derive(Debug)]
pub(crate) struct ReadyPeer {
    pub(crate) gid: Gid,
    pub(crate) page: Mapped<AnnouncementPage>,
    pub(crate) announced: Announced,
    /// The socket with which the peer wakes the context.
    pub(crate) wake: WakeToken,
}

#[derive(Debug, Default)]
pub(crate) struct ReadyPeers {
    peers: Vec<ReadyPeer>,
    /// Index of the peer that is looked at next.
    turn: usize,
}

impl ReadyPeers {
    /// Looks at the next peer's page. Moves on and returns true if nothing is announced.
    #[inline]
    pub(crate) fn pass_if_empty(&mut self) -> bool {
        match self.peers.get(self.turn) {
            Some(next) if next.announced.has_next(&next.page) => false,
            Some(_) => {
                self.move_on();
                true
            }
            None => true,
        }
    }

    #[inline(always)]
    fn move_on(&mut self) {
        self.turn += 1;
        if self.turn >= self.peers.len() {
            self.turn = 0;
        }
    }

    /// Takes at most `most` announcements of the next peer, and moves on.
    pub(crate) fn take_next(&mut self, most: usize, mut found: impl FnMut(&Gid, Announcement)) {
        let Some(next) = self.peers.get_mut(self.turn) else {
            return;
        };
        for _ in 0..most {
            let Some(announcement) = next.announced.next(&next.page) else {
                break;
            };
            found(&next.gid, announcement);
        }
        self.move_on();
    }

    /// Takes all announcements of all peers.
    pub(crate) fn take_all(&mut self, mut found: impl FnMut(&Gid, Announcement)) {
        for peer in &mut self.peers {
            // As many as a page has: a peer may announce without end.
            for _ in 0..ENTRIES {
                let Some(announcement) = peer.announced.next(&peer.page) else {
                    break;
                };
                found(&peer.gid, announcement);
            }
        }
    }

    /// Adds a peer that is not there.
    pub(crate) fn add(&mut self, peer: ReadyPeer) {
        debug_assert!(self.wake_of(&peer.gid).is_none());
        self.peers.push(peer);
    }

    pub(crate) fn wake_of(&self, gid: &Gid) -> Option<WakeToken> {
        let peer = self.peers.iter().find(|peer| peer.gid == *gid);
        peer.map(|peer| peer.wake)
    }

    pub(crate) fn remove(&mut self, gid: &Gid) -> Option<ReadyPeer> {
        let place = self.peers.iter().position(|peer| peer.gid == *gid)?;
        let removed = self.peers.swap_remove(place);
        if self.turn >= self.peers.len() {
            self.turn = 0;
        }
        Some(removed)
    }

    /// Writes bytes into the pages of all peers, as these peers can.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn scribble(&self, at: usize, bytes: &[u8]) {
        for peer in &self.peers {
            scribble(peer.page.mapping(), at, bytes);
        }
    }

    /// Announces a ring for every peer, as these peers can.
    #[cfg(test)]
    pub(crate) fn announce_for_all(&self, index: usize) {
        for peer in &self.peers {
            Announcer::default().announce(&peer.page, index);
        }
    }

    /// Returns the number of peers that have announced something.
    #[cfg(test)]
    pub(crate) fn count_announcing(&self) -> usize {
        let announces = |peer: &&ReadyPeer| peer.announced.has_next(&peer.page);
        self.peers.iter().filter(announces).count()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::provider::soft::shared::memory::SharedMemory;
    use crate::provider::soft::shared::wake_socket::WakeSockets;

    /// A peer of a context, with what it announces with.
    fn peer(number: u8) -> (ReadyPeer, Mapped<AnnouncementPage>) {
        let len = size_of::<AnnouncementPage>();
        let memory = SharedMemory::for_writers("test", len).unwrap();
        let page: Mapped<AnnouncementPage> = Mapped::new(Arc::new(memory.mapping)).unwrap();
        let peer = ReadyPeer {
            gid: Gid([number; 16]),
            page: page.clone(),
            announced: Announced::default(),
            wake: WakeSockets::new().unwrap().add().unwrap().0,
        };
        (peer, page)
    }

    /// However many peers there are, an announcement is found after as many looks as there are peers, and no
    /// look takes one of another peer.
    #[test]
    fn every_peer_has_its_turn() {
        for count in [1, 2, 31, 33, 63, 64, 65, 200] {
            let mut ready = ReadyPeers::default();
            let mut pages = Vec::new();
            for number in 0..count {
                let (peer, page) = peer(number);
                ready.add(peer);
                pages.push(page);
            }
            for (number, page) in pages.iter().enumerate() {
                Announcer::default().announce(page, 7);
                let mut found = None;
                for _ in 0..count {
                    if !ready.pass_if_empty() {
                        ready.take_next(64, |gid, ring| found = Some((*gid, ring)));
                    }
                }
                let gid = Gid([number as u8; 16]);
                assert_eq!(found, Some((gid, Announcement::Ring(7))), "{count} peers");
            }
        }
    }

    /// A peer that announces without end gets as much of a poll as others.
    #[test]
    fn a_storm_of_announcements_ends_a_look() {
        let (mut ready, mut found) = (ReadyPeers::default(), Vec::new());
        let (loud, loud_page) = peer(1);
        let (quiet, quiet_page) = peer(2);
        ready.add(loud);
        ready.add(quiet);
        let mut announcer = Announcer::default();
        for _ in 0..5_000 {
            announcer.announce(&loud_page, 7);
        }
        Announcer::default().announce(&quiet_page, 8);
        ready.take_next(16, |_, ring| found.push(ring));
        assert_eq!(found, [Announcement::Ring(7); 16]);
        ready.take_next(16, |_, ring| found.push(ring));
        assert_eq!(found[16..], [Announcement::Ring(8)]);
    }

    #[test]
    fn a_peer_that_has_gone_is_not_looked_at() {
        let ((first, first_page), (second, second_page)) = (peer(1), peer(2));
        let (gone, left) = (first.gid, second.gid);
        let mut ready = ReadyPeers::default();
        ready.add(first);
        ready.add(second);
        assert!(ready.remove(&gone).is_some());
        assert!(ready.remove(&gone).is_none());
        Announcer::default().announce(&first_page, 1);
        Announcer::default().announce(&second_page, 2);
        let mut found = Vec::new();
        ready.take_all(|_, ring| found.push(ring));
        assert_eq!(found, [Announcement::Ring(2)]);
        ready.remove(&left);
        assert!(ready.pass_if_empty());
    }
}
