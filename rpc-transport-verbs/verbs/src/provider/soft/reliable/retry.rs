//! Handles a peer that is not ready to receive, or that is silent.

use std::time::{Duration, Instant};

use crate::hooks;
use crate::provider::soft::context::link::{Link, Rings};
use crate::provider::soft::context::queue_pair::SoftQueuePair;
use crate::provider::soft::context::state::{Common, State};
use crate::provider::soft::shared::ring::RingSender;
use crate::types::{CompletionStatus, QpState, RetryCount};

/// A peer over TCP that answers nothing and sends no payload for this long is taken for silent. The
/// kernel ends the socket of one that does not read either after the same time (`TCP_USER_TIMEOUT`).
const MAX_TIME_UNACKED: Duration = Duration::from_secs(60);

/// The most time that counts between two looks at the timers. While this process was stopped, answers
/// may have come, which are read only afterwards.
const MAX_TICK: Duration = Duration::from_secs(1);

impl SoftQueuePair {
    /// Processes the NAKs of the peer's ring, which has not acknowledged everything. An error is the
    /// status of the oldest request, which has failed.
    pub(super) fn process_naks(
        &mut self,
        common: &mut Common,
        now: fn() -> Instant,
    ) -> Result<(), CompletionStatus> {
        let Link::Rings(Rings {
            sender: Some(sender),
            naks,
            ..
        }) = &mut self.link
        else {
            return Ok(());
        };
        if let Some(code) = sender.fatal_nak() {
            return Err(CompletionStatus::from_code(u32::from(code)));
        }
        let nak = sender.nak();
        if nak.count != *naks {
            *naks = nak.count;
            let rnr_retry = self.core.attributes.rnr_retry;
            self.initiator
                .retry
                .begin_pause(&mut common.counters, rnr_retry, nak.timer, now)?;
        }
        if self.initiator.retry.ends_pause(now) {
            sender.allow_retry(nak);
        }
        Ok(())
    }
}

impl State {
    /// Checks all queue pairs with unacknowledged sends, signaled or not; called by the engine.
    pub(crate) fn expire_timers(&mut self, now: Instant) {
        self.send_owed_acks();
        if self.common.tcp.has_lingering() {
            self.common.tcp.end_lingering(now);
        }
        let Self {
            queue_pairs,
            common,
        } = self;
        let since_last = common.timers_expired_at.replace(now);
        let step = since_last.map_or(Duration::ZERO, |last| {
            now.saturating_duration_since(last).min(MAX_TICK)
        });
        let mut index = 0;
        while let Some(&qp_index) = common.unacked.get(index) {
            let qp = &mut queue_pairs[qp_index as usize];
            qp.process_acks(common, hooks::now);
            #[cfg(debug_assertions)]
            crate::provider::soft::context::check::check_queue_pair(qp);
            if common.unacked.get(index) != Some(&qp_index) {
                continue;
            }
            let instantly = common.options.detect_death_at_once;
            if qp.initiator.sends.acked == qp.initiator.sends.posted {
                qp.is_unacked = false;
                common.unacked.swap_remove(index);
            } else if qp.has_retried_enough(now, instantly) || qp.is_ignored_for_long(step) {
                qp.fail(common, Some(CompletionStatus::RetryExceeded));
            } else {
                index += 1;
            }
        }
    }
}

impl SoftQueuePair {
    /// Returns true if the peer has been silent for as long as all retries take.
    ///
    /// Shared memory and TCP lose nothing, so a peer is silent only if it cannot respond: its process
    /// is dead, or its queue pair drops messages. In shared memory, a peer that is merely stopped
    /// looks like a slow one, however long it is stopped. Over TCP, where strangers may come, one
    /// that answers nothing for [`MAX_TIME_UNACKED`] is silent, too: what was sent to it stays here
    /// until it answers.
    fn has_retried_enough(&mut self, now: Instant, instantly: bool) -> bool {
        let waits = match self.core.state {
            QpState::Rts => true,
            QpState::Sqd => self.has_sends_in_flight(),
            _ => false,
        };
        let (is_gone, is_heard) = match &self.link {
            Link::Rings(Rings { sender, peer, .. }) => {
                let is_heard = sender.as_ref().is_some_and(RingSender::is_ready);
                (peer.is_gone(), is_heard)
            }
            Link::Tcp(tcp) => {
                let link = tcp.connection.as_ref();
                link.map_or((false, false), |link| (link.has_ended(), link.is_open()))
            }
            Link::Down => (false, false),
        };
        let drops = self.initiator.has_psn_mismatch || !is_heard;
        if !waits || !(is_gone || drops) {
            self.initiator.retry.silent_since = None;
            return false;
        }
        let since = *self.initiator.retry.silent_since.get_or_insert(now);
        if is_gone && instantly {
            return true;
        }
        let Some(budget) = self.retry_budget() else {
            return false;
        };
        now.saturating_duration_since(since) >= budget
    }

    /// Adds a step of time. Returns true if the peer's process is connected over TCP, has to
    /// acknowledge a request or to send a response, and has done neither for
    /// [`MAX_TIME_UNACKED`], nor has sent a byte of a message's payload.
    ///
    /// Time in which this side waits because of an RNR NAK does not count: `rnr_retry` bounds the
    /// retries, or permits any number of them. A hostile peer can use that, or send a byte at a time,
    /// to keep what was sent to it. RPC's queue pairs permit any number of retries. Each connection's
    /// share of the send slots bounds what such a peer keeps.
    fn is_ignored_for_long(&mut self, step: Duration) -> bool {
        let link = self.link.tcp();
        let is_ignored = self.initiator.retry.rnr_until.is_none()
            && link.is_some_and(|link| {
                link.is_open() && (link.awaits_ack() || self.initiator.outstanding.reads > 0)
            });
        if !is_ignored {
            self.initiator.retry.ignored_for = Duration::ZERO;
            return false;
        }
        self.initiator.retry.ignored_for += step;
        // Without a timeout, requests wait for ever.
        self.retry_budget()
            .is_some_and(|budget| self.initiator.retry.ignored_for >= budget.max(MAX_TIME_UNACKED))
    }

    /// Returns true if a request is in flight: it has begun and has not ended.
    pub(crate) fn has_sends_in_flight(&self) -> bool {
        let is_link_used = match &self.link {
            Link::Rings(Rings { sender, .. }) => {
                sender.as_ref().is_some_and(|sender| sender.unacked() > 0)
            }
            // A request may have to be sent again.
            Link::Tcp(_) => {
                let oldest = self.initiator.sends.general.front();
                oldest.is_some_and(|send| send.slots.is_some())
            }
            Link::Down => false,
        };
        is_link_used || self.initiator.sends.acked < self.initiator.sends.started
    }

    /// Returns the time for the first try and all retries; `None` means to wait forever.
    fn retry_budget(&self) -> Option<Duration> {
        let retries = self.core.attributes.retry_cnt.unwrap_or(RetryCount::NONE);
        retries.budget(self.core.attributes.timeout?)
    }
}
