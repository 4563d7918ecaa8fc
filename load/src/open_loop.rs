//! [`OpenLoop`]: calls that are sent at intended times, no matter how many are in flight.
//!
//! A closed loop sends its next call when the previous one has been answered. A server that stalls
//! therefore also stalls the measurement: the calls that would have met the stall are never made.
//! This is called coordinated omission. Here each call has a time at which it *should* be sent, and
//! two latencies are recorded:
//!
//! ```text
//!  intended          sent                    answered
//!     │── waited ─────│── service time ─────────│
//!     │── response time ────────────────────────│
//! ```
//!
//! The response time is the latency that an independent caller sees.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Pending, pending, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::arrivals::{Arrivals, Schedule};
use crate::dispatcher::{Dispatcher, Which};
use crate::period::{Period, of_both_loops};
use crate::record::Record;
use crate::recorder::{Call, Recorder};
use crate::task_set::TaskSet;

/// The rate of an open loop, and for how long it makes calls.
#[derive(Clone, Debug)]
pub struct OpenLoop<U = Pending<()>> {
    rate: f64,
    arrivals: Arrivals,
    seed: u64,
    period: Period,
    until: U,
}

impl OpenLoop {
    /// Creates a loop that sends `rate` calls per second in equal intervals: for ten seconds, after a
    /// warm-up of one.
    ///
    /// # Panics
    ///
    /// Panics if the rate is not a number above zero.
    #[must_use]
    pub fn at(rate: f64) -> Self {
        assert!(
            rate > 0.0 && rate.is_finite(),
            "an open loop needs a rate above zero, not {rate}"
        );
        Self {
            rate,
            arrivals: Arrivals::Fixed,
            seed: 0,
            period: Period::default(),
            until: pending(),
        }
    }
}

impl<U> OpenLoop<U> {
    /// Sends calls in exponential intervals, as many independent callers would.
    #[must_use]
    pub fn poisson(self) -> Self {
        self.arrivals(Arrivals::Poisson)
    }

    /// Sets the distribution of the times between calls.
    #[must_use]
    pub fn arrivals(mut self, arrivals: Arrivals) -> Self {
        self.arrivals = arrivals;
        self
    }

    /// Sets the seed: of Poisson arrivals, and of the time of the first call among fixed ones. Give each
    /// thread and process another one: equal seeds send in step.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }
}

of_both_loops! {
    OpenLoop { rate, arrivals, seed }

    /// Makes the calls, and counts those that fail by what their errors say. Each caller makes one call at
    /// a time, so their number limits the calls in flight; what is due while all of them wait is sent late.
    ///
    /// The returned future wakes itself on every poll: run it on a thread that does nothing else. It ends
    /// when the time is over and each call has: give calls a deadline.
    ///
    /// # Panics
    ///
    /// Panics if there are no callers.
}

impl<U: Future> OpenLoop<U> {
    /// Makes the calls. `now` returns the time since the first poll. `failed` returns what
    /// an error counts as, or `None` to end the loop.
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
        assert!(!callers.is_empty(), "a loop needs at least one caller");
        let dispatcher = Dispatcher::new(callers.len());
        let in_flight: Vec<_> = callers.iter().map(|_| Cell::new(None)).collect();
        let recorder = Recorder::new(Some(self.rate), callers.len(), self.period);
        let (recorder, failed) = (RefCell::new(recorder), RefCell::new(failed));
        let mut until = pin!(self.until);
        let mut schedule = Schedule::new(self.arrivals, self.rate, self.seed)
            .take_while(|&intended| intended < end)
            .peekable();
        let callers = callers.into_iter().enumerate().map(|(index, caller)| {
            let (dispatcher, recorder, failed) = (&dispatcher, &recorder, &failed);
            let (now, in_flight) = (&now, &in_flight[index]);
            async move {
                let mut caller = caller;
                while let Some((intended, was_held)) = dispatcher.next_call(index).await {
                    let call = Call {
                        intended,
                        sent: now(),
                        was_held,
                    };
                    in_flight.set(Some(intended));
                    let outcome = caller().await;
                    in_flight.set(None);
                    let completed = now();
                    match outcome.map_err(|error| failed.borrow_mut()(error)) {
                        Ok(()) => recorder.borrow_mut().answered(call, completed),
                        Err(Some(error)) => recorder.borrow_mut().failed(call, completed, error),
                        Err(None) => {
                            dispatcher.close();
                            return;
                        }
                    }
                }
            }
        });
        let mut task_set = TaskSet::new(callers);
        // The last time at which a call was due and all callers had calls in flight.
        let mut busy = Duration::ZERO;
        let ended = poll_fn(|cx| {
            if until.as_mut().poll(cx).is_ready() {
                return Poll::Ready(now().min(end));
            }
            if !dispatcher.is_closed() {
                let now = now();
                while now < end
                    && let Some(&intended) = schedule.peek()
                    && intended <= now
                {
                    // Calls without an idle caller wait.
                    if !dispatcher.assign((intended, intended < busy), Which::Latest) {
                        busy = now;
                        break;
                    }
                    schedule.next();
                }
                if now >= end {
                    dispatcher.close();
                }
            }
            // The next call may be due before a response arrives.
            cx.waker().wake_by_ref();
            pin!(&mut task_set).poll(cx).map(|()| end)
        })
        .await;
        drop(task_set);
        let mut recorder = recorder.into_inner();
        for intended in in_flight.iter().filter_map(Cell::get) {
            recorder.unanswered(intended, ended);
        }
        count_unsent(schedule, self.rate, ended, &mut recorder);
        recorder.finish(ended)
    }
}

