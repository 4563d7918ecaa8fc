//! Server shutdown: [`Shutdown`], and the steps that each poller takes.
//!
//! ```text
//!  stop ──▶ lame duck ──▶ Finishing ──────▶ Rejecting ─────▶ Closing ──▶ Complete
//!           all is        clients are       handlers are     connections
//!           served        notified; calls   dropped;         are closed
//!                         are served        responses leave
//! ```
//!
//! The lame-duck time is a part of serving (`StopSignal`): only the services know of it.
//!
//! Clients are notified by a flag in every further frame; a client without calls in flight is sent
//! a control frame that carries it. A notified client starts no more calls and returns its credits.
//! When the clients hold none of the server's credits, no more requests can arrive. The server then
//! waits only for running handlers, up to its time limits. A client cannot be notified if its
//! thread does not run, or if it has not acknowledged an earlier control frame. In that case the
//! server waits until nothing has arrived from any client for 50 ms.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::catch_panic::catch_panic;
use crate::driver::Driver;
use crate::service::dispatch::Service;
use crate::transport::Transport;

/// The times of a server's shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shutdown {
    /// How long the server goes on after it was told to stop, as if it had not been: it accepts clients
    /// and takes calls. Meanwhile its health service says NOT_SERVING, for those who look at it before
    /// they choose a server: balancers and probes. A server whose poller has panicked does not wait.
    /// Default: none.
    pub lame_duck: Duration,
    /// How long running handlers may continue, and how long requests that were in flight are still
    /// served. Afterwards handlers are dropped, and their calls fail with `UNAVAILABLE`. Default: 1
    /// second.
    pub finish: Duration,
    /// How long, after `finish`, responses may take to be sent before the connections are closed.
    /// Default: 1 second.
    pub close: Duration,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self {
            lame_duck: Duration::ZERO,
            finish: Duration::from_secs(1),
            close: Duration::from_secs(1),
        }
    }
}

/// Quiet period after which we assume that no request is in flight: far longer than a request
/// travels, short enough for a caller that waits for the server to end.
const QUIET_PERIOD: Duration = Duration::from_millis(50);

/// How long connections may take to close once nothing more is sent: the limit that a transport
/// applies to each connection, plus a margin.
const CLOSING_TIME: Duration = Duration::from_secs(2);

/// Tells each service of a step of the shutdown. A service that panics keeps no other one from being
/// told, and the calls of none from finishing.
pub(super) fn tell(services: &[Arc<dyn Service>], step: fn(&dyn Service)) {
    for service in services {
        if let Err(panic) = catch_panic(|| step(&**service)) {
            let name = service.name();
            tracing::error!(
                service = name,
                "the service panicked when it was told of the shutdown: {panic}"
            );
        }
    }
}

/// The shutdown state of a poller.
#[derive(Debug)]
pub(crate) struct ShuttingDown {
    phase: ShutdownPhase,
    /// Time at which the phase ends even if work remains.
    deadline: Option<Instant>,
    close: Duration,
    /// Time at which something last arrived.
    latest: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShutdownPhase {
    Finishing,
    Rejecting,
    Closing,
    Complete,
}

impl ShuttingDown {
    /// Begins the shutdown and notifies every client.
    pub(crate) fn begin<T: Transport>(driver: &Driver<T>, shutdown: Shutdown) -> Self {
        driver.connections.go_away();
        let now = driver.connections.clock.now();
        Self {
            phase: ShutdownPhase::Finishing,
            deadline: now.checked_add(shutdown.finish),
            close: shutdown.close,
            latest: now,
        }
    }

    /// Advances the shutdown. Must be called after each turn; `found_any` is true if the turn found
    /// anything to do. Returns true if the shutdown is complete.
    pub(crate) fn after_turn<T: Transport>(&mut self, driver: &Driver<T>, found_any: bool) -> bool {
        let now = driver.connections.clock.now();
        if found_any {
            self.latest = now;
        }
        while self.phase != ShutdownPhase::Complete && self.is_done(driver, now) {
            self.enter_next(driver, now);
        }
        self.phase == ShutdownPhase::Complete
    }

    fn is_done<T: Transport>(&self, driver: &Driver<T>, now: Instant) -> bool {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            return true;
        }
        let is_quiet = now.duration_since(self.latest) >= QUIET_PERIOD;
        match self.phase {
            ShutdownPhase::Finishing | ShutdownPhase::Rejecting => {
                !driver.is_serving() && (is_quiet || driver.connections.are_clients_finished())
            }
            ShutdownPhase::Closing => driver.connections.is_closed(),
            ShutdownPhase::Complete => true,
        }
    }

    fn enter_next<T: Transport>(&mut self, driver: &Driver<T>, now: Instant) {
        let (next, time) = match self.phase {
            ShutdownPhase::Finishing => {
                driver.serving.reject_calls(&driver.connections);
                (ShutdownPhase::Rejecting, self.close)
            }
            ShutdownPhase::Rejecting => {
                driver.connections.close_all();
                (ShutdownPhase::Closing, CLOSING_TIME)
            }
            ShutdownPhase::Closing | ShutdownPhase::Complete => {
                driver.serving.discard_all_tasks(&driver.connections);
                (ShutdownPhase::Complete, Duration::ZERO)
            }
        };
        self.phase = next;
        self.deadline = now.checked_add(time);
    }
}
