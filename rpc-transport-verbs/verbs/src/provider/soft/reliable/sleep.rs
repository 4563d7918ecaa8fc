//! A sleeping context: its completion queues are armed, and no thread polls its rings until a peer
//! or the engine wakes it. `wake` draws the handshake with the peers.

use super::receive::ReceiveOutcome;
use crate::provider::soft::context::pending::Matter;
use crate::provider::soft::context::state::State;
use crate::provider::soft::shared::ring::SLOT_COUNT;

impl State {
    /// Arms a queue, as `req_notify_cq` does: its next completion raises an event; earlier ones
    /// raise none.
    pub(crate) fn arm(&mut self, cq: usize, solicited_only: bool) {
        self.end_silence();
        // Messages sent so far precede the arming and complete without an event, as on a device
        // that does not depend on being polled. The loop is bounded by what fits a ring: anything
        // beyond that counts as sent after the arming.
        for _ in 0..SLOT_COUNT {
            if self.progress() == 0 {
                break;
            }
        }
        self.common.completion_queues.arm(cq, solicited_only);
        self.common.pending.add(Matter::Completions);
        if !self.common.is_asleep() {
            self.common.pending.add(Matter::Asleep);
            self.common.notes.sleep.fall_asleep();
        }
        self.stay_asleep();
        self.settle_overrun();
    }

    /// Receives what has arrived and leaves every ring cold, so that the sender of the next message
    /// notifies this context; or wakes up if no queue is armed any more. Call this before releasing
    /// the owner word whenever a ring may have become hot during sleep.
    #[cold]
    #[inline(never)]
    pub(crate) fn stay_asleep(&mut self) {
        if self.wake_if_disarmed() {
            return;
        }
        self.handle_all_ready_bits();
        let mut place = 0;
        let mut found_nothing = false;
        // Bounded, as in `arm`. The engine looks again at its next tick at a ring that stays hot,
        // unless a completion from this loop has woken the context.
        let mut patience = SLOT_COUNT * (1 + self.common.hot.len() as u64);
        while place < self.common.hot.len() {
            match self.receive_batch(place) {
                ReceiveOutcome::Received(_) if patience > 0 => {
                    patience -= 1;
                    found_nothing = false;
                }
                ReceiveOutcome::Closed => {}
                ReceiveOutcome::Empty if self.goes_cold(place) => found_nothing = false,
                // A message arrived between the two looks.
                ReceiveOutcome::Empty if !found_nothing => found_nothing = true,
                // The message cannot be received yet, because the arena that it names has not
                // arrived; or the patience is used up. The ring stays hot, so the context is not at
                // rest, and the engine retries at its next tick.
                ReceiveOutcome::Empty | ReceiveOutcome::Received(_) => {
                    place += 1;
                    found_nothing = false;
                }
            }
        }
        self.wake_if_disarmed();
    }

    /// Wakes the context unless a queue is armed, and clears the sleep note for the peers. Returns
    /// true if the context is awake.
    fn wake_if_disarmed(&mut self) -> bool {
        let is_awake = !self.common.completion_queues.has_armed();
        if is_awake {
            self.common.pending.remove(Matter::Asleep);
            self.common.notes.sleep.wake_up();
        }
        is_awake
    }

    /// Returns true if the context needs no work until it is woken or used.
    pub(crate) fn is_idle(&self) -> bool {
        let common = &self.common;
        (common.is_asleep() || self.queue_pairs.is_empty())
            && common.hot.is_empty()
            && common.awaiting.is_empty()
            && common.unacked.is_empty()
            && common.tcp.acks_owed.is_empty()
            && common.tcp.acks_due.is_empty()
            && common.tcp.deferred.is_empty()
            && !common.tcp.has_lingering()
    }
}
