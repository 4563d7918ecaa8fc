//! Makes the calls of a timeline, however the server fares.
//!
//! A call whose intended time has come is made at once on an idle caller. There is a fixed number
//! of callers for each connection. If all callers have a call in flight, the call is dropped: a
//! real client has a limit too, and a call that waited for a caller would reach the server older
//! than the measurement says. Dropped calls count as offered.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use proto::bench::BenchClient;
use rpc_core::{Caller, Request};
use verbline_load::{Dispatcher, TaskSet, Which};

use super::tally::{self, End, Failure};
use super::timeline::{Arrival, Timeline};
use crate::spin::Work;

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
    let dispatcher = Dispatcher::<Arrival>::new(count);
    let ended = RefCell::new(ended);
    let origin = Instant::now();
    let callers = (0..count).map(|index| {
        let (dispatcher, ended) = (&dispatcher, &ended);
        let client = &clients[index % clients.len()];
        async move {
            while let Some(arrival) = dispatcher.next_call(index).await {
                let work = Work {
                    phase: arrival.phase,
                    spin: shape.spin,
                };
                let deadline = origin + arrival.intended + shape.deadline;
                let request = Request::new(work.to_message()).with_deadline(deadline);
                let outcome = client.echo_fixed(request).await;
                let latency = origin.elapsed().saturating_sub(arrival.intended);
                let end = tally::end_of(outcome.map(drop), latency, shape.deadline);
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
        let now = origin.elapsed();
        while let Some(arrival) = arrivals.next_if(|arrival| arrival.intended <= now) {
            if !dispatcher.assign(arrival, Which::Longest) {
                ended.borrow_mut()(arrival, Err(Failure::Dropped));
            }
        }
        let next = arrivals.peek().map_or(end, |arrival| arrival.intended);
        due.set((now < end).then(|| origin + next));
        if now >= end {
            dispatcher.close();
        }
        tasks.as_mut().poll(cx)
    })
    .await;
}
