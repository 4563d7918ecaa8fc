//! A context that is asleep: its completion queues are armed, and nobody looks at its rings until one
//! of its peers, or the engine, has something. The handshake with the peers is drawn in `wake`.

use super::progress::ready_bits;
use super::receive::Look;
use crate::provider::soft::context::state::State;
use crate::provider::soft::shared::ring::SLOT_COUNT;

impl State {
    /// `req_notify_cq`: the next completion of the queue raises an event, and none before.
    pub(crate) fn arm(&mut self, cq: usize, solicited_only: bool) {
        // What has been sent so far came before, and is completed without an event, as it would have
        // been by a device that does not wait to be polled. No more of it than fits a ring: a peer that
        // goes on and on sends what comes after the arming.
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

    /// Takes what has come, and leaves every ring cold, so that whatever comes next is rung for; or wakes
    /// up, if no queue is armed any more. To be called before the owner word is given back, whenever a
    /// ring may have become hot during sleep.
    #[cold]
    pub(crate) fn stay_asleep(&mut self) {
        if self.wakes_up() {
            return;
        }
        self.heed_ready_bits();
        let mut index = 0;
        let mut is_empty_handed = false;
        // For the same reason. A ring that is left hot is looked at again at the engine's next tick, if
        // nothing that was taken has woken the context.
        let mut patience = SLOT_COUNT * (1 + self.hot.len() as u64);
        while let Some(&place) = self.hot.get(index) {
            match self.receive(place) {
                Look::Took(_) if patience > 0 => {
                    patience -= 1;
                    is_empty_handed = false;
                }
                Look::Over => self.leave_hot(place),
                Look::Nothing if self.goes_cold(place) => {
                    self.hot.swap_remove(index);
                    is_empty_handed = false;
                }
                // Something came between the two looks.
                Look::Nothing if !is_empty_handed => is_empty_handed = true,
                // Or it cannot be taken yet: the arena that it names is still on its way. Such a ring
                // stays hot, so that the context is not at rest, and the engine tries again at its next
                // tick.
                Look::Nothing | Look::Took(_) => {
                    index += 1;
                    is_empty_handed = false;
                }
            }
        }
        self.wakes_up();
    }

    /// Tells the peers that somebody looks again, unless a queue is armed: whether it did.
    fn wakes_up(&mut self) -> bool {
        let mut queues = self.completion_queues.iter();
        let is_awake = !queues.any(|(_, queue)| queue.is_armed());
        if is_awake {
            self.is_asleep = false;
            ready_bits(&self.ready).note.wake_up();
        }
        is_awake
    }

    /// Whether nothing is to be done for this context until it is woken, or used.
    pub(crate) fn is_at_rest(&self) -> bool {
        (self.is_asleep || self.queue_pairs.is_empty())
            && self.hot.is_empty()
            && self.awaiting.is_empty()
            && self.unacked.is_empty()
    }
}
