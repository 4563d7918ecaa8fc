//! [`PrometheusText`]: statistics in the text that Prometheus scrapes.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::time::UNIX_EPOCH;

use super::histogram::Latencies;
use super::poller_counters::UNKNOWN_METHOD;
use super::snapshot::{MethodStats, PollerStats, Stats};

/// Statistics in Prometheus' text format, version 0.0.4, which `Display` writes.
///
/// The program serves the text at its own HTTP endpoint. If it has an exporter already, the text can
/// follow on the exporter's.
///
/// ```
/// # use rpc_core::{Channel, StatsReader};
/// use rpc_core::stats::PrometheusText;
///
/// fn metrics(server: &StatsReader, orders: &Channel) -> String {
///     let mut text = PrometheusText::new();
///     text.add(&server.stats(), &[]);
///     text.add(&orders.stats(), &[("channel", "orders")]);
///     text.to_string()
/// }
/// ```
///
/// # Names
///
/// Names and labels of calls are those of OpenTelemetry's RPC conventions where one exists, as
/// Prometheus writes them. `…` is `server` or `client`: the side of the calls.
///
/// | name | kind | labels | meaning |
/// | --- | --- | --- | --- |
/// | `rpc_…_call_duration_seconds` | histogram | `rpc_system_name`, `rpc_method` | durations of all calls that ended with a code, if [every call is timed](crate::Intents::latency_sampling) |
/// | `rpc_…_call_duration_sampled_seconds` | histogram | `rpc_system_name`, `rpc_method` | instead of it, if one call in several is timed. Its count is that of the timed calls: for rates, use the next one |
/// | `verbline_…_calls_total` | counter | `rpc_method`, `rpc_response_status_code` | calls that ended, with this code: each of them |
/// | `verbline_…_calls_begun_total` | counter | `rpc_method` | requests that arrived, calls made |
/// | `verbline_…_calls_started_total` | counter | `rpc_method` | handlers started, requests sent |
/// | `verbline_…_calls_dropped_total` | counter | `rpc_method` | calls that ended without a response (server), or whose future was dropped (client) |
/// | `verbline_…_calls_in_flight` | gauge | `rpc_method` | calls that have begun and not ended |
/// | `verbline_<group>_<name>_total` | counter | `poller` | the counters (times in seconds) of [`Turns`](super::Turns), [`Stalls`](super::Stalls), [`Credits`](super::Credits), [`Handlers`](super::Handlers), [`Connections`](super::Connections), [`Streams`](super::Streams), [`Cancels`](super::Cancels) and [`Transfers`](super::Transfers) |
/// | `verbline_<group>_<name>` | gauge | `poller` | their gauges |
/// | `verbline_memory_<name>_bytes` | gauge | `poller` | those of [`Memory`](super::Memory) |
/// | `verbline_connections_open` | gauge | `poller` | open connections |
/// | `verbline_transport_<name>_total` | counter | `poller`, `device` | each of [`Counters`](crate::transport::Counters) |
/// | `verbline_slots` | gauge | `poller`, `device`, `state` | slots by state |
/// | `verbline_refused_clients_total` | counter | | clients that a server rejected |
/// | `verbline_certificate_expires_timestamp_seconds` | gauge | | when a server's certificate expires, as a Unix time; the first one of several servers |
/// | `verbline_blocked_polls_total` | counter | `rpc_method` | handlers that blocked their poller's thread for long |
///
/// The histograms have no label for the status code, which OpenTelemetry's have: a rate of errors comes
/// from `verbline_…_calls_total`.
///
/// Numbers of calls are summed over all pollers; the others are per poller. A method has a line once
/// it has been called. Calls of a method number that no service has are those of the method `_OTHER`.
///
/// The buckets of a histogram end at each power of two of nanoseconds and in the middle between two,
/// from 255 ns to 26 s. Their counts are exact, since the bounds are also bounds of [`Latencies`].
#[derive(Clone, Debug, Default)]
pub struct PrometheusText {
    families: BTreeMap<String, Family>,
}

/// The lines of one name.
#[derive(Clone, Debug)]
struct Family {
    kind: &'static str,
    help: &'static str,
    /// By labels.
    series: BTreeMap<String, Value>,
}

#[derive(Clone, Debug)]
enum Value {
    Number(u64),
    /// Nanoseconds, written as seconds.
    Time(u64),
    /// The least one of those with the same name and labels.
    Least(u64),
    Latencies(Latencies),
}

