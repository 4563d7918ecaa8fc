//! Shuts down a server while calls are in flight, with its own threads and over a device.

use std::future::pending;
use std::net::TcpListener;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use rpc_core::transport::CloseReason;
use rpc_core::{
    CallError, Caller, Cause, Channel, Code, Execution, Idempotency, LocalPoller, MethodKind,
    MethodSpec, Methods, Request, Response, Server, ServerHandle, Service, Shutdown, Status,
};

use crate::transport_harness::device;

const WAIT: MethodSpec = MethodSpec::new(
    "test.Patient/Wait",
    MethodKind::Unary,
    Idempotency::Unknown,
    "uint64",
    "uint64",
);

/// Waits for the requested number of milliseconds without blocking its poller. 0 means forever.
struct Patient(mpsc::Sender<()>);

impl Service for Patient {
    fn name(&self) -> &'static str {
        "test.Patient"
    }

    fn register(&self, methods: &mut Methods) {
        let entered = self.0.clone();
        methods.unary(&WAIT, move |request: Request<u64>| {
            let _ = entered.send(());
            async move {
                let ms = request.into_inner();
                if ms == 0 {
                    return pending().await;
                }
                let mut is_first = true;
                std::future::poll_fn(|cx| {
                    if !std::mem::take(&mut is_first) {
                        return Poll::Ready(());
                    }
                    let waker = cx.waker().clone();
                    thread::spawn(move || {
                        thread::sleep(Duration::from_millis(ms));
                        waker.wake();
                    });
                    Poll::Pending
                })
                .await;
                Ok::<_, Status>(Response::new(ms))
            }
        });
    }
}

/// Shuts a server down while a call that waits `ms` milliseconds is in its handler. Returns the
/// result of that call and of the next call on the same connection.
fn shut_down(ms: u64, within: Shutdown) -> [Result<u64, CallError>; 2] {
    let (entered, enters) = mpsc::channel();
    let server = Server::builder(&device())
        .add_service(Patient(entered))
        .bind("127.0.0.1:0")
        .unwrap()
        .spawn();
    let address = server.local_addr().to_string();
    let client = thread::spawn(move || {
        let poller = LocalPoller::new(&device()).unwrap();
        let channel = poller.connect(&address).unwrap();
        [(); 2].map(|()| {
            let reply = poller.block_on(channel.unary::<u64, u64>(&WAIT, Request::new(ms)));
            reply.map(Response::into_inner)
        })
    });
    enters.recv().unwrap();
    server.shutdown_within(within).unwrap();
    client.join().unwrap()
}

#[test]
fn a_call_at_work_is_answered_and_the_next_is_never_sent() {
    let within = Shutdown {
        finish: Duration::from_secs(60),
        close: Duration::from_secs(60),
        ..Shutdown::default()
    };
    let [first, next] = shut_down(200, within);
    assert_eq!(first.unwrap(), 200);
    let error = next.unwrap_err();
    assert_eq!(
        (error.code(), error.execution()),
        (Code::Unavailable, Execution::NeverSent)
    );
    assert!(
        matches!(error.cause(), Cause::Disconnected(CloseReason::GoingAway)),
        "{error}"
    );
}

#[test]
fn a_call_that_never_ends_is_answered_when_its_time_is_up() {
    let within = Shutdown {
        finish: Duration::from_millis(100),
        close: Duration::from_secs(60),
        ..Shutdown::default()
    };
    let [first, _] = shut_down(0, within);
    let error = first.unwrap_err();
    assert_eq!(
        (error.code(), error.execution()),
        (Code::Unavailable, Execution::Answered)
    );
    assert!(error.to_string().contains("may have run"), "{error}");
}

/// Starts a server whose shutdown has 60 seconds, and a client that calls it once, with a handler
/// that takes `ms` milliseconds. Returns when the handler runs.
fn server_in_use(
    ms: u64,
) -> (
    Server,
    mpsc::Receiver<()>,
    impl FnOnce() -> thread::JoinHandle<u64>,
) {
    let (entered, enters) = mpsc::channel();
    let minute = Duration::from_secs(60);
    let server = Server::builder(&device())
        .add_service(Patient(entered))
        .shutdown(Shutdown {
            finish: minute,
            close: minute,
            ..Shutdown::default()
        })
        .bind("127.0.0.1:0")
        .unwrap();
    let address = server.local_addr().to_string();
    let call = move || {
        thread::spawn(move || {
            let poller = LocalPoller::new(&device()).unwrap();
            let channel = poller.connect(&address).unwrap();
            let reply = poller.block_on(channel.unary::<u64, u64>(&WAIT, Request::new(ms)));
            reply.unwrap().into_inner()
        })
    };
    (server, enters, call)
}

