//! [`Stats`]: what was counted, as plain data.

use super::blocked::BlockedMethods;
use super::groups::{Connections, Credits, Handlers, Stalls, Turns};
use super::histogram::Latencies;
use crate::status::Code;
use crate::transport::{Counters, SlotsByPlace};

/// What pollers have counted up to a moment. Its `Display` is a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Each poller by itself.
    pub pollers: Vec<PollerStats>,
    /// Of a server: what its other threads have counted.
    pub server: Option<ServerStats>,
}

/// What one poller has counted, or several together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PollerStats {
    /// The device that its transport is on; of several, the first.
    pub device: String,
    /// The server's side of calls, by method: those that have been called.
    pub served: Vec<MethodStats>,
    /// The client's side of calls, by method: those that have been called.
    pub called: Vec<MethodStats>,
    /// How it spends its time.
    pub turns: Turns,
    /// What had to wait.
    pub stalls: Stalls,
    /// Receives and promises.
    pub credits: Credits,
    /// Handlers.
    pub handlers: Handlers,
    /// Connections.
    pub connections: Connections,
    /// What its transport has counted.
    pub transport: Counters,
    /// Where its transport's slots are.
    pub slots: SlotsByPlace,
}

/// What a server counts outside its pollers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerStats {
    /// Clients that were refused, since all places are taken or they speak another version.
    pub refused: u64,
    /// Methods whose handlers have kept a poller's thread for long.
    pub blocked: BlockedMethods,
}

/// Calls of one method, on one side.
///
/// Every call that began has ended in one way, or is in flight:
/// `begun` = Σ [`ended`](Self::ended) + `dropped` + `in_flight`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MethodStats {
    /// `package.Service/Method`.
    pub path: &'static str,
    /// The server's side: requests that arrived. The client's: calls that were made, whether or not
    /// they could be sent; through a shared channel, those that got a ticket.
    pub begun: u64,
    /// The server's side: handlers that were started. The client's: requests that were sent.
    pub started: u64,
    /// The server's side: calls whose connection ended, or the server, before they were answered. The
    /// client's: calls whose futures were dropped before they were ready.
    pub dropped: u64,
    /// Calls that have begun and not ended. A level: in a [difference](Stats::since) it is as it is now.
    pub in_flight: u64,
    /// How long calls took; one in [`SAMPLED`](super::SAMPLED) is timed. The server's side: from the
    /// request's arrival to its response. The client's: from the first poll of the call's future to
    /// its end.
    pub latency: Latencies,
    pub(super) by_code: [u64; Code::ALL.len()],
}

impl Stats {
    /// All pollers together.
    #[must_use]
    pub fn total(&self) -> PollerStats {
        let mut pollers = self.pollers.iter();
        let first = pollers.next().cloned().unwrap_or_default();
        pollers.fold(first, |sum, poller| sum.plus(poller))
    }

    /// What has been counted since an earlier snapshot of the same pollers. Levels, such as calls that
    /// wait at present, are as they are now.
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
    /// Calls in flight, on both sides.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        let methods = self.served.iter().chain(&self.called);
        methods.map(|method| method.in_flight).sum()
    }

    fn since(&self, earlier: &Self) -> Self {
        Self {
            device: self.device.clone(),
            served: since_by_method(&self.served, &earlier.served),
            called: since_by_method(&self.called, &earlier.called),
            turns: self.turns.since(earlier.turns),
            stalls: self.stalls.since(earlier.stalls),
            credits: self.credits.since(earlier.credits),
            handlers: self.handlers.since(earlier.handlers),
            connections: self.connections.since(earlier.connections),
            transport: self.transport.since(&earlier.transport),
            slots: self.slots,
        }
    }

    fn plus(mut self, other: &Self) -> Self {
        add_by_method(&mut self.served, &other.served);
        add_by_method(&mut self.called, &other.called);
        Self {
            turns: self.turns.plus(other.turns),
            stalls: self.stalls.plus(other.stalls),
            credits: self.credits.plus(other.credits),
            handlers: self.handlers.plus(other.handlers),
            connections: self.connections.plus(other.connections),
            transport: self.transport.plus(&other.transport),
            slots: [self.slots, other.slots].into_iter().sum(),
            ..self
        }
    }
}

/// A method stays in the list although nothing was added: its calls in flight are still there.
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
            blocked: self.blocked.since(&earlier.blocked),
        }
    }
}

impl MethodStats {
    /// Calls that ended with this code.
    #[must_use]
    pub fn ended(&self, code: Code) -> u64 {
        self.by_code[code as usize]
    }

    /// The codes that calls ended with, and how many did.
    pub fn codes(&self) -> impl Iterator<Item = (Code, u64)> + '_ {
        let counts = Code::ALL.into_iter().zip(self.by_code);
        counts.filter(|&(_, count)| count > 0)
    }

    /// Calls that ended with any code but `OK`.
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.all_ended() - self.ended(Code::Ok)
    }

    /// Calls that ended, with whatever code.
    fn all_ended(&self) -> u64 {
        self.by_code.iter().sum()
    }

    /// For a snapshot whose other numbers are read.
    pub(super) fn with_in_flight(self) -> Self {
        // What has ended was read first, so this is no less than nothing, as far as the processor reads
        // in order.
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
