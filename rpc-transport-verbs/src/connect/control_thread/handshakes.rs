//! The accounts of the handshakes in flight: how many each host has, which one ends to make room
//! for a new one, and which one has waited too long for its client.
//!
//! A stranger can connect and stay silent, or send a byte now and then. So the number of handshakes
//! is limited, in all and for each host. When a limit is reached, a handshake of the host that has
//! most of them ends: the one whose client has kept it waiting for the longest time. Until the
//! client's GID is proven, that is the time since it connected: a hello costs a stranger nothing. An
//! honest client completes a stage within milliseconds, so it is seldom the oldest of its host. A
//! handshake ends only for its own host, or for one that has no more handshakes than its host. All
//! users of a host count as one host, so over loopback, a user can end the handshakes of another.
//!
//! A stage that waits for this side ends only for a host that has fewer handshakes. It has no
//! deadline, except for the wait for a connection of the server (`places.rs`).

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use rpc_core::transport::Host;

use super::Token;
use crate::connect::handshake::MAX_HELLO_LEN;
use crate::connect::handshake::frame::PROLOGUE_LEN;

/// The limits if the process may open enough files. A thousand clients of one host that start
/// together fit. Over TCP, half as many do: the connection for a client's calls counts, too, until
/// its first bytes have come. Each handshake takes a socket, and at most the memory of a hello and of
/// one read after it: 17 MiB in all.
const MAX_HANDSHAKES: usize = 2048;
const _: () = assert!(MAX_HANDSHAKES * (PROLOGUE_LEN + MAX_HELLO_LEN + READ_LEN) <= 17 << 20);

/// The most bytes that are read from a client at a time.
pub(super) const READ_LEN: usize = 4096;

/// The limits on the number of handshakes in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct HandshakeLimits {
    /// In the whole process.
    pub(super) total: usize,
    /// For each host.
    pub(super) per_host: usize,
}

impl HandshakeLimits {
    /// Returns the limits of a process that may open this many files. Handshakes take at most half
    /// of them, and those of one host a quarter.
    pub(super) fn for_files(files: Option<u64>) -> Self {
        let half = files.map_or(MAX_HANDSHAKES, |files| {
            usize::try_from(files / 2).unwrap_or(MAX_HANDSHAKES)
        });
        let total = half.clamp(4, MAX_HANDSHAKES);
        Self {
            total,
            per_host: total / 2,
        }
    }
}

/// A stage of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The client was rejected and has not closed its socket yet.
    Rejected,
    /// The client has connected, and its hello has not arrived completely.
    Incoming,
    /// The client has to prove that the GID that it offers is its own.
    Challenged,
    /// The client was welcomed, and its `Ready` has not arrived.
    Welcomed,
    /// The client may be admitted as soon as the server has a connection left for it.
    Waiting,
    /// The client is admitted, and waits for its queue pair.
    Admitted,
}

/// A rank of stages. The order is the one in which handshakes of one host end to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Rejected,
    Unproven,
    Welcomed,
    Admitted,
}

impl Stage {
    fn rank(self) -> Rank {
        match self {
            Self::Rejected => Rank::Rejected,
            Self::Incoming | Self::Challenged => Rank::Unproven,
            Self::Welcomed => Rank::Welcomed,
            // Both wait for this side.
            Self::Waiting | Self::Admitted => Rank::Admitted,
        }
    }
}

/// What a new client of a host finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// There is room.
    Free,
    /// There is room once this handshake has ended.
    InPlaceOf(Token),
    /// There is none: all handshakes of the host that has most wait for this side, and the new
    /// client's host has about as many.
    None,
}

/// The position of a handshake among those of its host: the first ends first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Position {
    rank: Rank,
    /// Ascending with the time at which the rank was reached, so the oldest is first. Descending in
    /// the rank [`Admitted`](Rank::Admitted), because the oldest is the next to be served.
    order: u64,
    token: Token,
}

#[derive(Debug)]
struct Entry {
    host: Host,
    stage: Stage,
    position: Position,
    /// When the stage has lasted too long.
    deadline: Option<Duration>,
}

/// The handshakes in flight. Times are those of a [`RunClock`](super::run_clock::RunClock).
#[derive(Debug)]
pub(super) struct Handshakes {
    limits: HandshakeLimits,
    timeout: Duration,
    entries: HashMap<Token, Entry>,
    hosts: HashMap<Host, BTreeSet<Position>>,
    /// The hosts by their number of handshakes, each with its first. Of the hosts with the highest
    /// number, the one with the first position is last.
    ranks: BTreeSet<(usize, Reverse<Position>)>,
    deadlines: BTreeSet<(Duration, Token)>,
    /// Number of ranks that were ever reached.
    reached: u64,
}

