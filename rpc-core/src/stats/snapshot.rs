//! [`Stats`]: a snapshot of the statistics, as plain data.

use std::time::SystemTime;

use super::blocked::BlockedMethods;
use super::groups::{
    Cancels, Connections, Credits, Handlers, Memory, Stalls, Streams, Transfers, Turns,
};
use super::histogram::Latencies;
use crate::status::Code;
use crate::transport::{Counters, SlotsByState};

/// The statistics of pollers at one moment. `Display` formats them as a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The statistics of each poller.
    pub pollers: Vec<PollerStats>,
    /// Statistics of a server's other threads. `None` for a channel or a local poller.
    pub server: Option<ServerStats>,
}

/// The statistics of one poller, or the sum of several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PollerStats {
    /// The device of the poller's transport. If it has several, the first one.
    pub device: String,
    /// One call in this many was timed: see
    /// [`Intents::latency_sampling`](crate::Intents::latency_sampling).
    pub latency_sampling: u32,
    /// Server-side statistics per method, for methods that have been called.
    pub served: Vec<MethodStats>,
    /// Client-side statistics per method, for methods that have been called.
    pub called: Vec<MethodStats>,
    /// How the poller spends its time.
    pub turns: Turns,
    /// Calls and responses that had to wait.
    pub stalls: Stalls,
    /// Receives and promises.
    pub credits: Credits,
    /// Handlers.
    pub handlers: Handlers,
    /// Connections.
    pub connections: Connections,
    /// Streams.
    pub streams: Streams,
    /// Calls that clients have taken back.
    pub cancels: Cancels,
    /// Long messages.
    pub transfers: Transfers,
    /// Memory of long messages.
    pub memory: Memory,
    /// The transport's counters.
    pub transport: Counters,
    /// The state of the transport's slots.
    pub slots: SlotsByState,
}

/// Statistics that a server keeps outside its pollers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerStats {
    /// Clients rejected because the server's connection limit was reached or their version is
    /// incompatible.
    pub refused: u64,
    /// When the certificate expires by which the server proves who it is; `None` without TLS.
    pub certificate_expires: Option<SystemTime>,
    /// Methods whose handlers have blocked a poller's thread for long.
    pub blocked: BlockedMethods,
}

/// The calls of one method, on one side.
///
/// Every call that began has either ended in one of these ways or is in flight: `begun` = Σ
/// [`ended`](Self::ended) + `dropped` + `in_flight`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MethodStats {
    /// `package.Service/Method`: the method's name between peers.
    pub path: &'static str,
    /// Server: requests that arrived. Client: calls made, whether or not they could be sent;
    /// through a shared channel, calls that got a permit.
    pub begun: u64,
    /// Server: handlers started. Client: requests sent.
    pub started: u64,
    /// Server: calls whose connection or server ended before the response. Client: calls whose
    /// futures were dropped before they completed.
    pub dropped: u64,
    /// Calls that have begun and not ended. A gauge: in a [difference](Stats::since) it has its
    /// current value.
    pub in_flight: u64,
    /// Latencies of the calls that were timed, one in
    /// [`latency_sampling`](PollerStats::latency_sampling). Server: from the arrival of the request to
    /// its response. Client: from the first poll of the call's future to its completion.
    pub latency: Latencies,
    pub(super) by_code: [u64; Code::ALL.len()],
}

impl Stats {
    /// Returns the sum over all pollers.
    #[must_use]
    pub fn total(&self) -> PollerStats {
        let mut pollers = self.pollers.iter();
        let first = pollers.next().cloned().unwrap_or_default();
        pollers.fold(first, |sum, poller| sum.plus(poller))
    }

    /// Returns the difference to an earlier snapshot of the same pollers. Gauges, such as the
    /// number of waiting calls, keep their current values.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let nothing = PollerStats::default();
        let before = earlier.pollers.iter().chain(std::iter::repeat(&nothing));
        Self {
            pollers: self
                .pollers
                .iter()
                .zip(before)
                .map(|(now, before)| now.since(before))
                .collect(),
            server: self.server.as_ref().map(|now| {
                earlier
                    .server
                    .as_ref()
                    .map_or_else(|| now.clone(), |before| now.since(before))
            }),
        }
    }
}

