//! Polling and waking of calls: `block_on`, executors that know nothing of pollers, and other
//! threads. A node that serves its own calls is a client and a server on one poller.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use rpc_core::codegen::v1::Instances;
use rpc_core::{Caller, Code, Intents, Request, Response};
use rpc_core_testing::{Faults, LoopbackNode, Network, Node, Pair};

use crate::support::{ECHO, Gate, HELD, call, method, register, send};

fn alone() -> (Network, Rc<Node>, Gate) {
    let gate = Gate::default();
    let mut network = Network::new(Faults::none(), 0);
    let node = network.add("itself", &Intents::default(), |methods| {
        register(methods, &gate);
    });
    (network, node, gate)
}

/// An executor's waker that counts its wakes and lets its task be polled once more.
#[derive(Default)]
struct Counting {
    woken: AtomicBool,
    count: AtomicU32,
}

impl Wake for Counting {
    fn wake(self: Arc<Self>) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.woken.store(true, Ordering::Relaxed);
    }
}

#[test]
fn calls_that_block_on_starts_together_share_a_doorbell() {
    let (network, node, _) = alone();
    let channel = node.poller().connect("itself").unwrap();
    let all = |channel| async move {
        let mut calls: Vec<_> = (0u8..32)
            .map(|n| Box::pin(call(channel, &ECHO, [n])))
            .collect();
        poll_fn(|cx| {
            calls.retain_mut(|call| match call.as_mut().poll(cx) {
                Poll::Ready(answer) => {
                    assert_eq!(answer.unwrap().len(), 1);
                    false
                }
                Poll::Pending => true,
            });
            if calls.is_empty() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    };
    // The window grows to the number of concurrent calls.
    for _ in 0..8 {
        node.poller().block_on(all(&channel));
    }
    let before = node.poller().stats().total().transport;
    node.poller().block_on(all(&channel));
    let after = node.poller().stats().total().transport;
    assert_eq!(after.sends - before.sends, 64);
    // One doorbell for the requests; each batch of sixteen responses shares one, too.
    assert!(
        after.doorbells - before.doorbells <= 6,
        "{}",
        after.doorbells - before.doorbells
    );
    drop(channel);
    network.assert_nothing_left();
}

#[test]
fn an_executor_that_knows_nothing_of_pollers_takes_the_turns_by_polling() {
    let (network, node, _) = alone();
    let channel = node.poller().connect("itself").unwrap();
    let task = Arc::new(Counting::default());
    let waker = Waker::from(Arc::clone(&task));
    {
        let mut future = pin!(call(&channel, &ECHO, *b"x"));
        task.woken.store(true, Ordering::Relaxed);
        // Polled only when it was woken.
        let answer = loop {
            assert!(task.woken.swap(false, Ordering::Relaxed), "never woken");
            if let Poll::Ready(answer) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                break answer;
            }
        };
        assert_eq!(answer.unwrap(), b"x");
    }
    drop(channel);
    network.assert_nothing_left();
}

#[test]
fn a_call_wakes_whoever_polled_it_last() {
    let (network, node, gate) = alone();
    let channel = node.poller().connect("itself").unwrap();
    let task = Arc::new(Counting::default());
    let waker = Waker::from(Arc::clone(&task));
    let mut future = Box::pin(call(&channel, &HELD, *b"x"));
    // Polled first with the waker of `block_on`, then with the waker of an executor.
    node.poller().block_on(async {
        let first = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await;
        assert!(first);
        let mut cx = Context::from_waker(&waker);
        assert!(future.as_mut().poll(&mut cx).is_pending());
    });
    network.settle();
    let before = task.count.load(Ordering::Relaxed);
    gate.open();
    network.settle();
    assert_eq!(task.count.load(Ordering::Relaxed), before + 1);
    // And with the waker of `block_on` again.
    assert_eq!(node.poller().block_on(future).unwrap(), b"x");
    drop(channel);
    network.assert_nothing_left();
}

#[test]
fn calls_are_woken_when_their_connection_ends() {
    let gate = Gate::default();
    let intents = Intents {
        max_in_flight: 1,
        ..Intents::default()
    };
    let pair = Pair::with(&intents, Faults::none(), 0, |methods| {
        register(methods, &gate)
    });
    let channel = pair.connect();
    let tasks = [(); 2].map(|()| Arc::new(Counting::default()));
    let mut in_flight = pin!(call(&channel, &HELD, *b"in flight"));
    let mut waits = pin!(call(&channel, &ECHO, *b"waits"));
    let wakers = tasks.clone().map(Waker::from);
    assert!(
        in_flight
            .as_mut()
            .poll(&mut Context::from_waker(&wakers[0]))
            .is_pending()
    );
    assert!(
        waits
            .as_mut()
            .poll(&mut Context::from_waker(&wakers[1]))
            .is_pending()
    );
    pair.network().settle();
    for task in &tasks {
        task.woken.store(false, Ordering::Relaxed);
    }
    // The server closes the connection, because it receives garbage.
    pair.server()
        .inject(pair.server().connections()[0], vec![0; 3]);
    pair.network().settle();
    for task in &tasks {
        assert!(task.woken.load(Ordering::Relaxed));
    }
    assert_eq!(pair.run(in_flight).unwrap_err().code(), Code::Unavailable);
    assert_eq!(pair.run(waits).unwrap_err().code(), Code::Unavailable);
    pair.assert_nothing_left();
}

#[test]
fn block_on_is_woken_by_other_threads() {
    let (network, node, _) = alone();
    let done = Arc::new(AtomicBool::new(false));
    let mut started = None;
    node.poller().block_on(poll_fn(|cx| {
        if done.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        started.get_or_insert_with(|| {
            let (done, waker) = (Arc::clone(&done), cx.waker().clone());
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(5));
                done.store(true, Ordering::Release);
                waker.wake();
            })
        });
        Poll::Pending
    }));
    started.unwrap().join().unwrap();
    network.assert_nothing_left();
}

