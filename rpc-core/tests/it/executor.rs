//! Services on an executor: every call has exactly one outcome, whatever the executor does, and a
//! call that has ended leaves nothing running.

use std::cell::Cell;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{ECHO, HELD, PANIC, call, method, send};
use proto::greeter::greeter_server::LocalGreeter;
use proto::greeter::{Greeter, GreeterClient, GreeterServer, HelloReply, HelloRequest};
use rpc_core::codegen::v1::OnExecutor;
use rpc_core::{
    Code, Execution, Executor, LocalPoller, Methods, Request, Response, Server, Service, Spawned,
    Status, block_on,
};
use rpc_core_testing::Pair;
use rpc_transport_verbs::Device;

const DROP: rpc_core::MethodSpec = method("test.Test/PanicWhenDropped");

/// An executor that the test runs step by step.
#[derive(Clone, Default)]
pub(crate) struct ManualExecutor(Arc<Mutex<Vec<Running>>>);

struct Running {
    future: Spawned,
    wakes: Arc<Wakes>,
    seen: u32,
}

#[derive(Default)]
struct Wakes(AtomicU32);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Executor for ManualExecutor {
    fn spawn(&self, future: Spawned) {
        // A new task is polled without a wake.
        let wakes = Arc::new(Wakes(AtomicU32::new(1)));
        self.0.lock().unwrap().push(Running {
            future,
            wakes,
            seen: 0,
        });
    }
}

