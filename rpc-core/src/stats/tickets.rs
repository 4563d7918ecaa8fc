//! [`TicketTally`]: the accounting of the calls that a shared channel has handed to its poller.

use std::ptr;
use std::sync::Arc;
use std::time::Instant;

use super::tally::{MethodTally, PollerTally};
use crate::method::MethodSpec;

/// The calls of one poller by permit number.
pub(crate) struct TicketTally {
    poller: Arc<PollerTally>,
    /// Keyed by the address of the method's constant, so that a call compares a few pointers.
    called: Vec<(*const MethodSpec, Arc<MethodTally>)>,
    under_way: Box<[Option<UnderWay>]>,
}

#[derive(Clone, Copy)]
struct UnderWay {
    /// Index into `called`.
    method: usize,
    /// Start time, if this call is sampled for latency.
    began: Option<Instant>,
}

impl TicketTally {
    pub(crate) fn new(poller: Arc<PollerTally>, tickets: usize) -> Self {
        Self {
            poller,
            called: Vec::new(),
            under_way: vec![None; tickets].into(),
        }
    }

    /// Counts a call that the poller has received.
    pub(crate) fn begin(
        &mut self,
        ticket: u32,
        method: &'static MethodSpec,
        began: Option<Instant>,
    ) {
        let known = self
            .called
            .iter()
            .position(|(spec, _)| ptr::eq(*spec, method));
        let method = known.unwrap_or_else(|| {
            self.called.push((method, self.poller.called(method)));
            self.called.len() - 1
        });
        // The return value is ignored: the caller has already decided whether this call is timed.
        self.called[method].1.begin();
        self.under_way[ticket as usize] = Some(UnderWay { method, began });
    }

    /// Counts a request that has been sent.
    pub(crate) fn sent(&self, ticket: u32) {
        if let Some(call) = self.under_way[ticket as usize] {
            self.called[call.method].1.start();
        }
    }

    /// Counts a call that has ended with the code of this number, or as dropped if its caller no
    /// longer waits.
    pub(crate) fn end(&mut self, ticket: u32, code: u16, is_wanted: bool) {
        let Some(call) = self.under_way[ticket as usize].take() else {
            return;
        };
        let tally = &self.called[call.method].1;
        if !is_wanted {
            return tally.drop_one();
        }
        tally.end(code);
        if let Some(began) = call.began {
            self.poller.time(tally, began);
        }
    }
}
