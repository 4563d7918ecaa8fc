//! [`Strangers`]: sockets that a listener has accepted and that are nobody's yet. How many each origin
//! has, which one ends to make room for a new one, and which one has been silent for too long; and the
//! listeners that accept nobody for a while.
//!
//! A stranger can connect and stay silent, or send a byte now and then. So the number of strangers is
//! limited, in all and for each origin: a host, or a process. When a limit is reached, a stranger of
//! the origin that has most of them ends: the one that has kept this side waiting for the longest time.
//! An honest one completes a stage within milliseconds, so it is seldom the oldest of its origin. A
//! stranger ends only for its own origin, or for one that has no more strangers than its origin.
//!
//! A stranger that waits for this side ends only for an origin that has fewer strangers.
//!
//! Times are those of a [`RunClock`]: if the process was stopped, or got no processor time, strangers do
//! not lose that time.

mod run_clock;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::Hash;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::epoll;

use self::run_clock::RunClock;
pub use self::run_clock::TICK;

/// Most sockets that a thread accepts in a row, before it does its other work.
pub const ACCEPTS_IN_A_ROW: usize = 64;

/// Time for which a listener is not watched after an accept that failed, most likely for want of
/// files: the connection that cannot be accepted would wake the thread again at once.
pub(crate) const PAUSE: Duration = Duration::from_millis(100);

/// The limits on strangers.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most strangers in all.
    pub total: usize,
    /// Most strangers of one origin.
    pub of_one: usize,
    /// Time limit of each stage that has one.
    pub time: Duration,
}

/// A stage on the way from a stranger to a peer. `()` is for those who have one only.
pub trait Stage: Copy + PartialEq {
    /// Returns what is known of a stranger in this stage.
    fn rank(self) -> Rank {
        Rank::Unproven
    }

    /// Returns true if a stranger that stays in this stage for too long ends.
    fn has_deadline(self) -> bool {
        true
    }
}

impl Stage for () {}

/// What is known of a stranger. The order is the one in which strangers of one origin end to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// It was turned away, and has not closed its socket yet.
    Rejected,
    /// What it has said so far cost it nothing.
    Unproven,
    /// It was welcomed, and has to answer.
    Welcomed,
    /// It waits for this side.
    Admitted,
}

/// What a new stranger finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// There is room.
    Free,
    /// There is room once this one has ended.
    InPlaceOf(u64),
    /// There is none: all strangers of the origin that has most wait for this side, and the new one's
    /// origin has about as many.
    None,
}

/// The position of a stranger among those of its origin: the first ends first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Position {
    rank: Rank,
    /// Ascending with the time at which the rank was reached, so the oldest is first. Descending in
    /// the rank [`Admitted`](Rank::Admitted), because the oldest is the next to be served.
    order: u64,
    token: u64,
}

#[derive(Debug)]
struct Entry<O, S> {
    origin: O,
    stage: S,
    position: Position,
    /// When the stage has lasted too long.
    deadline: Option<Duration>,
}

/// The accounts of strangers of the origins `O`, in the stages `S`, each under a token of the caller's.
#[derive(Debug)]
pub struct Strangers<O, S = ()> {
    limits: Limits,
    clock: RunClock,
    entries: HashMap<u64, Entry<O, S>>,
    origins: HashMap<O, BTreeSet<Position>>,
    /// The origins by their number of strangers, each with its first. Of the origins with the highest
    /// number, the one with the first position is last.
    ranks: BTreeSet<(usize, Reverse<Position>)>,
    deadlines: BTreeSet<(Duration, u64)>,
    /// The listeners that accept nobody, and until when: the first ends first.
    paused: VecDeque<(Duration, u64)>,
    /// Number of ranks that were ever reached.
    reached: u64,
}

