//! Shuts down a server while calls are in flight, with its own threads and over a device.

use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use rpc_core::transport::CloseReason;
use rpc_core::{
    CallError, Caller, Cause, Channel, Code, Execution, Idempotency, LocalPoller, MethodKind,
    MethodSpec, Methods, Request, Response, Server, Service, Shutdown, Status,
};
use rpc_transport_verbs::Device;

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
                        return std::task::Poll::Ready(());
                    }
                    let waker = cx.waker().clone();
                    thread::spawn(move || {
                        thread::sleep(Duration::from_millis(ms));
                        waker.wake();
                    });
                    std::task::Poll::Pending
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
    let device = Device::open("soft").unwrap();
    let server = Server::builder(&device)
        .add_service(Patient(entered))
        .bind("127.0.0.1:0")
        .unwrap()
        .spawn();
    let address = server.local_addr().to_string();
    let client = thread::spawn(move || {
        let poller = LocalPoller::new(&Device::open("soft").unwrap()).unwrap();
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
    };
    let [first, _] = shut_down(0, within);
    let error = first.unwrap_err();
    assert_eq!(
        (error.code(), error.execution()),
        (Code::Unavailable, Execution::Answered)
    );
    assert!(error.to_string().contains("may have run"), "{error}");
}

/// A server is shut down and restarted at the same address repeatedly, while two threads call it
/// through a shared channel: clients are notified in time, and every call finds a server.
#[test]
fn restarts_fail_no_call_of_a_channel_that_waits_for_its_server() {
    let (entered, enters) = mpsc::channel();
    let device = Device::open("soft").unwrap();
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
