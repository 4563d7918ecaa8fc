//! Health (feature `health`): tells balancers and probes whether a server, and each of its services,
//! takes calls.
//!
//! It is gRPC's protocol, the service `grpc.health.v1.Health`. One line adds it to a server:
//!
//! ```
//! use verbline::health::{Health, ServingStatus};
//! use verbline::{Device, Server};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let health = Health::new();
//! let server = Server::builder(&Device::open("soft")?)
//!     .add_service(health.service())
//!     .bind("127.0.0.1:0")?
//!     .spawn();
//! // From any thread, at any time: the cart is known from here on, and takes no calls yet.
//! health.set("shop.Cart", ServingStatus::NotServing);
//! server.shutdown()?; // says NOT_SERVING for the server and for the cart, before all else
//! # Ok(())
//! # }
//! ```
//!
//! The empty name is the server as a whole. It is `Serving` from the beginning; other names are known
//! when they have been set. `docs/health.md` has probes, and what a shutdown does.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use rpc_core::{Methods, Request, Response, Service, Status, Stream};

use self::v1::{HealthCheckRequest, HealthCheckResponse};

#[doc(inline)]
pub use self::v1::health_check_response::ServingStatus;

/// The package `grpc.health.v1`, generated: `HealthClient` asks a server, and the messages are what it
/// sends and receives.
pub mod v1 {
    include!("generated/grpc.health.v1.rs");
}

/// The status of a server and of its services. A clone is the same value.
///
/// Several servers may have its [`service`](Self::service): they say what is set here, and the one
/// that stops says `NotServing`.
#[derive(Clone)]
pub struct Health(Arc<Names>);

/// What is known of each name, and who watches it.
#[derive(Default)]
struct Names(Mutex<State>);

#[derive(Default)]
struct State {
    /// Without names that have neither a status nor a watcher.
    names: HashMap<Arc<str>, Name>,
    /// The number of the latest watcher.
    latest: u64,
}

#[derive(Default)]
struct Name {
    /// `None` if it was not set: somebody watches a name that is not known.
    status: Option<ServingStatus>,
    /// The watchers that have seen the latest status, by their numbers.
    watchers: HashMap<u64, Waker>,
}

impl Health {
    /// Creates the health of a server that takes calls: the empty name is `Serving`.
    #[must_use]
    pub fn new() -> Self {
        let health = Self(Arc::default());
        health.set("", ServingStatus::Serving);
        health
    }

    /// Sets the status of a service, or with the empty name that of the server, and tells those who
    /// watch it. `ServiceUnknown` makes the name unknown again.
    ///
    /// The name is any that clients ask for; usually it is that of the `.proto`, `shop.Cart`. Names up
    /// to 4,000 bytes can be asked for. The calling thread does not wait.
    pub fn set(&self, service: impl AsRef<str>, status: ServingStatus) {
        let service = service.as_ref();
        let status = Some(status).filter(|status| *status != ServingStatus::ServiceUnknown);
        let mut state = self.0.lock();
        let watchers = match state.names.get_mut(service) {
            Some(name) if name.status == status => return,
            Some(name) => {
                name.status = status;
                mem::take(&mut name.watchers)
            }
            None => {
                let name = state.names.entry(service.into()).or_default();
                name.status = status;
                HashMap::new()
            }
        };
        if status.is_none() {
            // A watcher that still waits for it comes back.
            state.names.remove(service);
        }
        drop(state);
        wake(watchers);
    }

    /// Returns the service for a server: `.add_service(health.service())`.
    ///
    /// When this server is told to stop, the service says `NotServing` for all names that are known,
    /// whatever is set later. Its watchers see that before anything else, and their streams end with
    /// `UNAVAILABLE` when the server begins to finish its calls.
    #[must_use]
    pub fn service(&self) -> HealthService {
        let one_server = Arc::new(OneServer {
            names: Arc::clone(&self.0),
            stage: AtomicU8::new(SERVING),
        });
        HealthService {
            // The handlers wait for nothing but a `set`.
            server: v1::HealthServer::from_arc(Arc::clone(&one_server)).on_poller(),
            one_server,
        }
    }
}

impl Default for Health {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.lock();
        let names = state.names.iter();
        let known = names.filter_map(|(name, found)| Some((name, found.status?)));
        f.debug_map().entries(known).finish()
    }
}

