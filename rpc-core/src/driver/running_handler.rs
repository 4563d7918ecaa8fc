//! [`RunningHandler`]: tells other threads which handler a poller is polling.

use std::sync::atomic::{AtomicU64, Ordering};

/// The handler that a poller is currently polling. Written only by the poller and read by the
/// watchdog. Every access is relaxed, because it publishes no other data.
///
/// ```text
///  63                     17    16    15        0
/// ┌─────────────────────────┬────────┬───────────┐
/// │ number of the poll      │running │ method    │
/// └─────────────────────────┴────────┴───────────┘
/// ```
#[derive(Debug, Default)]
pub(crate) struct RunningHandler(pub(crate) AtomicU64);

/// The value that [`RunningHandler::enter`] has written, for [`RunningHandler::leave`].
pub(crate) struct PollMark(u64);

impl RunningHandler {
    pub(crate) const RUNNING: u64 = 1 << 16;
    const ONE_POLL: u64 = 1 << 17;

    /// Records that a poll of a handler of this method begins.
    #[inline]
    pub(crate) fn enter(&self, method: u16) -> PollMark {
        // A load and a store rather than a locked instruction: there is no other writer.
        let before = self.0.load(Ordering::Relaxed);
        let now = before.wrapping_add(Self::ONE_POLL) | Self::RUNNING | u64::from(method);
        self.0.store(now, Ordering::Relaxed);
        PollMark(now)
    }

    /// Records that the poll has ended.
    #[inline]
    pub(crate) fn leave(&self, PollMark(entered): PollMark) {
        let outside = entered & !(Self::ONE_POLL - 1);
        self.0.store(outside, Ordering::Relaxed);
    }
}
