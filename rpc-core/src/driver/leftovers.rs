//! What a driver still holds: tests check that nothing is left when all calls have ended.

use super::Driver;
use crate::transport::Transport;

impl<T: Transport> Driver<T> {
    /// Describes everything that is in flight: empty when all calls have ended.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let state = self.state.borrow();
        let mut left = Vec::new();
        let mut note = |what: &str, count: usize| {
            if count > 0 {
                left.push(format!("{count} {what}"));
            }
        };
        for (_, link) in &state.links {
            note("calls", link.calls.len());
            note("waiting calls", link.waiters.len());
        }
        note("tasks", self.tasks.borrow().in_use());
        note(
            "futures and responses of handlers",
            self.methods.borrow().in_use(),
        );
        note("blocked responses", state.blocked.len());
        note("timers", state.timers.len());
        let promised: u32 = state.links.iter().map(|(_, link)| link.promised()).sum();
        note(
            "promised receives too many",
            state.budget.promised().saturating_sub(promised) as usize,
        );
        note(
            "promised receives too few",
            promised.saturating_sub(state.budget.promised()) as usize,
        );
        left
    }
}