impl ManualExecutor {
    /// Polls woken futures until none is left.
    pub(crate) fn run(&self) {
        loop {
            let mut all = self.0.lock().unwrap();
            let woken = all
                .iter()
                .position(|running| running.wakes.0.load(Ordering::Relaxed) != running.seen);
            let Some(index) = woken else { return };
            let mut running = all.swap_remove(index);
            drop(all);
            running.seen = running.wakes.0.load(Ordering::Relaxed);
            let waker = Waker::from(Arc::clone(&running.wakes));
            let polled = running
                .future
                .as_mut()
                .poll(&mut Context::from_waker(&waker));
            if polled.is_pending() {
                self.0.lock().unwrap().push(running);
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    pub(crate) fn shut_down(&self) {
        let all = std::mem::take(&mut *self.0.lock().unwrap());
        drop(all);
    }
}

/// Counts its drops.
struct Dropped(Arc<AtomicU32>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        if !thread::panicking() {
            panic!("this destructor has a bug");
        }
    }
}

/// Registers an echo, a method that never completes and counts its drops, and methods that panic
/// when polled and when dropped.
fn register(methods: &mut Methods, executor: impl Executor, dropped: &Arc<AtomicU32>) {
    let executor = Arc::new(OnExecutor::new(Arc::new(()), executor));
    let on = Arc::clone(&executor);
    methods.unary(&ECHO, move |request: Request<Vec<u8>>| {
        on.run(async { Ok(Response::new(request.into_inner())) })
    });
    let (on, dropped) = (Arc::clone(&executor), Arc::clone(dropped));
    methods.unary(&HELD, move |_: Request<Vec<u8>>| {
        let dropped = Dropped(Arc::clone(&dropped));
        on.run(async move {
            let _dropped = dropped;
            std::future::pending::<Result<Response<Vec<u8>>, Status>>().await
        })
    });
    let on = Arc::clone(&executor);
    methods.unary(&PANIC, move |_: Request<Vec<u8>>| {
        on.run(async {
            panic!("asked to panic");
            #[allow(unreachable_code)]
            Ok(Response::new(Vec::<u8>::new()))
        })
    });
    methods.unary(&DROP, move |_: Request<Vec<u8>>| {
        let bug = PanicsWhenDropped;
        executor.run(std::future::poll_fn(move |_| {
            let _held = &bug;
            Poll::Ready(Ok(Response::new(Vec::<u8>::new())))
        }))
    });
}

fn pair() -> (Pair, ManualExecutor, Arc<AtomicU32>) {
    let (executor, dropped) = (ManualExecutor::default(), Arc::default());
    let pair = Pair::new(|methods| register(methods, executor.clone(), &dropped));
    (pair, executor, dropped)
}

/// Runs a call while stepping both the executor and the network.
fn run<F: Future>(pair: &Pair, executor: &ManualExecutor, future: F) -> F::Output {
    let mut future = pin!(future);
    pair.run(std::future::poll_fn(|cx| {
        executor.run();
        future.as_mut().poll(cx)
    }))
}

#[test]
fn a_handler_on_an_executor_answers() {
    let (pair, executor, _) = pair();
    let channel = pair.connect();
    for _ in 0..3 {
        let reply = run(&pair, &executor, call(&channel, &ECHO, "hello")).unwrap();
        assert_eq!(reply, b"hello");
    }
    assert_eq!(executor.len(), 0);
    pair.assert_nothing_left();
}

#[test]
fn a_panic_on_an_executor_is_that_calls_internal_error() {
    let (pair, executor, _) = pair();
    let channel = pair.connect();
    let error = run(&pair, &executor, call(&channel, &PANIC, "")).unwrap_err();
    assert_eq!(error.code(), Code::Internal);
    assert!(error.message().contains("the handler panicked"), "{error}");
    let error = run(&pair, &executor, call(&channel, &DROP, "")).unwrap_err();
    assert_eq!(error.code(), Code::Internal);
    assert!(error.message().contains("the handler panicked"), "{error}");
    run(&pair, &executor, call(&channel, &ECHO, "")).unwrap();
    pair.assert_nothing_left();
}

#[test]
fn a_future_that_the_executor_drops_is_answered_unavailable() {
    let (pair, executor, dropped) = pair();
    let channel = pair.connect();
    // Once with a future that has been polled, once with one that has not.
    for polled in [true, false] {
        let mut call = pin!(call(&channel, &HELD, ""));
        let began = pair.network().try_run(&mut call);
        assert!(began.is_none());
        if polled {
            executor.run();
        }
        executor.shut_down();
        let error = pair.run(call).unwrap_err();
        assert_eq!(error.code(), Code::Unavailable);
        assert_eq!(error.execution(), Execution::Answered);
    }
    assert_eq!(dropped.load(Ordering::Relaxed), 2);
    pair.assert_nothing_left();
}

#[test]
fn an_executor_that_takes_nothing_or_panics_is_answered_for() {
    let pair = Pair::new(|methods| register(methods, drop::<Spawned>, &Arc::default()));
    let error = pair.run(call(&pair.connect(), &ECHO, "")).unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    pair.assert_nothing_left();

    let no_runtime = |_: Spawned| panic!("there is no runtime");
    let pair = Pair::new(|methods| register(methods, no_runtime, &Arc::default()));
    let error = pair.run(call(&pair.connect(), &ECHO, "")).unwrap_err();
    assert_eq!(error.code(), Code::Internal);
    assert!(error.message().contains("the handler panicked"), "{error}");
    pair.assert_nothing_left();
}

#[test]
fn when_the_deadline_passes_the_executor_is_woken_and_drops_the_future() {
    let (pair, executor, dropped) = pair();
    let channel = pair.connect();
    let request = Request::new(Vec::new()).with_timeout(Duration::from_millis(5));
    let mut call = pin!(send(&channel, &HELD, request));
    assert!(pair.network().try_run(&mut call).is_none());
    executor.run();
    assert_eq!((executor.len(), dropped.load(Ordering::Relaxed)), (1, 0));
    pair.network().advance(Duration::from_millis(6));
    let error = pair.run(call).unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded);
    executor.run();
    assert_eq!((executor.len(), dropped.load(Ordering::Relaxed)), (0, 1));
    pair.assert_nothing_left();
}

#[test]
fn when_the_client_goes_the_executor_is_woken_and_drops_the_future() {
    let (pair, executor, dropped) = pair();
    let channel = pair.connect();
    {
        let mut call = Box::pin(call(&channel, &HELD, ""));
        assert!(pair.network().try_run(&mut call).is_none());
        executor.run();
    }
    drop(channel);
    pair.network().settle();
    executor.run();
    assert_eq!((executor.len(), dropped.load(Ordering::Relaxed)), (0, 1));
    pair.assert_nothing_left();
}

#[test]
fn handlers_that_end_on_many_threads_at_once_each_answer_once() {
    // Runs each call on its own thread, which may be slower or faster than the poller.
    let executor = |mut future: Spawned| {
        thread::spawn(move || {
            let poller = thread::current();
            let waker = Waker::from(Arc::new(Unpark(poller)));
            while future
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
            {
                thread::park();
            }
        });
    };
    let pair = Pair::new(|methods| register(methods, executor, &Arc::default()));
    let channel = pair.connect();
    let watchdog = Instant::now() + Duration::from_secs(60);
    for round in 0..200u32 {
        let calls: Vec<_> = (0..4u8)
            .map(|n| Box::pin(call(&channel, &ECHO, vec![n; 3])))
            .collect();
        for (n, mut future) in (0..).zip(calls) {
            let reply = loop {
                if let Some(reply) = pair.network().try_run(&mut future) {
                    break reply.unwrap();
                }
                assert!(Instant::now() < watchdog, "round {round} hangs");
            };
            assert_eq!(reply, vec![n; 3]);
        }
    }
    pair.assert_nothing_left();
}

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[test]
fn on_an_executors_thread_there_is_no_poller() {
    let executor = ManualExecutor::default();
    let pair = Pair::new(|methods| {
        let on = OnExecutor::new(Arc::new(()), executor.clone());
        methods.unary(&ECHO, move |_: Request<Vec<u8>>| {
            on.run(async {
                Ok(Response::new(vec![u8::from(
                    LocalPoller::current().is_some(),
                )]))
            })
        });
    });
    let channel = pair.connect();
    assert_eq!(
        run(&pair, &executor, call(&channel, &ECHO, "")).unwrap(),
        [0]
    );
}

/// Answers with the place where its handler runs.
struct Where;

fn place() -> Result<Response<HelloReply>, Status> {
    let thread = thread::current();
    let message = match LocalPoller::current() {
        Some(_) => "poller",
        None => thread.name().unwrap_or_default(),
    };
    Ok(Response::new(HelloReply {
        message: message.to_owned(),
    }))
}

impl Greeter for Where {
    async fn say_hello(&self, _: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        place()
    }
}

/// The same for a service that is not `Send`.
#[derive(Default)]
struct LocalWhere(Cell<u32>);

impl LocalGreeter for LocalWhere {
    async fn say_hello(&self, _: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        self.0.set(self.0.get() + 1);
        place()
    }
}

/// An executor that runs each handler on a thread of this name.
fn threads(name: &'static str) -> impl Executor {
    move |future: Spawned| {
        let thread = thread::Builder::new().name(name.to_owned());
        thread.spawn(move || block_on(future)).unwrap();
    }
}

/// Returns the place where the service's handlers run, on a server with an executor or without.
fn place_of(service: impl Service, server_has_executor: bool) -> String {
    let device = Device::open("soft").unwrap();
    let builder = Server::builder(&device).add_service(service);
    let builder = match server_has_executor {
        true => builder.executor(threads("server's")),
        false => builder,
    };
    let server = builder.bind("127.0.0.1:0").unwrap().spawn();
    let poller = LocalPoller::new(&device).unwrap();
    let channel = poller.connect(&server.local_addr().to_string()).unwrap();
    let greeter = GreeterClient::new(channel);
    let reply = poller.block_on(greeter.say_hello(HelloRequest::default()));
    drop(greeter);
    server.shutdown().unwrap();
    reply.unwrap().into_inner().message
}

#[test]
fn handlers_run_on_the_servers_executor_unless_their_service_chooses_another_place() {
    let shared = || GreeterServer::from_arc(Arc::new(Where));
    assert_eq!(place_of(shared(), false), "poller");
    assert_eq!(place_of(shared(), true), "server's");
    assert_eq!(place_of(shared().on_poller(), true), "poller");
    let own = || threads("its own");
    assert_eq!(place_of(shared().executor(own()), false), "its own");
    assert_eq!(place_of(shared().executor(own()), true), "its own");
    // The last choice counts, and a clone keeps it.
    let back = shared().executor(own()).on_poller().clone();
    assert_eq!(place_of(back, true), "poller");
}

#[test]
fn a_service_per_poller_stays_there_unless_it_has_its_own_executor() {
    let local = GreeterServer::per_poller(LocalWhere::default);
    assert_eq!(place_of(local, true), "poller");
    let sendable = || GreeterServer::per_poller(|| Where);
    assert_eq!(place_of(sendable(), true), "poller");
    let own = sendable().executor(threads("its own"));
    assert_eq!(place_of(own, true), "its own");
}
