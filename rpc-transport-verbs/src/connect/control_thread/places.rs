//! The connections of servers that each host has, and which unfinished handshake gives its connection
//! up.
//!
//! A server takes a limited number of connections, and a client counts as one from the moment at
//! which it is admitted. A stranger can send a hello and nothing more: over TCP and over RDMA
//! devices, that admits it, and its handshake ends only at the deadline of its stage. So when a
//! server has no connection left, a handshake that waits for its client ends in favor of a new
//! client: the oldest one of the host that has most of them. That host must have more of them than
//! the new client's host has handshakes, the new one included; or it is the same host, and has
//! several. So a host with one unfinished handshake never loses it, and a stranger does not keep out
//! those who share its address. No handshake ends within [`PATIENCE`] of its welcome: an honest client
//! answers it within milliseconds, and would be refused for nothing. Meanwhile, the new client waits.
//!
//! A client whose `Ready` is delayed in the network counts as unfinished, although it may already have
//! sent calls over RDMA. Which connections end whose handshake is complete is the pollers' matter
//! (`making_room.rs`); how many each host has is told them from here.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use rpc_core::transport::Host;

use super::Token;
use super::handshakes::Stage;

/// How long a handshake may wait for its client before it may end for another one: the time of some
/// round trips through a network, and of a process that waits for a core.
const PATIENCE: Duration = Duration::from_millis(100);

/// The connections of servers, and the handshakes that hold one or wait for one. Times are those in
/// which the thread has run ([`Handshakes::running`](super::handshakes::Handshakes)).
#[derive(Debug, Default)]
pub(super) struct Places {
    entries: HashMap<Token, Entry>,
    /// Those of each listener by their host.
    hosts: HashMap<Token, HashMap<Host, Held>>,
}

/// A connection or a handshake.
#[derive(Debug)]
struct Entry {
    listener: Token,
    host: Host,
    /// Since when it has waited for its client.
    welcomed_at: Option<Duration>,
}

/// The connections and the handshakes of one host at one listener.
#[derive(Debug, Default)]
struct Held {
    /// Connections whose handshake is complete.
    open: BTreeSet<Token>,
    handshakes: usize,
    /// Handshakes that wait for their client, and since when, the oldest first.
    welcomed: BTreeSet<(Duration, Token)>,
}

impl Places {
    /// Records the stage that a handshake is in.
    pub(super) fn enter(
        &mut self,
        token: Token,
        (listener, host): (Token, Host),
        stage: Stage,
        now: Duration,
    ) {
        let is_welcomed = match stage {
            Stage::Waiting | Stage::Admitted => false,
            Stage::Welcomed => true,
            Stage::Rejected | Stage::Incoming | Stage::Challenged => return self.remove(token),
        };
        let held = self.hosts.entry(listener).or_default();
        let held = held.entry(host).or_default();
        let entry = self.entries.entry(token).or_insert_with(|| {
            held.handshakes += 1;
            Entry::new(listener, host)
        });
        if is_welcomed && entry.welcomed_at.is_none() {
            entry.welcomed_at = Some(now);
            held.welcomed.insert((now, token));
        }
    }

    /// Records a connection whose handshake is complete.
    pub(super) fn open(&mut self, token: Token, listener: Token, host: Host) {
        self.entries.insert(token, Entry::new(listener, host));
        let held = self.hosts.entry(listener).or_default();
        held.entry(host).or_default().open.insert(token);
    }

    /// Returns the number of connections, and of handshakes that hold one or wait for one, of each host.
    pub(super) fn by_host(&self, listener: Token) -> HashMap<Host, usize> {
        let hosts = self.hosts.get(&listener).into_iter().flatten();
        hosts
            .map(|(host, held)| (*host, held.open.len() + held.handshakes))
            .collect()
    }

    /// Removes a handshake that has ended or is complete, or a connection that has ended.
    pub(super) fn remove(&mut self, token: Token) {
        let Some(entry) = self.entries.remove(&token) else {
            return;
        };
        let (listener, host) = (entry.listener, entry.host);
        let Some(hosts) = self.hosts.get_mut(&listener) else {
            return;
        };
        if let Some(held) = hosts.get_mut(&host) {
            if !held.open.remove(&token) {
                held.handshakes -= 1;
                if let Some(at) = entry.welcomed_at {
                    held.welcomed.remove(&(at, token));
                }
            }
            if held.handshakes == 0 && held.open.is_empty() {
                hosts.remove(&host);
            }
        }
        if hosts.is_empty() {
            self.hosts.remove(&listener);
        }
    }

    /// Returns true if the handshake waits for its client, and holds a connection meanwhile.
    pub(super) fn is_welcomed(&self, token: Token) -> bool {
        let entry = self.entries.get(&token);
        entry.is_some_and(|entry| entry.welcomed_at.is_some())
    }

    /// Returns the handshake that gives up its connection now for a client of this host, which is in
    /// the stage [`Waiting`](Stage::Waiting).
    pub(super) fn victim_for(&self, listener: Token, host: Host, now: Duration) -> Option<Token> {
        let hosts = self.hosts.get(&listener)?;
        let own = hosts.get(&host).map_or(0, |held| held.handshakes);
        let candidates = hosts.iter().filter_map(|(&of, held)| {
            let oldest @ (since, _) = *held.welcomed.first()?;
            let least = if of == host { 1 } else { own };
            let yields = held.welcomed.len() > least && since + PATIENCE <= now;
            yields.then_some((held.welcomed.len(), Reverse(oldest)))
        });
        let (_, Reverse((_, oldest))) = candidates.max()?;
        Some(oldest)
    }