/// Counts the calls of a schedule that were due by the end.
fn count_unsent(
    schedule: impl Iterator<Item = Duration>,
    rate: f64,
    end: Duration,
    recorder: &mut Recorder,
) {
    /// Calls that are counted one by one, and groups of the others: at a rate that no machine offers there
    /// are too many.
    const EACH: u64 = 100_000;
    let mut schedule = schedule.take_while(|&intended| intended < end);
    for intended in schedule.by_ref().take(EACH as usize) {
        recorder.unsent(intended, end, 1);
    }
    let Some(next) = schedule.next() else {
        return;
    };
    let left = (end - next).as_secs_f64();
    let sent_by = |group| (left * rate * (group as f64 / EACH as f64)) as u64;
    for group in 0..EACH {
        let intended = next + Duration::from_secs_f64(left * (group as f64 / EACH as f64));
        recorder.unsent(intended, end, sent_by(group + 1) - sent_by(group));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{FakeClock, FakeServer};
    use crate::task_set::tests::poll_to_end;

    /// Runs an open loop for 20 ms over the fake clock, with at most `limit` calls in flight.
    fn run(limit: usize, stall: std::ops::Range<Duration>, rate: f64) -> Record {
        let clock = FakeClock::default();
        let server = FakeServer::new(&clock, stall);
        let callers = (0..limit).map(|_| async || server.call().await);
        let plan = OpenLoop::at(rate)
            .warm_up(Duration::from_millis(1))
            .time(Duration::from_millis(20));
        poll_to_end(plan.drive(clock.restarted(), callers, |_| None))
    }

    const NO_STALL: std::ops::Range<Duration> = Duration::ZERO..Duration::ZERO;

    /// Two of the twenty milliseconds: a tenth of the calls.
    const STALL: std::ops::Range<Duration> = Duration::from_millis(5)..Duration::from_millis(7);

    #[test]
    fn a_server_that_keeps_up_is_sent_every_call_in_its_time() {
        let record = run(8, NO_STALL, 1e5);
        assert_eq!(record.service.len(), 2000);
        assert_eq!(record.response.len(), 2000);
        assert_eq!((record.late, record.unsent), (0, 0));
        assert!((record.achieved - 1e5).abs() < 100.0, "{}", record.achieved);
        assert!(record.response.max() < 2000, "{}", record.response.max());
    }

    #[test]
    fn a_stall_is_in_the_response_time_and_not_in_the_service_time() {
        let record = run(1, STALL, 1e5);
        assert_eq!(record.service.len(), 2000, "no call is left out");
        // One call met the stall, and 200 more should have been sent during it.
        assert!(record.service.value_at_quantile(0.999) < 2000);
        assert!(record.response.value_at_quantile(0.95) > 500_000);
        assert!(record.response.max() >= 1_900_000);
        assert!((150..400).contains(&record.late), "{}", record.late);
    }

    #[test]
    fn calls_that_may_be_sent_during_a_stall_are_not_late() {
        let record = run(1000, STALL, 1e5);
        // Without enough callers, 200 calls would be late. A few are, while the loop handles the
        // responses to those 200.
        assert!(record.late < 20, "{}", record.late);
        assert!(record.service.value_at_quantile(0.95) > 500_000);
        assert!(record.response.max() >= 1_900_000);
    }

    #[test]
    fn no_response_is_shorter_than_its_service() {
        for (limit, stall) in [(1, NO_STALL), (1, STALL), (3, STALL), (1000, STALL)] {
            let record = run(limit, stall, 2e5);
            for percent in 0..=100 {
                let quantile = f64::from(percent) / 100.0;
                assert!(
                    record.response.value_at_quantile(quantile)
                        >= record.service.value_at_quantile(quantile),
                    "{percent} %, {limit} at a time"
                );
            }
        }
    }

    #[test]
    fn calls_that_a_slow_server_leaves_no_time_for_are_counted_and_said_to_have_waited() {
        // The server answers at most one million calls per second.
        let record = run(4, NO_STALL, 3e6);
        assert!(record.achieved < 1.1e6, "{}", record.achieved);
        assert!(record.unsent > 10_000, "{}", record.unsent);
        let calls = record.service.len() + record.unsent;
        assert_eq!(record.response.len(), calls);
        assert_eq!(calls, 60_000);
    }
}
