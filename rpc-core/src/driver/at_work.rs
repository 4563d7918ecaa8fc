//! [`AtWork`] tells other threads which handler a poller is polling.

use std::sync::atomic::{AtomicU64, Ordering};

/// Which handler a poller is polling at the moment. Written by the poller alone, read by the
/// watchdog; nothing else is published through it, so every access is relaxed.
///
/// ```text
///  63                     17    16    15        0
/// ┌─────────────────────────┬────────┬───────────┐
/// │ number of the poll      │ inside │ method    │
/// └─────────────────────────┴────────┴───────────┘
/// ```
#[derive(Debug, Default)]
pub(crate) struct AtWork(pub(crate) AtomicU64);

/// What [`AtWork::enter`] has written.
pub(crate) struct Inside(u64);

impl AtWork {
    pub(crate) const INSIDE: u64 = 1 << 16;
    const ONE_POLL: u64 = 1 << 17;

    /// A poll of a handler of this method begins.
    #[inline]
    pub(crate) fn enter(&self, method: u16) -> Inside {
        // A load and a store, and no locked instruction: nobody else writes.
        let before = self.0.load(Ordering::Relaxed);
        let now = before.wrapping_add(Self::ONE_POLL) | Self::INSIDE | u64::from(method);
        self.0.store(now, Ordering::Relaxed);
        Inside(now)
    }

    /// It has ended.
    #[inline]
    pub(crate) fn leave(&self, Inside(entered): Inside) {
        let outside = entered & !(Self::ONE_POLL - 1);
        self.0.store(outside, Ordering::Relaxed);
    }
}
