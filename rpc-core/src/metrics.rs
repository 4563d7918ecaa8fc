//! Publishes [`Stats`] through the facade of the `metrics` crate, and thus to the recorder that the
//! program has installed: Prometheus, StatsD, or a test's own. Requires the feature `metrics`.
//!
//! None of this is on the path of a call. The program takes snapshots at its own pace, on a thread
//! of its own, and passes them to a [`Publisher`]:
//!
//! ```
//! # use rpc_core::{metrics::Publisher, StatsReader};
//! # use std::{thread, time::Duration};
//! # fn watch(stats_reader: StatsReader) {
//! thread::spawn(move || {
//!     let mut publisher = Publisher::new();
//!     loop {
//!         publisher.publish(&stats_reader.stats());
//!         thread::sleep(Duration::from_secs(10));
//!     }
//! });
//! # }
//! ```
//!
//! # Names
//!
//! | name | kind | labels | meaning |
//! | --- | --- | --- | --- |
//! | `verbline_calls_begun_total` | counter | `method`, `side` | requests that arrived (`side="server"`), calls made (`side="client"`) |
//! | `verbline_calls_started_total` | counter | `method`, `side` | handlers started, requests sent |
//! | `verbline_calls_total` | counter | `method`, `side`, `code` | calls that ended |
//! | `verbline_calls_dropped_total` | counter | `method`, `side` | calls that ended without a response (server) or whose future was dropped (client) |
//! | `verbline_calls_in_flight` | gauge | `method`, `side` | calls that have begun and not ended |
//! | `verbline_call_latency_seconds` | histogram | `method`, `side` | latency of one call in [`SAMPLED`](crate::stats::SAMPLED), to within 1/32: its count is not the number of calls |
//! | `verbline_turns_…_total` | counter | `poller` | each count of [`Turns`](crate::stats::Turns): `taken`, `busy`, `slept`, `woken`, `asleep_ns` |
//! | `verbline_stalls_…_total` | counter | `poller` | each count of [`Stalls`](crate::stats::Stalls) |
//! | `verbline_stalls_…` | gauge | `poller` | `calls_waiting`, `responses_waiting` |
//! | `verbline_credits_…_total`, `verbline_credits_…` | counter, gauge | `poller` | [`Credits`](crate::stats::Credits) |
//! | `verbline_handlers_…_total`, `verbline_handlers_…` | counter, gauge | `poller` | [`Handlers`](crate::stats::Handlers) |
//! | `verbline_connections_…_total` | counter | `poller` | each count of [`Connections`](crate::stats::Connections) |
//! | `verbline_connections_open` | gauge | `poller` | open connections |
//! | `verbline_streams_…_total`, `verbline_streams_open` | counter, gauge | `poller` | [`Streams`](crate::stats::Streams) |
//! | `verbline_cancels_…_total` | counter | `poller` | each count of [`Cancels`](crate::stats::Cancels) |
//! | `verbline_transport_…_total` | counter | `poller`, `device` | each of [`Counters`](crate::transport::Counters) |
//! | `verbline_slots` | gauge | `poller`, `device`, `state` | slots by state |
//! | `verbline_refused_clients_total` | counter | | clients that a server rejected |
//! | `verbline_blocked_polls_total` | counter | `method` | handlers that blocked their poller's thread for long |
//!
//! Call statistics are summed over all pollers; the others are per poller.

use metrics::{Label, counter, gauge, histogram};

use crate::stats::{MethodStats, PollerStats, Stats};

/// Publishes successive snapshots of one server, channel or local poller.
///
/// A publisher remembers what it has published and adds only the difference, so the counters of
/// several publishers with the same labels add up. Gauges do not: if a process has several
/// publishers, give each a [label](Self::with_label).
#[derive(Clone, Debug, Default)]
pub struct Publisher {
    latest: Stats,
    labels: Vec<Label>,
}

impl Publisher {
    /// Creates a publisher that has published nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a label to everything that this publisher publishes.
    #[must_use]
    pub fn with_label(mut self, key: &'static str, value: impl Into<String>) -> Self {
        self.labels.push(Label::new(key, value.into()));
        self
    }

