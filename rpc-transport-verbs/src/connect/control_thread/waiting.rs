//! The clients that wait for a connection of their server, and the questions that are asked for them.

use std::collections::HashSet;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rpc_core::transport::{Host, RoomMade};

use super::Token;

/// The pause between two rounds of questions to the pollers. A peer that is waited for in
/// [`STALLED_AFTER`](crate::transport::stall_watch::STALLED_AFTER) rounds stalls: in a second.
const ASK_PAUSE: Duration = Duration::from_millis(20);

/// How long the others wait for the answer of one poller, which may be in a long handler.
const ANSWER_PATIENCE: Duration = Duration::from_millis(100);

/// A client that waits for a connection.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) listener: Token,
    pub(super) client: Token,
    pub(super) host: Host,
    /// True if all pollers asked in this round were asked for it, too.
    pub(super) is_asked_for: bool,
}

/// How many connections of a listener that were ended for other clients, handshakes included, have not been
/// given to a client yet.
///
/// A poller adds those that it ends before it gives their places back. So whoever finds a place finds it
/// counted here: the answer of the poller may come later. Those of handshakes are added by the control
/// thread, the only one that looks for places.
#[derive(Clone, Debug, Default)]
pub(super) struct Returning(Arc<AtomicUsize>);

impl Returning {
    pub(super) fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }

    pub(super) fn add(&self, ended: usize) {
        self.0.fetch_add(ended, Ordering::Release);
    }

    /// One less is on its way, if any is.
    pub(super) fn take_one(&self) {
        let one_less = |count: usize| count.checked_sub(1);
        let _ = (self.0).fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less);
    }
}

/// The questions to the pollers of a listener: one at a time, in rounds. A poller that does not answer is
/// not asked again until it does, and counts as one that may have a connection soon.
#[derive(Debug, Default)]
pub(super) struct AskedForRoom {
    /// The poller that is asked next, or was asked at `asked_at` and has not answered.
    port: usize,
    asked_at: Option<Instant>,
    /// The pollers that were asked in an earlier round and have not answered.
    silent: HashSet<usize>,
    again_at: Option<Instant>,
    /// Pollers that have had their turn in this round, and whether one has a connection, or may soon.
    turns: usize,
    has_any: bool,
    /// Rounds without a break in which nobody waited or all were refused.
    pub(super) rounds: u32,
}

/// What follows the turn of a poller.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AfterTurn {
    /// The next poller is asked.
    Next,
    /// All have been asked. The next round begins after a pause.
    Pause,
    /// All have been asked, and none has a connection.
    Refuse,
}

impl AskedForRoom {
    /// Returns true if a poller may be asked: no answer and no pause is waited for. Otherwise, its answer
    /// may be overdue, and the outcome says what follows.
    pub(super) fn is_due(&mut self, now: Instant, pollers: usize) -> Result<(), Option<AfterTurn>> {
        if let Some(asked_at) = self.asked_at {
            if now < asked_at + ANSWER_PATIENCE {
                return Err(None);
            }
            self.silent.insert(self.port);
            return Err(Some(self.end_turn(true, now, pollers)));
        }
        match self.again_at.is_some_and(|at| now < at) {
            true => Err(None),
            false => Ok(()),
        }
    }

    /// Returns true if a round begins.
    pub(super) fn begins(&self) -> bool {
        self.turns == 0
    }

    /// Nobody waits any more. Looks at connections are counted, so none may follow another at once.
    pub(super) fn stop(&mut self, now: Instant) {
        self.again_at = (!self.begins()).then(|| now + ASK_PAUSE);
        (self.turns, self.rounds, self.has_any) = (0, 0, false);
    }

    /// Returns the poller that is to be asked. One that is silent is passed over, with what follows.
    pub(super) fn ask(&mut self, now: Instant, pollers: usize) -> Result<usize, AfterTurn> {
        if self.silent.contains(&self.port) {
            return Err(self.end_turn(true, now, pollers));
        }
        self.asked_at = Some(now);
        Ok(self.port)
    }

    /// Takes the answer of a poller. Returns `None` if it is late: the others have gone on.
    pub(super) fn answered(
        &mut self,
        port: usize,
        made: RoomMade,
        now: Instant,
        pollers: usize,
    ) -> Option<AfterTurn> {
        if self.silent.remove(&port) || self.asked_at.is_none() {
            return None;
        }
        Some(self.end_turn(made.ended > 0 || made.may_follow, now, pollers))
    }

    fn end_turn(&mut self, has_any: bool, now: Instant, pollers: usize) -> AfterTurn {
        self.asked_at = None;
        self.port = (self.port + 1) % pollers;
        self.turns += 1;
        self.has_any |= has_any;
        if self.turns < pollers {
            return AfterTurn::Next;
        }
        self.turns = 0;
        self.again_at = Some(now + ASK_PAUSE);
        if mem::take(&mut self.has_any) {
            self.rounds += 1;
            return AfterTurn::Pause;
        }
        self.rounds = 0;
        AfterTurn::Refuse
    }
}
