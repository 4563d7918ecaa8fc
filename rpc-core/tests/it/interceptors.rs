//! Interceptors over the loopback: what each begin and each end sees when calls are refused, wait, panic, are
//! dropped, or lose their client.

use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use proto::greeter::{Greeter, GreeterClient, GreeterServer, HelloReply, HelloRequest};
use rpc_core::frame::{CallId, FrameHeader, FrameKind};
use rpc_core::intercept::{Begin, Call, End, Interceptor, Side};
use rpc_core::{Code, Execution, LocalChannel, Methods, Request, Response, Service, Status};
use rpc_core_testing::{Clock, Pair};

use crate::executor::ManualExecutor;
use crate::support::raw::header;
use crate::support::{ECHO, FAIL, Gate, HELD, PANIC, call, register, send};

/// Notes what it sees, under its name.
struct Noting {
    name: &'static str,
    log: Log,
    decides: fn(&mut Call<'_>) -> Begin,
    ends: fn(&mut End<'_>),
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn note(&self, what: String) {
        self.0.lock().unwrap().push(what);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    /// An interceptor that lets all calls pass.
    fn passing(&self, name: &'static str) -> Arc<dyn Interceptor> {
        self.deciding(name, |_| Begin::PASS)
    }

    fn deciding(
        &self,
        name: &'static str,
        decides: fn(&mut Call<'_>) -> Begin,
    ) -> Arc<dyn Interceptor> {
        self.noting(name, decides, |_| ())
    }

    fn noting(
        &self,
        name: &'static str,
        decides: fn(&mut Call<'_>) -> Begin,
        ends: fn(&mut End<'_>),
    ) -> Arc<dyn Interceptor> {
        Arc::new(Noting {
            name,
            log: self.clone(),
            decides,
            ends,
        })
    }
}

impl Interceptor for Noting {
    fn begin(&self, call: &mut Call<'_>) -> Begin {
        self.log.note(format!("{} begins", self.name));
        (self.decides)(call)
    }

    fn end(&self, end: &mut End<'_>) {
        let (name, code) = (self.name, end.code());
        let sent = match end.execution() {
            Some(Execution::NeverSent) => ", never sent",
            _ => "",
        };
        self.log.note(format!("{name} ends: {code}{sent}"));
        (self.ends)(end);
    }
}

fn refuses(_: &mut Call<'_>) -> Begin {
    Begin::refuse(Status::permission_denied("not you"))
}

fn waits_for_ever(_: &mut Call<'_>) -> Begin {
    Begin::later(std::future::pending())
}

/// Lets the first call wait.
fn waits_at_first(call: &mut Call<'_>) -> Begin {
    static BEGUN: AtomicU32 = AtomicU32::new(0);
    match BEGUN.fetch_add(1, Ordering::Relaxed) {
        0 => waits_for_ever(call),
        _ => Begin::PASS,
    }
}

fn panics(_: &mut Call<'_>) -> Begin {
    panic!("this interceptor has a bug")
}

fn panics_later(_: &mut Call<'_>) -> Begin {
    Begin::later(async { panic!("this interceptor has a bug") })
}

/// A server with these interceptors.
fn served_by(interceptors: &[Arc<dyn Interceptor>]) -> (Pair, Gate) {
    let gate = Gate::default();
    let pair = Pair::new(|methods| {
        methods.set_interceptors(interceptors);
        register(methods, &gate);
    });
    (pair, gate)
}

fn with(channel: LocalChannel, interceptors: Vec<Arc<dyn Interceptor>>) -> LocalChannel {
    let mut interceptors = interceptors.into_iter();
    interceptors
        .try_fold(channel, |channel, it| Some(channel.with_interceptor(it)))
        .unwrap()
}

#[test]
fn interceptors_end_in_the_reverse_order() {
    let log = Log::default();
    let (pair, _) = served_by(&[log.passing("s1"), log.passing("s2")]);
    let channel = with(pair.connect(), vec![log.passing("c1"), log.passing("c2")]);
    pair.run(call(&channel, &ECHO, [1])).unwrap();
    let expected = [
        "c1 begins",
        "c2 begins",
        "s1 begins",
        "s2 begins",
        "s2 ends: OK",
        "s1 ends: OK",
        "c2 ends: OK",
        "c1 ends: OK",
    ];
    assert_eq!(log.take(), expected);
    let error = pair.run(call(&channel, &FAIL, [1])).unwrap_err();
    assert_eq!(error.code(), Code::Aborted);
    let ends = log.take().split_off(4);
    let expected = ["s2", "s1", "c2", "c1"].map(|name| format!("{name} ends: ABORTED"));
    assert_eq!(ends, expected);
    pair.assert_nothing_left();
}

#[test]
fn a_refusal_of_the_server_says_that_the_handler_did_not_start() {
    let log = Log::default();
    let interceptors = [
        log.passing("s1"),
        log.deciding("s2", refuses),
        log.passing("s3"),
    ];
    let (pair, gate) = served_by(&interceptors);
    let error = pair.run(call(&pair.connect(), &HELD, [1])).unwrap_err();
    assert_eq!(error.code(), Code::PermissionDenied);
    assert_eq!(error.message(), "not you");
    assert_eq!(error.execution(), Execution::NotStarted);
    assert_eq!(gate.entered(), 0);
    let expected = ["s1 begins", "s2 begins", "s1 ends: PERMISSION_DENIED"];
    assert_eq!(log.take(), expected);
    pair.assert_nothing_left();
}

#[test]
fn a_refusal_of_the_client_sends_nothing() {
    let log = Log::default();
    let (pair, gate) = served_by(&[log.passing("s")]);
    let interceptors = vec![
        log.passing("c1"),
        log.deciding("c2", refuses),
        log.passing("c3"),
    ];
    let channel = with(pair.connect(), interceptors);
    let error = pair.run(call(&channel, &HELD, [1])).unwrap_err();
    assert_eq!(error.code(), Code::PermissionDenied);
    assert_eq!(error.execution(), Execution::NeverSent);
    assert_eq!(gate.entered(), 0);
    let expected = [
        "c1 begins",
        "c2 begins",
        "c1 ends: PERMISSION_DENIED, never sent",
    ];
    assert_eq!(log.take(), expected);
    pair.assert_nothing_left();
}

/// A status with the code of success is no refusal that a client would understand.
#[test]
fn a_refusal_is_a_failure() {
    let log = Log::default();
    let ok = |_: &mut Call<'_>| Begin::refuse(Status::new(Code::Ok, "nonsense"));
    let (pair, _) = served_by(&[log.passing("s1"), log.deciding("s2", ok)]);
    let error = pair.run(call(&pair.connect(), &ECHO, [1])).unwrap_err();
    assert_eq!(error.code(), Code::Unknown);
    assert_eq!(log.take().last().unwrap(), "s1 ends: UNKNOWN");
    let channel = with(pair.connect(), vec![log.deciding("c", ok)]);
    let error = pair.run(call(&channel, &ECHO, [1])).unwrap_err();
    assert_eq!(error.code(), Code::Unknown);
}

#[test]
fn a_call_that_is_dropped_while_an_interceptor_waits_ends_for_those_before_it() {
    let log = Log::default();
    let interceptors = [
        log.passing("s1"),
        log.deciding("s2", waits_for_ever),
        log.passing("s3"),
    ];
    let (pair, gate) = served_by(&interceptors);
    let interceptors = vec![log.passing("c1"), log.deciding("c2", waits_for_ever)];
    let (plain, waiting) = (pair.connect(), with(pair.connect(), interceptors));
    for (channel, name) in [(&plain, "s"), (&waiting, "c")] {
        {
            let mut call = pin!(call(channel, &ECHO, [1]));
            let mut cx = Context::from_waker(Waker::noop());
            assert!(call.as_mut().poll(&mut cx).is_pending());
            pair.network().settle();
            assert!(call.as_mut().poll(&mut cx).is_pending());
            let begun = [format!("{name}1 begins"), format!("{name}2 begins")];
            assert_eq!(log.take(), begun);
        }
        pair.network().settle();
        assert_eq!(log.take(), [format!("{name}1 ends: CANCELLED")]);
    }
    assert_eq!(gate.entered(), 0);
    pair.assert_nothing_left();
}

#[test]
fn the_deadline_ends_a_begin_that_waits_on_a_server() {
    let log = Log::default();
    let (pair, _) = served_by(&[log.passing("s1"), log.deciding("s2", waits_for_ever)]);
    let request = Request::new(vec![1]).with_timeout(Duration::from_millis(5));
    let error = expire(&pair, send(&pair.connect(), &ECHO, request), 6);
    assert_eq!(error.unwrap_err().code(), Code::DeadlineExceeded);
    let ends = log.take().pop().unwrap();
    assert_eq!(ends, "s1 ends: DEADLINE_EXCEEDED");
    pair.assert_nothing_left();
}

/// Runs a call, while so many milliseconds pass.
fn expire<F: Future>(pair: &Pair, call: F, ms: u64) -> F::Output {
    let mut call = pin!(call);
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..=ms {
        if let Poll::Ready(outcome) = call.as_mut().poll(&mut cx) {
            return outcome;
        }
        pair.network().settle();
        pair.network().advance(Duration::from_millis(1));
        for node in [pair.client(), pair.server()] {
            node.check_timers();
        }
    }
    pair.run(call)
}

#[test]
fn what_waits_passes_when_it_is_woken_and_changes_its_call() {
    fn later(_: &mut Call<'_>) -> Begin {
        let mut polls = 0;
        let value = std::future::poll_fn(move |cx| {
            polls += 1;
            cx.waker().wake_by_ref();
            match polls {
                3 => Poll::Ready(Ok("late".to_owned())),
                _ => Poll::Pending,
            }
        });
        Begin::later_with(value, |value, call| {
            let key = match call.side() {
                Side::Client => "client",
                Side::Server => "server",
            };
            call.metadata_mut().insert(key, value)?;
            Ok(())
        })
    }
    let log = Log::default();
    let both = || [log.deciding("1", later), log.deciding("2", later)];
    let (pair, _) = served_by(&both());
    let channel = with(pair.connect(), both().to_vec());
    let error = pair.run(call(&channel, &FAIL, [1])).unwrap_err();
    // The handler sends back what it has got.
    assert_eq!(error.metadata().get("client"), Some("late"));
    assert_eq!(error.metadata().get("server"), Some("late"));
    assert_eq!(log.take().len(), 8);
    pair.assert_nothing_left();
}

#[test]
fn a_decision_that_waits_may_refuse() {
    fn refuses_later(_: &mut Call<'_>) -> Begin {
        Begin::later_with(async { Ok(()) }, |(), _| Err(Status::aborted("late")))
    }
    fn fails_later(_: &mut Call<'_>) -> Begin {
        Begin::later(async { Err(Status::unavailable("no policy")) })
    }
    let log = Log::default();
    for (decides, code) in [
        (refuses_later as fn(&mut Call<'_>) -> Begin, Code::Aborted),
        (fails_later, Code::Unavailable),
    ] {
        let (pair, _) = served_by(&[log.passing("s1"), log.deciding("s2", decides)]);
        let error = pair.run(call(&pair.connect(), &ECHO, [1])).unwrap_err();
        assert_eq!(
            (error.code(), error.execution()),
            (code, Execution::NotStarted)
        );
        let channel = with(
            pair.connect(),
            vec![log.passing("c1"), log.deciding("c2", decides)],
        );
        let error = pair.run(call(&channel, &ECHO, [1])).unwrap_err();
        assert_eq!(
            (error.code(), error.execution()),
            (code, Execution::NeverSent)
        );
        let log = log.take();
        assert_eq!(log.len(), 6, "{log:?}");
        assert_eq!(log[2], format!("s1 ends: {code}"));
        assert_eq!(log[5], format!("c1 ends: {code}, never sent"));
        pair.assert_nothing_left();
    }
}

#[test]
fn a_panic_fails_its_call_alone() {
    fn panics_in_change(_: &mut Call<'_>) -> Begin {
        Begin::later_with(async { Ok(()) }, |(), _| {
            panic!("this interceptor has a bug")
        })
    }
    let log = Log::default();
    for decides in [
        panics as fn(&mut Call<'_>) -> Begin,
        panics_later,
        panics_in_change,
    ] {
        let bad = |name| log.deciding(name, decides);
        let (pair, gate) = served_by(&[log.passing("s1"), bad("s2"), log.passing("s3")]);
        let error = pair.run(call(&pair.connect(), &HELD, [1])).unwrap_err();
        assert_eq!(error.code(), Code::Internal);
        assert!(error.message().contains("interceptor"), "{error}");
        assert!(!error.message().contains("bug"), "{error}");
        assert_eq!(error.execution(), Execution::NotStarted);
        assert_eq!(gate.entered(), 0);
        assert_eq!(log.take(), ["s1 begins", "s2 begins", "s1 ends: INTERNAL"]);

        let channel = with(pair.connect(), vec![log.passing("c1"), bad("c2")]);
        let error = pair.run(call(&channel, &ECHO, [1])).unwrap_err();
        assert_eq!(error.code(), Code::Internal);
        assert_eq!(error.execution(), Execution::NeverSent);
        assert_eq!(
            log.take(),
            ["c1 begins", "c2 begins", "c1 ends: INTERNAL, never sent"]
        );
        pair.assert_nothing_left();
    }
}

#[test]
fn a_panic_in_an_end_changes_nothing() {
    let log = Log::default();
    let bad = |name| {
        log.noting(
            name,
            |_| Begin::PASS,
            |_| panic!("this interceptor has a bug"),
        )
    };
    let all = |side: [&'static str; 3]| [log.passing(side[0]), bad(side[1]), log.passing(side[2])];
    let (pair, _) = served_by(&all(["s1", "s2", "s3"]));
    let channel = with(pair.connect(), all(["c1", "c2", "c3"]).to_vec());
    assert_eq!(pair.run(call(&channel, &ECHO, [7])).unwrap(), [7]);
    let ends = log.take().split_off(6);
    let expected = ["s3", "s2", "s1", "c3", "c2", "c1"].map(|name| format!("{name} ends: OK"));
    assert_eq!(ends, expected);
    pair.assert_nothing_left();
}

#[test]
fn a_handler_that_panics_ends_its_call() {
    let log = Log::default();
    let (pair, _) = served_by(&[log.passing("s")]);
    let error = pair.run(call(&pair.connect(), &PANIC, [1])).unwrap_err();
    assert!(error.message().contains("the handler panicked"), "{error}");
    assert_eq!(log.take(), ["s begins", "s ends: INTERNAL"]);
    pair.assert_nothing_left();
}

#[test]
fn a_client_that_is_gone_ends_its_calls() {
    let log = Log::default();
    let (pair, gate) = served_by(&[log.passing("s1"), log.deciding("s2", waits_at_first)]);
    let client = pair.network().raw_client("server");
    // The handlers are numbered in their order: 1 is HELD.
    for (call, body) in [(1, &[][..]), (2, &[10, 1, 7][..])] {
        let request = FrameHeader {
            call: CallId(call),
            selector: 1,
            ..header(FrameKind::Request)
        };
        client.send(request, body);
        pair.network().settle();
    }
    assert!(!client.is_closed(), "{:?}", client.received());
    assert_eq!(gate.entered(), 1);
    assert_eq!(log.take().len(), 4);
    client.close();
    pair.network().settle();
    assert_eq!(gate.dropped(), 1);
    let mut ends = log.take();
    ends.sort_unstable();
    let expected = ["s1", "s1", "s2"].map(|name| format!("{name} ends: CANCELLED"));
    assert_eq!(ends, expected);
}

#[test]
fn a_poller_that_ends_ends_its_calls() {
    let log = Log::default();
    let (pair, gate) = served_by(&[log.passing("s")]);
    let channel = pair.connect();
    let mut call = Box::pin(call(&channel, &HELD, [1]));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(call.as_mut().poll(&mut cx).is_pending());
    pair.network().settle();
    assert_eq!(gate.entered(), 1);
    pair.server().discard_services();
    assert_eq!(log.take(), ["s begins", "s ends: CANCELLED"]);
}

#[test]
fn a_handler_that_waits_ends_when_it_is_dropped_or_late() {
    let log = Log::default();
    let (pair, gate) = served_by(&[log.passing("s")]);
    let channel = pair.connect();
    {
        let mut call = pin!(call(&channel, &HELD, [1]));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(call.as_mut().poll(&mut cx).is_pending());
        pair.network().settle();
    }
    pair.network().settle();
    assert_eq!((gate.entered(), gate.dropped()), (1, 1));
    assert_eq!(log.take(), ["s begins", "s ends: CANCELLED"]);

    let request = Request::new(vec![1]).with_timeout(Duration::from_millis(2));
    let error = expire(&pair, send(&channel, &HELD, request), 3).unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded);
    assert_eq!(gate.dropped(), 2);
    assert_eq!(log.take(), ["s begins", "s ends: DEADLINE_EXCEEDED"]);
    pair.assert_nothing_left();
}

#[test]
fn an_interceptor_limits_the_deadline_on_either_side() {
    fn limits(call: &mut Call<'_>) -> Begin {
        let clock = CLOCK
            .with_borrow(Clone::clone)
            .expect("the test has set it");
        call.limit_deadline(clock.now() + Duration::from_millis(3));
        // A later one limits nothing.
        call.limit_deadline(clock.now() + Duration::from_secs(3));
        assert_eq!(
            call.deadline(),
            Some(clock.now() + Duration::from_millis(3))
        );
        Begin::PASS
    }
    fn limits_later(_: &mut Call<'_>) -> Begin {
        let mut polled = false;
        let wait = std::future::poll_fn(move |cx| {
            if std::mem::replace(&mut polled, true) {
                return Poll::Ready(Ok(()));
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        });
        Begin::later_with(wait, |(), call| {
            let _ = limits(call);
            Ok(())
        })
    }
    let log = Log::default();
    for decides in [limits as fn(&mut Call<'_>) -> Begin, limits_later] {
        let (pair, gate) = served_by(&[log.deciding("s", decides)]);
        CLOCK.set(Some(pair.network().clock().clone()));
        let plain = pair.connect();
        // The client has no deadline: the server drops the handler.
        let error = expire(&pair, call(&plain, &HELD, [1]), 5).unwrap_err();
        assert_eq!(error.code(), Code::DeadlineExceeded);
        assert!(error.status().is_some(), "the server answers: {error}");
        assert_eq!((gate.entered(), gate.dropped()), (1, 1));
        assert_eq!(log.take(), ["s begins", "s ends: DEADLINE_EXCEEDED"]);
        pair.assert_nothing_left();

        let (pair, gate) = served_by(&[]);
        CLOCK.set(Some(pair.network().clock().clone()));
        let channel = with(pair.connect(), vec![log.deciding("c", decides)]);
        let request = Request::new(vec![1]).with_timeout(Duration::from_secs(1));
        let error = expire(&pair, send(&channel, &HELD, request), 5).unwrap_err();
        assert_eq!(error.code(), Code::DeadlineExceeded);
        pair.network().settle();
        assert_eq!((gate.entered(), gate.dropped()), (1, 1));
        assert_eq!(log.take(), ["c begins", "c ends: DEADLINE_EXCEEDED"]);
        pair.assert_nothing_left();
    }
}

thread_local! {
    static CLOCK: std::cell::RefCell<Option<Clock>> = const { std::cell::RefCell::new(None) };
}

/// The time for which a client's interceptor waits is a part of the call's.
#[test]
fn a_client_waits_for_its_interceptors_at_the_expense_of_its_time() {
    fn waits(_: &mut Call<'_>) -> Begin {
        let clock = CLOCK
            .with_borrow(Clone::clone)
            .expect("the test has set it");
        let until = clock.now() + Duration::from_millis(20);
        Begin::later(std::future::poll_fn(move |_| match clock.now() < until {
            true => Poll::Pending,
            false => Poll::Ready(Ok(())),
        }))
    }
    let log = Log::default();
    let (pair, gate) = served_by(&[]);
    CLOCK.set(Some(pair.network().clock().clone()));
    let channel = with(pair.connect(), vec![log.deciding("c", waits)]);
    let request = Request::new(vec![1]).with_timeout(Duration::from_millis(10));
    let error = expire(&pair, send(&channel, &HELD, request), 30).unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded);
    assert_eq!(gate.entered(), 0);
    pair.assert_nothing_left();
}

struct MyGreeter;

impl Greeter for MyGreeter {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        let message = request.into_inner().name;
        Ok(Response::new(HelloReply { message }))
    }
}

#[test]
fn an_executor_that_drops_its_tasks_ends_their_calls() {
    let log = Log::default();
    let executor = ManualExecutor::default();
    let greeter = |methods: &mut Methods| {
        GreeterServer::new(MyGreeter)
            .executor(executor.clone())
            .interceptor(log.passing("1"))
            .interceptor(
                log.deciding("2", |call| match call.metadata().get("waits") {
                    Some(_) => waits_for_ever(call),
                    None => Begin::PASS,
                }),
            )
            .register(methods);
    };
    let pair = Pair::new(greeter);
    let client = GreeterClient::new(pair.connect());
    let request = |waits: bool| {
        let mut request = Request::new(HelloRequest::default());
        if waits {
            request.metadata_mut().insert("waits", "1").unwrap();
        }
        request
    };
    let mut cx = Context::from_waker(Waker::noop());
    // Not begun when the executor drops it.
    let mut call = Box::pin(client.say_hello(request(false)));
    assert!(call.as_mut().poll(&mut cx).is_pending());
    pair.network().settle();
    assert_eq!(executor.len(), 1);
    executor.shut_down();
    let error = pair.run(call).unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert_eq!(log.take(), [""; 0]);
    // The second interceptor waits, then its executor or its client drops it.
    for dropped_by_executor in [true, false] {
        let mut call = Box::pin(client.say_hello(request(true)));
        assert!(call.as_mut().poll(&mut cx).is_pending());
        pair.network().settle();
        executor.run();
        assert_eq!(log.take(), ["1 begins", "2 begins"]);
        if dropped_by_executor {
            executor.shut_down();
            assert_eq!(pair.run(call).unwrap_err().code(), Code::Unavailable);
        } else {
            drop(call);
            pair.network().settle();
            executor.run();
        }
        assert_eq!(log.take(), ["1 ends: CANCELLED"]);
        assert_eq!(executor.len(), 0);
    }
    let mut call = Box::pin(client.say_hello(request(false)));
    assert!(call.as_mut().poll(&mut cx).is_pending());
    pair.network().settle();
    executor.run();
    pair.run(call).unwrap();
    let expected = ["1 begins", "2 begins", "2 ends: OK", "1 ends: OK"];
    assert_eq!(log.take(), expected);
    pair.assert_nothing_left();
}

/// On an executor, too, a refusal says that the handler did not start.
#[test]
fn a_refusal_on_an_executor_says_that_the_handler_did_not_start() {
    let log = Log::default();
    let executor = ManualExecutor::default();
    let pair = Pair::new(|methods| {
        GreeterServer::new(MyGreeter)
            .executor(executor.clone())
            .interceptor(log.passing("1"))
            .interceptor(log.deciding("2", refuses))
            .register(methods);
    });
    let client = GreeterClient::new(pair.connect());
    let mut call = Box::pin(client.say_hello(HelloRequest::default()));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(call.as_mut().poll(&mut cx).is_pending());
    pair.network().settle();
    executor.run();
    let error = pair.run(call).unwrap_err();
    assert_eq!(error.code(), Code::PermissionDenied);
    assert_eq!(error.execution(), Execution::NotStarted);
    assert_eq!(
        log.take(),
        ["1 begins", "2 begins", "1 ends: PERMISSION_DENIED"]
    );
    pair.assert_nothing_left();
}

/// Panics when it is dropped.
struct Bug;

impl Drop for Bug {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("this destructor has a bug");
        }
    }
}

/// Values of interceptors are dropped in many places, and none may end the poller.
#[test]
fn a_destructor_that_panics_ends_no_poller() {
    fn leaves_values(call: &mut Call<'_>) -> Begin {
        call.locals_mut().insert(Bug);
        Begin::PASS
    }
    fn refuses_with_values(call: &mut Call<'_>) -> Begin {
        call.locals_mut().insert(Bug);
        refuses(call)
    }
    fn refuses_later_with_a_request(call: &mut Call<'_>) -> Begin {
        // A client's request is dropped by its own task.
        if call.side() == Side::Server {
            call.extensions_mut().insert(Bug);
        }
        Begin::later(async { Err(Status::aborted("late")) })
    }
    fn waits_with_values(call: &mut Call<'_>) -> Begin {
        call.locals_mut().insert(Bug);
        let bug = Bug;
        Begin::later(async move {
            let _bug = &bug;
            std::future::pending().await
        })
    }
    let log = Log::default();
    let all: [fn(&mut Call<'_>) -> Begin; 4] = [
        leaves_values,
        refuses_with_values,
        refuses_later_with_a_request,
        waits_with_values,
    ];
    for decides in all {
        let (pair, _) = served_by(&[log.passing("s1"), log.deciding("s2", decides)]);
        let channel = pair.connect();
        let request = Request::new(vec![1]).with_timeout(Duration::from_millis(2));
        let _ = expire(&pair, send(&channel, &ECHO, request), 3);
        let client = with(
            pair.connect(),
            vec![log.passing("c1"), log.deciding("c2", decides)],
        );
        {
            let mut call = pin!(call(&client, &ECHO, [1]));
            let _ = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
        pair.network().settle();
        let seen = log.take();
        let count = |part: &str| seen.iter().filter(|line| line.contains(part)).count();
        assert_eq!(count("1 begins"), count("1 ends"), "{seen:?}");
        pair.assert_nothing_left();
    }
}