    /// Publishes the difference to the previous snapshot, through the recorder that the program has
    /// installed or that is set for this thread. Without a recorder the difference is lost.
    pub fn publish(&mut self, stats: &Stats) {
        let difference = stats.since(&self.latest);
        self.latest = stats.clone();
        let total = difference.total();
        for (side, methods) in [("server", &total.served), ("client", &total.called)] {
            for method in methods {
                self.publish_method(side, method);
            }
        }
        for (index, poller) in difference.pollers.iter().enumerate() {
            self.publish_poller(index, poller);
        }
        if let Some(server) = &difference.server {
            counter!("verbline_refused_clients_total", self.labels.clone())
                .increment(server.refused);
            for method in &server.blocked.methods {
                let labels = self.labels([("method", method.path)]);
                counter!("verbline_blocked_polls_total", labels).increment(method.count);
            }
        }
    }

    fn publish_method(&self, side: &'static str, method: &MethodStats) {
        let labels = self.labels([("method", method.path), ("side", side)]);
        counter!("verbline_calls_begun_total", labels.clone()).increment(method.begun);
        counter!("verbline_calls_started_total", labels.clone()).increment(method.started);
        counter!("verbline_calls_dropped_total", labels.clone()).increment(method.dropped);
        gauge!("verbline_calls_in_flight", labels.clone()).set(method.in_flight as f64);
        for (code, count) in method.codes() {
            let mut labels = labels.clone();
            labels.push(Label::new("code", code.name()));
            counter!("verbline_calls_total", labels).increment(count);
        }
        let latency = histogram!("verbline_call_latency_seconds", labels);
        for (time, count) in method.latency.iter() {
            // A count beyond `usize` would take too long to record anyway.
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            latency.record_many(time.as_secs_f64(), count);
        }
    }

    fn publish_poller(&self, index: usize, poller: &PollerStats) {
        let labels = [
            self.labels([]),
            vec![Label::new("poller", index.to_string())],
        ]
        .concat();
        let groups = [
            ("turns", Vec::from_iter(poller.turns.counters())),
            ("stalls", poller.stalls.counters().collect()),
            ("credits", poller.credits.counters().collect()),
            ("handlers", poller.handlers.counters().collect()),
            ("connections", poller.connections.counters().collect()),
            ("streams", poller.streams.counters().collect()),
            ("cancels", poller.cancels.counters().collect()),
        ];
        for (group, counts) in groups {
            for (name, count) in counts {
                counter!(format!("verbline_{group}_{name}_total"), labels.clone()).increment(count);
            }
        }
        let groups = [
            ("stalls", Vec::from_iter(poller.stalls.gauges())),
            ("credits", poller.credits.gauges().collect()),
            ("handlers", poller.handlers.gauges().collect()),
            ("streams", poller.streams.gauges().collect()),
        ];
        for (group, gauges) in groups {
            for (name, value) in gauges {
                gauge!(format!("verbline_{group}_{name}"), labels.clone()).set(value as f64);
            }
        }
        // Computed from the full snapshot rather than the difference.
        let connections = &self.latest.pollers[index].connections;
        gauge!("verbline_connections_open", labels.clone()).set(connections.open() as f64);

        let device = Label::new("device", poller.device.clone());
        let labels = [labels, vec![device]].concat();
        for (name, count) in poller.transport.named() {
            counter!(format!("verbline_transport_{name}_total"), labels.clone()).increment(count);
        }
        for (state, count) in poller.slots.named() {
            let labels = [labels.clone(), vec![Label::new("state", state)]].concat();
            gauge!("verbline_slots", labels).set(f64::from(count));
        }
    }

    fn labels<const N: usize>(&self, more: [(&'static str, &'static str); N]) -> Vec<Label> {
        let more = more.map(|(key, value)| Label::new(key, value));
        self.labels.iter().cloned().chain(more).collect()
    }
}