    /// Returns true if a handshake will give up its connection for a client of this host, unless it is
    /// complete or has ended before.
    pub(super) fn has_a_victim_for(&self, listener: Token, host: Host) -> bool {
        self.victim_for(listener, host, Duration::MAX).is_some()
    }
}

impl Entry {
    fn new(listener: Token, host: Host) -> Self {
        Self {
            listener,
            host,
            welcomed_at: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use super::*;

    const LISTENER: Token = 1000;

    fn host(number: u8) -> Host {
        SocketAddr::from((Ipv4Addr::new(192, 0, 2, number), 4000)).into()
    }

    /// Adds a client that waits, and has the oldest handshake of another host end for it. Returns
    /// the token of that one.
    fn wait(places: &mut Places, token: Token, number: u8) -> Option<Token> {
        let now = Duration::from_millis(token) + PATIENCE;
        enter(places, token, LISTENER, number, Stage::Waiting);
        let victim = places.victim_for(LISTENER, host(number), now);
        places.remove(victim.unwrap_or(token));
        victim
    }

    /// Enters a stage. A millisecond passes between two tokens.
    fn enter(places: &mut Places, token: Token, listener: Token, number: u8, stage: Stage) {
        let now = Duration::from_millis(token);
        places.enter(token, (listener, host(number)), stage, now);
    }

    fn welcome(places: &mut Places, token: Token, number: u8) {
        enter(places, token, LISTENER, number, Stage::Admitted);
        enter(places, token, LISTENER, number, Stage::Welcomed);
    }

    #[test]
    fn a_handshake_that_was_just_welcomed_does_not_end_and_has_a_successor_later() {
        let mut places = Places::default();
        welcome(&mut places, 1, 1);
        welcome(&mut places, 2, 1);
        // Something else happens to it, which is no new welcome.
        places.enter(
            1,
            (LISTENER, host(1)),
            Stage::Welcomed,
            Duration::from_secs(1),
        );
        let (early, late) = (PATIENCE, Duration::from_millis(1) + PATIENCE);
        assert_eq!(places.victim_for(LISTENER, host(2), early), None);
        assert!(places.has_a_victim_for(LISTENER, host(2)));
        assert_eq!(places.victim_for(LISTENER, host(2), late), Some(1));
        places.remove(1);
        places.remove(2);
        assert!(!places.has_a_victim_for(LISTENER, host(2)));
    }

    #[test]
    fn the_host_with_most_gives_up_its_oldest_until_both_have_as_many() {
        let mut places = Places::default();
        for token in 1..=8 {
            welcome(&mut places, token, 1);
        }
        for token in 11..=14 {
            assert_eq!(wait(&mut places, token, 2), Some(token - 10));
            welcome(&mut places, token, 2);
        }
        assert_eq!(wait(&mut places, 15, 2), Some(11), "its own oldest");
        assert_eq!(wait(&mut places, 16, 1), Some(5), "its own oldest");
        assert_eq!(wait(&mut places, 17, 3), Some(6), "the oldest of both");
    }

    #[test]
    fn a_host_loses_its_oldest_to_itself_and_never_its_only_one() {
        let mut places = Places::default();
        for token in 1..=8 {
            welcome(&mut places, token, token as u8);
        }
        assert_eq!(wait(&mut places, 11, 9), None);
        welcome(&mut places, 12, 1);
        assert_eq!(wait(&mut places, 13, 1), Some(1));
        assert_eq!(wait(&mut places, 14, 1), None);
        welcome(&mut places, 15, 1);
        assert_eq!(wait(&mut places, 16, 9), Some(12));
    }

    #[test]
    fn only_a_handshake_that_waits_for_its_client_at_the_same_listener_ends() {
        let mut places = Places::default();
        for token in 1..=8 {
            enter(&mut places, token, LISTENER, 1, Stage::Admitted);
            enter(&mut places, token + 10, LISTENER + 1, 1, Stage::Welcomed);
        }
        assert_eq!(wait(&mut places, 21, 2), None);
        for token in [3, 4] {
            enter(&mut places, token, LISTENER, 1, Stage::Welcomed);
        }
        assert!(places.is_welcomed(3) && !places.is_welcomed(2) && !places.is_welcomed(21));
        assert_eq!(wait(&mut places, 22, 2), Some(3));
        for token in 1..=8 {
            enter(&mut places, token, LISTENER, 1, Stage::Rejected);
            places.remove(token + 10);
        }
        places.remove(22);
        assert!(
            places.entries.is_empty() && places.hosts.is_empty(),
            "{places:?}"
        );
    }

    #[test]
    fn connections_and_handshakes_of_a_host_count_until_they_end() {
        let mut places = Places::default();
        welcome(&mut places, 1, 1);
        welcome(&mut places, 2, 1);
        // A handshake is complete.
        places.remove(2);
        places.open(3, LISTENER, host(1));
        places.open(4, LISTENER, host(2));
        places.open(5, LISTENER + 1, host(2));
        let by_host = places.by_host(LISTENER);
        assert_eq!(by_host, HashMap::from([(host(1), 2), (host(2), 1)]));
        assert_eq!(places.victim_for(LISTENER, host(3), PATIENCE * 2), Some(1));
        for token in [1, 3, 4, 5] {
            places.remove(token);
        }
        assert!(places.hosts.is_empty(), "{places:?}");
    }
}
