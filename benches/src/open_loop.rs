//! [`OpenLoop`]: calls at intended times, started whatever is still under way.
//!
//! A closed loop sends its next call when the one before has been answered: a server that stalls also
//! stalls the measurement, and the calls that would have met the stall are never made, which is called
//! coordinated omission. Here each call has a time at which it *should* be sent, and two times are
//! recorded of it:
//!
//! ```text
//!  intended          sent                    answered
//!     │── waited ─────│── service time ─────────│
//!     │── response time ────────────────────────│
//! ```
//!
//! What a caller meets who does not know of the others is the response time.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::task::{Poll, Waker};
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::arrivals::{Arrivals, Schedule};
use crate::crew::Crew;
use crate::slices;

/// A call counts as late that was sent this long after its intended time: several turns of the loop,
/// so that one which finds a few answers to take first is not.
pub const LATE: Duration = Duration::from_micros(5);

/// How long it runs, and how often it calls.
#[derive(Clone, Copy, Debug)]
pub struct OpenLoop {
    /// How the times between calls are spread.
    pub arrivals: Arrivals,
    /// Calls per second.
    pub rate: f64,
    /// Of Poisson arrivals.
    pub seed: u64,
    /// Calls at the beginning that are made and not recorded.
    pub warm_up: Duration,
    /// For how long calls are recorded after that.
    pub time: Duration,
}

/// What was recorded of an open loop.
#[derive(Clone, Debug)]
pub struct OpenRecord {
    /// Calls per second that were wanted.
    pub wanted: f64,
    /// Calls per second that were answered.
    pub achieved: f64,
    /// From when a call was really sent, in nanoseconds.
    pub service: Histogram<u64>,
    /// From when it should have been sent, in nanoseconds.
    pub response: Histogram<u64>,
    /// Calls sent more than [`LATE`] after their time.
    pub late: u64,
    /// Calls whose time had come, and that were still waiting to be sent at the end. In `response` they
    /// stand with how long they had waited by then.
    pub unsent: u64,
}

impl OpenLoop {
    /// Makes the calls: a future for a thread that does nothing else, as it is polled without pause.
    /// `now` is the time since a moment before this is first polled, `callers` are as many as calls may
    /// be under way at a time.
    ///
    /// # Errors
    ///
    /// Of the first call that fails; those under way are waited for.
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
        let desk = Desk::new();
        let tally = RefCell::new(Tally::new(&self));
        let callers = callers.into_iter().enumerate().map(|(index, caller)| {
            desk.places.borrow_mut().push(Place::default());
            let (desk, tally, now) = (&desk, &tally, &now);
            async move {
                let mut caller = caller;
                while let Some(intended) = desk.next_call(index).await {
                    let sent = now();
                    if let Err(error) = caller().await {
                        desk.fail(error);
                        return;
                    }
                    tally.borrow_mut().count(intended, sent, now());
                }
            }
        });
        let mut crew = pin!(Crew::new(callers));
        let mut schedule = Schedule::new(self.arrivals, self.rate, self.seed)
            .take_while(|&intended| intended < end)
            .peekable();
        poll_fn(|cx| {
            if !desk.is_closed.get() {
                let now = now();
                if now < end {
                    desk.hand_out(&mut schedule, now);
                } else {
                    desk.close();
                }
            }
            // The next call's time may come before any answer.
            cx.waker().wake_by_ref();
            crew.as_mut().poll(cx)
        })
        .await;
        if let Some(error) = desk.failure.take() {
            return Err(error);
        }
        let mut tally = tally.borrow_mut();
        for intended in schedule {
            tally.count_unsent(intended);
        }
        Ok(tally.to_record())
    }
}

/// Where calls whose time has come meet callers that have nothing to do.
struct Desk<E> {
    places: RefCell<Vec<Place>>,
    /// The latest that came back is the next to go: what it uses is still in the cache.
    idle: RefCell<Vec<usize>>,
    is_closed: Cell<bool>,
    failure: RefCell<Option<E>>,
}

/// One caller's.
#[derive(Default)]
struct Place {
    /// When its next call should be sent.
    call: Option<Duration>,
    /// The same from first to last.
    waker: Option<Waker>,
}

impl<E> Desk<E> {
    fn new() -> Self {
        Self {
            places: RefCell::default(),
            idle: RefCell::default(),
            is_closed: Cell::new(false),
            failure: RefCell::new(None),
        }
    }

    /// The intended time of the caller's next call; `None` when there are no more.
    async fn next_call(&self, caller: usize) -> Option<Duration> {
        let mut has_come = false;
        poll_fn(|cx| {
            let place = &mut self.places.borrow_mut()[caller];
            if let Some(intended) = place.call.take() {
                return Poll::Ready(Some(intended));
            }
            if self.is_closed.get() {
                return Poll::Ready(None);
            }
            place.waker.get_or_insert_with(|| cx.waker().clone());
            if !std::mem::replace(&mut has_come, true) {
                self.idle.borrow_mut().push(caller);
            }
            Poll::Pending
        })
        .await
    }