impl Handshakes {
    /// Creates the accounts. `timeout` limits each stage that waits for the client.
    pub(super) fn new(limits: HandshakeLimits, timeout: Duration) -> Self {
        Self {
            limits,
            timeout,
            entries: HashMap::new(),
            hosts: HashMap::new(),
            ranks: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            reached: 0,
        }
    }

    /// Returns what a new client of this host finds.
    pub(super) fn room_for(&self, host: Host) -> Room {
        let own = self.hosts.get(&host);
        let own_count = own.map_or(0, BTreeSet::len);
        let (count, first) = if own_count >= self.limits.per_host {
            (own_count, own.and_then(BTreeSet::first))
        } else if self.entries.len() >= self.limits.total {
            match self.ranks.last() {
                Some((count, Reverse(first))) => (*count, Some(first)),
                None => (0, None),
            }
        } else {
            return Room::Free;
        };
        match first {
            Some(first) if first.rank != Rank::Admitted || own_count + 1 < count => {
                Room::InPlaceOf(first.token)
            }
            _ => Room::None,
        }
    }

    /// Adds a client that has just connected.
    pub(super) fn add(&mut self, token: Token, host: Host, now: Duration) {
        let entry = Entry {
            host,
            stage: Stage::Incoming,
            position: self.next_position(Stage::Incoming, token),
            deadline: None,
        };
        self.entries.insert(token, entry);
        self.begin(token, Stage::Incoming, now);
    }

    /// Records the stage that a handshake is in. It begins now unless the handshake was in it.
    pub(super) fn enter(&mut self, token: Token, stage: Stage, now: Duration) {
        let entry = self.entries.get(&token);
        if entry.is_some_and(|entry| entry.stage != stage) {
            self.begin(token, stage, now);
        }
    }

    fn next_position(&mut self, stage: Stage, token: Token) -> Position {
        self.reached += 1;
        let rank = stage.rank();
        Position {
            rank,
            order: match rank {
                Rank::Admitted => u64::MAX - self.reached,
                _ => self.reached,
            },
            token,
        }
    }

    fn begin(&mut self, token: Token, stage: Stage, now: Duration) {
        let reached = self.next_position(stage, token);
        let Some(entry) = self.entries.get_mut(&token) else {
            return;
        };
        entry.stage = stage;
        let deadline = (stage != Stage::Admitted).then_some(now + self.timeout);
        if let Some(deadline) = std::mem::replace(&mut entry.deadline, deadline) {
            self.deadlines.remove(&(deadline, token));
        }
        if let Some(deadline) = deadline {
            self.deadlines.insert((deadline, token));
        }
        let (host, before) = (entry.host, entry.position);
        // A stage of the same rank does not make the handshake younger.
        if before.rank != reached.rank {
            entry.position = reached;
        }
        let position = entry.position;
        self.change_host(host, |positions| {
            positions.remove(&before);
            positions.insert(position);
        });
    }

    /// Removes a handshake that has ended, in whichever way. Returns its host.
    pub(super) fn remove(&mut self, token: Token) -> Option<Host> {
        let Entry {
            host,
            position,
            deadline,
            ..
        } = self.entries.remove(&token)?;
        if let Some(deadline) = deadline {
            self.deadlines.remove(&(deadline, token));
        }
        self.change_host(host, |positions| {
            positions.remove(&position);
        });
        Some(host)
    }

    /// Returns the host of a client.
    pub(super) fn host(&self, token: Token) -> Option<Host> {
        Some(self.entries.get(&token)?.host)
    }

    /// Returns the handshake whose stage has lasted too long for the longest time.
    pub(super) fn expired(&self, now: Duration) -> Option<Token> {
        let (deadline, token) = self.deadlines.first()?;
        (*deadline <= now).then_some(*token)
    }

    /// Returns true if a handshake waits for its client.
    pub(super) fn awaits_a_client(&self) -> bool {
        !self.deadlines.is_empty()
    }

