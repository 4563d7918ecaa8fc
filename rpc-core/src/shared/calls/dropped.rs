//! Calls whose futures have been dropped. Their callers have noted them in
//! [`Notices`](super::super::notices::Notices).

use std::collections::VecDeque;
use std::mem;

use super::{Calls, Record};
use crate::call_error::{CallError, Cause, Execution};
use crate::shared::permits::CallPermit;
use crate::transport::Transport;

impl<T: Transport> Calls<T> {
    /// Cancels calls whose futures have been dropped, and releases their permits. A call that has
    /// been sent keeps its credit and its entry in the driver until its response arrives.
    pub(in super::super) fn abandon(&mut self, dropped: Vec<u32>) {
        let mut any_backlogged = false;
        for number in dropped {
            // A call that was settled in the meantime has released its permit.
            if !self.permits.is_abandoned(number) {
                continue;
            }
            match mem::replace(&mut self.records[number as usize], Record::Free) {
                // The request is still in the queue.
                Record::Free | Record::Dropped => {
                    self.records[number as usize] = Record::Dropped;
                }
                record @ Record::Backlogged { .. } => {
                    self.records[number as usize] = record;
                    any_backlogged = true;
                }
                Record::InFlight {
                    link, call, buf, ..
                } => {
                    self.driver.abandon_call(link, call);
                    self.settle_one(CallPermit { number, buf }, Err(dropped_call()));
                }
            }
        }
        if any_backlogged {
            self.drop_from_backlog();
        }
    }

    fn drop_from_backlog(&mut self) {
        let permits = &self.permits;
        let (dropped, kept): (VecDeque<_>, _) = mem::take(&mut self.backlog)
            .into_iter()
            .partition(|submission| permits.is_abandoned(submission.permit.number));
        self.backlog = kept;
        for submission in dropped {
            self.fail_dropped(submission.permit);
        }
    }

    /// Tells the driver that nobody waits for the calls in flight any more, because the channel ends
    /// and its poller goes on.
    pub(in super::super) fn abandon_all(&self) {
        for record in &self.records {
            if let Record::InFlight { link, call, .. } = record {
                self.driver.abandon_call(*link, *call);
            }
        }
    }

    /// Ends a call that was dropped before it was sent, which releases its permit.
    pub(super) fn fail_dropped(&mut self, permit: CallPermit) {
        self.driver.counters.cancels.never_sent.add(1);
        self.fail_unsent(permit, Cause::Cancelled);
    }
}

/// The outcome of a call whose caller no longer waits for it.
fn dropped_call() -> CallError {
    CallError::new(Cause::Cancelled, Execution::MayHaveRun)
}
