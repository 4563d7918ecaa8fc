//! [`PollerCounters`]: the counters of one poller, written by its own thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::SlotGauges;
use super::counter::Counter;
use super::groups::{
    CancelCounters, ConnectionCounters, CreditCounters, HandlerCounters, MemoryCounters,
    StallCounters, StreamCounters, TransferCounters, Transfers, TurnCounters,
};
use super::histogram::Histogram;
use super::sampling::Sampling;
use super::snapshot::{MethodStats, PollerStats};
use crate::clock::Clock;
use crate::limits::Limits;
use crate::method::MethodSpec;
use crate::protocol::connection::ProtocolError;
use crate::status::Code;
use crate::transport::{CloseReason, CounterReader};

/// The name under which calls to method numbers that don't exist are counted.
pub(super) const UNKNOWN_METHOD: &str = "(unknown method)";

/// All counters of a poller. The alignment keeps two pollers from writing to the same cache line or
/// to two adjacent lines that a processor prefetches together.
#[repr(align(128))]
pub(crate) struct PollerCounters {
    pub(crate) turns: TurnCounters,
    pub(crate) stalls: StallCounters,
    pub(crate) credits: CreditCounters,
    pub(crate) handlers: HandlerCounters,
    pub(crate) connections: ConnectionCounters,
    pub(crate) streams: StreamCounters,
    pub(crate) cancels: CancelCounters,
    pub(crate) transfers: TransferCounters,
    /// The part of `transfers.bytes_copied_in` that is added on any thread: by readers of streams, and by
    /// requests.
    pub(crate) copied_in_anywhere: Arc<AtomicU64>,
    pub(crate) memory: MemoryCounters,
    /// Indexed by method number. The last entry counts numbers without a method.
    served: Box<[MethodCounters]>,
    /// In the order of the first calls. Locked for the first call of a method on a channel and for
    /// a snapshot, but not for every call.
    called: Mutex<Vec<Arc<MethodCounters>>>,
    clock: Clock,
    device: String,
    /// One call in this many is timed.
    latency_sampling: u32,
    transport: Arc<dyn CounterReader>,
    /// The gauges that the poller updates periodically.
    pub(crate) slots: SlotGauges,
}

/// The counters of one method, on one side.
pub(crate) struct MethodCounters {
    path: &'static str,
    begun: Counter,
    started: Counter,
    by_code: [Counter; Code::ALL.len()],
    dropped: Counter,
    sampling: Sampling,
    latency: Histogram,
}

/// The accounting data of a call in service: its method number, and its arrival time if it is
/// timed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServedCall {
    pub(crate) method: u16,
    pub(crate) arrived: Option<Instant>,
    /// Whether the response has waited for a send slot.
    pub(crate) has_waited: bool,
}

#[cfg(test)]
impl ServedCall {
    pub(crate) fn test() -> Self {
        Self {
            method: 0,
            arrived: None,
            has_waited: false,
        }
    }
}

impl PollerCounters {
    pub(crate) fn new(
        served: impl Iterator<Item = &'static str>,
        clock: Clock,
        limits: &Limits,
        transport: Arc<dyn CounterReader>,
    ) -> Self {
        let latency_sampling = limits.latency_sampling;
        Self {
            turns: TurnCounters::default(),
            stalls: StallCounters::default(),
            credits: CreditCounters::default(),
            handlers: HandlerCounters::default(),
            connections: ConnectionCounters::default(),
            streams: StreamCounters::default(),
            cancels: CancelCounters::default(),
            transfers: TransferCounters::default(),
            copied_in_anywhere: Arc::default(),
            memory: MemoryCounters::default(),
            served: served
                .chain([UNKNOWN_METHOD])
                .map(|path| MethodCounters::new(path, latency_sampling))
                .collect(),
            called: Mutex::default(),
            clock,
            device: limits.device.clone(),
            latency_sampling,
            transport,
            slots: SlotGauges::default(),
        }
    }

    fn read_transfers(&self) -> Transfers {
        let mut transfers = self.transfers.read();
        transfers.bytes_copied_in += self.copied_in_anywhere.load(Ordering::Relaxed);
        transfers
    }

    // ---- server side ----

    /// Counts a request that arrived. Calls `arrival` for the time if the call is timed.
    #[inline]
    pub(crate) fn received(&self, method: u16, arrival: impl FnOnce() -> Instant) -> ServedCall {
        let is_timed = self.method(method).begin();
        ServedCall {
            method,
            arrived: is_timed.then(arrival),
            has_waited: false,
        }
    }

    /// Counts a started handler.
    #[inline]
    pub(crate) fn started(&self, method: u16) {
        self.method(method).start();
    }

    /// Counts a response with the code of this number.
    #[inline]
    pub(crate) fn responded(&self, served: ServedCall, code: u16) {
        let counters = self.method(served.method);
        counters.end(code);
        if let Some(arrived) = served.arrived {
            self.time(counters, arrived);
        }
    }

    /// Counts a call that will never be responded to, because its connection or the server has
    /// ended.
    pub(crate) fn dropped(&self, method: u16) {
        self.method(method).drop_one();
    }

    #[inline]
    fn method(&self, number: u16) -> &MethodCounters {
        let last = self.served.len() - 1;
        &self.served[usize::from(number).min(last)]
    }