impl Names {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Under this lock nothing panics, and no waker is cloned, woken or dropped.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes all watchers look again.
    fn wake_all(&self) {
        let mut state = self.lock();
        let names = state.names.values_mut();
        let watchers: Vec<_> = names.map(|name| mem::take(&mut name.watchers)).collect();
        state.names.retain(|_, name| name.status.is_some());
        drop(state);
        watchers.into_iter().for_each(wake);
    }
}

fn wake(watchers: HashMap<u64, Waker>) {
    watchers.into_values().for_each(Waker::wake);
}

/// The service of a [`Health`], for one server.
pub struct HealthService {
    server: v1::HealthServer<OneServer>,
    one_server: Arc<OneServer>,
}

impl Service for HealthService {
    fn name(&self) -> &'static str {
        self.server.name()
    }

    fn register(&self, methods: &mut Methods) {
        self.server.register(methods);
    }

    fn descriptor_set(&self) -> Option<&'static [u8]> {
        self.server.descriptor_set()
    }

    fn stopping(&self) {
        self.one_server.enter(STOPPING);
    }

    fn finishing(&self) {
        self.one_server.enter(FINISHING);
    }
}

impl fmt::Debug for HealthService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HealthService")
    }
}

/// The statuses as one server says them.
struct OneServer {
    names: Arc<Names>,
    /// One of the stages below. It only grows.
    stage: AtomicU8,
}

const SERVING: u8 = 0;
/// Nothing is serving any longer.
const STOPPING: u8 = 1;
/// Watches end.
const FINISHING: u8 = 2;

impl OneServer {
    fn enter(&self, stage: u8) {
        if self.stage.fetch_max(stage, Ordering::AcqRel) < stage {
            self.names.wake_all();
        }
    }

    fn watcher(&self, name: &str) -> Watch<'_> {
        let mut state = self.names.lock();
        state.latest += 1;
        Watch {
            one_server: self,
            name: name.into(),
            number: state.latest,
            sent: None,
        }
    }

    /// Returns the status of a name, and whether it is the last one of this server.
    fn look(&self, state: &State, name: &str) -> (Option<ServingStatus>, bool) {
        let stage = self.stage.load(Ordering::Acquire);
        let set = state.names.get(name).and_then(|name| name.status);
        let status = match set {
            Some(_) if stage >= STOPPING => Some(ServingStatus::NotServing),
            set => set,
        };
        (status, stage >= FINISHING)
    }
}

impl v1::Health for OneServer {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let HealthCheckRequest { service } = request.into_inner();
        match self.look(&self.names.lock(), &service).0 {
            Some(status) => Ok(Response::new(response(status))),
            None => Err(Status::not_found(
                "the health of this service is not known: the server has not set it",
            )),
        }
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<impl Stream<Item = Result<HealthCheckResponse, Status>>>, Status> {
        let HealthCheckRequest { service } = request.into_inner();
        Ok(Response::new(self.watcher(&service)))
    }
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse {
        status: status.into(),
    }
}

/// The stream of one watcher. It holds the status that was sent last, and none that wait: a watcher
/// that reads slowly gets the latest one when it reads.
struct Watch<'a> {
    one_server: &'a OneServer,
    name: Arc<str>,
    number: u64,
    sent: Option<ServingStatus>,
}

impl Stream for Watch<'_> {
    type Item = Result<HealthCheckResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let waker = cx.waker().clone();
        let mut state = this.one_server.names.lock();
        let (status, is_last) = this.one_server.look(&state, &this.name);
        let status = status.unwrap_or(ServingStatus::ServiceUnknown);
        if this.sent != Some(status) {
            this.sent = Some(status);
            drop(state);
            return Poll::Ready(Some(Ok(response(status))));
        }
        if is_last {
            drop(state);
            return Poll::Ready(Some(Err(Status::unavailable(
                "the server is shutting down",
            ))));
        }
        let name = state.names.entry(Arc::clone(&this.name)).or_default();
        let before = name.watchers.insert(this.number, waker);
        drop(state);
        drop(before);
        Poll::Pending
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        let mut state = self.one_server.names.lock();
        let Some(name) = state.names.get_mut(&self.name) else {
            return;
        };
        let waker = name.watchers.remove(&self.number);
        if name.status.is_none() && name.watchers.is_empty() {
            state.names.remove(&self.name);
        }
        drop(state);
        drop(waker);
    }
}
