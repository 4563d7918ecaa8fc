//! How long requests are repeated: to a peer that is not ready to receive, and to one that is silent.

use std::time::{Duration, Instant};

use super::core::Core;
use super::link::Link;
use crate::types::{CompletionStatus, DeviceCounters, QpState, RetryCount, RnrRetry, RnrTimer};

/// A peer over TCP that answers nothing and sends no payload for this long is taken for silent. The
/// kernel ends the socket of one that does not read either after the same time (`TCP_USER_TIMEOUT`).
const MAX_TIME_UNACKED: Duration = Duration::from_secs(60);

/// Retry state of a queue pair.
#[derive(Debug, Default)]
pub(crate) struct Retry {
    /// RNR NAKs since the last progress.
    rnr_count: u32,
    /// Time at which the receiver may be asked to retry.
    pub(crate) rnr_until: Option<Instant>,
    /// Start of the peer's silence: it is dead or does not accept messages.
    silent_since: Option<Instant>,
    /// Time for which a peer over TCP has answered nothing that waits for an answer. The time in which
    /// this process did not run does not count.
    ignored_for: Duration,
}

/// What is known of the requests of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requests {
    pub(crate) are_in_flight: bool,
    pub(crate) await_responses: bool,
    /// The peer silently drops them: it expects other sequence numbers.
    pub(crate) are_dropped: bool,
}

impl Retry {
    /// Records that the peer has acknowledged requests.
    #[inline]
    pub(crate) fn end_retries(&mut self) {
        self.rnr_count = 0;
        self.silent_since = None;
    }

    /// Records that the peer over TCP does not ignore this side: it has acknowledged requests, or has
    /// sent bytes of a payload, and answers nothing before the end of that message.
    pub(crate) fn end_ignorance(&mut self) {
        self.ignored_for = Duration::ZERO;
    }

    /// Handles an RNR NAK: requests wait for the time that the receiver asks for. Fails if the
    /// permitted number of retries is used up.
    pub(crate) fn begin_pause(
        &mut self,
        counters: &mut DeviceCounters,
        permitted: Option<RnrRetry>,
        timer: u8,
        now: fn() -> Instant,
    ) -> Result<(), CompletionStatus> {
        counters.rnr_nak_received += 1;
        let limit = permitted.and_then(RnrRetry::limit);
        if limit.is_some_and(|limit| self.rnr_count >= u32::from(limit)) {
            return Err(CompletionStatus::RnrRetryExceeded);
        }
        self.rnr_count = self.rnr_count.saturating_add(1);
        self.rnr_until = Some(now() + RnrTimer::from_wire(timer).duration());
        Ok(())
    }

    /// Returns true if the peer has been silent for as long as all retries take: the requests fail.
    /// `step` is the time since the last call, of which that in which this process did not run is left
    /// out. With `instantly`, a peer that is gone has been silent long enough.
    pub(crate) fn are_used_up(
        &mut self,
        core: &Core,
        link: &Link,
        requests: Requests,
        (now, step): (Instant, Duration),
        instantly: bool,
    ) -> bool {
        self.is_unheard_for_long(core, link, requests, now, instantly)
            || self.is_ignored_for_long(core, link, requests, step)
    }

    /// Shared memory and TCP lose nothing, so a peer is silent only if it cannot respond: its process
    /// is dead, or its queue pair drops messages. In shared memory, a peer that is merely stopped
    /// looks like a slow one, however long it is stopped.
    fn is_unheard_for_long(
        &mut self,
        core: &Core,
        link: &Link,
        requests: Requests,
        now: Instant,
        instantly: bool,
    ) -> bool {
        let waits = match core.state {
            QpState::Rts => true,
            QpState::Sqd => requests.are_in_flight,
            _ => false,
        };
        let is_gone = link.is_gone();
        if !waits || !(is_gone || requests.are_dropped || !link.is_heard()) {
            self.silent_since = None;
            return false;
        }
        let since = *self.silent_since.get_or_insert(now);
        if is_gone && instantly {
            return true;
        }
        core.retry_budget()
            .is_some_and(|budget| now.saturating_duration_since(since) >= budget)
    }

    /// Over TCP, where strangers may come, a peer that answers nothing for [`MAX_TIME_UNACKED`] is
    /// silent, too: what was sent to it stays here until it answers. It is connected, has to
    /// acknowledge a request or to send a response, and has done neither, nor has sent a byte of a
    /// message's payload.
    ///
    /// Time in which this side waits because of an RNR NAK does not count: `rnr_retry` bounds the
    /// retries, or permits any number of them. A hostile peer can use that, or send a byte at a time,
    /// to keep what was sent to it. RPC's queue pairs permit any number of retries. Each connection's
    /// share of the send slots bounds what such a peer keeps.
    fn is_ignored_for_long(
        &mut self,
        core: &Core,
        link: &Link,
        requests: Requests,
        step: Duration,
    ) -> bool {
        let is_ignored = self.rnr_until.is_none()
            && link.tcp().is_some_and(|link| {
                link.is_open() && (link.awaits_ack() || requests.await_responses)
            });
        if !is_ignored {
            self.ignored_for = Duration::ZERO;
            return false;
        }
        self.ignored_for += step;
        // Without a timeout, requests wait for ever.
        core.retry_budget()
            .is_some_and(|budget| self.ignored_for >= budget.max(MAX_TIME_UNACKED))
    }

    /// Ends the pause that the receiver has asked for, if it is over. Returns true if it ends now.
    pub(crate) fn ends_pause(&mut self, now: fn() -> Instant) -> bool {
        let is_over = self.rnr_until.is_some_and(|until| now() >= until);
        if is_over {
            self.rnr_until = None;
        }
        is_over
    }
}

impl Core {
    /// Returns the time for the first try and all retries; `None` means to wait forever.
    fn retry_budget(&self) -> Option<Duration> {
        let retries = self.attributes.retry_cnt.unwrap_or(RetryCount::NONE);
        retries.budget(self.attributes.timeout?)
    }
}
