//! [`AtWork`]: tells other threads which handler a poller is polling.

use std::sync::atomic::{AtomicU64, Ordering};

/// The handler that a poller is currently polling. Written only by the poller and read by the
/// watchdog. Every access is relaxed, because it publishes no other data.
///
/// ```text
///  63                     17    16    15        0
/// ┌─────────────────────────┬────────┬───────────┐
/// │ number of the poll      │ inside │ method    │
/// └─────────────────────────┴────────┴───────────┘
/// ```
#[derive(Debug, Default)]
pub(crate) struct AtWork(pub(crate) AtomicU64);

/// The value that [`AtWork::enter`] has written.
pub(crate) struct Inside(u64);

impl AtWork {
    pub(crate) const INSIDE: u64 = 1 << 16;
    const ONE_POLL: u64 = 1 << 17;

    /// Records that a poll of a handler of this method begins.
    #[inline]
    pub(crate) fn enter(&self, method: u16) -> Inside {
        // A load and a store rather than a locked instruction: there is no other writer.
        let before = self.0.load(Ordering::Relaxed);
        let now = before.wrapping_add(Self::ONE_POLL) | Self::INSIDE | u64::from(method);
        self.0.store(now, Ordering::Relaxed);
        Inside(now)
    }

    /// Records that the poll has ended.
    #[inline]
    pub(crate) fn leave(&self, Inside(entered): Inside) {
        let outside = entered & !(Self::ONE_POLL - 1);
        self.0.store(outside, Ordering::Relaxed);
    }
}