    /// Gives the calls whose time has come to callers; those for whom there is none wait.
    fn hand_out(
        &self,
        schedule: &mut std::iter::Peekable<impl Iterator<Item = Duration>>,
        now: Duration,
    ) {
        let mut idle = self.idle.borrow_mut();
        while let Some(&caller) = idle.last()
            && let Some(intended) = schedule.next_if(|&intended| intended <= now)
        {
            idle.pop();
            let place = &mut self.places.borrow_mut()[caller];
            place.call = Some(intended);
            if let Some(waker) = &place.waker {
                waker.wake_by_ref();
            }
        }
    }

    fn close(&self) {
        self.is_closed.set(true);
        for place in &*self.places.borrow() {
            if let Some(waker) = &place.waker {
                waker.wake_by_ref();
            }
        }
    }

    fn fail(&self, error: E) {
        self.failure.borrow_mut().get_or_insert(error);
        self.close();
    }
}

struct Tally {
    warm_up: Duration,
    end: Duration,
    /// While it recorded.
    answered: u64,
    record: OpenRecord,
}

impl Tally {
    fn new(plan: &OpenLoop) -> Self {
        Self {
            warm_up: plan.warm_up,
            end: plan.warm_up + plan.time,
            answered: 0,
            record: OpenRecord {
                wanted: plan.rate,
                achieved: 0.0,
                service: slices::histogram(),
                response: slices::histogram(),
                late: 0,
                unsent: 0,
            },
        }
    }

    #[inline]
    fn count(&mut self, intended: Duration, sent: Duration, answered: Duration) {
        self.answered += u64::from((self.warm_up..self.end).contains(&answered));
        if intended < self.warm_up {
            return;
        }
        let record = &mut self.record;
        record.late += u64::from(sent - intended > LATE);
        add(&mut record.service, answered - sent);
        add(&mut record.response, answered - intended);
    }

    fn count_unsent(&mut self, intended: Duration) {
        if intended >= self.warm_up {
            self.record.unsent += 1;
            add(&mut self.record.response, self.end - intended);
        }
    }

    fn to_record(&self) -> OpenRecord {
        let time = self.end - self.warm_up;
        OpenRecord {
            achieved: self.answered as f64 / time.as_secs_f64(),
            ..self.record.clone()
        }
    }
}

#[inline]
fn add(histogram: &mut Histogram<u64>, time: Duration) {
    histogram.saturating_record((time.as_nanos() as u64).max(1));
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::{Context, Wake};

    use super::*;

    const MICROSECOND: Duration = Duration::from_micros(1);

    /// Goes on by a little with each look, as if that took the time.
    struct FakeClock(Cell<Duration>);

    impl FakeClock {
        fn now(&self) -> Duration {
            self.0.set(self.0.get() + Duration::from_nanos(20));
            self.0.get()
        }
    }

    /// Answers one call in 1 µs, except that it does nothing during its stall.
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
            let answered = begins + MICROSECOND;
            self.free_at.set(answered);
            poll_fn(|cx| {
                if self.clock.now() >= answered {
                    return Poll::Ready(Ok(()));
                }
                cx.waker().wake_by_ref();
                Poll::Pending
            })
            .await
        }
    }

    /// 100,000 calls per second for 20 ms, over the fake clock.
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

    /// An executor that polls without being asked to.
    fn poll_to_end<F: Future>(future: F) -> F::Output {
        struct Nobody;
        impl Wake for Nobody {
            fn wake(self: Arc<Self>) {}
        }
        let mut future = pin!(future);
        let waker = Waker::from(Arc::new(Nobody));
        let mut cx = Context::from_waker(&waker);
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                return output;
            }
        }
    }

    const NO_STALL: std::ops::Range<Duration> = Duration::ZERO..Duration::ZERO;

    /// Two milliseconds of the twenty: a tenth of the calls.
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
        // One call has met the stall, and 200 more should have been sent meanwhile.
        assert!(record.service.value_at_quantile(0.999) < 2000);
        assert!(record.response.value_at_quantile(0.95) > 500_000);
        assert!(record.response.max() >= 1_900_000);
        assert!((150..400).contains(&record.late), "{}", record.late);
    }

    #[test]
    fn calls_that_may_be_sent_during_a_stall_are_not_late() {
        let record = run(1000, STALL, 1e5);
        // 200 would be; a few are while the answers to those 200 are taken.
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
        // It can do at most a million a second.
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
