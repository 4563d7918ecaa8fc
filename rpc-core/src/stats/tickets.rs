//! [`TicketTally`]: the calls of a shared channel that its poller has, as they are counted.

use std::ptr;
use std::sync::Arc;
use std::time::Instant;

use super::tally::{MethodTally, PollerTally};
use crate::method::MethodSpec;

/// By the numbers of their tickets.
pub(crate) struct TicketTally {
    poller: Arc<PollerTally>,
    /// By the address of the method's constant, so that a call compares a few pointers.
    called: Vec<(*const MethodSpec, Arc<MethodTally>)>,
    under_way: Box<[Option<UnderWay>]>,
}

#[derive(Clone, Copy)]
struct UnderWay {
    /// Among those that were called.
    method: usize,
    /// When the caller began, if it is one of those that are timed.
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

    /// The poller has taken a call.
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
        // Which calls are timed was decided by their callers.
        self.called[method].1.begin();
        self.under_way[ticket as usize] = Some(UnderWay { method, began });
    }

    /// It has been sent.
    pub(crate) fn sent(&self, ticket: u32) {
        if let Some(call) = self.under_way[ticket as usize] {
            self.called[call.method].1.start();
        }
    }

    /// It has ended with the code of this number, or nobody waits for it any more.
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
