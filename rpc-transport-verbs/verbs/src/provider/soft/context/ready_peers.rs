//! The ready bits of one context, a set for each peer process, and the order in which polls look at
//! them.
//!
//! A poll does not look at all sets, because there may be hundreds: it looks at the next one, in
//! turns. A context looks at all of them before it sleeps. The looks are divided into rounds of
//! roughly equal length. Between two rounds, a poll looks at some of the cold rings themselves: see
//! [`ColdRings`](super::cold_rings::ColdRings).

use std::collections::VecDeque;

#[cfg(any(test, fuzzing))]
use crate::provider::soft::shared::ring::hostile::scribble;
use crate::provider::soft::shared::wake::{DomainReadyBits, Mapped};
use crate::provider::soft::shared::wake_socket::WakeToken;
use crate::types::Gid;

/// Maximum number of looks in a round. There are at least half as many, unless there is no peer. A
/// round is short, so that cold rings are looked at often even if each poll brings a message.
const ROUND: usize = 64;

/// The ready bits of the context for one peer.
#[derive(Clone, Debug)]
pub(crate) struct ReadyPeer {
    pub(crate) gid: Gid,
    pub(crate) bits: Mapped<DomainReadyBits>,
    /// The socket with which the peer wakes the context.
    pub(crate) wake: WakeToken,
}

/// The ready bits of the context.
#[derive(Debug, Default)]
pub(crate) struct ReadyPeers {
    peers: Vec<ReadyPeer>,
    /// The looks of the current round.
    round: Vec<ReadyPeer>,
    /// Index in `round` of the next look.
    turn: usize,
    /// The looks of the following rounds.
    later: VecDeque<Vec<ReadyPeer>>,
}

impl ReadyPeers {
    /// Looks at the next peer's bits of the first group, and moves on if none is set. Returns
    /// `false` if one is set, or if the round is over.
    #[inline]
    pub(crate) fn pass_if_empty(&mut self) -> bool {
        let Some(next) = self.round.get(self.turn) else {
            return false;
        };
        if next.bits.has_any_in_first_group() {
            return false;
        }
        self.turn += 1;
        true
    }

    #[inline]
    pub(crate) fn is_round_over(&self) -> bool {
        self.turn >= self.round.len()
    }

    /// Begins the next round.
    pub(crate) fn begin_round(&mut self) {
        self.turn = 0;
        if let Some(next) = self.later.pop_front() {
            let last = std::mem::replace(&mut self.round, next);
            // Allocates nothing: one was just removed.
            self.later.push_back(last);
        }
    }

    /// Takes one word of the next peer's bits, if any is set, and moves on.
    pub(crate) fn take_next(&mut self, end: usize, mut found: impl FnMut(&Gid, usize)) {
        if let Some(next) = self.round.get(self.turn) {
            self.turn += 1;
            next.bits.take_word(end, |index| found(&next.gid, index));
        }
    }

    /// Takes all bits of all peers.
    pub(crate) fn take_all(&self, end: usize, mut found: impl FnMut(&Gid, usize)) {
        for peer in &self.peers {
            peer.bits.take(end, |index| found(&peer.gid, index));
        }
    }

    /// Adds the bits of a peer, and removes and returns those that it had.
    pub(crate) fn add(&mut self, peer: ReadyPeer) -> Option<ReadyPeer> {
        let old = self.remove(&peer.gid);
        self.peers.push(peer);
        self.plan();
        old
    }

    /// Returns the socket with which a peer wakes the context.
    pub(crate) fn wake_of(&self, gid: &Gid) -> Option<WakeToken> {
        let peer = self.peers.iter().find(|peer| peer.gid == *gid);
        peer.map(|peer| peer.wake)
    }

    /// Removes the bits of a peer that has gone. The caller has taken them.
    pub(crate) fn remove(&mut self, gid: &Gid) -> Option<ReadyPeer> {
        let place = self.peers.iter().position(|peer| peer.gid == *gid)?;
        let old = self.peers.swap_remove(place);
        self.plan();
        Some(old)
    }

