//! Makes the calls of a timeline, however the server fares.
//!
//! A call whose intended time has come is made at once on an idle caller. There is a fixed number
//! of callers for each connection. If all callers have a call in flight, the call is dropped: a
//! real client has a limit too, and a call that waited for a caller would reach the server older
//! than the measurement says. Dropped calls count as offered.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use proto::bench::BenchClient;
use rpc_core::{CallError, Caller, Request};

use super::tally::End;
use super::timeline::{Arrival, Timeline};
use crate::clock::host_time;
use crate::dispatcher::{Dispatcher, Which};
use crate::spin::Work;
use crate::task_set::TaskSet;

/// What the calls have in common.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Time for which a handler spins.
    pub spin: Duration,
    /// Time from a call's intended start to its deadline.
    pub deadline: Duration,
    /// Number of callers for each client.
    pub in_flight: usize,
}

/// Makes the calls of `timeline` over all clients in turn, and calls `ended` for each arrival. The
/// executor has to poll the returned future at the times in `due`.
pub async fn offer<C: Caller>(
    clients: &[BenchClient<C>],
    shape: Shape,
    timeline: &Timeline,
    due: &Cell<Option<Instant>>,
    ended: impl FnMut(Arrival, End),
) {
    let count = clients.len() * shape.in_flight;
    let dispatcher = Dispatcher::new(count);
    let ended = RefCell::new(ended);
    let origin = Origin::now();
    let callers = (0..count).map(|index| {
        let (dispatcher, ended) = (&dispatcher, &ended);
        let client = &clients[index % clients.len()];
        async move {
            while let Some(arrival) = dispatcher.next_call(index).await {
                let outcome = call(client, shape, arrival, origin).await;
                let latency = origin.instant.elapsed().saturating_sub(arrival.intended);
                let end = End::of(outcome.as_ref().map(drop), latency, shape.deadline);
                ended.borrow_mut()(arrival, end);
            }
        }
    });
    let mut tasks = pin!(TaskSet::new(callers));
    let mut arrivals = timeline.arrivals().peekable();
    let end = timeline.length();
    poll_fn(|cx| {
        // The first poll makes all callers idle.
        if tasks.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        let now = origin.instant.elapsed();
        while let Some(arrival) = arrivals.next_if(|arrival| arrival.intended <= now) {
            if !dispatcher.assign(arrival, Which::Longest) {
                ended.borrow_mut()(arrival, End::Dropped);
            }
        }
        let next = arrivals.peek().map_or(end, |arrival| arrival.intended);
        due.set((now < end).then(|| origin.instant + next));
        if now >= end {
            dispatcher.close();
        }
        tasks.as_mut().poll(cx)
    })
    .await;
}

/// The beginning of the timeline, by the clock of this process and by that of the host.
#[derive(Clone, Copy)]
struct Origin {
    instant: Instant,
    host_time: Duration,
}

impl Origin {
    fn now() -> Self {
        Self {
            instant: Instant::now(),
            host_time: host_time(),
        }
    }
}

async fn call<C: Caller>(
    client: &BenchClient<C>,
    shape: Shape,
    arrival: Arrival,
    origin: Origin,
) -> Result<(), CallError> {
    let until = arrival.intended + shape.deadline;
    let work = Work {
        phase: arrival.phase,
        spin: shape.spin,
        give_up: Some(origin.host_time + until),
    };
    let request = Request::new(work.to_message()).with_deadline(origin.instant + until);
    client.echo_fixed(request).await.map(drop)
}

/// Polls a future to its end on this thread: when it is woken, and at the times in `due`.
pub fn run_when_due<F: Future>(due: &Cell<Option<Instant>>, future: F) -> F::Output {
    struct Unpark {
        thread: Thread,
        is_woken: AtomicBool,
    }
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            // Release: the future sees what the waking thread did before.
            self.is_woken.store(true, Ordering::Release);
            self.thread.unpark();
        }
    }
    let unpark = Arc::new(Unpark {
        thread: thread::current(),
        is_woken: AtomicBool::new(false),
    });
    let waker = Waker::from(Arc::clone(&unpark));
    let mut cx = Context::from_waker(&waker);
    let mut future: Pin<_> = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        while !unpark.is_woken.swap(false, Ordering::Acquire) {
            match due
                .get()
                .map(|due| due.saturating_duration_since(Instant::now()))
            {
                Some(Duration::ZERO) => break,
                Some(left) => thread::park_timeout(left),
                None => thread::park(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_future_is_polled_when_it_is_due_without_being_woken() {
        let due = Cell::new(None);
        let mut polls = 0;
        let start = Instant::now();
        run_when_due(
            &due,
            poll_fn(|_| {
                polls += 1;
                due.set(Some(start + Duration::from_millis(5) * polls));
                if polls == 4 {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            }),
        );
        assert!(start.elapsed() >= Duration::from_millis(15));
    }
}
