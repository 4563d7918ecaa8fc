//! What a poller does before it is idle: the last entries for its peers, the periodic maintenance of
//! connections, and its sleep.
//!
//! A poller sleeps in three steps, so that it misses no work: it arms the notification, polls once
//! more, and waits. This happens at two levels:
//!
//! * Other threads (callers that submit, wakers of handlers, a shutdown) store their work where the
//!   poller looks, and then notify it (`wakeup.rs`). A notification costs a fence and a load while
//!   the poller is awake, and one system call while it sleeps.
//! * The device notifies through the completion channels of the lanes. The control thread and the
//!   event threads notify through an eventfd, on which the poller waits together with the channels
//!   (`rpc-transport-verbs/src/transport/sleep.rs`).
//!
//! The code of each handshake draws it, with the interleaving that each fence prevents. Loom models
//! check both.

use std::thread;
use std::time::Duration;

use super::Driver;
use crate::transport::Transport;

/// The most turns that a caller takes until its entries are sent. An entry waits while the peer has not
/// acknowledged the control frame before.
const MOST_TURNS: u32 = 20_000;
/// Of these, turns after which the caller offers its core to others before each: where there are more
/// threads than cores, the peer may need it. All turns take some ten milliseconds if nobody does.
const TURNS_WITHOUT_YIELD: u32 = 1000;

impl<T: Transport> Driver<T> {
    /// Sleeps until the device has an event, a deadline passes, or another thread notifies the
    /// poller. Does not sleep if there is something to do already. `how_long` returns the caller's
    /// limit on the sleep, or `None` if the caller has work and the poller must not sleep. Returns
    /// true if it did not sleep.
    pub(crate) fn sleep(&self, how_long: &dyn Fn() -> Option<Duration>) -> bool {
        self.connections
            .state
            .borrow_mut()
            .on_idle(self.connections.clock.now());
        self.connections.wakeup.prepare_sleep();
        self.connections.state.borrow_mut().links.transport.arm();
        // This turn finds events that arrived before the device was armed, and work that other
        // threads queued before they could see that this poller sleeps.
        let found_any = self.turn()
            || self.connections.ready.has_any()
            || self.connections.state.borrow().has_undone_work();
        // Called after `prepare_sleep`: a thread that queues something from now on notifies the
        // poller.
        let at_most = how_long().filter(|_| !found_any);
        if let Some(at_most) = at_most {
            self.update_gauges();
            let state = &mut *self.connections.state.borrow_mut();
            let asleep_since = self.connections.clock.now();
            let timeout = at_most.min(state.longest_sleep(asleep_since));
            self.connections.counters.turns.slept.add(1);
            state.links.transport.wait(Some(timeout));
            let asleep = self
                .connections
                .clock
                .now()
                .saturating_duration_since(asleep_since);
            self.connections.counters.turns.woken.add(1);
            self.connections
                .counters
                .turns
                .asleep_ns
                .add(asleep.as_nanos() as u64);
        }
        self.connections.wakeup.resume();
        if !self.connections.state.borrow().links.timers.is_empty() {
            self.run_in_turn(|| self.expire_deadlines());
            self.connections.wake_collected();
        }
        at_most.is_none()
    }

    /// Takes turns until each sender knows that its message was received. Messages that are still
    /// arriving are released in later turns, so that a stream does not hold up the caller.
    #[cold]
    pub(super) fn send_releases(&self) {
        for turn in 0..MOST_TURNS {
            if !self
                .connections
                .state
                .borrow()
                .bodies
                .receiving
                .owes_last_entries()
            {
                return;
            }
            if turn >= TURNS_WITHOUT_YIELD {
                thread::yield_now();
            }
            self.turn();
        }
    }
}
