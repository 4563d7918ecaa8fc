//! What tests do with a poller between its turns.

use super::SharedPoller;
use crate::transport::Transport;

impl<T: Transport> SharedPoller<T> {
    /// Expires deadlines, as at the end of a sleep. The next turn settles their calls.
    pub(crate) fn expire_deadlines(&mut self) {
        self.driver.run_in_turn(|| self.driver.expire_deadlines());
        self.driver.wake_collected();
    }

    /// Expires deadlines, and detects whether the connections are idle.
    pub(crate) fn check_timers(&mut self) {
        let now = self.driver.clock.now();
        self.expire_deadlines();
        self.driver.on_idle(now);
        self.settle();
        self.connect_when_due();
        for channel in self.channels.iter_mut() {
            channel.permits.maintain_queue(now);
            channel.streams.expire(&channel.connection);
        }
        self.wakers.wake();
    }

    /// Describes everything that is in flight: empty when all calls have ended.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let mut left = self.driver.leftovers();
        for channel in self.channels.iter() {
            for (count, what) in channel.leftovers() {
                if count > 0 {
                    left.push(format!("{count} {what}"));
                }
            }
        }
        let listed = self.channels.iter();
        let attempts = listed.filter(|channel| channel.attempt.is_some()).count();
        if self.attempts.len() != attempts {
            left.push("attempts of channels that are gone".to_owned());
        }
        left
    }

    pub(crate) fn with_transport<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        act(&mut self.driver.state.borrow_mut().transport)
    }
}
