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

use crate::record::Record;
use crate::recorder::{Period, Recorder};
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

impl<U> ClosedLoop<U> {
    /// Sets the time at the beginning during which calls are made but not recorded.
    #[must_use]
    pub fn warm_up(mut self, warm_up: Duration) -> Self {
        self.period.warm_up = warm_up;
        self
    }

    /// Sets the time after the warm-up during which calls are recorded.
    #[must_use]
    pub fn time(mut self, time: Duration) -> Self {
        self.period.time = time;
        self
    }

    /// Sets the number of slices that the time is divided into, for a curve: 60 unless it is set. Each takes
    /// 30 KB.
    #[must_use]
    pub fn slices(mut self, slices: usize) -> Self {
        self.period.slices = slices;
        self
    }

    /// Ends the loop when this future does, with what it has recorded by then: calls in flight are dropped
    /// and count as unanswered. Use it for Ctrl-C.
    #[must_use]
    pub fn until<V: Future>(self, until: V) -> ClosedLoop<V> {
        ClosedLoop {
            period: self.period,
            until,
        }
    }
}

impl<U: Future> ClosedLoop<U> {
    /// Keeps a call in flight for each caller, and counts those that fail by what their errors say. Calls
    /// that end in the time of the loop are recorded.
    ///
    /// The returned future ends when the time is over and each call has: give calls a deadline. Without
    /// callers it ends at once.
    pub async fn run<C, E>(self, callers: impl IntoIterator<Item = C>) -> Record
    where
        C: AsyncFnMut() -> Result<(), E>,
        E: fmt::Display,
    {
        let start = Instant::now();
        let count = |error: E| Some(error.to_string());
        self.drive(|| start.elapsed(), callers, count).await
    }

    /// Makes the calls, as [`run`](Self::run) does, until one fails.
    ///
    /// # Errors
    ///
    /// Returns the error of the first call that fails, after the calls in flight have ended.
    pub async fn try_run<C, E>(self, callers: impl IntoIterator<Item = C>) -> Result<Record, E>
    where
        C: AsyncFnMut() -> Result<(), E>,
    {
        let start = Instant::now();
        let mut first = None;
        let end = |error| {
            first.get_or_insert(error);
            None
        };
        let record = self.drive(|| start.elapsed(), callers, end).await;
        first.map_or(Ok(record), Err)
    }

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
                while !is_over.get() {
                    in_flight.set(Some(sent));
                    let began_in = turn.get();
                    let outcome = caller().await;
                    // The end of one call is the start of the next, so one clock reading per call is
                    // enough.
                    let completed = now();
                    match outcome.map_err(|error| failed.borrow_mut()(error)) {
                        Ok(()) => recorder.borrow_mut().answered_in_period(sent, completed),
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
                        in_flight.set(None);
                        yield_now().await;
                        sent = now();
                    }
                }
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
