//! Wakers of an application's executor that panic, on the thread of a shared channel's poller.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use rpc_core::{CallError, Caller, Channel, Code, Intents, Request, Response, Streaming, sender};
use rpc_core_testing::{Faults, Network};

use crate::support::streams::{IDLE, Probe, register_streams};

type Call = Pin<Box<dyn Future<Output = Result<Option<u64>, CallError>>>>;

/// Counts its calls, and panics in each.
#[derive(Default)]
struct Panics(AtomicU32);

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
        panic!("the executor's waker panics");
    }
}

fn idle(channel: Channel) -> Call {
    let (sender, messages) = sender::<u64>();
    let request = Request::new(messages).with_timeout(Duration::from_millis(10));
    Box::pin(async move {
        let _sender = sender;
        let response: Response<Streaming<u64>> = channel.streaming(&IDLE, request).await?;
        response.into_inner().message().await
    })
}

#[test]
fn a_waker_that_panics_keeps_no_other_stream_waiting() {
    let probe = Probe::default();
    let mut network = Network::new(Faults::none(), 0);
    let _server = network.add("server", &Intents::default(), |methods| {
        register_streams(methods, &probe);
    });
    let node = network.share("server", &Intents::default());
    let wakers: Vec<_> = (0..3).map(|_| Arc::new(Panics::default())).collect();
    let mut calls: Vec<_> = (0..3).map(|_| idle(node.channel().clone())).collect();
    // The server begins to respond, and then the deadline passes.
    for round in 0..2u64 {
        for (call, waker) in calls.iter_mut().zip(&wakers) {
            let wakes = waker.0.swap(0, Ordering::Relaxed);
            assert_eq!(wakes > 0, round > 0, "{wakes} wakes");
            let waker = Waker::from(Arc::clone(waker));
            let mut cx = Context::from_waker(&waker);
            assert!(call.as_mut().poll(&mut cx).is_pending());
        }
        for _ in 0..20 {
            network.step();
        }
        network.advance(20 * Duration::from_millis(round));
    }
    network.settle();
    for (call, waker) in calls.iter_mut().zip(&wakers) {
        assert!(waker.0.load(Ordering::Relaxed) > 0, "it was not woken");
        let mut cx = Context::from_waker(Waker::noop());
        let Poll::Ready(Err(error)) = call.as_mut().poll(&mut cx) else {
            panic!("its deadline has passed");
        };
        assert_eq!(error.code(), Code::DeadlineExceeded);
    }
    drop(calls);
    network.settle();
    network.assert_nothing_left();
}
