//! Callers hand their requests to the pollers of a channel here.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crossbeam_channel::Sender;

use super::connectivity::Connectivity;
use super::permits::{Settled, Ticket, Tickets};
use crate::call_error::{CallError, Cause, Execution};
use crate::clock::Clock;
use crate::driver::wakeup::Doorbell;
use crate::limits::Limits;
use crate::method::MethodSpec;
use crate::stats::PollerTally;

/// What all clones share.
pub(super) struct Shared {
    pub(super) address: String,
    pub(super) lanes: Box<[Lane]>,
    /// Of the lane that the next call tries first.
    pub(super) turn: AtomicUsize,
    pub(super) connectivity: Arc<Connectivity>,
    pub(super) waits_for_ready: bool,
    pub(super) clock: Clock,
}

/// One poller, as callers see it.
pub(super) struct Lane {
    pub(super) address: String,
    pub(super) tickets: Arc<Tickets>,
    pub(super) submissions: Sender<Submission>,
    pub(super) bell: Arc<OnceLock<Arc<Doorbell>>>,
    /// Set when the channel is gone, for the poller to end.
    pub(super) is_over: Arc<AtomicBool>,
    pub(super) prospect: Arc<Prospect>,
    pub(super) limits: Arc<OnceLock<Limits>>,
    /// What the poller counts, when it has opened its device.
    pub(super) tally: Arc<OnceLock<Arc<PollerTally>>>,
}

/// A request on its way to the poller.
#[derive(Debug)]
pub(super) struct Submission {
    pub(super) ticket: Ticket,
    pub(super) method: &'static MethodSpec,
    pub(super) deadline: Option<Instant>,
    /// The first bytes of the ticket's buffer; the rest is the message.
    pub(super) metadata_len: usize,
    pub(super) waits_for_ready: bool,
    /// When its call began, if that is one of those that are timed.
    pub(super) began: Option<Instant>,
}

impl Shared {
    /// The lane for a new call: each in turn, of those with the best prospect.
    pub(super) fn next_lane(&self) -> &Lane {
        let [only] = &*self.lanes else {
            let first = self.turn.fetch_add(1, Ordering::Relaxed);
            let count = self.lanes.len();
            let in_turn = (0..count).map(|next| &self.lanes[first.wrapping_add(next) % count]);
            // The first of those that are alike.
            return in_turn
                .min_by_key(|lane| lane.prospect.get())
                .unwrap_or(&self.lanes[first % count]);
        };
        only
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.ring();
    }
}

/// What a call may hope for from a poller: a hint for the choice of a lane. Less is better.
#[derive(Debug, Default)]
pub(super) struct Prospect(AtomicU8);

impl Prospect {
    /// It is connected, or connects for the first call.
    pub(super) const GOOD: u8 = 0;
    /// It is connecting.
    pub(super) const FAIR: u8 = 1;
    /// Its latest attempt has failed.
    pub(super) const POOR: u8 = 2;

    pub(super) fn get(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, prospect: u8) {
        self.0.store(prospect, Ordering::Relaxed);
    }
}

impl Lane {
    /// Hands a request to the poller. The queue has room: there are as many places as tickets.
    pub(super) fn submit(&self, submission: Submission) {
        let number = submission.ticket.number;
        if self.submissions.try_send(submission).is_ok() {
            self.ring();
            // After the fence in there. A poller that ends sets the flag, and then takes what is in the
            // queue: either it finds this submission, or this look finds the flag.
            if !self.is_over.load(Ordering::Relaxed) {
                return;
            }
        }
        // The poller's thread has ended, which only a panic of this library's brings about.
        let cause = Cause::NotConnected {
            address: self.address.clone(),
            latest: None,
        };
        let settled = Settled {
            buf: Vec::new(),
            outcome: Err(CallError::new(cause, Execution::NeverSent)),
        };
        if let Some(waker) = self.tickets.settle(number, settled) {
            waker.wake();
        }
    }

    /// Wakes the poller, should it sleep.
    pub(super) fn ring(&self) {
        match self.bell.get() {
            Some(bell) => bell.ring(),
            // It has not begun. What it is to find was put before this fence, and it looks after one
            // of its own that comes after its bell is there: if this look misses the bell, that look
            // finds what was put.
            None => {
                fence(Ordering::SeqCst);
                if let Some(bell) = self.bell.get() {
                    bell.ring();
                }
            }
        }
    }
}
