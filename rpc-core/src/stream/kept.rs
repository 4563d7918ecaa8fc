//! [`KeptCores`]: the state of ended streams, kept for the next ones.
//!
//! A poller that opens and ends streams again and again would otherwise allocate the same memory for each:
//! the core, and its first batches in both directions.

use std::collections::VecDeque;
use std::sync::Arc;

use super::core::StreamCore;

/// Ended streams that are kept.
const MOST_KEPT: usize = 16;

/// The cores of streams that a driver has removed. The application may still hold some.
#[derive(Debug, Default)]
pub(crate) struct KeptCores(VecDeque<Arc<StreamCore>>);

impl KeptCores {
    /// Keeps the core of a stream that has ended, if it is worth it.
    pub(crate) fn keep(&mut self, core: Arc<StreamCore>) {
        if self.0.len() < MOST_KEPT && core.is_worth_keeping() {
            self.0.push_back(core);
        }
    }

    /// Takes a core that nobody else holds any more.
    pub(crate) fn take(&mut self) -> Option<Arc<StreamCore>> {
        let mut core = self.0.pop_front()?;
        if let Some(unused) = Arc::get_mut(&mut core) {
            unused.renew();
            return Some(core);
        }
        // The application has not dropped its end yet.
        self.0.push_back(core);
        None
    }
}
