//! Deadlines pass on: what a call that a handler makes inherits, over the loopback with a clock that
//! stands still.

use std::cell::{Cell, OnceCell, RefCell};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rpc_core::codegen::v1::OnExecutor;
use rpc_core::{
    CallError, Caller, Channel, Code, CurrentDeadline, DeadlinePolicy, Execution, Idempotency,
    Intents, LocalChannel, MethodKind, MethodSpec, Methods, Request, Response, Spawned, Status,
    Streaming, stream,
};
use rpc_core_testing::{Clock, Faults, Network};

use crate::support::{Gate, method};

/// Answers with the milliseconds that its call has left, or [`NO_DEADLINE`].
const TIME_LEFT: MethodSpec = method("test.Deadlines/TimeLeft");
/// Calls itself as many times as the request says, and finally `TimeLeft`.
const NEST: MethodSpec = method("test.Deadlines/Nest");
/// Calls `TimeLeft` in each of the ways in which a request can set its time.
const OWN_TIMES: MethodSpec = method("test.Deadlines/OwnTimes");
/// Waits for the gate and then calls `TimeLeft`.
const WAIT: MethodSpec = method("test.Deadlines/Wait");
/// Calls `Hold`, which never answers.
const CALL_HOLD: MethodSpec = method("test.Deadlines/CallHold");
const HOLD: MethodSpec = method("test.Deadlines/Hold");
/// Calls `TimeLeft` through a shared channel.
const SHARED: MethodSpec = method("test.Deadlines/Shared");
/// The same, on an executor.
const ON_EXECUTOR: MethodSpec = method("test.Deadlines/OnExecutor");
/// Spawns two tasks that call `TimeLeft`, one of them with the handler's deadline.
const SPAWN: MethodSpec = method("test.Deadlines/Spawn");
const PANIC: MethodSpec = method("test.Deadlines/Panic");

/// Streams the time that its call has left, and the time of a call made while the stream is polled.
const STREAM: MethodSpec = streaming_method("test.Deadlines/Stream");
/// Answers with the sum of what `Stream` streams.
const NEST_STREAM: MethodSpec = method("test.Deadlines/NestStream");

const NO_DEADLINE: u64 = 0;

const fn streaming_method(path: &'static str) -> MethodSpec {
    let (kind, idempotency) = (MethodKind::ServerStreaming, Idempotency::Unknown);
    MethodSpec::new(path, kind, idempotency, "u64", "u64")
}

type Answer = Result<Response<u64>, Status>;
type Task = Pin<Box<dyn Future<Output = ()>>>;

/// What handlers use. The server is its own client, so handlers with different deadlines are polled
/// in one turn.
#[derive(Default)]
struct World {
    itself: OnceCell<LocalChannel>,
    shared: OnceCell<Channel>,
    gate: Gate,
    /// Tasks of handlers, which the test polls.
    spawned: RefCell<Vec<Task>>,
    /// The answers to the calls of spawned tasks.
    answers: RefCell<Vec<(&'static str, u64)>>,
    executor: Arc<Mutex<Vec<Spawned>>>,
}

struct Fixture {
    network: Network,
    world: Rc<World>,
    channel: LocalChannel,
}

async fn ask(
    caller: &impl Caller,
    method: &'static MethodSpec,
    request: Request<u64>,
) -> Result<u64, CallError> {
    let response = caller.unary::<u64, u64>(method, request).await?;
    Ok(response.into_inner())
}

async fn relay(caller: &impl Caller, method: &'static MethodSpec, request: Request<u64>) -> Answer {
    let answer = ask(caller, method, request).await;
    answer
        .map(Response::new)
        .map_err(|error| Status::new(error.code(), error.to_string()))
}

impl World {
    fn itself(&self) -> &LocalChannel {
        self.itself.get().unwrap()
    }

