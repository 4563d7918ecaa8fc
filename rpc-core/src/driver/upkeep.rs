//! The connections of a poller are maintained from time to time.

use std::time::{Duration, Instant};

use super::DriverState;
use super::age::{Ageing, LOOK_EVERY};
use crate::transport::Transport;

/// Time without new calls after which a connection's credits are returned, and after which it may be
/// given to a client of another host if the server has none left: long enough that a client that calls
/// more often does not lose its window, or its connection, between two calls.
pub(super) const IDLE_TIME: Duration = Duration::from_secs(1);

/// Longest sleep of a poller on which calls or responses wait for capacity.
const SHORT_SLEEP: Duration = Duration::from_millis(1);

/// Longest sleep of any poller, so that idle connections are maintained periodically.
const LONG_SLEEP: Duration = Duration::from_secs(1);

impl<T: Transport> DriverState<T> {
    /// Ends the connections that are old, and gives the surplus credits of idle ones back to their
    /// peers: a client connection on which no call has started for a while returns its credits above
    /// the initial window, so that other clients can use them. A server's connection on which no stream
    /// was open for a while returns all of its credits. Called before a sleep, and periodically
    /// otherwise; extra calls are cheap.
    pub(crate) fn on_idle(&mut self, now: Instant) {
        // Limits the rate, because there may be thousands of links and thousands of sleeps a
        // second.
        let is_soon = |before: Instant| now.duration_since(before) < LOOK_EVERY;
        if self.links.idle_checked_at.is_some_and(is_soon) {
            return;
        }
        self.links.idle_checked_at = Some(now);
        self.streams.trim();
        let owing_before = self.links.outbox.control.len();
        for (key, link) in self.links.table.iter_mut() {
            link.note_use(now);
            match link.grow_old(now) {
                Ageing::Nothing => {}
                Ageing::GoAway => {
                    self.links.outbox.control.insert(key);
                    self.links.outbox.note_any();
                }
                Ageing::Close => self.links.transport.close(link.id),
            }
            if link.ended.is_some() || link.connection.take_was_used() {
                link.idle_since = None;
                continue;
            }
            let since = *link.idle_since.get_or_insert(now);
            if now.duration_since(since) < IDLE_TIME {
                continue;
            }
            link.connection.become_idle();
            link.streams.trim_memory();
            self.links.budget.release(link.connection.take_freed());
            if link.connection.wants_control_frame() {
                self.links.outbox.control.insert(key);
                self.links.outbox.note_any();
            }
        }
        if self.links.outbox.control.len() > owing_before {
            self.send_control_frames();
            self.links.flush();
        }
    }

    /// Returns true if this poller has work for which nothing will wake it.
    pub(crate) fn has_undone_work(&self) -> bool {
        !(self.links.settled.is_empty() && self.run_queue.is_empty() && self.endings.is_empty())
            || self.streams.has_more()
            || self.bodies.sending.has_more()
    }

    /// Returns how long the poller may sleep if nothing arrives.
    pub(super) fn longest_sleep(&self, now: Instant) -> Duration {
        // Some work needs turns even if the device reports no event: woken waiters that do not
        // retry are skipped, and calls and responses that found no slot are retried.
        let waiting = self.responses.blocked.len()
            | usize::from(self.links.outbox.any())
            | self.streams.waiting()
            | self.bodies.waiting();
        let longest = match self.links.connection_age {
            _ if waiting != 0 => SHORT_SLEEP,
            Some(_) => LOOK_EVERY,
            None => LONG_SLEEP,
        };
        let until_deadline = self
            .links
            .timers
            .next_deadline()
            .map_or(longest, |deadline| deadline.saturating_duration_since(now));
        until_deadline.min(longest)
    }
}