impl PrometheusText {
    /// Creates a text without lines.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a snapshot (not the difference between two), with these labels on each line. Numbers with the
    /// same name and labels add up, so servers and channels of a process that are to be told apart need
    /// a label.
    pub fn add(&mut self, stats: &Stats, labels: &[(&str, &str)]) {
        let labels = labels
            .iter()
            .fold(Labels::default(), |labels, (key, value)| {
                labels.and(key, value)
            });
        let total = stats.total();
        for method in &total.served {
            self.add_method(&SERVER, method, total.latency_sampling, &labels);
        }
        for method in &total.called {
            self.add_method(&CLIENT, method, total.latency_sampling, &labels);
        }
        for (index, poller) in stats.pollers.iter().enumerate() {
            self.add_poller(poller, &labels.and("poller", &index.to_string()));
        }
        if let Some(server) = &stats.server {
            let refused = "Clients that were rejected.";
            let name = "verbline_refused_clients_total";
            self.add_value(
                name,
                COUNTER,
                refused,
                &labels,
                Value::Number(server.refused),
            );
            if let Some(expires) = server.certificate_expires {
                let since_epoch = expires.duration_since(UNIX_EPOCH).unwrap_or_default();
                let help = "When the server's certificate expires, as a Unix time.";
                let name = "verbline_certificate_expires_timestamp_seconds";
                let value = Value::Least(since_epoch.as_secs());
                self.add_value(name, GAUGE, help, &labels, value);
            }
            for method in &server.blocked.methods {
                let labels = labels.and("rpc_method", method.path);
                let blocked = "Polls of handlers that blocked their poller's thread for long.";
                let name = "verbline_blocked_polls_total";
                self.add_value(name, COUNTER, blocked, &labels, Value::Number(method.count));
            }
        }
    }

    fn add_method(&mut self, side: &Side, method: &MethodStats, one_in: u32, labels: &Labels) {
        let path = match method.path {
            UNKNOWN_METHOD => "_OTHER",
            path => path,
        };
        let labels = labels.and("rpc_method", path);
        let side_name = side.name;
        let counts = [
            ("begun_total", COUNTER, side.begun, method.begun),
            ("started_total", COUNTER, side.started, method.started),
            ("dropped_total", COUNTER, side.dropped, method.dropped),
            (
                "in_flight",
                GAUGE,
                "Calls that have begun and not ended.",
                method.in_flight,
            ),
        ];
        for (name, kind, help, count) in counts {
            let name = format!("verbline_{side_name}_calls_{name}");
            self.add_value(&name, kind, help, &labels, Value::Number(count));
        }
        let ended = format!("verbline_{side_name}_calls_total");
        for (code, count) in method.codes() {
            let labels = labels.and("rpc_response_status_code", code.name());
            let help = "Calls that ended, by their status codes.";
            self.add_value(&ended, COUNTER, help, &labels, Value::Number(count));
        }
        let (suffix, help) = match one_in {
            0 => return,
            1 => ("seconds", side.duration),
            _ => ("sampled_seconds", side.sampled_duration),
        };
        let duration = format!("rpc_{side_name}_call_duration_{suffix}");
        let labels = labels.and("rpc_system_name", "verbline");
        let latencies = Value::Latencies(method.latency.clone());
        self.add_value(&duration, "histogram", help, &labels, latencies);
    }

    fn add_poller(&mut self, poller: &PollerStats, labels: &Labels) {
        let groups = [
            ("turns", Vec::from_iter(poller.turns.counters())),
            ("stalls", poller.stalls.counters().collect()),
            ("credits", poller.credits.counters().collect()),
            ("handlers", poller.handlers.counters().collect()),
            ("connections", poller.connections.counters().collect()),
            ("streams", poller.streams.counters().collect()),
            ("cancels", poller.cancels.counters().collect()),
            ("transfers", poller.transfers.counters().collect()),
        ];
        for (group, counters) in groups {
            for counter in counters {
                self.add_counter(group, counter, labels);
            }
        }
        let groups = [
            ("stalls", "", Vec::from_iter(poller.stalls.gauges())),
            ("credits", "", poller.credits.gauges().collect()),
            ("handlers", "", poller.handlers.gauges().collect()),
            ("streams", "", poller.streams.gauges().collect()),
            ("memory", "_bytes", poller.memory.gauges().collect()),
        ];
        for (group, unit, gauges) in groups {
            for (name, help, value) in gauges {
                let name = format!("verbline_{group}_{name}{unit}");
                self.add_value(&name, GAUGE, help, labels, Value::Number(value));
            }
        }
        let open = Value::Number(poller.connections.open());
        let help = "Open connections.";
        self.add_value("verbline_connections_open", GAUGE, help, labels, open);

        let labels = labels.and("device", &poller.device);
        for counter in poller.transport.counters() {
            self.add_counter("transport", counter, &labels);
        }
        for (state, count) in poller.slots.named() {
            let labels = labels.and("state", state);
            let count = Value::Number(count.into());
            self.add_value("verbline_slots", GAUGE, "Slots by state.", &labels, count);
        }
    }

