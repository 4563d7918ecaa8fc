//! A handler that awaits does not allocate. The test counts allocations on all threads of a client
//! and a server in one process, once both are warm.

use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::thread;
use std::time::Duration;

use rpc_core::intercept::Interceptor;
use rpc_core::{
    Caller, Idempotency, LocalPoller, MethodKind, MethodSpec, Methods, Request, Response, Server,
    ServerBuilder, Service, Status,
};

use crate::transport_harness::device;
use crate::{SECTIONS, allocations, alone};

const fn method(path: &'static str) -> MethodSpec {
    MethodSpec::new(
        path,
        MethodKind::Unary,
        Idempotency::Unknown,
        "uint64",
        "uint64",
    )
}

const CALLS_PER_SECTION: u64 = 2_000;

const AT_ONCE: MethodSpec = method("test.Await/AtOnce");
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
        methods.unary(&AT_ONCE, |request: Request<u64>| async move {
            Ok::<_, Status>(Response::new(request.into_inner() + 1))
        });
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

/// An interceptor that reads the clock and does nothing else.
struct Timing;

impl Interceptor for Timing {
    fn measures_time(&self) -> bool {
        true
    }
}

#[test]
fn a_handler_that_awaits_allocates_nothing_whoever_wakes_it() {
    assert_calls_allocate_nothing(0);
}

#[test]
fn interceptors_that_do_nothing_allocate_nothing() {
    assert_calls_allocate_nothing(3);
}

fn assert_calls_allocate_nothing(interceptors: usize) {
    let _alone = alone();
    let waker_thread = WakerThread::default();
    let thread_handle = {
        let waker_thread = waker_thread.clone();
        thread::spawn(move || waker_thread.run())
    };
    let device = device();
    let timing = || (0..interceptors).map(|_| Timing);
    let server = Server::builder(&device).add_service(Awaiting(waker_thread.clone()));
    let server = timing()
        .fold(server, ServerBuilder::interceptor)
        .bind("127.0.0.1:0")
        .unwrap()
        .spawn();
    let poller = LocalPoller::new(&device).unwrap();
    let channel = poller.connect(&server.local_addr().to_string()).unwrap();
    let channel = timing().fold(channel, |channel, each| channel.with_interceptor(each));
    for method in [&AT_ONCE, &WOKEN_LOCALLY, &WOKEN_REMOTELY] {
        let call = |count: u64| {
            for n in 1..=count {
                let reply = poller.block_on(channel.unary::<u64, u64>(method, Request::new(n)));
                assert_eq!(reply.unwrap().into_inner(), n + 1);
            }
        };
        call(500);
        let allocations_of_a_section = |_| {
            let before = allocations();
            call(CALLS_PER_SECTION);
            allocations() - before
        };
        assert_eq!(
            (0..SECTIONS).map(allocations_of_a_section).min(),
            Some(0),
            "the fewest allocations for {CALLS_PER_SECTION} calls of {}",
            method.path
        );
    }
    waker_thread.0.ends.store(true, Ordering::Relaxed);
    thread_handle.join().unwrap();
    drop(channel);
    server.shutdown().unwrap();
}