#[test]
fn a_server_serves_until_its_signal_and_answers_what_is_at_work() {
    let (server, enters, call) = server_in_use(200);
    let client = call();
    // The signal comes when the handler runs.
    let (give_signal, signalled) = signal();
    let waits = thread::spawn(move || {
        enters.recv().unwrap();
        give_signal();
    });
    rpc_core::block_on(server.serve_with_shutdown(signalled)).unwrap();
    assert_eq!(client.join().unwrap(), 200);
    waits.join().unwrap();
}

#[test]
fn an_asynchronous_shutdown_answers_what_is_at_work_and_keeps_no_thread() {
    let (server, enters, call) = server_in_use(200);
    let server = server.spawn();
    let client = call();
    enters.recv().unwrap();
    let mut shutdown = pin!(server.shutdown_async());
    let mut cx = Context::from_waker(Waker::noop());
    // It does not block: the handler takes longer than this poll.
    assert!(shutdown.as_mut().poll(&mut cx).is_pending());
    rpc_core::block_on(shutdown).unwrap();
    assert_eq!(client.join().unwrap(), 200);
}

#[test]
fn a_server_whose_future_is_dropped_stops() {
    let (server, _enters, _) = server_in_use(0);
    let address = server.local_addr();
    let mut serving = Box::pin(server.serve());
    let mut cx = Context::from_waker(Waker::noop());
    assert!(serving.as_mut().poll(&mut cx).is_pending());
    drop(serving);
    TcpListener::bind(address).expect("the port is free again");
}

/// Returns a function that completes the future.
fn signal() -> (impl FnOnce() + Send, impl Future<Output = ()>) {
    let shared = Arc::new((AtomicBool::new(false), Mutex::new(None::<Waker>)));
    let signalled = Arc::clone(&shared);
    let signal = move || {
        shared.0.store(true, Ordering::SeqCst);
        if let Some(waker) = shared.1.lock().unwrap().take() {
            waker.wake();
        }
    };
    let future = std::future::poll_fn(move |cx| {
        *signalled.1.lock().unwrap() = Some(cx.waker().clone());
        match signalled.0.load(Ordering::SeqCst) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    });
    (signal, future)
}

/// A server is shut down and restarted at the same address repeatedly, while two threads call it
/// through a shared channel: clients are notified in time, and every call finds a server.
#[test]
fn restarts_fail_no_call_of_a_channel_that_waits_for_its_server() {
    let (entered, enters) = mpsc::channel();
    let device = device();
    let start = |address: &str| {
        let server = Server::builder(&device).add_service(Patient(entered.clone()));
        server.bind(address).unwrap().spawn()
    };
    let mut server = start("127.0.0.1:0");
    let address = server.local_addr().to_string();
    let channel = rpc_core::block_on(Channel::connect(&device, &address)).unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let callers = [1, 2].map(|ms| {
        let (channel, is_over) = (channel.clone(), Arc::clone(&is_over));
        thread::spawn(move || {
            let mut calls = 0;
            while !is_over.load(Ordering::Relaxed) {
                let request = Request::new(ms).wait_for_ready(true);
                let reply = rpc_core::block_on(channel.unary::<u64, u64>(&WAIT, request));
                assert_eq!(reply.unwrap().into_inner(), ms, "after {calls} calls");
                calls += 1;
            }
            calls
        })
    });
    for _ in 0..5 {
        // Wait until some calls have reached this server.
        for _ in 0..20 {
            enters.recv().unwrap();
        }
        let within = Shutdown {
            finish: Duration::from_secs(60),
            close: Duration::from_secs(60),
            ..Shutdown::default()
        };
        server.shutdown_within(within).unwrap();
        // Drop the entries that the previous server has left.
        while enters.try_recv().is_ok() {}
        server = start(&address);
    }
    is_over.store(true, Ordering::Relaxed);
    for caller in callers {
        assert!(caller.join().unwrap() > 0);
    }
    drop(channel);
    server.shutdown().unwrap();
}

const STOP: MethodSpec = MethodSpec::new(
    "test.Admin/Stop",
    MethodKind::Unary,
    Idempotency::Unknown,
    "uint64",
    "uint64",
);

/// Stops its own server, on a poller of it: 0 drops the handle, 1 shuts down, 2 awaits a shutdown.
struct Admin(Arc<Mutex<Option<ServerHandle>>>);

impl Service for Admin {
    fn name(&self) -> &'static str {
        "test.Admin"
    }

    fn register(&self, methods: &mut Methods) {
        let handle = Arc::clone(&self.0);
        methods.unary(&STOP, move |request: Request<u64>| {
            let handle = handle.lock().unwrap().take();
            async move {
                let how = request.into_inner();
                match (handle, how) {
                    (Some(handle), 1) => handle.shutdown().unwrap(),
                    (Some(handle), 2) => handle.shutdown_async().await.unwrap(),
                    (handle, _) => drop(handle),
                }
                Ok::<_, Status>(Response::new(how))
            }
        });
    }
}

