//! [`ServerBuilder`]: a server's settings.

use std::fmt;
use std::sync::Arc;

use super::shutdown::Shutdown;
use crate::deadline::DeadlinePolicy;
use crate::limits::{Intents, Keepalive, Waiting};
use crate::service::dispatch::Service;
use crate::service::executor::Executor;
use crate::transport::Fabric;

/// The configuration of a server.
pub struct ServerBuilder<F> {
    pub(super) fabric: F,
    pub(super) services: Vec<Arc<dyn Service>>,
    pub(super) executor: Option<Arc<dyn Executor>>,
    pub(super) intents: Intents,
    pub(super) max_concurrent_calls: Option<u32>,
    pub(super) deadlines: DeadlinePolicy,
    pub(super) max_connections: Option<usize>,
    pub(super) pollers: usize,
    pub(super) cores: Option<Vec<usize>>,
    pub(super) shutdown: Shutdown,
}

impl<F: Fabric> ServerBuilder<F> {
    /// Adds a service: a generated `…Server`.
    #[must_use]
    pub fn add_service(mut self, service: impl Service) -> Self {
        self.services.push(Arc::new(service));
        self
    }

    /// Runs the handlers of all services on `executor`, for example tokio's, instead of on the pollers:
    /// see [`Executor`]. Default: none.
    ///
    /// A service may choose another place, with `.executor(…)` or `.on_poller()` of its generated
    /// `…Server`. A service with an instance per poller (`per_poller`) stays on the pollers, because
    /// its handlers need not be `Send`.
    #[must_use]
    pub fn executor(mut self, executor: impl Executor) -> Self {
        self.executor = Some(Arc::new(executor));
        self
    }

    /// Sets the length in bytes of the longest encoded message: see [`Intents::max_message_len`].
    #[must_use]
    pub fn max_message_len(mut self, bytes: usize) -> Self {
        self.intents.max_message_len = bytes;
        self
    }

    /// Sets the length in bytes of the longest encoded message to send: see
    /// [`Intents::max_send_message_len`].
    #[must_use]
    pub fn max_send_message_len(mut self, bytes: usize) -> Self {
        self.intents.max_send_message_len = bytes;
        self
    }

    /// Limits the bytes that the process registers for long messages: see
    /// [`Intents::message_memory`].
    #[must_use]
    pub fn message_memory(mut self, bytes: u64) -> Self {
        self.intents.message_memory = bytes;
        self
    }

    /// Sets whether long messages wait for memory, or are refused: see
    /// [`Intents::waits_for_memory`].
    #[must_use]
    pub fn waits_for_memory(mut self, waits: bool) -> Self {
        self.intents.waits_for_memory = waits;
        self
    }

    /// Sets the number of calls that a connection may have in flight: see
    /// [`Intents::max_in_flight`].
    #[must_use]
    pub fn max_in_flight(mut self, calls: u32) -> Self {
        self.intents.max_in_flight = calls;
        self
    }

    /// Sets how many streams one connection may have open: see
    /// [`Intents::max_streams`](crate::Intents::max_streams). Default: 256.
    #[must_use]
    pub fn max_streams(mut self, streams: u32) -> Self {
        self.intents.max_streams = streams;
        self
    }

    /// Sets the number of connections that each poller supports: see [`Intents::connections`].
    #[must_use]
    pub fn connections(mut self, connections: u32) -> Self {
        self.intents.connections = connections;
        self
    }

    /// Limits the connections of the whole server. Further clients are rejected, with a reason that
    /// names this setting. Default: the number that its pollers were sized for, which this setting
    /// cannot raise.
    #[must_use]
    pub fn max_connections(mut self, connections: usize) -> Self {
        self.max_connections = Some(connections);
        self
    }

    /// Limits the bytes that each poller may register: see [`Intents::max_memory`].
    #[must_use]
    pub fn max_memory(mut self, bytes: u64) -> Self {
        self.intents.max_memory = Some(bytes);
        self
    }

    /// Limits the calls whose handlers are pending at a time on each poller. A call beyond the
    /// limit fails with `RESOURCE_EXHAUSTED` before its message is decoded, and its client may try
    /// another server. It is rejected rather than queued: queueing nested calls could deadlock.
    /// Default: no limit other than [`max_in_flight`](Self::max_in_flight) per connection.
    #[must_use]
    pub fn max_concurrent_calls(mut self, calls: u32) -> Self {
        self.max_concurrent_calls = Some(calls);
        self
    }

    /// Sets a default, an upper limit and a lower limit for the time of each call: see
    /// [`DeadlinePolicy`]. Default: none of them.
    #[must_use]
    pub fn deadlines(mut self, policy: DeadlinePolicy) -> Self {
        self.deadlines = policy;
        self
    }

    /// Sets how idle pollers wait: see [`Waiting`].
    #[must_use]
    pub fn waiting(mut self, waiting: Waiting) -> Self {
        self.intents.waiting = waiting;
        self
    }

    /// Probes silent clients to check that they still run, and closes the connections of those that
    /// do not answer: see [`Intents::keepalive`].
    #[must_use]
    pub fn keepalive(mut self, keepalive: Keepalive) -> Self {
        self.intents.keepalive = Some(keepalive);
        self
    }

    /// Sets the time limits of the server's shutdown, however it is stopped: see [`Shutdown`].
    #[must_use]
    pub fn shutdown(mut self, shutdown: Shutdown) -> Self {
        self.shutdown = shutdown;
        self
    }

    /// Sets the number of pollers, each on a thread of its own. It should not exceed the number of
    /// available cores. Default and minimum: 1.
    #[must_use]
    pub fn pollers(mut self, pollers: usize) -> Self {
        self.pollers = pollers.max(1);
        self
    }

    /// Sets the cores to which the pollers are pinned, one each, cyclically. Without this setting,
    /// pollers are pinned to the highest cores that the process may use, if it may use more cores
    /// than there are pollers. An empty list disables pinning.
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
