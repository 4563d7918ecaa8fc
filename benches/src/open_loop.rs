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

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::arrivals::{Arrivals, Schedule};
use crate::dispatcher::{Dispatcher, Which};
use crate::slices;
use crate::task_set::TaskSet;

/// A call counts as late if it was sent more than this long after its intended time. The limit is
/// several turns of the loop, so a turn that first handles a few responses does not make calls
/// late.
pub const LATE: Duration = Duration::from_micros(5);

/// The rate and the duration of an open loop.
#[derive(Clone, Copy, Debug)]
pub struct OpenLoop {
    /// Distribution of the times between calls.
    pub arrivals: Arrivals,
    /// Calls per second.
    pub rate: f64,
    /// Seed of the Poisson arrivals.
    pub seed: u64,
    /// Time at the beginning during which calls are made but not recorded.
    pub warm_up: Duration,
    /// Time after the warm-up during which calls are recorded.
    pub time: Duration,
}

/// The record of an open loop.
#[derive(Clone, Debug)]
pub struct OpenRecord {
    /// The requested rate in calls per second.
    pub wanted: f64,
    /// The achieved rate in calls per second that were answered.
    pub achieved: f64,
    /// Time from the actual send to the response, in nanoseconds.
    pub service: Histogram<u64>,
    /// Time from the intended send to the response, in nanoseconds.
    pub response: Histogram<u64>,
    /// Calls sent more than [`LATE`] after their intended time.
    pub late: u64,
    /// Calls that were due but still waiting to be sent at the end. `response` includes them with
    /// the time they had waited by then.
    pub unsent: u64,
}

impl OpenLoop {
    /// Makes the calls. The returned future wakes itself on every poll, so run it on a thread that
    /// does nothing else. `now` returns the time since a moment before the first poll. The number
    /// of `callers` limits the calls in flight.
    ///
    /// # Errors
    ///
    /// Returns the error of the first call that fails, after the calls in flight have ended.
    pub async fn run<C, E>(
        self,
        now: impl Fn() -> Duration,
        callers: impl IntoIterator<Item = C>,
    ) -> Result<OpenRecord, E>
    where
        C: AsyncFnMut() -> Result<(), E>,
    {
        let start = now();
        let now = || now() - start;
        let end = self.warm_up + self.time;
        let callers: Vec<C> = callers.into_iter().collect();
        let dispatcher = Dispatcher::new(callers.len());
        let failure = RefCell::new(None);
        let record = RefCell::new(OpenRecord::new(self.rate));
        let callers = callers.into_iter().enumerate().map(|(index, caller)| {
            let (dispatcher, record, failure) = (&dispatcher, &record, &failure);
            let (plan, now) = (&self, &now);
            async move {
                let mut caller = caller;
                while let Some(intended) = dispatcher.next_call(index).await {
                    let sent = now();
                    if let Err(error) = caller().await {
                        failure.borrow_mut().get_or_insert(error);
                        dispatcher.close();
                        return;
                    }
                    record.borrow_mut().count(plan, intended, sent, now());
                }
            }
        });
        let mut task_set = pin!(TaskSet::new(callers));
        let mut schedule = Schedule::new(self.arrivals, self.rate, self.seed)
            .take_while(|&intended| intended < end)
            .peekable();
        poll_fn(|cx| {
            if !dispatcher.is_closed() {
                let now = now();
                // Calls without an idle caller wait.
                while dispatcher.has_idle()
                    && now < end
                    && let Some(intended) = schedule.next_if(|&intended| intended <= now)
                {
                    dispatcher.assign(intended, Which::Latest);
                }
                if now >= end {
                    dispatcher.close();
                }
            }
            // The next call may be due before a response arrives.
            cx.waker().wake_by_ref();
            task_set.as_mut().poll(cx)
        })
        .await;
        if let Some(error) = failure.take() {
            return Err(error);
        }
        let mut record = record.replace(OpenRecord::new(0.0));
        for intended in schedule.filter(|&intended| intended >= self.warm_up) {
            record.unsent += 1;
            add(&mut record.response, end - intended);
        }
        record.achieved /= self.time.as_secs_f64();
        Ok(record)
    }
}