impl PollerStats {
    /// Returns the number of calls in flight, on both sides.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        let methods = self.served.iter().chain(&self.called);
        methods.map(|method| method.in_flight).sum()
    }

    fn since(&self, earlier: &Self) -> Self {
        Self {
            device: self.device.clone(),
            latency_sampling: self.latency_sampling,
            served: since_by_method(&self.served, &earlier.served),
            called: since_by_method(&self.called, &earlier.called),
            turns: self.turns.since(earlier.turns),
            stalls: self.stalls.since(earlier.stalls),
            credits: self.credits.since(earlier.credits),
            handlers: self.handlers.since(earlier.handlers),
            connections: self.connections.since(earlier.connections),
            streams: self.streams.since(earlier.streams),
            cancels: self.cancels.since(earlier.cancels),
            transfers: self.transfers.since(earlier.transfers),
            memory: self.memory.since(earlier.memory),
            transport: self.transport.since(&earlier.transport),
            slots: self.slots,
        }
    }

    fn plus(mut self, other: &Self) -> Self {
        add_by_method(&mut self.served, &other.served);
        add_by_method(&mut self.called, &other.called);
        Self {
            // A poller that has not opened its device has 0.
            latency_sampling: self.latency_sampling.max(other.latency_sampling),
            turns: self.turns.plus(other.turns),
            stalls: self.stalls.plus(other.stalls),
            credits: self.credits.plus(other.credits),
            handlers: self.handlers.plus(other.handlers),
            connections: self.connections.plus(other.connections),
            streams: self.streams.plus(other.streams),
            cancels: self.cancels.plus(other.cancels),
            transfers: self.transfers.plus(other.transfers),
            memory: self.memory.plus(other.memory),
            transport: self.transport.plus(&other.transport),
            slots: [self.slots, other.slots].into_iter().sum(),
            ..self
        }
    }
}

/// Subtracts per method. A method without new calls stays in the list, because it may still have
/// calls in flight.
fn since_by_method(now: &[MethodStats], before: &[MethodStats]) -> Vec<MethodStats> {
    let earlier = |path| before.iter().find(|method| method.path == path);
    now.iter()
        .map(|method| match earlier(method.path) {
            Some(before) => method.since(before),
            None => method.clone(),
        })
        .collect()
}

fn add_by_method(sums: &mut Vec<MethodStats>, methods: &[MethodStats]) {
    for method in methods {
        match sums.iter_mut().find(|sum| sum.path == method.path) {
            Some(sum) => sum.add(method),
            None => sums.push(method.clone()),
        }
    }
}

impl ServerStats {
    fn since(&self, earlier: &Self) -> Self {
        Self {
            refused: self.refused.saturating_sub(earlier.refused),
            certificate_expires: self.certificate_expires,
            blocked: self.blocked.since(&earlier.blocked),
        }
    }
}

impl MethodStats {
    /// Returns the number of calls that ended with this code.
    #[must_use]
    pub fn ended(&self, code: Code) -> u64 {
        self.by_code[code as usize]
    }

    /// Iterates over the codes with which calls ended, each with its count. Codes without calls are
    /// skipped.
    pub fn codes(&self) -> impl Iterator<Item = (Code, u64)> + '_ {
        let counts = Code::ALL.into_iter().zip(self.by_code);
        counts.filter(|&(_, count)| count > 0)
    }

    /// Returns the number of calls that ended with a code other than `OK`.
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.all_ended() - self.ended(Code::Ok)
    }

    /// Returns the number of calls that ended, with any code.
    fn all_ended(&self) -> u64 {
        self.by_code.iter().sum()
    }

    /// Computes `in_flight` from the other numbers of this snapshot.
    pub(super) fn with_in_flight(self) -> Self {
        // The ended calls were read before `begun`, so the difference cannot be negative if the
        // processor performs the loads in order.
        let in_flight = self.begun.saturating_sub(self.all_ended() + self.dropped);
        Self { in_flight, ..self }
    }

    fn since(&self, earlier: &Self) -> Self {
        let mut by_code = self.by_code;
        for (count, before) in by_code.iter_mut().zip(earlier.by_code) {
            *count = count.saturating_sub(before);
        }
        Self {
            path: self.path,
            begun: self.begun.saturating_sub(earlier.begun),
            started: self.started.saturating_sub(earlier.started),
            dropped: self.dropped.saturating_sub(earlier.dropped),
            in_flight: self.in_flight,
            latency: self.latency.since(&earlier.latency),
            by_code,
        }
    }

    fn add(&mut self, other: &Self) {
        self.begun += other.begun;
        self.started += other.started;
        self.dropped += other.dropped;
        self.in_flight += other.in_flight;
        self.latency.add(&other.latency);
        for (count, more) in self.by_code.iter_mut().zip(other.by_code) {
            *count += more;
        }
    }
}
