//! [`PollerStreams`]: opens the streams of callers through a poller of a shared channel.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::notices::Closed;
use super::submissions::{PollerHandle, Shared};
use super::unsent::Unsent;
use crate::call_error::{CallError, Cause, Execution};
use crate::client::streaming::OpenStream;
use crate::clock::deadline_after;
use crate::driver::handle::StreamRequest;
use crate::stats::{CalledStream, is_timed_here};
use crate::stream::core::StreamCore;
use crate::stream::end::StreamEnd;
use crate::stream::streaming::KeepAlive;

/// One poller of a channel, for one stream.
pub(super) struct PollerStreams<'a> {
    shared: &'a Arc<Shared>,
    handle: &'a PollerHandle,
}

impl<'a> PollerStreams<'a> {
    /// Chooses the poller of a new stream.
    pub(super) fn choose(shared: &'a Arc<Shared>) -> Self {
        let handle = shared.next_poller();
        Self { shared, handle }
    }
}

impl OpenStream for PollerStreams<'_> {
    fn deadline_after(&self, timeout: Duration) -> Option<Instant> {
        deadline_after(self.shared.clock.now(), timeout)
    }

    fn new_core(&self) -> Arc<StreamCore> {
        StreamCore::new()
    }

    fn open(&self, core: &Arc<StreamCore>, mut request: StreamRequest) -> u64 {
        let now = || self.shared.clock.now();
        let began = is_timed_here(self.shared.latency_sampling).then(now);
        request.counters = CalledStream::uncounted(began);
        let waits_for_ready = &mut request.waits_for_ready;
        waits_for_ready.get_or_insert(self.shared.waits_for_ready);
        let stream = Unsent::Stream(Arc::clone(core), request);
        let submitted = match (self.shared.is_forked)() {
            true => Err(Cause::Forked),
            false => {
                let submitted = self.handle.notices.submit(stream);
                submitted.map_err(|Closed| self.handle.has_ended())
            }
        };
        match submitted {
            Ok(number) => {
                self.handle.notify();
                number
            }
            Err(cause) => {
                let error = CallError::new(cause, Execution::NeverSent);
                core.end(StreamEnd::Failed(error));
                u64::MAX
            }
        }
    }

    fn give_up(&self, number: u64) {
        if self.handle.notices.give_up(number) {
            self.handle.notify();
        }
    }

    fn push_back(&self, pushback: Duration) {
        let _ = self.handle.post(|pending| {
            pending.pushback = pending.pushback.max(pushback);
        });
    }

    fn keep_alive(&self) -> Option<KeepAlive> {
        let shared: KeepAlive = Arc::clone(self.shared) as _;
        Some(shared)
    }
}