#[test]
fn a_handler_is_woken_by_other_threads() {
    let mut network = Network::new(Faults::none(), 0);
    let node = network.add("itself", &Intents::default(), |methods| {
        methods.unary(&ECHO, |request: Request<Vec<u8>>| async move {
            let shared: Arc<Mutex<(bool, Option<Waker>)>> = Arc::default();
            let other = Arc::clone(&shared);
            thread::spawn(move || {
                let mut shared = other.lock().unwrap();
                shared.0 = true;
                if let Some(waker) = shared.1.take() {
                    waker.wake();
                }
            });
            poll_fn(|cx| {
                let mut shared = shared.lock().unwrap();
                if shared.0 {
                    return Poll::Ready(());
                }
                shared.1 = Some(cx.waker().clone());
                Poll::Pending
            })
            .await;
            Ok(Response::new(request.into_inner()))
        });
    });
    let channel = node.poller().connect("itself").unwrap();
    for n in 0u8..50 {
        assert_eq!(
            node.poller().block_on(call(&channel, &ECHO, [n])).unwrap(),
            [n]
        );
    }
    drop(channel);
    network.assert_nothing_left();
}

#[test]
fn a_call_that_expires_while_earlier_ones_of_its_batch_run_is_not_begun() {
    const SLOW: rpc_core::MethodSpec = method("test.Test/Slow");
    let gate = Gate::default();
    let mut network = Network::new(Faults::none(), 0);
    let clock = network.clock().clone();
    network.add("server", &Intents::default(), |methods| {
        register(methods, &gate);
        methods.unary(&SLOW, move |request: Request<Vec<u8>>| {
            clock.advance(Duration::from_millis(10));
            async { Ok(Response::new(request.into_inner())) }
        });
    });
    let client = network.add("client", &Intents::default(), |_| ());
    let channels = [(); 2].map(|()| client.poller().connect("server").unwrap());
    let within = |ms| Request::new(vec![1]).with_timeout(Duration::from_millis(ms));
    // Once with a deadline on the first call of the batch, and once without one, when the poller
    // already knows that deadlines are used.
    for first in [within(1000), Request::new(vec![1])] {
        let mut slow = pin!(send(&channels[0], &SLOW, first));
        let mut late = pin!(send(&channels[1], &HELD, within(5)));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(slow.as_mut().poll(&mut cx).is_pending());
        assert!(late.as_mut().poll(&mut cx).is_pending());
        assert!(network.try_run(slow).unwrap().is_ok());
        let error = network.try_run(late).unwrap().unwrap_err();
        assert_eq!(error.code(), Code::DeadlineExceeded);
        assert_eq!(gate.entered(), 0);
    }
    network.assert_nothing_left();
}

#[test]
fn a_service_that_cannot_be_sent_is_made_on_its_poller() {
    let instances = Instances::per_poller(|| Rc::new(std::cell::Cell::new(0u64)));
    let pair = Pair::new(|methods| {
        let instance = instances.instance();
        methods.unary(&ECHO, move |request: Request<u64>| {
            let instance = instance.clone();
            async move {
                instance.set(instance.get() + request.into_inner());
                Ok(Response::new(instance.get()))
            }
        });
    });
    let channel = pair.connect();
    for sum in [3u64, 6, 9] {
        let answer = pair.run(channel.unary::<u64, u64>(&ECHO, Request::new(3)));
        assert_eq!(answer.unwrap().into_inner(), sum);
    }
    pair.assert_nothing_left();
}
