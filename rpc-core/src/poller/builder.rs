//! [`LocalPollerBuilder`]: the settings of a poller on the application's thread.

use std::rc::Rc;
use std::time::Duration;

use super::{CONNECT_TIMEOUT, LocalPoller, check_connect_timeout, cores, idle};
use crate::clock::Clock;
use crate::driver::Driver;
use crate::limits::{Intents, intent_setters};
use crate::service::dispatch::Methods;
use crate::transport::{Fabric, FabricError};

/// The configuration of a [`LocalPoller`].
#[derive(Debug)]
#[must_use = "a builder does nothing until it builds the poller"]
pub struct LocalPollerBuilder<F> {
    fabric: F,
    intents: Intents,
    connect_timeout: Duration,
}

impl<F: Fabric> LocalPollerBuilder<F> {
    pub(super) fn new(fabric: &F) -> Self {
        Self {
            fabric: fabric.clone(),
            intents: Intents::default(),
            connect_timeout: CONNECT_TIMEOUT,
        }
    }

    intent_setters!();

    /// Sets the number of connections that the poller supports: see [`Intents::connections`].
    pub fn connections(mut self, connections: u32) -> Self {
        self.intents.connections = connections;
        self
    }

    /// Sets the number of calls that one connection may have in flight: see
    /// [`Intents::max_in_flight`]. Further calls wait.
    pub fn max_in_flight(mut self, calls: u32) -> Self {
        self.intents.max_in_flight = calls;
        self
    }

    /// Limits the time of an attempt to connect: the resolution of the host name, the connections to
    /// its addresses, and the handshake together. Default: 5 seconds. `Duration::MAX` means no limit,
    /// and no time is an error of [`build`](Self::build).
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Creates the poller, on this thread.
    ///
    /// # Errors
    ///
    /// Returns [`FabricError`] if the device cannot provide what the intents need, or if a setting is
    /// wrong; [`FabricError::Forked`] in the child of a fork.
    pub fn build(self) -> Result<LocalPoller, FabricError> {
        check_connect_timeout(self.connect_timeout)?;
        // Before any lock, which another thread may have held when this process was forked.
        if F::is_forked() {
            return Err(FabricError::Forked);
        }
        idle::count_cores(&self.fabric);
        let core = cores::choose_named(&self.fabric, &self.intents, 1).pop();
        let (transport, pinned) = cores::open_on(&self.fabric, core.flatten(), &self.intents)?;
        let driver = Driver::new(transport, Methods::new(), Clock::system());
        self.intents.warn_of_little_memory();
        let poller = LocalPoller::of_thread(Rc::new(driver), self.intents.waiting, pinned);
        Ok(LocalPoller {
            connect_timeout: self.connect_timeout,
            ..poller
        })
    }
}