    fn register(self: &Rc<Self>, clock: &Clock, methods: &mut Methods) {
        let clock = clock.clone();
        let left = move |request: &Request<u64>| {
            let left = request.deadline().map(|deadline| deadline - clock.now());
            left.map_or(NO_DEADLINE, |left| left.as_millis().try_into().unwrap())
        };
        let left_of_unary = left.clone();
        methods.unary(&TIME_LEFT, move |request: Request<u64>| {
            let left = left_of_unary(&request);
            async move { Answer::Ok(Response::new(left)) }
        });
        self.add(methods, &NEST, async |world, request| {
            match request.into_inner() {
                0 => relay(world.itself(), &TIME_LEFT, Request::new(0)).await,
                depth => relay(world.itself(), &NEST, Request::new(depth - 1)).await,
            }
        });
        self.add(methods, &OWN_TIMES, async |world, _| {
            let second = Duration::from_secs(1);
            let (earlier, later) = (second / 10, 10 * second);
            let mut answers = Vec::new();
            for request in [
                Request::new(0).with_timeout(earlier),
                Request::new(0).with_timeout(later),
                Request::new(0).without_deadline(),
            ] {
                let answer = relay(world.itself(), &TIME_LEFT, request).await?;
                answers.push(answer.into_inner());
            }
            assert_eq!(answers, [100, 1000, NO_DEADLINE]);
            Ok(Response::new(0))
        });
        self.add(methods, &WAIT, async |world, _| {
            world.gate.pass().await;
            relay(world.itself(), &TIME_LEFT, Request::new(0)).await
        });
        self.add(methods, &CALL_HOLD, async |world, _| {
            relay(world.itself(), &HOLD, Request::new(0)).await
        });
        self.add(methods, &HOLD, async |world, _| {
            world.gate.pass().await;
            Ok(Response::new(0))
        });
        self.add(methods, &SHARED, async |world, _| {
            relay(world.shared.get().unwrap(), &TIME_LEFT, Request::new(0)).await
        });
        let queue = Arc::clone(&self.executor);
        let executor = OnExecutor::new(Arc::new(()), move |future| {
            queue.lock().unwrap().push(future);
        });
        let world = Rc::clone(self);
        methods.unary(&ON_EXECUTOR, move |_: Request<u64>| {
            let channel = world.shared.get().unwrap().clone();
            executor.run(async move {
                // The second call starts in a later poll than the first.
                relay(&channel, &TIME_LEFT, Request::new(0)).await?;
                relay(&channel, &TIME_LEFT, Request::new(0)).await
            })
        });
        self.add(methods, &SPAWN, async |world, _| {
            let task = |name| {
                let world = Rc::clone(&world);
                async move {
                    let left = ask(world.itself(), &TIME_LEFT, Request::new(0)).await;
                    world.answers.borrow_mut().push((name, left.unwrap()));
                }
            };
            let mut spawned = world.spawned.borrow_mut();
            spawned.push(Box::pin(CurrentDeadline::capture().scope(task("with"))));
            spawned.push(Box::pin(task("without")));
            Ok(Response::new(0))
        });
        let world = Rc::clone(self);
        methods.server_streaming(&STREAM, move |request: Request<u64>, responses| {
            let world = Rc::clone(&world);
            let own = left(&request);
            let times = stream(async move |mut responses| {
                responses.send(own).await?;
                let nested = relay(world.itself(), &TIME_LEFT, Request::new(0)).await?;
                responses.send(nested.into_inner()).await
            });
            responses.send_all(Ok(Response::new(times)))
        });
        self.add(methods, &NEST_STREAM, async |world, _| {
            let stream = world.itself().server_streaming(&STREAM, Request::new(0));
            let mut stream: Streaming<u64> = stream.await?.into_inner();
            let mut sum = 0;
            while let Some(left) = stream.message().await? {
                sum += left;
            }
            Ok(Response::new(sum))
        });
        self.add(methods, &PANIC, async |_, _| panic!("asked to panic"));
    }

    fn add<F: Future<Output = Answer> + 'static>(
        self: &Rc<Self>,
        methods: &mut Methods,
        method: &'static MethodSpec,
        handler: impl Fn(Rc<Self>, Request<u64>) -> F + 'static,
    ) {
        let world = Rc::clone(self);
        methods.unary(method, move |request: Request<u64>| {
            handler(Rc::clone(&world), request)
        });
    }
}

impl Fixture {
    fn new() -> Self {
        Self::with_policy(DeadlinePolicy::default())
    }