    /// Changes the positions of a host, and its rank with them.
    fn change_host(&mut self, host: Host, change: impl FnOnce(&mut BTreeSet<Position>)) {
        let positions = self.hosts.entry(host).or_default();
        if let Some(&first) = positions.first() {
            self.ranks.remove(&(positions.len(), Reverse(first)));
        }
        change(positions);
        match positions.first() {
            Some(&first) => drop(self.ranks.insert((positions.len(), Reverse(first)))),
            None => drop(self.hosts.remove(&host)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use proptest::prelude::*;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(5);

    fn handshakes(total: usize, per_host: usize) -> Handshakes {
        Handshakes::new(HandshakeLimits { total, per_host }, TIMEOUT)
    }

    fn host(number: u8) -> Host {
        SocketAddr::from((Ipv4Addr::new(192, 0, 2, number), 4000)).into()
    }

    fn seconds(number: u64) -> Duration {
        Duration::from_secs(number)
    }

    /// Adds a client as the control thread does. Returns the handshake that ended for it, or `None`
    /// if the client was rejected.
    fn connect(handshakes: &mut Handshakes, token: Token, host: Host) -> Room {
        let room = handshakes.room_for(host);
        if let Room::InPlaceOf(victim) = room {
            handshakes.remove(victim).unwrap();
        }
        if room != Room::None {
            handshakes.add(token, host, Duration::ZERO);
        }
        room
    }

    #[test]
    fn the_limits_leave_half_of_the_files_to_others() {
        let limits = |files| {
            let HandshakeLimits { total, per_host } = HandshakeLimits::for_files(files);
            (total, per_host)
        };
        assert_eq!(limits(None), (2048, 1024));
        assert_eq!(limits(Some(1 << 40)), (2048, 1024));
        assert_eq!(limits(Some(1024)), (512, 256));
        assert_eq!(limits(Some(0)), (4, 2));
    }

    #[test]
    fn at_its_limit_a_host_loses_its_oldest_and_no_other_host_loses_any() {
        let mut handshakes = handshakes(100, 3);
        connect(&mut handshakes, 1, host(1));
        for token in 2..5 {
            assert_eq!(connect(&mut handshakes, token, host(2)), Room::Free);
        }
        assert_eq!(connect(&mut handshakes, 5, host(2)), Room::InPlaceOf(2));
        // A completed stage counts.
        handshakes.enter(3, Stage::Welcomed, Duration::ZERO);
        assert_eq!(connect(&mut handshakes, 6, host(2)), Room::InPlaceOf(4));
    }

    /// A hello with a GID that anyone can list makes a handshake `Challenged`.
    #[test]
    fn a_flood_of_unproven_hellos_takes_no_place_of_a_client_that_has_just_connected() {
        const LIMIT: u64 = 50;
        let mut handshakes = handshakes(1000, LIMIT as usize);
        let flood = |handshakes: &mut Handshakes, token| {
            let room = connect(handshakes, token, host(1));
            handshakes.enter(token, Stage::Challenged, Duration::ZERO);
            room
        };
        for token in 1..=LIMIT {
            assert_eq!(flood(&mut handshakes, token), Room::Free);
        }
        let honest = LIMIT + 1;
        assert_eq!(
            connect(&mut handshakes, honest, host(1)),
            Room::InPlaceOf(1)
        );
        for token in 2..=LIMIT {
            let room = flood(&mut handshakes, LIMIT + token);
            assert_eq!(room, Room::InPlaceOf(token));
        }
        // The challenge makes it no younger.
        handshakes.enter(honest, Stage::Challenged, Duration::ZERO);
        assert_eq!(handshakes.room_for(host(1)), Room::InPlaceOf(honest));
        handshakes.enter(honest, Stage::Admitted, Duration::ZERO);
        assert_eq!(handshakes.room_for(host(1)), Room::InPlaceOf(LIMIT + 2));
    }

    #[test]
    fn at_the_common_limit_the_host_with_most_handshakes_loses_one() {
        let mut handshakes = handshakes(6, 100);
        connect(&mut handshakes, 1, host(1));
        for token in 2..7 {
            connect(&mut handshakes, token, host(2));
        }
        assert_eq!(connect(&mut handshakes, 7, host(3)), Room::InPlaceOf(2));
        assert_eq!(connect(&mut handshakes, 8, host(1)), Room::InPlaceOf(3));
        assert_eq!(connect(&mut handshakes, 9, host(2)), Room::InPlaceOf(4));
    }

    #[test]
    fn who_waits_for_this_side_ends_only_for_a_host_with_fewer_and_the_newest_first() {
        let mut handshakes = handshakes(3, 100);
        for token in 1..4 {
            connect(&mut handshakes, token, host(1));
            handshakes.enter(token, Stage::Admitted, Duration::ZERO);
        }
        assert!(!handshakes.awaits_a_client());
        assert_eq!(handshakes.expired(seconds(1_000_000)), None);
        assert_eq!(connect(&mut handshakes, 4, host(1)), Room::None);
        assert_eq!(connect(&mut handshakes, 5, host(2)), Room::InPlaceOf(3));
        handshakes.enter(5, Stage::Admitted, Duration::ZERO);
        assert_eq!(connect(&mut handshakes, 6, host(2)), Room::None);
        handshakes.enter(1, Stage::Rejected, Duration::ZERO);
        assert_eq!(connect(&mut handshakes, 7, host(2)), Room::InPlaceOf(1));
    }

    #[test]
    fn each_stage_that_waits_for_the_client_has_its_own_deadline() {
        let mut handshakes = handshakes(10, 10);
        handshakes.add(1, host(1), seconds(0));
        handshakes.add(2, host(1), seconds(1));
        assert_eq!(handshakes.expired(seconds(4)), None);
        // A stage that goes on does not begin again.
        handshakes.enter(1, Stage::Incoming, seconds(4));
        assert_eq!(handshakes.expired(seconds(5)), Some(1));
        handshakes.enter(1, Stage::Admitted, seconds(5));
        assert_eq!(handshakes.expired(seconds(6)), Some(2));
        handshakes.remove(2);
        assert_eq!(handshakes.expired(seconds(600)), None);
        handshakes.enter(1, Stage::Welcomed, seconds(600));
        assert_eq!(handshakes.expired(seconds(604)), None);
        assert_eq!(handshakes.expired(seconds(605)), Some(1));
        handshakes.remove(1);
        assert!(handshakes.hosts.is_empty() && handshakes.ranks.is_empty());
        assert!(handshakes.deadlines.is_empty() && handshakes.entries.is_empty());
    }

    proptest! {
        /// Compared with a model that looks through a list: the limits hold, and the handshake that
        /// ends is one of the host that has most.
        #[test]
        fn the_limits_hold_and_the_right_one_ends(
            steps in prop::collection::vec((0..6_u8, 0..4_u8, 0..64_usize), 0..300),
        ) {
            let mut handshakes = handshakes(8, 5);
            // Token, host, stage, and the number of the step that reached the stage's rank.
            let mut model: Vec<(Token, u8, Stage, usize)> = Vec::new();
            for (number, (action, from, index)) in steps.into_iter().enumerate() {
                let token = number as Token + 1;
                let count = |model: &[(Token, u8, Stage, usize)], host| {
                    model.iter().filter(|entry| entry.1 == host).count()
                };
                if action >= 3 {
                    let room = connect(&mut handshakes, token, host(from));
                    if let Room::InPlaceOf(victim) = room {
                        let at = model.iter().position(|entry| entry.0 == victim).unwrap();
                        let (_, host, stage, began) = model[at];
                        let most = (0..4).map(|host| count(&model, host)).max().unwrap();
                        let own = count(&model, from);
                        let largest = if own >= 5 { own } else { most };
                        prop_assert_eq!(count(&model, host), largest);
                        prop_assert!(own < 5 || host == from);
                        prop_assert!(stage != Stage::Admitted || own + 1 < most);
                        for &(_, other, other_stage, other_began) in &model {
                            let (rank, other_rank) = (stage.rank(), other_stage.rank());
                            if other == host && other_rank == rank && rank != Rank::Admitted {
                                prop_assert!(began <= other_began);
                            }
                            prop_assert!(other != host || rank <= other_rank);
                        }
                        model.remove(at);
                    }
                    if room != Room::None {
                        model.push((token, from, Stage::Incoming, number));
                    }
                } else if !model.is_empty() {
                    let at = index % model.len();
                    let stage = match (action, from) {
                        (0, 1) => Stage::Challenged,
                        (0, _) => Stage::Admitted,
                        (1, _) => Stage::Welcomed,
                        _ => Stage::Rejected,
                    };
                    if from == 0 {
                        handshakes.remove(model.remove(at).0).unwrap();
                    } else if model[at].2 != stage {
                        handshakes.enter(model[at].0, stage, Duration::ZERO);
                        if model[at].2.rank() != stage.rank() {
                            model[at].3 = number;
                        }
                        model[at].2 = stage;
                    }
                }
                prop_assert_eq!(handshakes.entries.len(), model.len());
                prop_assert!(model.len() <= 8);
                prop_assert!((0..4).all(|host| count(&model, host) <= 5));
            }
        }
    }
}
