//! Simulated lifelines, as the world watches them.

use crate::transport::lifeline::SimulatedLine;
use crate::transport::mailbox::{LineEnd, LineKey, Mailbox, Notice};

/// A lifeline as the world watches it, for the control threads of both sides.
pub(super) struct WatchedLine {
    pub(super) line: SimulatedLine,
    pub(super) ends: [End; 2],
    /// The server has not been told yet that its client is ready.
    pub(super) awaits_ready: bool,
}

/// One side of it.
pub(super) struct End {
    pub(super) process: usize,
    pub(super) key: LineKey,
    pub(super) mailbox: Mailbox,
    pub(super) is_told: bool,
}

impl WatchedLine {
    /// Whether there is nothing to be told any more.
    pub(super) fn is_over(&self) -> bool {
        self.ends.iter().all(|end| end.is_told)
    }

    /// Tells what there is to be told to whoever is not late.
    pub(super) fn step(
        &mut self,
        is_alive: impl Fn(usize) -> bool,
        is_late: impl Fn(bool) -> bool,
    ) {
        if self.ends.iter().any(|end| !is_alive(end.process)) {
            self.line.hang_up();
        }
        if self.awaits_ready && !is_late(true) {
            self.awaits_ready = false;
            let [_, server] = &self.ends;
            // Without a transport there is nobody to tell; so below.
            let _ = server.mailbox.put(Notice::Ready(server.key));
        }
        if !self.line.has_ended() {
            return;
        }
        for end in &mut self.ends {
            if !end.is_told && (!is_alive(end.process) || !is_late(false)) {
                end.is_told = true;
                let _ = end.mailbox.put(Notice::Ended(end.key, LineEnd::Gone));
            }
        }
    }
}
