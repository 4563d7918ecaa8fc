//! A method whose handler blocks its poller is detected, counted and named.

use std::thread;
use std::time::{Duration, Instant};

use rpc_core::{
    Caller, Idempotency, LocalPoller, MethodKind, MethodSpec, Methods, Request, Response, Server,
    Service, Status,
};

use crate::transport_harness::device;

const fn method(path: &'static str) -> MethodSpec {
    MethodSpec::new(
        path,
        MethodKind::Unary,
        Idempotency::Unknown,
        "uint64",
        "uint64",
    )
}

const QUICK: MethodSpec = method("test.Sleepy/Quick");
const SLEEPS: MethodSpec = method("test.Sleepy/Sleeps");

/// Sleeps for the requested number of milliseconds, on the poller's thread.
struct Sleepy;

impl Service for Sleepy {
    fn name(&self) -> &'static str {
        "test.Sleepy"
    }

    fn register(&self, methods: &mut Methods) {
        methods.unary(&QUICK, |request: Request<u64>| async move {
            Ok::<_, Status>(Response::new(request.into_inner()))
        });
        methods.unary(&SLEEPS, |request: Request<u64>| async move {
            thread::sleep(Duration::from_millis(*request.get_ref()));
            Ok::<_, Status>(Response::new(request.into_inner()))
        });
    }
}

#[test]
fn a_handler_that_sleeps_on_its_poller_is_counted_and_named() {
    let device = device();
    let server = Server::builder(&device)
        .add_service(Sleepy)
        .bind("127.0.0.1:0")
        .unwrap()
        .spawn();
    let poller = LocalPoller::new(&device).unwrap();
    let channel = poller.connect(&server.local_addr().to_string()).unwrap();
    let call = |method, ms: u64| {
        let reply = poller.block_on(channel.unary::<u64, u64>(method, Request::new(ms)));
        assert_eq!(reply.unwrap().into_inner(), ms);
    };
    for n in 0..1000 {
        call(&QUICK, n);
    }
    // On a busy machine the watchdog may not run for a long time: it has to see one of these
    // sleeps.
    let patience = Instant::now() + Duration::from_secs(60);
    let sleeps_seen = || {
        let blocked = server.blocked_methods();
        let of_sleeps = |method: &&rpc_core::BlockedMethod| method.path == SLEEPS.path;
        let seen = blocked.methods.iter().find(of_sleeps);
        assert_eq!(
            blocked.total,
            blocked.methods.iter().map(|method| method.count).sum()
        );
        seen.map_or(0, |method| method.count)
    };
    let mut asked = 0;
    while sleeps_seen() < 2 {
        assert!(Instant::now() < patience, "nobody noticed {asked} sleeps");
        call(&SLEEPS, 200);
        asked += 1;
    }
    assert!(sleeps_seen() <= asked);
    drop(channel);
    server.shutdown().unwrap();
}
