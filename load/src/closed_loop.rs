//! [`ClosedLoop`]: each caller makes its next call when the last one has been answered.
//!
//! It finds how many calls a server answers with so many in flight, and what a call takes then. It does
//! not find what a caller waits who comes at a time of its own: while the server stalls, no call is made
//! that would have met the stall. For that there is [`OpenLoop`](crate::OpenLoop).

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Pending, pending, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::period::{Period, of_both_loops};
use crate::record::Record;
use crate::recorder::Recorder;
use crate::task_set::TaskSet;

/// For how long a closed loop makes calls.
#[derive(Clone, Debug)]
pub struct ClosedLoop<U = Pending<()>> {
    period: Period,
    until: U,
}

impl ClosedLoop {
    /// Creates a loop of ten seconds after a warm-up of one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Default for ClosedLoop {
    fn default() -> Self {
        Self {
            period: Period::default(),
            until: pending(),
        }
    }
}

of_both_loops! {
    ClosedLoop { }

    /// Keeps a call in flight for each caller, and counts those that fail by what their errors say. Calls
    /// that end in the time of the loop are recorded.
    ///
    /// The returned future ends when the time is over and each call has: give calls a deadline. Without
    /// callers it ends at once.
}

impl<U: Future> ClosedLoop<U> {
    /// Makes the calls. `now` returns the time since the first poll. `failed` returns what an error counts
    /// as, or `None` to end the loop.
    pub(crate) async fn drive<C, E>(
        self,
        now: impl Fn() -> Duration,
        callers: impl IntoIterator<Item = C>,
        failed: impl FnMut(E) -> Option<String>,
    ) -> Record
    where
        C: AsyncFnMut() -> Result<(), E>,
    {
        let end = self.period.end();
        let callers: Vec<C> = callers.into_iter().collect();
        let is_over = Cell::new(false);
        let in_flight: Vec<_> = callers.iter().map(|_| Cell::new(None)).collect();
        let recorder = RefCell::new(Recorder::new(None, callers.len(), self.period));
        let failed = RefCell::new(failed);
        // Polls of the loop so far. A call that ends in the poll in which it began was not pending: if all
        // calls of a caller are like that, as those that fail at once, no other caller has its turn.
        let turn = Cell::new(0_u64);
        let callers = callers.into_iter().zip(&in_flight);
        let callers = callers.map(|(mut caller, in_flight)| {
            let (now, is_over, turn) = (&now, &is_over, &turn);
            let (recorder, failed) = (&recorder, &failed);
            async move {
                let mut sent = now();
                // The last call, if it is not recorded yet: that takes time, which is no part of a call.
                let mut last = None;
                let record = |last: &mut Option<(Duration, Duration)>| {
                    if let Some((sent, completed)) = last.take() {
                        recorder.borrow_mut().answered_in_period(sent, completed);
                    }
                };
                while !is_over.get() {
                    in_flight.set(Some(sent));
                    let began_in = turn.get();
                    let mut call = pin!(caller());
                    let begun = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await;
                    record(&mut last);
                    let outcome = match begun {
                        Poll::Ready(outcome) => outcome,
                        Poll::Pending => call.await,
                    };
                    // The end of one call is the start of the next, so one clock reading per call is
                    // enough.
                    let completed = now();
                    match outcome.map_err(|error| failed.borrow_mut()(error)) {
                        Ok(()) => last = Some((sent, completed)),
                        Err(Some(error)) => {
                            let mut recorder = recorder.borrow_mut();
                            recorder.failed_in_period(sent, completed, error);
                        }
                        Err(None) => is_over.set(true),
                    }
                    if completed >= end {
                        is_over.set(true);
                    }
                    sent = completed;
                    if turn.get() == began_in {
                        record(&mut last);
                        in_flight.set(None);
                        yield_now().await;
                        sent = now();
                    }
                }
                record(&mut last);
                in_flight.set(None);
            }
        });
        let mut task_set = TaskSet::new(callers);
        let mut until = pin!(self.until);
        let ended = poll_fn(|cx| {
            turn.set(turn.get() + 1);
            if until.as_mut().poll(cx).is_ready() {
                return Poll::Ready(now().min(end));
            }
            pin!(&mut task_set).poll(cx).map(|()| end)
        })
        .await;
        drop(task_set);
        let mut recorder = recorder.into_inner();
        for sent in in_flight.iter().filter_map(Cell::get) {
            recorder.unanswered(sent, ended);
        }
        recorder.finish_closed(ended)
    }
}

async fn yield_now() {
    let mut has_yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
