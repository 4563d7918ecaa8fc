//! A sleeping context: its completion queues are armed, and no thread polls its rings until a peer
//! or the engine wakes it. `wake` draws the handshake with the peers.

use super::progress::ready_bits;
use super::receive::ReceiveOutcome;
use crate::provider::soft::context::state::State;
use crate::provider::soft::shared::ring::SLOT_COUNT;

impl State {
    /// Arms a queue, as `req_notify_cq` does: its next completion raises an event; earlier ones
    /// raise none.
    pub(crate) fn arm(&mut self, cq: usize, solicited_only: bool) {
        // Messages sent so far precede the arming and complete without an event, as on a device
        // that does not depend on being polled. The loop is bounded by what fits a ring: anything
        // beyond that counts as sent after the arming.
        for _ in 0..SLOT_COUNT {
            if self.progress() == 0 {
                break;
            }
        }
        self.completion_queues[cq].arm(solicited_only);
        if !self.is_asleep {
            self.is_asleep = true;
            ready_bits(&self.ready).note.fall_asleep();
        }
        self.stay_asleep();
        if !self.overrun.is_empty() {
            self.fail_overrun();
        }
    }

    /// Receives what has arrived and leaves every ring cold, so that the sender of the next message
    /// notifies this context; or wakes up if no queue is armed any more. Call this before releasing
    /// the owner word whenever a ring may have become hot during sleep.
    #[cold]
    pub(crate) fn stay_asleep(&mut self) {
        if self.wake_if_disarmed() {
            return;
        }
        self.handle_ready_bits();
        let mut index = 0;
        let mut found_nothing = false;
        // Bounded, as in `arm`. The engine looks again at its next tick at a ring that stays hot,
        // unless a completion from this loop has woken the context.
        let mut patience = SLOT_COUNT * (1 + self.hot.len() as u64);
        while let Some(&qp_index) = self.hot.get(index) {
            match self.receive(qp_index) {
                ReceiveOutcome::Received(_) if patience > 0 => {
                    patience -= 1;
                    found_nothing = false;
                }
                ReceiveOutcome::Closed => self.leave_hot(qp_index),
                ReceiveOutcome::Empty if self.goes_cold(qp_index) => {
                    self.hot.swap_remove(index);
                    found_nothing = false;
                }
                // A message arrived between the two looks.
                ReceiveOutcome::Empty if !found_nothing => found_nothing = true,
                // Or the message cannot be received yet because the arena that it names has not
                // arrived. Its ring stays hot, so the context is not at rest, and the engine
                // retries at its next tick.
                ReceiveOutcome::Empty | ReceiveOutcome::Received(_) => {
                    index += 1;
                    found_nothing = false;
                }
            }
        }
        self.wake_if_disarmed();
    }

    /// Wakes the context unless a queue is armed, and clears the sleep note for the peers. Returns
    /// true if the context is awake.
    fn wake_if_disarmed(&mut self) -> bool {
        let mut queues = self.completion_queues.iter();
        let is_awake = !queues.any(|(_, queue)| queue.is_armed());
        if is_awake {
            self.is_asleep = false;
            ready_bits(&self.ready).note.wake_up();
        }
        is_awake
    }

    /// Returns true if the context needs no work until it is woken or used.
    pub(crate) fn is_idle(&self) -> bool {
        (self.is_asleep || self.queue_pairs.is_empty())
            && self.hot.is_empty()
            && self.awaiting.is_empty()
            && self.unacked.is_empty()
    }
}
