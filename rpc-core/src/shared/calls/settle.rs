//! Settles calls that have ended, or that nobody waits for any more.

use std::mem;
use std::time::Duration;

use super::{Calls, Record};
use crate::call_error::{CallError, Cause, Execution};
use crate::codec::LongMessage;
use crate::driver::body::BodyRef;
use crate::driver::handle::PollOutcome;
use crate::protocol::frame::ResponseHead;
use crate::shared::permits::{CallPermit, Settled};
use crate::shared::reconnect::Reconnect;
use crate::shared::unsent::Lane;
use crate::transport::{CloseReason, Transport};

impl<T: Transport> Calls<T> {
    /// Settles a call that has ended: by a response, a deadline, or the end of its connection.
    pub(in super::super) fn settle(&mut self, number: u32) {
        let (link, call, deadline, mut buf) = match &mut self.records[number as usize] {
            Record::InFlight {
                link,
                call,
                deadline,
                buf,
            } => (*link, *call, *deadline, mem::take(buf)),
            // An earlier call with this permit has ended.
            Record::Free | Record::Dropped | Record::Backlogged(_) => return,
        };
        let origin = self.origin(number);
        let driver = &*self.driver;
        let mut long = None;
        let polled =
            driver
                .connections
                .read_response_from(link, call, deadline, origin, |_, body| {
                    buf.clear();
                    match body {
                        BodyRef::Frame(body) => buf.extend_from_slice(body),
                        BodyRef::Long(response) => long = Some(Box::new(response.clone())),
                    }
                });
        let record = &mut self.records[number as usize];
        let outcome = match polled {
            PollOutcome::Pending | PollOutcome::Long => {
                if let Record::InFlight { buf: kept, .. } = record {
                    *kept = buf;
                }
                return;
            }
            PollOutcome::Received { head, .. } => Ok(head),
            PollOutcome::Failed(error) => Err(error),
        };
        *record = Record::Free;
        self.finish(CallPermit { number, buf }, outcome, long);
    }

    /// Settles a call. `long` is the response if its message did not fit a frame.
    pub(super) fn finish(
        &mut self,
        permit: CallPermit,
        outcome: Result<ResponseHead, CallError>,
        long: Option<Box<LongMessage>>,
    ) {
        let CallPermit { number, buf } = permit;
        let (code, pushback_us) = match &outcome {
            Ok(head) => (head.code, head.pushback_us),
            Err(error) => (error.code().number(), 0),
        };
        if pushback_us != 0 {
            self.hold_back(Duration::from_micros(u64::from(pushback_us) - 1));
        }
        let was_served = outcome.is_ok() && pushback_us == 0;
        self.pushback.ended(number, was_served);
        let settled = Settled { buf, long, outcome };
        // Before the caller can have the outcome, so that it never measures less.
        let took = self.counters.time(number);
        let waker = self.inbox.permits.settle(number, settled);
        self.counters.end(number, code, waker.is_some(), took);
        self.wakers.add(waker);
    }

    /// Cancels calls whose futures have been dropped, and releases their permits. A call that has
    /// been sent keeps its credit and its entry in the driver until its response arrives.
    pub(in super::super) fn abandon(&mut self, dropped: Vec<u32>) {
        for number in dropped {
            // A call that was settled in the meantime has released its permit.
            if !self.inbox.permits.is_abandoned(number) {
                continue;
            }
            match mem::replace(&mut self.records[number as usize], Record::Free) {
                // The request is still in the queue.
                Record::Free | Record::Dropped => {
                    self.records[number as usize] = Record::Dropped;
                }
                Record::Backlogged(waiting) => {
                    let request = self.backlog.remove(Lane::Unary, waiting);
                    self.give_up(request.expect("its record says that it waits"));
                }
                Record::InFlight {
                    link, call, buf, ..
                } => {
                    self.driver.connections.abandon_call(link, call);
                    let error = CallError::new(Cause::Cancelled, Execution::MayHaveRun);
                    self.finish(CallPermit { number, buf }, Err(error), None);
                }
            }
        }
    }

    /// Tells the driver that nobody waits for the calls in flight any more, because the channel ends
    /// and its poller goes on.
    pub(in super::super) fn abandon_all(&self) {
        for record in &self.records {
            if let Record::InFlight { link, call, .. } = record {
                self.driver.connections.abandon_call(*link, *call);
            }
        }
    }

    /// Settles all calls, and refuses further ones, because the channel or its poller ends.
    pub(in super::super) fn end(&mut self, connection: &Reconnect<T>) {
        for number in 0..self.records.len() {
            let record = mem::replace(&mut self.records[number], Record::Free);
            if let Record::InFlight { buf, .. } = record {
                let cause = Cause::Disconnected(CloseReason::Local);
                let error = CallError::new(cause, Execution::MayHaveRun);
                let number = number as u32;
                self.finish(CallPermit { number, buf }, Err(error), None);
            }
        }
        self.end_unsent(connection);
    }

    /// Describes the calls that have not ended.
    #[cfg(feature = "test-util")]
    pub(in super::super) fn leftovers(&self) -> [(usize, &'static str); 4] {
        let records = self.records.iter();
        let with_poller = records.filter(|record| !matches!(record, Record::Free));
        [
            (self.inbox.permits.in_use(), "permits"),
            (with_poller.count(), "permits held by the poller"),
            (self.backlog.len(Lane::Unary), "requests in the backlog"),
            (self.backlog.len(Lane::Streams), "streams that wait"),
        ]
    }
}
