//! [`ServerBuilder`]: a server's settings.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::admission::AdmitPeer;
use super::shutdown::Shutdown;
use crate::catch_panic::catch_panic;
use crate::deadline::DeadlinePolicy;
use crate::driver::age::ConnectionAge;
use crate::intercept::Interceptor;
use crate::limits::{Intents, intent_setters};
use crate::peer::{Peer, TrustForwarded};
use crate::service::dispatch::Service;
use crate::service::executor::Executor;
use crate::status::Status;
use crate::transport::Fabric;

/// The configuration of a server.
#[must_use = "a builder does nothing until it is bound to an address"]
pub struct ServerBuilder<F> {
    pub(super) fabric: F,
    pub(super) services: Vec<Arc<dyn Service>>,
    pub(super) executor: Option<Arc<dyn Executor>>,
    pub(super) interceptors: Vec<Arc<dyn Interceptor>>,
    pub(super) intents: Intents,
    pub(super) max_concurrent_calls: Option<u32>,
    pub(super) deadlines: DeadlinePolicy,
    pub(super) max_connections: Option<usize>,
    pub(super) trust_forwarded: TrustForwarded,
    pub(super) admit: Option<Arc<AdmitPeer>>,
    pub(super) connection_age: Option<ConnectionAge>,
    pub(super) pollers: usize,
    pub(super) shutdown: Shutdown,
}

impl<F: Fabric> ServerBuilder<F> {
    intent_setters!();

    /// Adds a service: a generated `…Server`.
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
    pub fn executor(mut self, executor: impl Executor) -> Self {
        self.executor = Some(Arc::new(executor));
        self
    }

    /// Adds an interceptor of the calls of all services. It begins after those added before, and before
    /// those of a service. See [`intercept`](crate::intercept). Default: none.
    pub fn interceptor(mut self, interceptor: impl Interceptor) -> Self {
        self.interceptors.push(Arc::new(interceptor));
        self
    }

    /// Sets the number of calls that a connection may have in flight: see
    /// [`Intents::max_in_flight`].
    pub fn max_in_flight(mut self, calls: u32) -> Self {
        self.intents.max_in_flight = calls;
        self
    }

    /// Sets the number of connections that each poller supports: see [`Intents::connections`].
    pub fn connections(mut self, connections: u32) -> Self {
        self.intents.connections = connections;
        self
    }

    /// Limits the connections of the whole server. Further clients are rejected, with a reason that
    /// names this setting. Default: the number that its pollers were sized for, which this setting
    /// cannot raise.
    pub fn max_connections(mut self, connections: usize) -> Self {
        self.max_connections = Some(connections);
        self
    }

    /// Believes the peers for which `trusts` is true when they name the client that they make a call for:
    /// gateways and proxies. Handlers find it in [`Peer::forwarded`]. Others may name whom they like, and
    /// are ignored. Default: nobody is believed.
    ///
    /// Trust only what no client can be: the certificate of a gateway ([`Peer::certificate`]), a user id
    /// ([`Peer::user_id`]), or addresses at which only gateways are. Any process of a host can connect
    /// from its loopback address.
    ///
    /// The predicate is called once for each connection, on the listener's thread, and should not block.
    /// One that panics trusts nobody.
    pub fn trust_forwarded(
        mut self,
        trusts: impl Fn(&Peer) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.trust_forwarded = TrustForwarded::new(move |peer| {
            let decided = catch_panic(|| trusts(peer));
            decided.unwrap_or_else(|panic| {
                log_limited!(warn, "the predicate of `trust_forwarded` panicked: {panic}");
                false
            })
        });
        self
    }

    /// Admits only the clients for which `admits` returns `Ok`, such as those whose
    /// [certificate](Peer::certificate) has a certain name. A client that is not admitted is told the
    /// message of the status, and takes no place. Default: each client is admitted.
    ///
    /// The function knows where the client has connected from, and its certificate. The device and the
    /// user of its process are not known yet. It is called once for each connection, on the listener's
    /// thread, and must not block: all other clients wait for it. If it panics, the client is not admitted.
    ///
    /// What a client may call is for handlers to decide, by
    /// [`Request::peer`](crate::Request::peer).
    pub fn admit(
        mut self,
        admits: impl Fn(&Peer) -> Result<(), Status> + Send + Sync + 'static,
    ) -> Self {
        self.admit = Some(Arc::new(admits));
        self
    }

    /// Ends each connection when it is about this old: up to a tenth less or more, so that clients do not
    /// connect again all at once. Its client is told, and makes its next calls on another connection; the
    /// calls of this one may go on for `grace`, and are cut off then. A [`Channel`](crate::Channel)
    /// connects again by itself. Both times are looked at each second. Default: connections stay.
    ///
    /// Keep `grace` below nine tenths of `age` if there are streams that last. While calls go on over one old
    /// connection, a channel makes its next calls over a new one. If that one is old, too, and calls go on
    /// over both, the next calls fail, or wait for ready, until one of the two has ended.
    ///
    /// So clients come to servers that were added, and whoever was revoked loses access: it connects
    /// with a certificate of that time, or not at all. From the moment that a server has read a list of
    /// revoked certificates, this takes 1.1 × `age` + `grace` and two seconds; for a client in the middle
    /// of its handshake, up to twenty seconds more, and over RDMA the time in which the
    /// server makes a queue pair for it.
    pub fn max_connection_age(mut self, age: Duration, grace: Duration) -> Self {
        self.connection_age = Some(ConnectionAge { age, grace });
        self
    }

    /// Limits the calls whose handlers are pending at a time on each poller. A call beyond the
    /// limit fails with `RESOURCE_EXHAUSTED` before its message is decoded, and its client may try
    /// another server. It is rejected rather than queued: queueing nested calls could deadlock.
    /// Default: no limit other than [`max_in_flight`](Self::max_in_flight) per connection.
    pub fn max_concurrent_calls(mut self, calls: u32) -> Self {
        self.max_concurrent_calls = Some(calls);
        self
    }

    /// Sets a default, an upper limit and a lower limit for the time of each call: see
    /// [`DeadlinePolicy`]. Default: none of them.
    pub fn deadlines(mut self, policy: DeadlinePolicy) -> Self {
        self.deadlines = policy;
        self
    }

    /// Sets the time limits of the server's shutdown, however it is stopped: see [`Shutdown`].
    pub fn shutdown(mut self, shutdown: Shutdown) -> Self {
        self.shutdown = shutdown;
        self
    }

    /// Sets the number of pollers, each on a thread of its own. It should not exceed the number of
    /// available cores. Default and minimum: 1.
    pub fn pollers(mut self, pollers: usize) -> Self {
        self.pollers = pollers.max(1);
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
