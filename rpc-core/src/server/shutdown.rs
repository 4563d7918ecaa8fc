//! How a server ends: [`Shutdown`], and what its pollers do about it.
//!
//! ```text
//!  told to ──▶ Finishing ──▶ Refusing ──▶ Closing ──▶ over
//!              clients are   handlers are  connections
//!              told; calls   dropped;      end
//!              are served    answers leave
//! ```
//!
//! Clients are told by a flag that every frame has from then on. One that has nothing under way is
//! sent a credit frame for it. A client that knows begins no more calls, and gives back the credits
//! that it holds: so the server knows when nothing is to come any more, and need not wait for its
//! deadlines. One that does not run, or cannot be told, is waited for as long as handlers may take,
//! unless it has been silent for a while.

use std::time::{Duration, Instant};

use crate::driver::Driver;
use crate::transport::Transport;

/// How much time a server that shuts down gives to what is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shutdown {
    /// How long handlers at work may go on, and requests that were on their way are still served. Then
    /// handlers are dropped, and their calls answered `UNAVAILABLE`. Default: 1 second.
    pub finish: Duration,
    /// How long, after that, answers may take to leave before the connections are closed. Default: 1
    /// second.
    pub close: Duration,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self {
            finish: Duration::from_secs(1),
            close: Duration::from_secs(1),
        }
    }
}

/// How long nothing has to come before it is taken that nothing is on its way: far longer than a
/// request travels, short enough for whoever waits for the server to end.
const SILENCE: Duration = Duration::from_millis(50);

/// How long connections may take to end when nothing is sent over them any more: what a transport
/// gives each, and a little.
const CLOSING_TIME: Duration = Duration::from_secs(2);

/// A poller that shuts down.
#[derive(Debug)]
pub(crate) struct ShuttingDown {
    phase: Phase,
    /// When the phase ends, whatever was reached.
    deadline: Option<Instant>,
    close: Duration,
    /// When something last came.
    latest: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Finishing,
    Refusing,
    Closing,
    Over,
}

impl ShuttingDown {
    /// Tells every client.
    pub(crate) fn begin<T: Transport>(driver: &Driver<T>, shutdown: Shutdown) -> Self {
        driver.go_away();
        let now = driver.clock.now();
        Self {
            phase: Phase::Finishing,
            deadline: now.checked_add(shutdown.finish),
            close: shutdown.close,
            latest: now,
        }
    }

    /// To be called after each turn, with whether it found anything. Whether all is over.
    pub(crate) fn after_turn<T: Transport>(&mut self, driver: &Driver<T>, found_any: bool) -> bool {
        let now = driver.clock.now();
        if found_any {
            self.latest = now;
        }
        while self.phase != Phase::Over && self.is_done(driver, now) {
            self.enter_next(driver, now);
        }
        self.phase == Phase::Over
    }

    fn is_done<T: Transport>(&self, driver: &Driver<T>, now: Instant) -> bool {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            return true;
        }
        let is_silent = now.duration_since(self.latest) >= SILENCE;
        match self.phase {
            Phase::Finishing | Phase::Refusing => {
                !driver.is_serving() && (is_silent || driver.are_clients_finished())
            }
            Phase::Closing => driver.is_closed(),
            Phase::Over => true,
        }
    }

    fn enter_next<T: Transport>(&mut self, driver: &Driver<T>, now: Instant) {
        let (next, time) = match self.phase {
            Phase::Finishing => {
                driver.refuse_calls();
                (Phase::Refusing, self.close)
            }
            Phase::Refusing => {
                driver.close_all();
                (Phase::Closing, CLOSING_TIME)
            }
            Phase::Closing | Phase::Over => {
                driver.discard_all_tasks();
                (Phase::Over, Duration::ZERO)
            }
        };
        self.phase = next;
        self.deadline = now.checked_add(time);
    }
}
