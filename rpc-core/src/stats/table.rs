//! The printed form of [`Stats`]: a row per method and a row per group of internals.

use std::fmt;
use std::time::Duration;

use super::snapshot::{MethodStats, PollerStats, Stats};
use crate::status::Code;

/// Prints the sum of all pollers. If there are several, a row for each follows, which reveals an
/// uneven load.
impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.total(), f)?;
        if self.pollers.len() > 1 {
            for (index, poller) in self.pollers.iter().enumerate() {
                let methods = || poller.served.iter().chain(&poller.called);
                let begun: u64 = methods().map(|method| method.begun).sum();
                write!(
                    f,
                    "\n  poller {index:<4} {begun} calls, {} in flight, {} connections, busy in {} of {} turns",
                    poller.in_flight(),
                    poller.connections.open(),
                    poller.turns.busy,
                    poller.turns.taken
                )?;
            }
        }
        if let Some(server) = &self.server {
            write!(f, "\n  refused     {} clients", server.refused)?;
            for method in &server.blocked.methods {
                write!(
                    f,
                    "\n  blocked     {} {} times: its handler blocks the poller's thread",
                    method.path, method.count
                )?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for PollerStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_methods(f, "served", &self.served, self.latency_sampling)?;
        write_methods(f, "called", &self.called, self.latency_sampling)?;
        let Self {
            turns,
            stalls,
            credits,
            handlers,
            connections,
            streams,
            cancels,
            transfers,
            memory,
            transport,
            slots,
            ..
        } = self;
        if !self.served.is_empty() {
            writeln!(
                f,
                "  handlers    {} suspended now, {} suspended at least once, {} calls shed, {} expired before their handler started, {} refused for overload; {} queued now",
                handlers.parked,
                handlers.awaited,
                handlers.shed,
                handlers.expired,
                handlers.refused,
                handlers.queued
            )?;
        }
        writeln!(
            f,
            "  stalls      {} calls and {} responses waiting now; waited: {} for a credit, {} for a receive, {} for a send slot, {} queued behind others, {} for a permit, {} in the backlog; {} responses",
            stalls.calls_waiting,
            stalls.responses_waiting,
            stalls.no_credit,
            stalls.no_receive,
            stalls.no_send_slot,
            stalls.queued,
            stalls.no_permit,
            stalls.backlogged,
            stalls.responses
        )?;
        writeln!(
            f,
            "  credits     {} available; {} of {} receives promised, {} of these in windows; {} credit frames sent",
            credits.available,
            credits.promised,
            credits.budget,
            credits.windows,
            credits.frames_sent
        )?;
        writeln!(
            f,
            "  connections {} open: {} accepted, {} connected; closed: {} by this side, {} by the peer, {} failed, {} for protocol violations; {} attempts to connect failed",
            connections.open(),
            connections.accepted,
            connections.connected,
            connections.closed_locally,
            connections.closed_by_peer,
            connections.failed,
            connections.violated,
            connections.not_connected
        )?;
        writeln!(
            f,
            "  streams     {} open, {} opened; {} frames sent, {} received; waited {} times for a credit",
            streams.open,
            streams.opened,
            streams.frames_sent,
            streams.frames_received,
            streams.stalled
        )?;
        writeln!(
            f,
            "  cancelled   {} calls never sent, {} in flight; of clients: {} before their handler started, {} running, {} too late",
            cancels.never_sent,
            cancels.in_flight,
            cancels.before_start,
            cancels.running,
            cancels.too_late
        )?;
        if transfers.sent + transfers.received > 0 {
            writeln!(
                f,
                "  long        {} messages sent, {} bytes: {} copied, {} by reference; {} received, {} bytes: {} by {} READs, {} in fragments, {} copied in; {} waited for memory, {} refused, {} stopped",
                transfers.sent,
                transfers.bytes_sent,
                transfers.bytes_copied,
                transfers.bytes_by_reference,
                transfers.received,
                transfers.bytes_received,
                transfers.bytes_fetched,
                transfers.reads,
                transfers.bytes_in_fragments,
                transfers.bytes_copied_in,
                transfers.waited,
                transfers.refused,
                transfers.stopped
            )?;
            writeln!(
                f,
                "  memory      {} bytes registered for long messages: {} being received, {} readable by peers, of which {} without a reason, {} kept by the application",
                memory.registered, memory.posted, memory.in_flight, memory.pinned, memory.held
            )?;
        }
        writeln!(
            f,
            "  turns       {} taken, {} busy; slept {} times, {} in total",
            turns.taken,
            turns.busy,
            turns.slept,
            Time(Duration::from_nanos(turns.asleep_ns))
        )?;
        writeln!(
            f,
            "  device      {}: {} sends in {} doorbells, {} signaled; {} receives; {} SRQ limit events, {} posted from the reserve; {} receiver not ready, {} stale, {} missed, {} silent peers",
            self.device,
            transport.sends,
            transport.doorbells,
            transport.signaled,
            transport.receives,
            transport.srq_limit_events,
            transport.reserve_posted,
            transport.rnr,
            transport.stale,
            transport.missed,
            transport.silent_peers
        )?;
        write!(f, "  slots       {slots}")
    }
}

fn write_methods(
    f: &mut fmt::Formatter<'_>,
    side: &str,
    methods: &[MethodStats],
    latency_sampling: u32,
) -> fmt::Result {
    if methods.is_empty() {
        return Ok(());
    }
    let widest = methods.iter().map(|method| method.path.len()).max();
    let width = widest.unwrap_or_default().max(side.len());
    let median = match latency_sampling {
        0 | 1 => "p50".to_owned(),
        one_in => format!("of 1 in {one_in}: p50"),
    };
    let median_width = median.len().max(9);
    writeln!(
        f,
        "{side:<width$} {:>12} {:>12} {:>9} {:>9} {median:>9} {:>9} {:>9}  errors",
        "calls", "ok", "dropped", "in flight", "p99", "max"
    )?;
    for method in methods {
        let time = |time: Option<Duration>| {
            time.map_or_else(|| "-".to_owned(), |time| Time(time).to_string())
        };
        write!(
            f,
            "{:<width$} {:>12} {:>12} {:>9} {:>9} {:>median_width$} {:>9} {:>9}",
            method.path,
            method.begun,
            method.ended(Code::Ok),
            method.dropped,
            method.in_flight,
            time(method.latency.percentile(0.5)),
            time(method.latency.percentile(0.99)),
            time(method.latency.max()),
        )?;
        let errors = method.codes().filter(|&(code, _)| code != Code::Ok);
        for (code, count) in errors {
            write!(f, "  {count} {code}")?;
        }
        writeln!(f)?;
    }
    Ok(())
}

/// Formats a duration with three digits and a suitable unit.
struct Time(Duration);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0.as_nanos() as f64;
        let (value, unit) = match self.0.as_nanos() {
            0..1_000 => return write!(f, "{ns} ns"),
            1_000..1_000_000 => (ns / 1e3, "µs"),
            1_000_000..1_000_000_000 => (ns / 1e6, "ms"),
            _ => (ns / 1e9, "s"),
        };
        let decimals = match value {
            ..10.0 => 2,
            ..100.0 => 1,
            _ => 0,
        };
        write!(f, "{value:.decimals$} {unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits_and_a_unit() {
        for (ns, expected) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_234, "1.23 µs"),
            (56_789, "56.8 µs"),
            (999_400, "999 µs"),
            (1_500_000, "1.50 ms"),
            (61_000_000_000, "61.0 s"),
        ] {
            assert_eq!(Time(Duration::from_nanos(ns)).to_string(), expected);
        }
    }
}
