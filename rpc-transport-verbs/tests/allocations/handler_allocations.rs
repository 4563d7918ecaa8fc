//! A handler that awaits does not allocate. The test counts allocations on all threads of a client
//! and a server in one process, once both are warm.

use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::thread;
use std::time::Duration;

use rpc_core::{
    Caller, Idempotency, LocalPoller, MethodKind, MethodSpec, Methods, Request, Response, Server,
    Service, Status,
};

use crate::transport_harness::device;
use crate::{allocations, alone};

const fn method(path: &'static str) -> MethodSpec {
    MethodSpec::new(
        path,
        MethodKind::Unary,
        Idempotency::Unknown,
        "uint64",
        "uint64",
    )
}

const WOKEN_LOCALLY: MethodSpec = method("test.Await/WokenHere");
const WOKEN_REMOTELY: MethodSpec = method("test.Await/WokenElsewhere");

/// Wakes the wakers that handlers store here, from a thread of its own.
#[derive(Clone, Default)]
struct WakerThread(Arc<WakerThreadState>);

#[derive(Default)]
struct WakerThreadState {
    wakers: Mutex<Vec<Waker>>,
    ends: AtomicBool,
}

impl WakerThread {
    fn run(&self) {
        while !self.0.ends.load(Ordering::Relaxed) {
            let waker = self.0.wakers.lock().unwrap().pop();
            match waker {
                Some(waker) => waker.wake(),
                None => thread::sleep(Duration::from_micros(20)),
            }
        }
    }
}

/// Returns a future that is pending once and is woken as `arrange` arranges.
fn pending_once(arrange: impl Fn(&Waker)) -> impl Future<Output = ()> {
    let mut is_first = true;
    poll_fn(move |cx| {
        if std::mem::take(&mut is_first) {
            arrange(cx.waker());
            return Poll::Pending;
        }
        Poll::Ready(())
    })
}

struct Awaiting(WakerThread);

impl Service for Awaiting {
    fn name(&self) -> &'static str {
        "test.Await"
    }

    fn register(&self, methods: &mut Methods) {
        methods.unary(&WOKEN_LOCALLY, |request: Request<u64>| async move {
            pending_once(Waker::wake_by_ref).await;
            Ok::<_, Status>(Response::new(request.into_inner() + 1))
        });
        let waker_thread = self.0.clone();
        methods.unary(&WOKEN_REMOTELY, move |request: Request<u64>| {
            let waker_thread = waker_thread.clone();
            async move {
                pending_once(|waker| waker_thread.0.wakers.lock().unwrap().push(waker.clone()))
                    .await;
                Ok::<_, Status>(Response::new(request.into_inner() + 1))
            }
        });
    }
}

#[test]
fn a_handler_that_awaits_allocates_nothing_whoever_wakes_it() {
    let _alone = alone();
    let waker_thread = WakerThread::default();
    let thread_handle = {
        let waker_thread = waker_thread.clone();
        thread::spawn(move || waker_thread.run())
    };
    let device = device();
    let server = Server::builder(&device)
        .add_service(Awaiting(waker_thread.clone()))
        .bind("127.0.0.1:0")
        .unwrap()
        .spawn();
    let poller = LocalPoller::new(&device).unwrap();
    let channel = poller.connect(&server.local_addr().to_string()).unwrap();
    for method in [&WOKEN_LOCALLY, &WOKEN_REMOTELY] {
        let call = |count: u64| {
            for n in 1..=count {
                let reply = poller.block_on(channel.unary::<u64, u64>(method, Request::new(n)));
                assert_eq!(reply.unwrap().into_inner(), n + 1);
            }
        };
        call(500);
        // Requests that arrive together wait in a queue, which a connection gets with the first of
        // them. A single call waits there too if its poller was not run for a while.
        for _ in 0..100 {
            let calls = [(); 4].map(|()| channel.unary::<u64, u64>(method, Request::new(1)));
            let mut calls = calls.map(|call| Some(Box::pin(call)));
            poller.block_on(poll_fn(|cx| {
                for call in &mut calls {
                    call.take_if(|call| call.as_mut().poll(cx).is_ready());
                }
                match calls.iter().all(Option::is_none) {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            }));
        }
        // A poller that sleeps for the first time allocates room for its events.
        let have_slept = || {
            let turns = [server.stats(), poller.stats()].map(|stats| stats.total().turns);
            turns.iter().all(|turns| turns.slept > 0)
        };
        while !have_slept() {
            poller.block_on(pending_once(|waker| {
                let waker = waker.clone();
                thread::spawn(move || {
                    thread::sleep(Duration::from_millis(50));
                    waker.wake();
                });
            }));
        }
        call(500);
        let before = allocations();
        call(2000);
        assert_eq!(
            allocations() - before,
            0,
            "allocations for 2,000 calls of {}",
            method.path
        );
    }
    waker_thread.0.ends.store(true, Ordering::Relaxed);
    thread_handle.join().unwrap();
    drop(channel);
    server.shutdown().unwrap();
}