    /// Creates a server with a policy.
    fn with_policy(policy: DeadlinePolicy) -> Self {
        let intents = Intents {
            max_message_len: 64,
            max_in_flight: 16,
            connections: 4,
            ..Intents::default()
        };
        let mut network = Network::new(Faults::none(), 0);
        let (world, clock) = (Rc::<World>::default(), network.clock().clone());
        let server = network.add("server", &intents, |methods| {
            world.register(&clock, methods);
            methods.set_deadline_policy(policy);
        });
        let client = network.add("client", &intents, |_| ());
        let itself = server.poller().connect("server").unwrap();
        assert!(world.itself.set(itself).is_ok());
        let shared = network.share("server", &intents);
        assert!(world.shared.set(shared.channel().clone()).is_ok());
        let channel = client.poller().connect("server").unwrap();
        Self {
            network,
            world,
            channel,
        }
    }

    /// Runs a future while stepping the network and the executor.
    fn run<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let stepped = poll_fn(|cx| {
            // The channel's future registers a waker of the executor, which polls all futures.
            let mut futures = std::mem::take(&mut *self.world.executor.lock().unwrap());
            let mut noop = Context::from_waker(Waker::noop());
            futures.retain_mut(|future| future.as_mut().poll(&mut noop).is_pending());
            self.world.executor.lock().unwrap().append(&mut futures);
            future.as_mut().poll(cx)
        });
        self.network.try_run(stepped).unwrap()
    }

    /// Calls with a second of time, if `is_limited`.
    fn call(&self, method: &'static MethodSpec, message: u64, is_limited: bool) -> u64 {
        let mut request = Request::new(message);
        if is_limited {
            request = request.with_timeout(Duration::from_secs(1));
        }
        self.run(ask(&self.channel, method, request)).unwrap()
    }

    fn assert_nothing_left(&self) {
        assert_eq!(CurrentDeadline::capture().instant(), None);
        assert!(self.world.executor.lock().unwrap().is_empty());
        self.network.assert_nothing_left();
    }
}

#[test]
fn a_nested_call_inherits_the_deadline_of_its_handler() {
    let fixture = Fixture::new();
    for depth in 0..4 {
        assert_eq!(fixture.call(&NEST, depth, true), 1000, "depth {depth}");
        assert_eq!(fixture.call(&NEST, depth, false), NO_DEADLINE);
    }
    fixture.assert_nothing_left();
}

#[test]
fn a_nested_call_has_at_most_its_own_time_and_none_if_it_says_so() {
    let fixture = Fixture::new();
    fixture.call(&OWN_TIMES, 0, true);
    fixture.assert_nothing_left();
}

#[test]
fn a_call_that_starts_after_a_wait_inherits_what_is_left() {
    let fixture = Fixture::new();
    let has_waited = Cell::new(false);
    let request = Request::new(0).with_timeout(Duration::from_secs(1));
    let left = fixture.run(async {
        let mut call = pin!(ask(&fixture.channel, &WAIT, request));
        poll_fn(|cx| {
            if fixture.world.gate.entered() == 1 && !has_waited.replace(true) {
                fixture.network.advance(Duration::from_millis(300));
                fixture.world.gate.open();
            }
            call.as_mut().poll(cx)
        })
        .await
    });
    assert_eq!(left.unwrap(), 700);
    fixture.assert_nothing_left();
}

#[test]
fn a_deadline_ends_the_whole_chain_of_handlers() {
    let fixture = Fixture::new();
    let request = Request::new(0).with_timeout(Duration::from_secs(1));
    let mut call = Box::pin(ask(&fixture.channel, &CALL_HOLD, request));
    let mut cx = Context::from_waker(Waker::noop());
    while fixture.world.gate.entered() == 0 {
        assert!(call.as_mut().poll(&mut cx).is_pending());
        fixture.network.step();
    }
    assert_eq!(fixture.world.gate.dropped(), 0);
    fixture.network.advance(Duration::from_secs(2));
    let error = fixture.run(call).unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded);
    fixture.network.settle();
    assert_eq!(fixture.world.gate.dropped(), 1);
    fixture.assert_nothing_left();
}