impl OpenRecord {
    fn new(wanted: f64) -> Self {
        Self {
            wanted,
            achieved: 0.0,
            service: slices::histogram(),
            response: slices::histogram(),
            late: 0,
            unsent: 0,
        }
    }

    /// Counts a call that was answered, as a call and not as a rate yet.
    #[inline]
    fn count(&mut self, plan: &OpenLoop, intended: Duration, sent: Duration, completed: Duration) {
        if (plan.warm_up..plan.warm_up + plan.time).contains(&completed) {
            self.achieved += 1.0;
        }
        if intended >= plan.warm_up {
            self.late += u64::from(sent - intended > LATE);
            add(&mut self.service, completed - sent);
            add(&mut self.response, completed - intended);
        }
    }
}

#[inline]
fn add(histogram: &mut Histogram<u64>, time: Duration) {
    histogram.saturating_record((time.as_nanos() as u64).max(1));
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::task::{Context, Poll};

    use super::*;
    use crate::task_set;

    const MICROSECOND: Duration = Duration::from_micros(1);

    /// A clock that advances a little with each reading.
    struct FakeClock(Cell<Duration>);

    impl FakeClock {
        fn now(&self) -> Duration {
            self.0.set(self.0.get() + Duration::from_nanos(20));
            self.0.get()
        }
    }

    /// Answers each call in 1 µs, but does nothing during its stall.
    struct FakeServer<'a> {
        clock: &'a FakeClock,
        stall: std::ops::Range<Duration>,
        free_at: Cell<Duration>,
    }

    impl FakeServer<'_> {
        async fn call(&self) -> Result<(), &'static str> {
            let mut begins = self.clock.0.get().max(self.free_at.get());
            if self.stall.contains(&begins) {
                begins = self.stall.end;
            }
            let completed = begins + MICROSECOND;
            self.free_at.set(completed);
            poll_fn(|cx| {
                if self.clock.now() >= completed {
                    return Poll::Ready(Ok(()));
                }
                cx.waker().wake_by_ref();
                Poll::Pending
            })
            .await
        }
    }

    /// Runs an open loop for 20 ms over the fake clock, with at most `limit` calls in flight.
    fn run(limit: usize, stall: std::ops::Range<Duration>, rate: f64) -> OpenRecord {
        let clock = FakeClock(Cell::new(Duration::ZERO));
        let server = FakeServer {
            clock: &clock,
            stall,
            free_at: Cell::new(Duration::ZERO),
        };
        let plan = OpenLoop {
            arrivals: Arrivals::Fixed,
            rate,
            seed: 0,
            warm_up: Duration::from_millis(1),
            time: Duration::from_millis(20),
        };
        let callers = (0..limit).map(|_| async || server.call().await);
        let record = poll_to_end(plan.run(|| clock.now(), callers));
        record.expect("the fake server fails no call")
    }

    /// Polls a future without waiting for wakeups.
    fn poll_to_end<F: Future>(future: F) -> F::Output {
        let mut future = pin!(future);
        let executor = task_set::tests::waker();
        let mut cx = Context::from_waker(&executor);
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                return output;
            }
        }
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

    #[test]
    fn the_first_error_ends_the_loop() {
        let clock = FakeClock(Cell::new(Duration::ZERO));
        let plan = OpenLoop {
            arrivals: Arrivals::Poisson,
            rate: 1e6,
            seed: 3,
            warm_up: Duration::ZERO,
            time: Duration::from_secs(3600),
        };
        let callers = (0..4).map(|_| async || Err::<(), _>("none of it"));
        let error = poll_to_end(plan.run(|| clock.now(), callers)).expect_err("every call fails");
        assert_eq!(error, "none of it");
    }
}