impl<O: Copy + Eq + Hash, S: Stage> Strangers<O, S> {
    /// Creates the accounts, without any stranger.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            clock: RunClock::default(),
            entries: HashMap::new(),
            origins: HashMap::new(),
            ranks: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            paused: VecDeque::new(),
            reached: 0,
        }
    }

    /// Counts a round of the thread's loop. A round counts as one [`TICK`] at most.
    pub fn advance(&mut self, now: Instant) {
        self.clock.advance(now);
    }

    /// Returns the time for which the thread has run.
    #[must_use]
    pub fn running(&self) -> Duration {
        self.clock.running()
    }

    /// Returns true if something happens at a time, so that the thread has to take a round within each
    /// [`TICK`]: a stranger has a deadline, or a listener pauses.
    #[must_use]
    pub fn awaits_time(&self) -> bool {
        !self.deadlines.is_empty() || !self.paused.is_empty()
    }

    /// Returns what a new stranger of this origin finds.
    #[must_use]
    pub fn room_for(&self, origin: O) -> Room {
        let own = self.origins.get(&origin);
        let own_count = own.map_or(0, BTreeSet::len);
        let most = if own_count >= self.limits.of_one {
            own.and_then(|own| Some((own_count, *own.first()?)))
        } else if self.entries.len() >= self.limits.total {
            self.ranks
                .last()
                .map(|&(count, Reverse(first))| (count, first))
        } else {
            return Room::Free;
        };
        match most {
            Some((count, first)) if first.rank != Rank::Admitted || own_count + 1 < count => {
                Room::InPlaceOf(first.token)
            }
            _ => Room::None,
        }
    }

    /// Records the stage that a stranger is in, of this origin. It begins now unless the stranger was in
    /// it. Make room for a new stranger before.
    pub fn enter(&mut self, token: u64, origin: O, stage: S) {
        let rank = stage.rank();
        let position = match self.entries.get(&token) {
            Some(entry) if entry.stage == stage => return,
            // A stage of the same rank does not make the stranger younger.
            Some(entry) if entry.position.rank == rank => entry.position,
            _ => {
                self.reached += 1;
                let order = match rank {
                    Rank::Admitted => u64::MAX - self.reached,
                    _ => self.reached,
                };
                Position { rank, order, token }
            }
        };
        self.remove(token);
        let deadline = self.clock.running() + self.limits.time;
        let deadline = stage.has_deadline().then_some(deadline);
        self.deadlines
            .extend(deadline.map(|deadline| (deadline, token)));
        self.change_origin(origin, |positions| {
            positions.insert(position);
        });
        let entry = Entry {
            origin,
            stage,
            position,
            deadline,
        };
        self.entries.insert(token, entry);
    }

    /// Removes a stranger that has ended or has become a peer. One that is not there is skipped.
    pub fn remove(&mut self, token: u64) {
        let Some(entry) = self.entries.remove(&token) else {
            return;
        };
        if let Some(deadline) = entry.deadline {
            self.deadlines.remove(&(deadline, token));
        }
        self.change_origin(entry.origin, |positions| {
            positions.remove(&entry.position);
        });
    }

    /// Returns the stranger whose stage has lasted too long for the longest time.
    #[must_use]
    pub fn expired(&self) -> Option<u64> {
        let (deadline, token) = self.deadlines.first()?;
        (*deadline <= self.clock.running()).then_some(*token)
    }

    /// Changes the positions of an origin, and its rank with them.
    fn change_origin(&mut self, origin: O, change: impl FnOnce(&mut BTreeSet<Position>)) {
        let positions = self.origins.entry(origin).or_default();
        if let Some(&first) = positions.first() {
            self.ranks.remove(&(positions.len(), Reverse(first)));
        }
        change(positions);
        match positions.first() {
            Some(&first) => drop(self.ranks.insert((positions.len(), Reverse(first)))),
            None => drop(self.origins.remove(&origin)),
        }
    }

    /// Makes an epoll set not watch a listener for a while, because an accept has failed. The listener is
    /// in it under this token.
    pub fn pause(&mut self, set: impl AsFd, listener: impl AsFd, token: u64) {
        // A socket that has been shut down wakes the thread even so: it is listed once.
        if self.paused.iter().any(|&(_, paused)| paused == token) {
            return;
        }
        let data = epoll::EventData::new_u64(token);
        // If this fails, the listener wakes the thread again at once, and pauses then.
        if epoll::modify(set, listener, data, epoll::EventFlags::empty()).is_ok() {
            let until = self.clock.running() + PAUSE;
            self.paused.push_back((until, token));
        }
    }

    /// Returns true while a listener pauses.
    #[cfg(test)]
    pub(crate) fn has_paused(&self) -> bool {
        !self.paused.is_empty()
    }

    /// Returns a listener whose pause is over, once: it has to be [`resume`]d.
    #[must_use]
    pub fn rested(&mut self) -> Option<u64> {
        let (until, token) = *self.paused.front()?;
        if self.clock.running() < until {
            return None;
        }
        self.paused.pop_front();
        Some(token)
    }
}

/// Makes an epoll set watch a listener again, which is in it under this token.
pub fn resume(set: impl AsFd, listener: impl AsFd, token: u64) {
    let data = epoll::EventData::new_u64(token);
    // This fails only if the listener is not in the set.
    let _ = epoll::modify(set, listener, data, epoll::EventFlags::IN);
}

/// Returns what an accept that does not wait has accepted, or `None` if that is nothing now.
///
/// # Errors
///
/// Returns errors after which accepting has to pause.
pub fn accepted<T>(accepted: io::Result<T>) -> io::Result<Option<T>> {
    use io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
    match accepted {
        Ok(socket) => Ok(Some(socket)),
        Err(error) => match error.kind() {
            // The second: a connection that its dialer has closed. The listener stays readable while
            // others wait.
            WouldBlock | ConnectionAborted | Interrupted => Ok(None),
            _ => Err(error),
        },
    }
}
