//! [`PollerTally`]: what one poller counts, as its own thread writes it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::counter::Counter;
use super::groups::{ConnectionsTally, CreditsTally, HandlersTally, StallsTally, TurnsTally};
use super::histogram::Histogram;
use super::snapshot::{MethodStats, PollerStats};
use super::{Published, SAMPLED};
use crate::clock::Clock;
use crate::method::MethodSpec;
use crate::protocol::connection::ProtocolError;
use crate::status::Code;
use crate::transport::{CloseReason, Meter};

/// What calls are counted under whose method has no name here.
const UNKNOWN_METHOD: &str = "(unknown method)";

/// All that a poller counts. Aligned so that no two pollers write to one cache line, nor to two that a
/// processor fetches together.
#[repr(align(128))]
pub(crate) struct PollerTally {
    pub(crate) turns: TurnsTally,
    pub(crate) stalls: StallsTally,
    pub(crate) credits: CreditsTally,
    pub(crate) handlers: HandlersTally,
    pub(crate) connections: ConnectionsTally,
    /// By the methods' numbers; the last is for numbers that no method has.
    served: Box<[MethodTally]>,
    /// In the order in which they were first called. Locked for the first call of a method on a channel
    /// and for a snapshot, never for a call.
    called: Mutex<Vec<Arc<MethodTally>>>,
    clock: Clock,
    device: String,
    meter: Arc<dyn Meter>,
    /// What the poller says of itself now and then.
    pub(crate) published: Published,
}

/// What is counted of one method, on one side.
pub(crate) struct MethodTally {
    path: &'static str,
    begun: Counter,
    started: Counter,
    by_code: [Counter; Code::ALL.len()],
    dropped: Counter,
    latency: Histogram,
}

/// A call that is being served, as it is counted: its method's number, and when it came if it is one
/// of those that are timed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Served {
    pub(crate) method: u16,
    pub(crate) arrived: Option<Instant>,
    /// Its response has waited for a send slot.
    pub(crate) has_waited: bool,
}

#[cfg(test)]
impl Served {
    pub(crate) fn test() -> Self {
        Self {
            method: 0,
            arrived: None,
            has_waited: false,
        }
    }
}

impl PollerTally {
    pub(crate) fn new(
        served: impl Iterator<Item = &'static str>,
        clock: Clock,
        device: String,
        meter: Arc<dyn Meter>,
    ) -> Self {
        Self {
            turns: TurnsTally::default(),
            stalls: StallsTally::default(),
            credits: CreditsTally::default(),
            handlers: HandlersTally::default(),
            connections: ConnectionsTally::default(),
            served: served
                .chain([UNKNOWN_METHOD])
                .map(MethodTally::new)
                .collect(),
            called: Mutex::default(),
            clock,
            device,
            meter,
            published: Published::default(),
        }
    }

    // ---- the server's side ----

    /// A request has arrived; `arrival` is asked for the time if it is to be timed.
    #[inline]
    pub(crate) fn received(&self, method: u16, arrival: impl FnOnce() -> Instant) -> Served {
        let is_timed = self.method(method).begin();
        Served {
            method,
            arrived: is_timed.then(arrival),
            has_waited: false,
        }
    }

    /// Its handler has been started.
    #[inline]
    pub(crate) fn started(&self, method: u16) {
        self.method(method).start();
    }

    /// It has been answered with the code of this number.
    #[inline]
    pub(crate) fn answered(&self, served: Served, code: u16) {
        let tally = self.method(served.method);
        tally.end(code);
        if let Some(arrived) = served.arrived {
            self.time(tally, arrived);
        }
    }

    /// It will never be answered: its connection has ended, or the server.
    pub(crate) fn dropped(&self, method: u16) {
        self.method(method).drop_one();
    }

    #[inline]
    fn method(&self, number: u16) -> &MethodTally {
        let last = self.served.len() - 1;
        &self.served[usize::from(number).min(last)]
    }

    // ---- the client's side ----

    /// Where calls of a method are counted, whichever server they go to.
    pub(crate) fn called(&self, method: &'static MethodSpec) -> Arc<MethodTally> {
        let mut called = self.called.lock().unwrap_or_else(PoisonError::into_inner);
        let known = called.iter().find(|tally| tally.path == method.path);
        if let Some(tally) = known {
            return Arc::clone(tally);
        }
        let tally = Arc::new(MethodTally::new(method.path));
        called.push(Arc::clone(&tally));
        tally
    }

    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Notes the time that a call took which began then, and ends now.
    #[cold]
    pub(crate) fn time(&self, tally: &MethodTally, began: Instant) {
        let took = self.clock.now().saturating_duration_since(began);
        tally.latency.record(took);
    }

    /// A connection has ended.
    pub(crate) fn closed(&self, reason: &CloseReason) {
        let connections = &self.connections;
        let counter = match reason {
            CloseReason::Local => &connections.closed_locally,
            CloseReason::PeerGone | CloseReason::GoingAway => &connections.closed_by_peer,
            CloseReason::Failed(error) if error.is::<ProtocolError>() => &connections.violated,
            CloseReason::Failed(_) => &connections.failed,
        };
        counter.add(1);
    }

    // ---- any thread ----

    pub(crate) fn read(&self) -> PollerStats {
        let with_calls = |method: &MethodStats| method.begun > 0;
        let served = self.served.iter().map(MethodTally::read);
        let called = self.called.lock().unwrap_or_else(PoisonError::into_inner);
        let called = called.iter().map(|tally| tally.read());
        PollerStats {
            device: self.device.clone(),
            served: served.filter(with_calls).collect(),
            called: called.filter(with_calls).collect(),
            turns: self.turns.read(),
            stalls: self.stalls.read(),
            credits: self.credits.read(),
            handlers: self.handlers.read(),
            connections: self.connections.read(),
            transport: self.meter.counters(),
            slots: self.published.slots(),
        }
    }
}

impl MethodTally {
    fn new(path: &'static str) -> Self {
        Self {
            path,
            begun: Counter::default(),
            started: Counter::default(),
            by_code: Default::default(),
            dropped: Counter::default(),
            latency: Histogram::default(),
        }
    }

    /// A call begins. Whether it is one of those that are timed.
    #[inline]
    pub(crate) fn begin(&self) -> bool {
        self.begun.add(1).is_multiple_of(SAMPLED)
    }

    /// The server's side: its handler has been started. The client's: it has been sent.
    #[inline]
    pub(crate) fn start(&self) {
        self.started.add(1);
    }

    /// A call has ended with the code of this number.
    #[inline]
    pub(crate) fn end(&self, code: u16) {
        let counter = self.by_code.get(usize::from(code));
        counter
            .unwrap_or(&self.by_code[Code::Unknown as usize])
            .add(1);
    }

    /// A call has ended that nobody is told of.
    #[inline]
    pub(crate) fn drop_one(&self) {
        self.dropped.add(1);
    }

    fn read(&self) -> MethodStats {
        // What has ended is read first, so that nothing is found to have ended and not to have begun.
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
