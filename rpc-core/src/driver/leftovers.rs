//! What a driver still holds: tests check that nothing is left when all calls have ended.

use super::connections::Connections;
use super::handlers::Handlers;
use super::link::Link;
use crate::transport::Transport;

impl<T: Transport> Connections<T> {
    /// Describes everything that is in flight: empty when all calls have ended.
    pub(super) fn leftovers(&self, handlers: &Handlers) -> Vec<String> {
        let state = self.state.borrow();
        let mut left = Vec::new();
        let mut report = |what: &str, count: usize| {
            if count > 0 {
                left.push(format!("{count} {what}"));
            }
        };
        for (key, link) in state.links.table.iter() {
            report("calls", link.calls.len());
            report("waiting calls", link.waiters.len());
            report("requests that wait", link.requests.len());
            report("grants and cancels", state.entries_owed(key));
        }
        let lent = handlers.lent_task.take();
        let spare = usize::from(lent.is_some());
        handlers.lent_task.set(lent);
        report("tasks", handlers.tasks.borrow().in_use() - spare);
        report(
            "futures and responses of handlers",
            handlers.methods.borrow().in_use(),
        );
        report("streams", state.streams.len());
        let (sent, received) = state.bodies.counts();
        report("long messages to send", sent);
        report("long messages to receive", received);
        let (arriving, held) = state.bodies.receiving.bytes();
        report("bytes of long messages", (arriving + held) as usize);
        report("blocked responses", state.responses.blocked.len());
        report("timers", state.links.timers.len());
        let promised: u32 = state.links.table.values().map(Link::promised).sum();
        report(
            "promised receives too many",
            state.links.budget.promised().saturating_sub(promised) as usize,
        );
        report(
            "promised receives too few",
            promised.saturating_sub(state.links.budget.promised()) as usize,
        );
        left
    }
}