#[test]
fn a_call_through_a_shared_channel_inherits_on_a_poller_and_on_an_executor() {
    let fixture = Fixture::new();
    for method in [&SHARED, &ON_EXECUTOR] {
        assert_eq!(fixture.call(method, 0, true), 1000, "{}", method.path);
        assert_eq!(fixture.call(method, 0, false), NO_DEADLINE);
    }
    fixture.assert_nothing_left();
}

#[test]
fn a_stream_inherits_and_passes_on_the_deadline() {
    let fixture = Fixture::new();
    assert_eq!(fixture.call(&NEST_STREAM, 0, true), 2000);
    assert_eq!(fixture.call(&NEST_STREAM, 0, false), NO_DEADLINE);
    fixture.assert_nothing_left();
}

#[test]
fn a_spawned_task_inherits_with_the_handle_alone_and_outlives_its_handler() {
    let fixture = Fixture::new();
    fixture.call(&SPAWN, 0, true);
    // The handlers have completed. Their tasks go on.
    assert!(fixture.world.answers.borrow().is_empty());
    let mut tasks = fixture.world.spawned.take();
    fixture.run(poll_fn(|cx| {
        tasks.retain_mut(|task| task.as_mut().poll(cx).is_pending());
        match tasks.len() {
            0 => Poll::Ready(()),
            _ => Poll::Pending,
        }
    }));
    fixture.world.answers.borrow_mut().sort_unstable();
    assert_eq!(
        *fixture.world.answers.borrow(),
        [("with", 1000), ("without", NO_DEADLINE)]
    );
    fixture.assert_nothing_left();
}

#[test]
fn a_handler_that_panics_leaves_no_deadline_behind() {
    let fixture = Fixture::new();
    let request = Request::new(0).with_timeout(Duration::from_secs(1));
    let error = fixture.run(ask(&fixture.channel, &PANIC, request));
    assert_eq!(error.unwrap_err().code(), Code::Internal);
    assert_eq!(fixture.call(&NEST, 1, false), NO_DEADLINE);
    fixture.assert_nothing_left();
}

#[test]
fn a_servers_policy_gives_each_call_a_deadline_which_nested_calls_inherit() {
    let fixture = Fixture::with_policy(DeadlinePolicy {
        default: Some(Duration::from_millis(500)),
        cap: Some(Duration::from_millis(800)),
        floor: None,
    });
    for (method, depth) in [(&TIME_LEFT, 0), (&NEST, 0), (&NEST, 2)] {
        assert_eq!(fixture.call(method, depth, false), 500);
        assert_eq!(fixture.call(method, depth, true), 800);
    }
    fixture.assert_nothing_left();
}

#[test]
fn a_default_deadline_ends_a_call_whose_client_set_none() {
    let fixture = Fixture::with_policy(DeadlinePolicy {
        default: Some(Duration::from_millis(500)),
        ..DeadlinePolicy::default()
    });
    let mut call = Box::pin(ask(&fixture.channel, &HOLD, Request::new(0)));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(call.as_mut().poll(&mut cx).is_pending());
    fixture.network.settle();
    assert_eq!(fixture.world.gate.entered(), 1);
    fixture.network.advance(Duration::from_millis(501));
    let error = fixture.run(call).unwrap_err();
    assert_eq!(
        (error.code(), error.execution()),
        (Code::DeadlineExceeded, Execution::Answered)
    );
    assert_eq!(fixture.world.gate.dropped(), 1);
    fixture.assert_nothing_left();
}

#[test]
fn a_call_with_less_time_than_the_floor_does_not_start() {
    let fixture = Fixture::with_policy(DeadlinePolicy {
        floor: Some(Duration::from_millis(200)),
        ..DeadlinePolicy::default()
    });
    let hold = |left| {
        let request = Request::new(0).with_timeout(Duration::from_millis(left));
        ask(&fixture.channel, &HOLD, request)
    };
    let error = fixture.run(hold(199)).unwrap_err();
    assert_eq!(
        (error.code(), error.execution()),
        (Code::DeadlineExceeded, Execution::NotStarted)
    );
    assert_eq!(fixture.world.gate.entered(), 0);
    fixture.world.gate.open();
    assert_eq!(fixture.run(hold(200)).unwrap(), 0);
    // A call without a deadline has time.
    assert_eq!(fixture.call(&NEST, 1, false), NO_DEADLINE);
    fixture.assert_nothing_left();
}
