//! [`PollerStreams`]: opens the streams of callers through a poller of a shared channel.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::notices::{Closed, StreamSubmission};
use super::submissions::{PollerHandle, Shared};
use crate::call_error::{CallError, Cause, Execution};
use crate::client::streaming::{NewStream, OpenStream};
use crate::clock::deadline_after;
use crate::stats::is_timed_here;
use crate::stream::core::StreamCore;
use crate::stream::inbound::StreamEnd;
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

    fn open(&self, core: &Arc<StreamCore>, stream: NewStream) -> u64 {
        let submission = StreamSubmission {
            core: Arc::clone(core),
            method: stream.method,
            deadline: stream.deadline,
            began: is_timed_here(self.shared.latency_sampling).then(|| self.shared.clock.now()),
            waits_for_ready: stream
                .waits_for_ready
                .unwrap_or(self.shared.waits_for_ready),
            sends_messages: stream.sends_messages,
            metadata_len: stream.metadata_len,
            frame: stream.frame,
            message: stream.message,
        };
        if (self.shared.is_forked)() {
            let error = CallError::new(Cause::Forked, Execution::NeverSent);
            core.end(StreamEnd::Failed(error));
            return u64::MAX;
        }
        match self.handle.notices.submit(submission) {
            Ok(number) => {
                self.handle.notify();
                number
            }
            Err(Closed) => {
                let address = self.handle.address.clone();
                let latest = None;
                let cause = Cause::NotConnected { address, latest };
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
        self.handle.notices.push_back(pushback);
        self.handle.notify();
    }

    fn keep_alive(&self) -> Option<KeepAlive> {
        let shared: KeepAlive = Arc::clone(self.shared) as _;
        Some(shared)
    }
}