    /// Writes into the bits of every peer, as these peers can.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn scribble(&self, at: usize, bytes: &[u8]) {
        for peer in &self.peers {
            scribble(peer.bits.mapping(), at, bytes);
        }
    }

    /// Sets a bit of every peer, as these peers can.
    #[cfg(test)]
    pub(crate) fn set_for_all(&self, index: usize) {
        for peer in &self.peers {
            peer.bits.set(index);
        }
    }

    /// Returns the number of peers with a bit set in their first group.
    #[cfg(test)]
    pub(crate) fn count_set(&self) -> usize {
        let is_set = |peer: &&ReadyPeer| peer.bits.has_any_in_first_group();
        self.peers.iter().filter(is_set).count()
    }

    /// Divides the looks at all peers into rounds, after a peer was added or removed.
    fn plan(&mut self) {
        self.turn = 0;
        self.later.clear();
        self.round.clear();
        if self.peers.is_empty() {
            return;
        }
        // Few peers have several turns in a round.
        let repeats = (ROUND / self.peers.len()).max(1);
        let looks: Vec<_> = std::iter::repeat_n(&self.peers, repeats)
            .flatten()
            .cloned()
            .collect();
        let rounds = looks.len().div_ceil(ROUND);
        let len = looks.len().div_ceil(rounds);
        self.later.extend(looks.chunks(len).map(<[_]>::to_vec));
        self.round = self.later.pop_front().unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::provider::soft::shared::memory::SharedMemory;
    use crate::provider::soft::shared::wake_socket::WakeSockets;

    fn peer(number: u8) -> ReadyPeer {
        let len = size_of::<DomainReadyBits>();
        let memory = SharedMemory::for_writers("test", len).unwrap();
        ReadyPeer {
            gid: Gid([number; 16]),
            bits: Mapped::new(Arc::new(memory.mapping)).unwrap(),
            wake: WakeSockets::new().unwrap().add().unwrap().0,
        }
    }

    /// However many peers there are, a bit is found after a number of looks that is at most twice
    /// theirs, and no look takes a bit of another peer.
    #[test]
    fn every_peer_has_its_turn() {
        for count in [1, 2, 31, 33, 63, 64, 65, 200] {
            let peers: Vec<_> = (0..count).map(peer).collect();
            let mut ready = ReadyPeers::default();
            for peer in &peers {
                assert!(ready.add(peer.clone()).is_none());
            }
            for peer in &peers {
                peer.bits.set(7);
                let mut looks = 0;
                let mut found = None;
                while found.is_none() {
                    looks += 1;
                    assert!(looks <= 2 * usize::from(count) + 2, "{count} peers");
                    if ready.is_round_over() {
                        ready.begin_round();
                    }
                    if !ready.pass_if_empty() {
                        ready.take_next(64, |gid, index| found = Some((*gid, index)));
                    }
                }
                assert_eq!(found, Some((peer.gid, 7)));
            }
            assert!(ready.round.len() <= ROUND && 2 * ready.round.len() >= ROUND);
        }
    }

    #[test]
    fn a_peer_that_has_gone_is_not_looked_at() {
        let (first, second) = (peer(1), peer(2));
        let mut ready = ReadyPeers::default();
        ready.add(first.clone());
        ready.add(second.clone());
        assert!(ready.remove(&first.gid).is_some());
        assert!(ready.remove(&first.gid).is_none());
        first.bits.set(1);
        second.bits.set(2);
        let mut found = Vec::new();
        ready.take_all(64, |_, index| found.push(index));
        assert_eq!(found, [2]);
        assert!(ready.add(peer(2)).is_some(), "a newer link replaces it");
        ready.remove(&second.gid);
        assert!(ready.is_round_over());
        assert!(!ready.pass_if_empty());
        ready.begin_round();
    }
}
