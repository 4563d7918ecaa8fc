//! Room for new clients, when a server has as many connections as it takes.
//!
//! A connection that is not in use costs its client nothing. So pollers end such connections for new
//! clients, in this order:
//!
//! 1. *Unused* ones, for any client: no call has arrived in the first [`TIME_TO_CALL`], or the peer keeps
//!    this side waiting: for the rest of a message, or for the acknowledgement of a response
//!    ([`Transport::stalled_connections`]). The first is the oldest of the host that has most of these.
//! 2. *Idle* ones, for a client of another host: for [`IDLE_TIME`] no call was in flight and no stream
//!    open. The first is the one that has been idle for the longest time, of the host that has most
//!    connections: more than the client's host, the new one included.
//!
//! So hosts share the connections that are not in use, and never take them from each other once they
//! have as many. A connection in use is never ended.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use super::link::LinkKey;
use super::links::Links;
use super::outbox::{Class, Slot};
use super::upkeep::IDLE_TIME;
use crate::peer::Host;
use crate::protocol::frame::{CallId, EVICTED, FrameKind, HEADER_LEN};
use crate::transport::{CloseReason, RoomMade, RoomWanted, Stalled, Transport};

/// How long a new connection may be without a call. A client's first call mostly follows its handshake
/// at once.
const TIME_TO_CALL: Duration = Duration::from_millis(100);

/// A connection that may be ended for a new client.
struct Candidate {
    key: LinkKey,
    /// `None` if the transport does not know it.
    host: Option<Host>,
    kind: Kind,
    /// When it was accepted, or since when it is idle: the age that decides between two of one host, and
    /// between those of two hosts with as many.
    since: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    NeverCalled,
    Stalled,
    Idle,
}

impl Kind {
    fn why(self) -> &'static str {
        match self {
            Self::NeverCalled => "no call has arrived on it",
            Self::Stalled => "its peer neither reads nor completes its messages",
            Self::Idle => "it is idle, and its host has more connections than the new client's",
        }
    }
}

/// The connections of each host: of the server, and those of this poller that are unused.
struct Hosts {
    places: HashMap<Host, usize>,
    unused: HashMap<Option<Host>, usize>,
}

impl Hosts {
    fn places(&self, host: Option<Host>) -> usize {
        let places = host.and_then(|host| self.places.get(&host));
        places.copied().unwrap_or_default()
    }

    /// Returns the order in which connections end: the greatest is the first.
    fn rank(&self, candidate: &Candidate) -> (bool, usize) {
        match candidate.kind {
            Kind::Idle => (false, self.places(candidate.host)),
            _ => (true, self.unused.get(&candidate.host).copied().unwrap_or(0)),
        }
    }

    /// Counts a connection that ends for a client of another host, or of the same one.
    fn hand_over(&mut self, candidate: &Candidate, client: Host) {
        if candidate.kind != Kind::Idle
            && let Some(unused) = self.unused.get_mut(&candidate.host)
        {
            *unused -= 1;
        }
        if let Some(places) = candidate.host.and_then(|host| self.places.get_mut(&host)) {
            *places = places.saturating_sub(1);
        }
        *self.places.entry(client).or_default() += 1;
    }
}

impl<T: Transport> Links<T> {
    /// Returns the connections that may be ended for clients whose hosts have `least` connections or
    /// more. Also returns true if there may be more soon, which `looks` requests before this one have
    /// found, too.
    fn find_candidates(
        &mut self,
        hosts: &mut Hosts,
        least: usize,
        looks: u32,
    ) -> (Vec<Candidate>, bool) {
        let now = self.clock.now();
        let Stalled {
            connections: stalled,
            mut may_follow,
        } = self.transport.stalled_connections(looks);
        let stalled: HashSet<_> = stalled.into_iter().collect();
        let mut candidates = Vec::new();
        for (key, link) in self.table.iter_mut() {
            let Some(accepted_at) = link.accepted_at.filter(|_| link.ended.is_none()) else {
                continue;
            };
            link.note_use(now);
            link.unused_looks += u32::from(link.unused_since.is_some());
            let host = link
                .peer
                .as_ref()
                .map(|peer| Host::from(peer.get().address()));
            let (kind, since, least_age) = if !link.connection.has_been_called() {
                (Kind::NeverCalled, accepted_at, TIME_TO_CALL)
            } else if stalled.contains(&link.id) {
                (Kind::Stalled, accepted_at, Duration::ZERO)
            } else if let Some(since) = link.unused_since
                && hosts.places(host) > least + 1
            {
                (Kind::Idle, since, IDLE_TIME)
            } else {
                continue;
            };
            if now.saturating_duration_since(since) < least_age {
                may_follow |= kind == Kind::NeverCalled || link.unused_looks > looks;
                continue;
            }
            if kind != Kind::Idle {
                *hosts.unused.entry(host).or_default() += 1;
            }
            candidates.push(Candidate {
                key,
                host,
                kind,
                since,
            });
        }
        (candidates, may_follow)
    }

    /// Ends a connection for a new client, and tells its client why, if that one reads.
    fn evict(&mut self, candidate: &Candidate) {
        let link = &mut self.table[candidate.key];
        log_limited!(
            warn,
            connection = %link.id,
            peer = link.peer.as_ref().map(|peer| tracing::field::display(peer.get())),
            why = candidate.kind.why(),
            "ended a connection for a new client: the server has as many as it takes. If both are your \
             clients, raise `connections` on the server"
        );
        link.connection.go_away();
        if link.connection.may_send_control_frame()
            && let Ok(permit) = self
                .outbox
                .permit(Class::Control, link, &mut self.transport)
        {
            // Without a slot, the client does not learn why.
            let _ = permit.send(Slot::Of(HEADER_LEN), |link, frame| {
                let kind = FrameKind::Control;
                let header = link.connection.next_header(kind, CallId(0), EVICTED);
                header.encode(frame);
                Some(())
            });
        }
        link.ended = Some(CloseReason::Local);
        self.transport.close(link.id);
    }

    /// Ends connections for new clients, and tells how many.
    #[cold]
    pub(super) fn make_room(&mut self, mut wanted: RoomWanted) {
        let (clients, places) = wanted.take_hosts();
        let mut hosts = Hosts {
            places,
            unused: HashMap::new(),
        };
        let least = clients.iter().map(|client| hosts.places(Some(*client)));
        let least = least.min().unwrap_or_default();
        let (mut candidates, may_follow) = self.find_candidates(&mut hosts, least, wanted.looks());
        // For hosts with as many connections, there is none.
        let mut in_vain = usize::MAX;
        let mut ended = 0;
        for client in clients {
            let own = hosts.places(Some(client));
            if own >= in_vain {
                continue;
            }
            let of_host = candidates.iter().enumerate().filter(|(_, candidate)| {
                candidate.kind != Kind::Idle || hosts.places(candidate.host) > own + 1
            });
            let first = of_host.max_by_key(|(_, candidate)| {
                let age = Reverse((candidate.since, candidate.key.number()));
                (hosts.rank(candidate), age)
            });
            let Some((index, _)) = first else {
                in_vain = own;
                continue;
            };
            let chosen = candidates.swap_remove(index);
            hosts.hand_over(&chosen, client);
            self.evict(&chosen);
            ended += 1;
        }
        wanted.answer(RoomMade { ended, may_follow });
    }
}
