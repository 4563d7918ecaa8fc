//! Simulated liveness sockets, as the world watches them.

use crate::transport::lifeline::SimulatedLine;
use crate::transport::mailbox::{LineEnd, LineKey, Mailbox, Notice};

/// A line as the world watches it, on behalf of the control threads of both sides.
pub(super) struct WatchedLine {
    pub(super) line: SimulatedLine,
    pub(super) ends: [End; 2],
    /// True while the server has not been notified that its client is ready.
    pub(super) awaits_ready: bool,
}

/// One side of a line.
pub(super) struct End {
    pub(super) process: usize,
    pub(super) key: LineKey,
    pub(super) mailbox: Mailbox,
    pub(super) is_told: bool,
}

impl WatchedLine {
    /// Returns true if nothing remains to be reported.
    pub(super) fn is_over(&self) -> bool {
        self.ends.iter().all(|end| end.is_told)
    }

    /// Reports pending notices to each side that is not delayed by a fault.
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
            // If the transport is gone, there is nothing to notify. The same holds below.
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