#[test]
fn a_handler_stops_its_own_server_and_its_call_is_answered() {
    for (how, pollers) in [(0, 1), (1, 1), (1, 2), (2, 1)] {
        let handle = Arc::default();
        let server = Server::builder(&device())
            .pollers(pollers)
            .shutdown(Shutdown {
                finish: Duration::from_millis(100),
                close: Duration::from_secs(60),
                ..Shutdown::default()
            })
            .add_service(Admin(Arc::clone(&handle)))
            .bind("127.0.0.1:0")
            .unwrap()
            .spawn();
        let address = server.local_addr();
        *handle.lock().unwrap() = Some(server);
        let poller = LocalPoller::new(&device()).unwrap();
        let channel = poller.connect(&address.to_string()).unwrap();
        let stop = || poller.block_on(channel.unary::<u64, u64>(&STOP, Request::new(how)));
        let stopped = stop().map(Response::into_inner);
        match how {
            // The handler waits for the poller, and the poller for the handler, until its time is up.
            2 => assert_eq!(stopped.unwrap_err().code(), Code::Unavailable),
            _ => assert_eq!(stopped.unwrap(), how),
        }
        // Calls are served until the poller has begun to shut down.
        let end = (0..1_000_000).find_map(|_| stop().err()).expect("it ends");
        assert_eq!(end.code(), Code::Unavailable);
        TcpListener::bind(address).expect("the port is free again");
    }
}

/// Notes what it is told.
struct Told(Arc<Mutex<Vec<&'static str>>>);

impl Service for Told {
    fn name(&self) -> &'static str {
        "test.Told"
    }

    fn register(&self, _: &mut Methods) {
        self.0.lock().unwrap().push("registered");
    }

    fn stopping(&self) {
        self.0.lock().unwrap().push("stopping");
    }

    fn finishing(&self) {
        self.0.lock().unwrap().push("finishing");
    }
}

#[test]
fn a_service_is_told_once_that_its_server_stops_and_by_each_poller_that_it_finishes() {
    let lame_duck = Duration::from_millis(50);
    for lame_duck in [Duration::ZERO, lame_duck] {
        let told = Arc::default();
        let server = Server::builder(&device())
            .pollers(2)
            .shutdown(Shutdown {
                lame_duck,
                ..Shutdown::default()
            })
            .add_service(Told(Arc::clone(&told)))
            .bind("127.0.0.1:0")
            .unwrap();
        let begun = Instant::now();
        server.spawn().shutdown().unwrap();
        assert!(begun.elapsed() >= lame_duck);
        let told = told.lock().unwrap();
        let [registered, stopping, finishing] = [0..2, 2..3, 3..5].map(|part| &told[part]);
        assert_eq!(registered, ["registered"; 2]);
        assert_eq!(stopping, ["stopping"]);
        assert_eq!(finishing, ["finishing"; 2]);
        assert_eq!(told.len(), 5);
    }
}

/// Panics whenever it is told of the shutdown.
struct Panicking;

impl Service for Panicking {
    fn name(&self) -> &'static str {
        "test.Panicking"
    }

    fn register(&self, _: &mut Methods) {}

    fn stopping(&self) {
        panic!("it does not want to stop");
    }

    fn finishing(&self) {
        panic!("it does not want to finish");
    }
}

#[test]
fn a_service_that_panics_when_it_is_told_of_the_shutdown_does_not_disturb_it() {
    let told = Arc::default();
    let lame_duck = Duration::from_millis(50);
    let server = Server::builder(&device())
        .shutdown(Shutdown {
            lame_duck,
            ..Shutdown::default()
        })
        .add_service(Panicking)
        .add_service(Told(Arc::clone(&told)))
        .bind("127.0.0.1:0")
        .unwrap();
    let begun = Instant::now();
    server.spawn().shutdown().unwrap();
    assert!(begun.elapsed() >= lame_duck);
    let told = told.lock().unwrap();
    assert_eq!(*told, ["registered", "stopping", "finishing"]);
}

/// It would wait for ever.
#[test]
fn a_server_that_never_served_has_no_lame_duck_time() {
    let told = Arc::default();
    let server = Server::builder(&device())
        .shutdown(Shutdown {
            lame_duck: Duration::MAX,
            ..Shutdown::default()
        })
        .add_service(Told(Arc::clone(&told)))
        .bind("127.0.0.1:0")
        .unwrap();
    let address = server.local_addr();
    drop(server);
    assert!(!told.lock().unwrap().contains(&"stopping"));
    TcpListener::bind(address).expect("the port is free again");
}