    // ---- client side ----

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns the counters of a method's calls, which are shared by all servers.
    pub(crate) fn called(&self, method: &'static MethodSpec) -> Arc<MethodCounters> {
        let mut called = self.called.lock().unwrap_or_else(PoisonError::into_inner);
        let known = called.iter().find(|counters| counters.path == method.path);
        if let Some(counters) = known {
            return Arc::clone(counters);
        }
        let counters = Arc::new(MethodCounters::new(method.path, self.latency_sampling));
        called.push(Arc::clone(&counters));
        counters
    }

    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Records the latency of a call that began at `began` and ends now.
    #[cold]
    pub(crate) fn time(&self, counters: &MethodCounters, began: Instant) {
        counters.record(self.time_since(began));
    }

    #[cold]
    pub(super) fn time_since(&self, began: Instant) -> Duration {
        self.clock.now().saturating_duration_since(began)
    }

    /// Counts a connection that has ended.
    pub(crate) fn closed(&self, reason: &CloseReason) {
        let connections = &self.connections;
        let counter = match reason {
            CloseReason::Local => &connections.closed_locally,
            CloseReason::PeerGone | CloseReason::GoingAway | CloseReason::Evicted => {
                &connections.closed_by_peer
            }
            CloseReason::Failed(error) if error.is::<ProtocolError>() => &connections.violated,
            CloseReason::Failed(_) => &connections.failed,
        };
        counter.add(1);
    }

    // ---- any thread ----

    pub(crate) fn read(&self) -> PollerStats {
        let with_calls = |method: &MethodStats| method.begun > 0;
        let served = self.served.iter().map(MethodCounters::read);
        let called = self.called.lock().unwrap_or_else(PoisonError::into_inner);
        let called = called.iter().map(|counters| counters.read());
        PollerStats {
            device: self.device.clone(),
            latency_sampling: self.latency_sampling,
            served: served.filter(with_calls).collect(),
            called: called.filter(with_calls).collect(),
            turns: self.turns.read(),
            stalls: self.stalls.read(),
            credits: self.credits.read(),
            handlers: self.handlers.read(),
            connections: self.connections.read(),
            streams: self.streams.read(),
            cancels: self.cancels.read(),
            transfers: self.read_transfers(),
            memory: self.memory.read(),
            transport: self.transport.counters(),
            slots: self.slots.read(),
        }
    }
}

/// The accounting data of a client's stream.
#[derive(Clone, Default)]
pub(crate) struct CalledStream {
    /// `None` until the poller has counted the call.
    method: Option<Arc<MethodCounters>>,
    /// Start time, if this call is timed.
    began: Option<Instant>,
}

impl CalledStream {
    /// Counts a call that begins now.
    pub(crate) fn begin(method: Arc<MethodCounters>, now: impl FnOnce() -> Instant) -> Self {
        let began = method.begin().then(now);
        let method = Some(method);
        Self { method, began }
    }

    /// A call that begins on a thread which cannot count it, and has decided whether it is timed.
    pub(crate) fn uncounted(began: Option<Instant>) -> Self {
        let method = None;
        Self { method, began }
    }

    /// Counts a call that has begun on another thread.
    pub(crate) fn count(&mut self, method: &Arc<MethodCounters>) {
        debug_assert!(self.method.is_none(), "a call is counted once");
        method.begin();
        self.method = Some(Arc::clone(method));
    }

    fn method(&self) -> &MethodCounters {
        let method = self.method.as_deref();
        method.expect("a call is counted before it is sent or ends")
    }

    /// Counts a request that has been sent.
    pub(crate) fn start(&self) {
        self.method().start();
    }

    /// Counts the call as ended with the code of this number.
    pub(crate) fn end(&self, poller: &PollerCounters, code: u16) {
        self.method().end(code);
        if let Some(began) = self.began {
            poller.time(self.method(), began);
        }
    }

    /// Counts the call as dropped.
    pub(crate) fn drop_one(&self) {
        self.method().drop_one();
    }
}

impl MethodCounters {
    fn new(path: &'static str, latency_sampling: u32) -> Self {
        Self {
            path,
            begun: Counter::default(),
            started: Counter::default(),
            by_code: Default::default(),
            dropped: Counter::default(),
            sampling: Sampling::new(latency_sampling),
            latency: Histogram::default(),
        }
    }

    /// Counts a call that begins. Returns true if it is to be timed.
    #[inline]
    pub(crate) fn begin(&self) -> bool {
        self.sampling.is_timed(self.begun.add(1))
    }

    /// Counts a handler started (server) or a request sent (client).
    #[inline]
    pub(crate) fn start(&self) {
        self.started.add(1);
    }

    /// Counts a call that ended with the code of this number.
    #[inline]
    pub(crate) fn end(&self, code: u16) {
        let counter = self.by_code.get(usize::from(code));
        counter
            .unwrap_or(&self.by_code[Code::Unknown as usize])
            .add(1);
    }

    /// Counts a call that ended without a response (server) or without a completed future (client).
    #[inline]
    pub(crate) fn drop_one(&self) {
        self.dropped.add(1);
    }

    /// Records the latency of a call that is timed.
    pub(super) fn record(&self, took: Duration) {
        self.latency.record(took);
    }

    fn read(&self) -> MethodStats {
        // The ended calls are read before `begun`, so that no call appears as ended but not begun.
        let by_code = self.by_code.each_ref().map(Counter::get);
        MethodStats {
            path: self.path,
            by_code,
            dropped: self.dropped.get(),
            latency: self.latency.read(),
            started: self.started.get(),
            begun: self.begun.get(),
            in_flight: 0,
        }
        .with_in_flight()
    }
}
