//! [`PermitCounters`]: the accounting of the calls that callers of a shared channel have
//! submitted to its poller.

use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::poller_counters::{MethodCounters, PollerCounters};
use crate::method::MethodSpec;

/// The calls of one poller by permit number.
pub(crate) struct PermitCounters {
    poller: Arc<PollerCounters>,
    /// Keyed by the address of the method's constant, so that a call compares a few pointers.
    called: Vec<(*const MethodSpec, Arc<MethodCounters>)>,
    in_flight: Box<[Option<CallInFlight>]>,
}

#[derive(Clone, Copy)]
struct CallInFlight {
    /// Index into `called`.
    method: usize,
    /// Start time, if this call is timed.
    began: Option<Instant>,
}

impl PermitCounters {
    pub(crate) fn new(poller: Arc<PollerCounters>, permits: usize) -> Self {
        Self {
            poller,
            called: Vec::new(),
            in_flight: vec![None; permits].into(),
        }
    }

    /// Counts a call that the poller has received.
    pub(crate) fn begin(
        &mut self,
        permit: u32,
        method: &'static MethodSpec,
        began: Option<Instant>,
    ) {
        let method = self.index_of(method);
        // The return value is ignored: the caller has already decided whether this call is timed.
        self.called[method].1.begin();
        self.in_flight[permit as usize] = Some(CallInFlight { method, began });
    }

    fn index_of(&mut self, method: &'static MethodSpec) -> usize {
        let mut called = self.called.iter();
        let known = called.position(|(spec, _)| ptr::eq(*spec, method));
        known.unwrap_or_else(|| {
            self.called.push((method, self.poller.called(method)));
            self.called.len() - 1
        })
    }

    /// Returns the counters of a method.
    pub(crate) fn of(&mut self, method: &'static MethodSpec) -> &Arc<MethodCounters> {
        let index = self.index_of(method);
        &self.called[index].1
    }

    /// Counts a request that has been sent.
    pub(crate) fn sent(&self, permit: u32) {
        if let Some(call) = self.in_flight[permit as usize] {
            self.called[call.method].1.start();
        }
    }

    /// Returns how long a call has taken up to now, if it is timed.
    pub(crate) fn time(&self, permit: u32) -> Option<Duration> {
        let began = self.in_flight[permit as usize]?.began?;
        Some(self.poller.time_since(began))
    }

    /// Counts a call that has ended with the code of this number, after `took`, or as dropped if its
    /// caller no longer waits.
    pub(crate) fn end(&mut self, permit: u32, code: u16, is_wanted: bool, took: Option<Duration>) {
        let Some(call) = self.in_flight[permit as usize].take() else {
            return;
        };
        let counters = &self.called[call.method].1;
        if !is_wanted {
            return counters.drop_one();
        }
        counters.end(code);
        if let Some(took) = took {
            counters.record(took);
        }
    }
}
