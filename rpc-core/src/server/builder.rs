//! [`ServerBuilder`] takes a server's settings.

use std::fmt;
use std::sync::Arc;

use crate::limits::{Intents, Keepalive, Waiting};
use crate::service::dispatch::Service;
use crate::transport::Fabric;

/// What a server is made of.
pub struct ServerBuilder<F> {
    pub(super) fabric: F,
    pub(super) services: Vec<Arc<dyn Service>>,
    pub(super) intents: Intents,
    pub(super) max_concurrent_calls: Option<u32>,
    pub(super) max_connections: Option<usize>,
    pub(super) pollers: usize,
    pub(super) cores: Option<Vec<usize>>,
}

impl<F: Fabric> ServerBuilder<F> {
    /// Adds a service: a generated `…Server`.
    #[must_use]
    pub fn add_service(mut self, service: impl Service) -> Self {
        self.services.push(Arc::new(service));
        self
    }

    /// The longest encoded message, in bytes: see [`Intents::max_message_len`].
    #[must_use]
    pub fn max_message_len(mut self, bytes: usize) -> Self {
        self.intents.max_message_len = bytes;
        self
    }

    /// Calls that a connection may have under way: see [`Intents::max_in_flight`].
    #[must_use]
    pub fn max_in_flight(mut self, calls: u32) -> Self {
        self.intents.max_in_flight = calls;
        self
    }

    /// Connections that each poller should hold: see [`Intents::connections`].
    #[must_use]
    pub fn connections(mut self, connections: u32) -> Self {
        self.intents.connections = connections;
        self
    }

    /// Connections that the whole server holds at most. The next client is refused, by a sentence that
    /// names this setting. Default: as many as its pollers were sized for; this does not raise that.
    #[must_use]
    pub fn max_connections(mut self, connections: usize) -> Self {
        self.max_connections = Some(connections);
        self
    }

    /// Bytes that each poller may register: see [`Intents::max_memory`].
    #[must_use]
    pub fn max_memory(mut self, bytes: u64) -> Self {
        self.intents.max_memory = Some(bytes);
        self
    }

    /// Calls whose handlers are at work at a time on each poller, awaiting something. The next is
    /// answered `RESOURCE_EXHAUSTED` before its message is decoded, and its client may try elsewhere; it
    /// is not made to wait, since calls that call back would wait for each other. Default: no limit but
    /// that of [`max_in_flight`](Self::max_in_flight) for each connection.
    #[must_use]
    pub fn max_concurrent_calls(mut self, calls: u32) -> Self {
        self.max_concurrent_calls = Some(calls);
        self
    }

    /// What the pollers do while there is nothing to do: see [`Waiting`].
    #[must_use]
    pub fn waiting(mut self, waiting: Waiting) -> Self {
        self.intents.waiting = waiting;
        self
    }

    /// Asks silent clients whether they still run, and gives up those that do not answer: see
    /// [`Intents::keepalive`].
    #[must_use]
    pub fn keepalive(mut self, keepalive: Keepalive) -> Self {
        self.intents.keepalive = Some(keepalive);
        self
    }

    /// How many pollers serve, each on a thread of its own: no more than there are cores
    /// for. Default: 1, and the least.
    #[must_use]
    pub fn pollers(mut self, pollers: usize) -> Self {
        self.pollers = pollers.max(1);
        self
    }

    /// The cores that the pollers are pinned to, one each, over and over. Without this, pollers are
    /// pinned to the highest of the cores that the process may use, if it may use more cores than
    /// there are pollers. An empty list pins none.
    #[must_use]
    pub fn cores(mut self, cores: impl IntoIterator<Item = usize>) -> Self {
        self.cores = Some(cores.into_iter().collect());
        self
    }
}

impl<F> fmt::Debug for ServerBuilder<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let services: Vec<_> = self.services.iter().map(|service| service.name()).collect();
        f.debug_struct("ServerBuilder")
            .field("services", &services)
            .field("intents", &self.intents)
            .finish()
    }
}
