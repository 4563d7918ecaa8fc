//! The interceptors of a [`Mix`](super::Mix): they count the calls that they let pass and those whose end they
//! see, and some calls wait for them or are refused.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use rpc_core::Status;
use rpc_core::intercept::{Begin, Call, End, Interceptor, Side};

use super::Order;

/// The interceptors of each call, on each side.
const EACH: usize = 3;

/// The one that lets calls wait and refuses them: one has begun before, and one begins after it.
const DECIDES: usize = 1;

/// Counts of both sides.
#[derive(Default)]
pub(super) struct Counts {
    sides: [[Count; EACH]; 2],
    /// Calls that wait for the interceptor.
    waiting: Mutex<Vec<Waker>>,
    is_open: AtomicBool,
}

#[derive(Default)]
struct Count {
    passed: AtomicU64,
    ended: AtomicU64,
}

struct Counting {
    number: usize,
    counts: Arc<Counts>,
}

/// What an interceptor remembers of a call.
struct Passed([bool; EACH]);

impl Counts {
    pub(super) fn interceptors(self: &Arc<Self>) -> [Arc<dyn Interceptor>; EACH] {
        let counting = |number| -> Arc<dyn Interceptor> {
            let counts = Arc::clone(self);
            Arc::new(Counting { number, counts })
        };
        [0, 1, 2].map(counting)
    }

    pub(super) fn wake_waiting(&self) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        for waker in waiting.drain(..) {
            waker.wake();
        }
    }

    pub(super) fn open(&self) {
        self.is_open.store(true, Ordering::Relaxed);
        self.wake_waiting();
    }

    async fn wait(&self) {
        let mut has_waited = false;
        poll_fn(|cx| {
            if has_waited || self.is_open.load(Ordering::Relaxed) {
                return Poll::Ready(());
            }
            has_waited = true;
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    fn count(&self, side: Side, number: usize) -> &Count {
        let side = match side {
            Side::Client => 0,
            Side::Server => 1,
        };
        &self.sides[side][number]
    }

    /// Returns how many calls each interceptor let pass, and of how many it has seen the end, where the two
    /// differ.
    pub(super) fn unequal(&self) -> Vec<String> {
        let mut unequal = Vec::new();
        for (side, counts) in ["client", "server"].iter().zip(&self.sides) {
            for (number, count) in counts.iter().enumerate() {
                let [passed, ended] =
                    [&count.passed, &count.ended].map(|count| count.load(Ordering::Relaxed));
                if passed != ended {
                    let what =
                        format!("{side}, interceptor {number}: {passed} began, {ended} ended");
                    unequal.push(what);
                }
            }
        }
        unequal
    }

    /// Returns how many calls the first interceptor of each side let pass.
    pub(super) fn passed(&self) -> u64 {
        let first = |side: &[Count; EACH]| side[0].passed.load(Ordering::Relaxed);
        self.sides.iter().map(first).sum()
    }
}

impl Interceptor for Counting {
    fn begin(&self, call: &mut Call<'_>) -> Begin {
        let Some(order) = Order::of(call.metadata(), call.method().kind) else {
            return Begin::PASS;
        };
        let side = call.side();
        let decides = self.number == DECIDES;
        if decides && order.is_refused_by(side) {
            return Begin::refuse(Status::permission_denied("as ordered"));
        }
        let before = call.locals_mut().get_mut::<Passed>();
        match before {
            Some(Passed(passed)) => passed[self.number] = true,
            None => {
                assert_eq!(self.number, 0, "the first begins first");
                call.locals_mut().insert(Passed([true, false, false]));
            }
        }
        if decides && order.waits_for_interceptor_of(side) {
            let counts = Arc::clone(&self.counts);
            let waiting = Arc::clone(&self.counts);
            let wait = async move {
                waiting.wait().await;
                Ok(())
            };
            return Begin::later_with(wait, move |(), _| {
                counts
                    .count(side, DECIDES)
                    .passed
                    .fetch_add(1, Ordering::Relaxed);
                Ok(())
            });
        }
        self.counts
            .count(side, self.number)
            .passed
            .fetch_add(1, Ordering::Relaxed);
        Begin::PASS
    }

    fn end(&self, end: &mut End<'_>) {
        // A call without an order is not one of the mix.
        let Some(Passed(passed)) = end.locals().get() else {
            return;
        };
        assert!(passed[self.number], "only what has begun ends");
        self.counts
            .count(end.side(), self.number)
            .ended
            .fetch_add(1, Ordering::Relaxed);
    }
}
