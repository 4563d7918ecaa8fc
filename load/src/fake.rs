//! A clock and a server for tests.

use std::cell::Cell;
use std::future::poll_fn;
use std::ops::Range;
use std::task::Poll;
use std::time::Duration;

/// A clock that advances a little with each reading.
#[derive(Default)]
pub(crate) struct FakeClock(Cell<Duration>);

impl FakeClock {
    pub(crate) fn now(&self) -> Duration {
        self.0.set(self.0.get() + Duration::from_nanos(20));
        self.0.get()
    }

    /// A clock that is at zero now.
    pub(crate) fn restarted(&self) -> impl Fn() -> Duration {
        let zero = self.0.get();
        move || self.now() - zero
    }

    /// Waits for a time.
    pub(crate) async fn reach(&self, time: Duration) {
        poll_fn(|cx| {
            if self.now() >= time {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    /// Answers a call after a delay, beside any number of others.
    pub(crate) async fn delay(&self, delay: Duration) {
        self.reach(self.0.get() + delay).await;
    }
}

/// Answers each call in 1 µs, one after the other, but does nothing during its stall.
pub(crate) struct FakeServer<'a> {
    clock: &'a FakeClock,
    stall: Range<Duration>,
    free_at: Cell<Duration>,
}

impl<'a> FakeServer<'a> {
    pub(crate) fn new(clock: &'a FakeClock, stall: Range<Duration>) -> Self {
        Self {
            clock,
            stall,
            free_at: Cell::new(Duration::ZERO),
        }
    }

    pub(crate) async fn call(&self) -> Result<(), &'static str> {
        let mut begins = self.clock.0.get().max(self.free_at.get());
        if self.stall.contains(&begins) {
            begins = self.stall.end;
        }
        let completed = begins + Duration::from_micros(1);
        self.free_at.set(completed);
        self.clock.reach(completed).await;
        Ok(())
    }
}
