//! Interrupts a wait for asynchronous events.

use std::io;

use crate::event_fd::EventFd;

/// An eventfd that interrupts a wait for events.
#[derive(Debug)]
pub(super) struct Interruption(pub(super) EventFd);

impl Interruption {
    pub(super) fn new() -> io::Result<Self> {
        // A semaphore: each interruption ends one wait.
        EventFd::semaphore().map(Self)
    }

    pub(super) fn raise(&self) {
        // Fails only if the counter is at its maximum, which interrupts any wait as well.
        self.0.write();
    }

    /// Consumes an interruption. Returns true if there was one.
    pub(super) fn take(&self) -> bool {
        self.0.take()
    }
}