    fn add_counter(
        &mut self,
        group: &str,
        (name, help, count): (&str, &'static str, u64),
        labels: &Labels,
    ) {
        let (name, value) = match name.strip_suffix("_ns") {
            Some(name) => (format!("{name}_seconds"), Value::Time(count)),
            None => (name.to_owned(), Value::Number(count)),
        };
        let name = format!("verbline_{group}_{name}_total");
        self.add_value(&name, COUNTER, help, labels, value);
    }

    fn add_value(
        &mut self,
        name: &str,
        kind: &'static str,
        help: &'static str,
        labels: &Labels,
        value: Value,
    ) {
        let family = self.families.entry(name.to_owned());
        let family = family.or_insert_with(|| Family {
            kind,
            help,
            series: BTreeMap::new(),
        });
        match family.series.get_mut(&labels.0) {
            Some(sum) => sum.add(value),
            None => drop(family.series.insert(labels.0.clone(), value)),
        }
    }
}

const COUNTER: &str = "counter";
const GAUGE: &str = "gauge";

/// What a side's numbers of calls are called and mean.
struct Side {
    name: &'static str,
    begun: &'static str,
    started: &'static str,
    dropped: &'static str,
    duration: &'static str,
    sampled_duration: &'static str,
}

const SERVER: Side = Side {
    name: "server",
    begun: "Requests that arrived.",
    started: "Handlers that were started.",
    dropped: "Calls whose connection or server ended before the response.",
    duration: "Time from the arrival of a request to its response.",
    sampled_duration: "Time from the arrival of a request to its response, of some of the calls.",
};

const CLIENT: Side = Side {
    name: "client",
    begun: "Calls that were made.",
    started: "Requests that were sent.",
    dropped: "Calls whose future was dropped before they ended.",
    duration: "Time from the first poll of a call to its end.",
    sampled_duration: "Time from the first poll of a call to its end, of some of the calls.",
};

impl Value {
    fn add(&mut self, other: Self) {
        match (self, other) {
            (Self::Number(sum), Self::Number(more)) | (Self::Time(sum), Self::Time(more)) => {
                *sum = sum.saturating_add(more);
            }
            (Self::Least(least), Self::Least(other)) => *least = other.min(*least),
            (Self::Latencies(sum), Self::Latencies(more)) => sum.add(&more),
            // A name has values of one kind.
            (sum, other) => *sum = other,
        }
    }
}

/// Labels as they are written, without braces.
#[derive(Default)]
struct Labels(String);

impl Labels {
    fn and(&self, key: &str, value: &str) -> Self {
        let mut text = self.0.clone();
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(key);
        text.push_str("=\"");
        for character in value.chars() {
            match character {
                '\\' => text.push_str("\\\\"),
                '"' => text.push_str("\\\""),
                '\n' => text.push_str("\\n"),
                other => text.push(other),
            }
        }
        text.push('"');
        Self(text)
    }
}

impl fmt::Display for PrometheusText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, family) in &self.families {
            writeln!(f, "# HELP {name} {}", family.help)?;
            writeln!(f, "# TYPE {name} {}", family.kind)?;
            for (labels, value) in &family.series {
                value.write(f, name, labels)?;
            }
        }
        Ok(())
    }
}

impl Value {
    fn write(&self, f: &mut fmt::Formatter<'_>, name: &str, labels: &str) -> fmt::Result {
        let braced = if labels.is_empty() {
            String::new()
        } else {
            format!("{{{labels}}}")
        };
        match self {
            Self::Number(number) | Self::Least(number) => writeln!(f, "{name}{braced} {number}"),
            Self::Time(ns) => writeln!(f, "{name}{braced} {}", Seconds(*ns)),
            Self::Latencies(latencies) => {
                for (longest, count) in latencies.cumulative() {
                    let le = Seconds(longest);
                    writeln!(f, "{name}_bucket{{{labels},le=\"{le}\"}} {count}")?;
                }
                let count = latencies.count();
                writeln!(f, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}")?;
                writeln!(f, "{name}_sum{braced} {}", Seconds(latencies.sum_ns()))?;
                writeln!(f, "{name}_count{braced} {count}")
            }
        }
    }
}

/// Nanoseconds as a decimal number of seconds, without rounding.
struct Seconds(u64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NS: u64 = 1_000_000_000;
        let mut text = String::new();
        write!(text, "{}.{:09}", self.0 / NS, self.0 % NS)?;
        f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_full_and_labels_are_escaped() {
        for (ns, expected) in [
            (0, "0"),
            (255, "0.000000255"),
            (1_000_000_000, "1"),
            (20_000_000_000, "20"),
            (u64::MAX, "18446744073.709551615"),
        ] {
            assert_eq!(Seconds(ns).to_string(), expected);
        }
        let labels = Labels::default().and("a", "b").and("c", "\"\\\n");
        assert_eq!(labels.0, r#"a="b",c="\"\\\n""#);
    }
}
