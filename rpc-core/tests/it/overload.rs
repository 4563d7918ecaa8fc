//! Deadlines that count waiting, connections that take turns, and a server with more calls than it
//! can serve. The clock only moves when a handler works, or when nothing happens.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::support::{Gate, method, register};
use rpc_core::{
    CallError, Caller, Cause, Channel, Code, Execution, Idempotency, Intents, LocalChannel,
    MethodKind, MethodSpec, Methods, Request, Response, Status,
};
use rpc_core_testing::{Clock, Faults, LoopbackNode, Network, Node, Pair};

const WORK: MethodSpec = method("test.Test/Work");
const BLOCK: MethodSpec = method("test.Test/Block");

const ABSENT_STREAM: MethodSpec = MethodSpec::new(
    "test.Test/Absent",
    MethodKind::ServerStreaming,
    Idempotency::Unknown,
    "u64",
    "u64",
);

const MS: Duration = Duration::from_millis(1);

/// A handler that works for the number of milliseconds in its request, and counts its calls.
fn register_work(methods: &mut Methods, clock: &Rc<RefCell<Option<Clock>>>, begun: &Rc<Cell<u32>>) {
    for spec in [&WORK, &BLOCK] {
        let (clock, begun) = (Rc::clone(clock), Rc::clone(begun));
        methods.unary(spec, move |request: Request<u64>| {
            begun.set(begun.get() + 1);

            if let Some(clock) = &*clock.borrow() {
                clock.advance(MS * request.into_inner() as u32);
            }
            async { Ok::<_, Status>(Response::new(0u64)) }
        });
    }
}

struct Host {
    network: Network,
    server: Rc<Node>,
    begun: Rc<Cell<u32>>,
}

impl Host {
    fn new() -> Self {
        let mut network = Network::new(Faults::none(), 0);
        let clock = Rc::new(RefCell::new(Some(network.clock().clone())));
        let begun = Rc::new(Cell::new(0));
        let server = network.add("server", &Intents::default(), |methods| {
            register_work(methods, &clock, &begun);
        });
        Self {
            network,
            server,
            begun,
        }
    }

    /// Connects a client, whose window has grown to 128 calls.
    fn client(&mut self, name: &str) -> LocalChannel {
        let client = self.network.add(name, &Intents::default(), |_| ());
        let channel = client.poller().connect("server").unwrap();
        for _ in 0..8 {
            let mut calls: Vec<_> = (0..128).map(|_| work(&channel, 0, None)).collect();
            for call in &mut calls {
                assert!(poll_call(call).is_none());
            }
            for call in &mut calls {
                self.network.try_run(call).unwrap().unwrap();
            }
        }
        self.begun.set(0);
        channel
    }
}

type Call = Pin<Box<dyn Future<Output = Result<Response<u64>, CallError>>>>;

fn work(channel: &LocalChannel, ms: u64, timeout: Option<Duration>) -> Call {
    let channel = channel.clone();
    let mut request = Request::new(ms);
    if let Some(timeout) = timeout {
        request = request.with_timeout(timeout);
    }
    Box::pin(async move { channel.unary::<u64, u64>(&WORK, request).await })
}

fn poll_call(call: &mut Call) -> Option<Result<Response<u64>, CallError>> {
    match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => Some(outcome),
        Poll::Pending => None,
    }
}

/// A poller is blocked for three seconds while calls that have 100 ms wait: no handler runs for
/// them. A call that arrives a millisecond before the poller is back has its time left, and is
/// served.
#[test]
fn a_call_that_waited_beyond_its_deadline_does_not_run_and_one_that_just_came_does() {
    let mut host = Host::new();
    let channel = host.client("client");
    let mut dead: Vec<_> = (0..8).map(|_| work(&channel, 1, Some(100 * MS))).collect();
    for call in &mut dead {
        assert!(poll_call(call).is_none());
    }
    // The server does not take a turn.
    host.network.clock().advance(Duration::from_secs(3) - MS);
    let mut fresh = work(&channel, 1, Some(100 * MS));
    assert!(poll_call(&mut fresh).is_none());
    host.network.clock().advance(MS);
    host.network.settle();
    assert_eq!(host.begun.get(), 1, "only the call that just came");
    assert!(poll_call(&mut fresh).unwrap().is_ok());
    for mut call in dead {
        let error = poll_call(&mut call).unwrap().unwrap_err();
        assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
    }
    assert_eq!(host.server.poller().stats().pollers[0].handlers.expired, 8);
    host.network.assert_nothing_left();
}

/// The server tells a caller whose clock has stood still that its handler did not start.
#[test]
fn an_expired_call_says_that_it_did_not_start() {
    let mut host = Host::new();
    let channel = host.client("client");
    let mut block = work(&channel, 50, None);
    let mut late = work(&channel, 1, Some(20 * MS));
    assert!(poll_call(&mut block).is_none() && poll_call(&mut late).is_none());
    // Without the client's own timer, which would end the call first.
    while host.server.step() {}
    host.network.settle();
    assert!(poll_call(&mut block).unwrap().is_ok());
    let error = poll_call(&mut late).unwrap().unwrap_err();
    assert_eq!(
        (error.code(), error.execution()),
        (Code::DeadlineExceeded, Execution::NotStarted),
        "{error}"
    );
    assert_eq!(error.pushback(), None, "one late call is no overload");
    host.network.assert_nothing_left();
}

/// Each of seven clients with one call at a time gets about as much of the server as one with 128.
#[test]
fn a_client_with_many_calls_gets_no_more_than_its_share() {
    let mut host = Host::new();
    let flooder = host.client("flooder");
    let others: Vec<_> = (0..7)
        .map(|n| host.client(&format!("client {n}")))
        .collect();
    let channels = || std::iter::repeat_n(&flooder, 128).chain(&others);
    let mut calls: Vec<_> = channels().map(|channel| work(channel, 1, None)).collect();
    let mut served = vec![0u32; calls.len()];
    let end = host.network.clock().now() + 2000 * MS;
    while host.network.clock().now() < end {
        for (index, channel) in channels().enumerate() {
            if let Some(outcome) = poll_call(&mut calls[index]) {
                outcome.unwrap();
                served[index] += 1;
                calls[index] = work(channel, 1, None);
                assert!(poll_call(&mut calls[index]).is_none());
            }
        }
        host.network.step();
    }
    let total: u32 = served.iter().sum();
    let share = total / 8;
    for each in &served[128..] {
        assert!(*each >= share / 2, "{each} of a share of {share}");
    }
    let flood: u32 = served[..128].iter().sum();
    assert!(
        flood >= share / 2,
        "the flooder, too, has a share: {flood} of {share}"
    );
    drop(calls);
    host.network.assert_nothing_left();
}

/// A handler that takes three times as long counts three times: shares are shares of time.
#[test]
fn shares_are_shares_of_time() {
    let mut host = Host::new();
    let channels = [host.client("slow"), host.client("fast")];
    let costs = [3, 1];
    let mut calls: Vec<Vec<_>> = (0..2)
        .map(|n| {
            (0..32)
                .map(|_| work(&channels[n], costs[n], None))
                .collect()
        })
        .collect();
    let mut served = [0u64; 2];
    let end = host.network.clock().now() + 3000 * MS;
    while host.network.clock().now() < end {
        for n in 0..2 {
            for call in &mut calls[n] {
                if let Some(outcome) = poll_call(call) {
                    outcome.unwrap();
                    served[n] += 1;
                    *call = work(&channels[n], costs[n], None);
                    assert!(poll_call(call).is_none());
                }
            }
        }
        host.network.step();
    }
    let time = [served[0] * costs[0], served[1] * costs[1]];
    let ratio = time[0] as f64 / time[1] as f64;
    assert!((0.8..1.25).contains(&ratio), "{time:?} ms each");
    drop(calls);
    host.network.assert_nothing_left();
}

/// A client without deadlines that keeps the server's queue full for long is not refused anything.
#[test]
fn calls_without_deadlines_are_never_refused() {
    let mut host = Host::new();
    let channel = host.client("client");
    let mut calls: Vec<_> = (0..128).map(|_| work(&channel, 5, None)).collect();
    let mut served = 0;
    while served < 1000 {
        for call in &mut calls {
            if let Some(outcome) = poll_call(call) {
                outcome.unwrap();
                served += 1;
                *call = work(&channel, 5, None);
                assert!(poll_call(call).is_none());
            }
        }
        host.network.step();
    }
    drop(calls);
    assert_eq!(host.server.poller().stats().pollers[0].handlers.refused, 0);
    host.network.assert_nothing_left();
}

/// What happened to the calls of an open-loop load.
#[derive(Default)]
struct Outcome {
    offered: u32,
    good: u32,
    refused: u32,
    /// Handlers that ran for a caller that had given up, or was told too late.
    useless: i64,
    begun: u32,
    order: Vec<bool>,
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            offered,
            good,
            refused,
            begun,
            useless,
            ..
        } = self;
        write!(
            f,
            "{offered} offered, {good} good, {refused} refused, {begun} begun, {useless} useless"
        )
    }
}

/// Offers `percent` of the server's capacity of 1,000 calls a second, each with 100 ms, for
/// `seconds`, from four connections with at most 64 calls in flight each.
fn offer(host: &Host, channels: &[LocalChannel], percent: u64, seconds: u64) -> Outcome {
    const DEADLINE: Duration = Duration::from_millis(100);
    let clock = host.network.clock().clone();
    let begun_before = host.begun.get();
    let start = clock.now();
    let between = Duration::from_micros(100_000 / percent);
    let count = seconds * 10 * percent;
    let mut arrivals: VecDeque<_> = (0..count)
        .map(|n| (n, start + between * n as u32))
        .collect();
    let mut outcome = Outcome {
        offered: count as u32,
        ..Outcome::default()
    };
    let mut in_flight: Vec<Vec<(Instant, Call)>> = channels.iter().map(|_| Vec::new()).collect();
    while !arrivals.is_empty() || in_flight.iter().any(|calls| !calls.is_empty()) {
        let now = clock.now();
        while arrivals.front().is_some_and(|(_, at)| *at <= now) {
            let (n, intended) = arrivals.pop_front().unwrap();
            let lane = n as usize % channels.len();
            if in_flight[lane].len() < 64 {
                let channel = channels[lane].clone();
                let request = Request::new(1u64).with_deadline(intended + DEADLINE);
                let mut call: Call =
                    Box::pin(async move { channel.unary::<u64, u64>(&WORK, request).await });
                match poll_call(&mut call) {
                    None => in_flight[lane].push((intended, call)),
                    Some(outcome) => drop(outcome.unwrap_err()),
                }
            }
        }
        let found_any = host.network.step();
        // The clients' own deadlines.
        host.network.advance(Duration::ZERO);
        let now = clock.now();
        for calls in &mut in_flight {
            calls.retain_mut(|(intended, call)| match poll_call(call) {
                None => true,
                Some(ended) => {
                    let is_good = ended.is_ok() && now <= *intended + DEADLINE;
                    outcome.good += u32::from(is_good);
                    outcome.order.push(is_good);
                    if let Err(error) = ended
                        && error.execution() == Execution::NotStarted
                    {
                        outcome.refused += 1;
                    }
                    false
                }
            });
        }
        if !found_any {
            clock.advance(Duration::from_micros(20));
        }
    }
    host.network.settle();
    outcome.begun = host.begun.get() - begun_before;
    outcome.useless = i64::from(outcome.begun) - i64::from(outcome.good);
    outcome
}

/// With four times the load that a server can bear, it does nearly as much good as with the load
/// that it can just bear, and does not work for callers that have gone.
#[test]
fn goodput_stays_flat_and_recovers() {
    let mut host = Host::new();
    let channels: Vec<_> = (0..4)
        .map(|n| host.client(&format!("client {n}")))
        .collect();
    let mut peak = 0;
    for percent in [50, 90, 100, 150, 200, 300, 400] {
        let outcome = offer(&host, &channels, percent, 5);
        peak = peak.max(outcome.good);
        assert!(
            outcome.good >= outcome.offered.min(peak) * 9 / 10,
            "at {percent} %: {outcome}"
        );
        assert!(
            outcome.useless * 20 <= i64::from(outcome.begun),
            "at {percent} %: {outcome}"
        );
    }
    // At half the load, full goodput is back within a second.
    let after = offer(&host, &channels, 50, 2);
    let late = after
        .order
        .iter()
        .rposition(|is_good| !is_good)
        .unwrap_or(0);
    assert!(
        late < 500,
        "call {late} of {} still failed",
        after.order.len()
    );
    host.network.assert_nothing_left();
}

#[test]
fn a_poller_that_blocks_once_is_not_overloaded() {
    let (gate, clock, begun) = <(Gate, Rc<_>, Rc<_>)>::default();
    let pair = Pair::new(|methods| {
        register(methods, &gate);
        register_work(methods, &clock, &begun);
    });
    *clock.borrow_mut() = Some(pair.network().clock().clone());
    let channel = pair.connect();
    for n in 0..20 {
        // The calls wait behind one that blocks the poller for two seconds.
        let mut block = Box::pin(channel.unary::<u64, u64>(&BLOCK, Request::new(2000)));
        assert!(
            block
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
        let mut calls: Vec<_> = (0..20)
            .map(|_| work(&channel, 1, Some(3000 * MS)))
            .collect();
        for call in &mut calls {
            assert!(poll_call(call).is_none());
        }
        for call in &mut calls {
            assert!(pair.run(call).is_ok(), "round {n}");
        }
    }
    assert_eq!(
        pair.server().poller().stats().pollers[0].handlers.refused,
        0
    );
    pair.assert_nothing_left();
}

/// A peer that breaks the protocol behind requests of its own: those that have not begun never do, and
/// the other connections go on.
#[test]
fn requests_of_a_connection_that_was_closed_do_not_begin() {
    let mut host = Host::new();
    let (hostile, good) = (host.client("hostile"), host.client("good"));
    let calls: Vec<_> = (0..5).map(|_| work(&hostile, 1, None)).collect();
    let mut calls: Vec<_> = calls.into_iter().chain([work(&good, 1, None)]).collect();
    for call in &mut calls {
        assert!(poll_call(call).is_none());
    }
    let first = host.server.connections()[0];
    host.server.inject(first, vec![0xff; 16]);
    host.network.settle();
    assert!(poll_call(&mut calls[5]).unwrap().is_ok());
    let served = calls[..5].iter_mut().filter_map(poll_call);
    let served = served.filter(Result::is_ok).count() as u32;
    assert_eq!(host.begun.get(), served + 1);
    assert!(
        served < 5,
        "the violation came before the last request began"
    );
    drop(calls);
    drop(hostile);
    host.network.assert_nothing_left();
}

type SharedCall = Pin<Box<dyn Future<Output = Result<Response<u64>, CallError>>>>;

fn shared_work(channel: &Channel, ms: u64, timeout: Duration) -> SharedCall {
    let channel = channel.clone();
    let request = Request::new(ms).with_timeout(timeout);
    Box::pin(async move { channel.unary::<u64, u64>(&WORK, request).await })
}

/// Overloads the server until it refuses a call of the channel. Returns the pushback, and the calls
/// that are in flight.
fn refuse_one(host: &Host, channel: &Channel) -> (Duration, Vec<Call>) {
    let another = || {
        let mut call = shared_work(channel, 5, 100 * MS);
        assert!(poll_call(&mut call).is_none());
        call
    };
    let mut calls: Vec<_> = (0..64).map(|_| another()).collect();
    loop {
        host.network.step();
        for call in &mut calls {
            let Some(outcome) = poll_call(call) else {
                continue;
            };
            *call = another();
            if let Err(error) = outcome
                && let Some(pushback) = error.pushback()
            {
                assert_eq!(
                    (error.code(), error.execution()),
                    (Code::ResourceExhausted, Execution::NotStarted),
                    "{error}"
                );
                return (pushback, calls);
            }
        }
    }
}

/// Returns how many calls of the channel have been sent.
fn sent(channel: &Channel) -> u64 {
    channel.stats().pollers[0].called[0].started
}

/// A shared channel sends nothing for as long as the server says, but for one call at a time: if
/// the server serves it, the others follow at once.
#[test]
fn a_shared_channel_keeps_to_the_pushback_and_a_probe_ends_it() {
    let mut host = Host::new();
    let node = host.network.share("server", &Intents::default());
    let channel = node.channel().clone();
    let (pushback, flood) = refuse_one(&host, &channel);
    assert!(pushback >= 10 * MS, "{pushback:?}");
    let before = sent(&channel);
    let mut probe = shared_work(&channel, 1, Duration::from_secs(1));
    let mut late = shared_work(&channel, 1, 5 * MS);
    let mut patient = shared_work(&channel, 1, Duration::from_secs(1));
    for call in [&mut probe, &mut late, &mut patient] {
        assert!(poll_call(call).is_none());
    }
    // Only the channel's poller, not the server.
    for _ in 0..8 {
        node.step();
    }
    let error = poll_call(&mut late).unwrap().unwrap_err();
    assert!(matches!(error.cause(), Cause::PushedBack { .. }), "{error}");
    assert_eq!(
        (error.code(), error.execution()),
        (Code::ResourceExhausted, Execution::NeverSent)
    );
    assert_eq!(sent(&channel), before + 1, "the probe alone was sent");
    drop(flood);
    host.network.settle();
    assert!(poll_call(&mut probe).unwrap().is_ok());
    assert!(poll_call(&mut patient).unwrap().is_ok());
    host.network.assert_nothing_left();
}

/// Streams wait for the end of the pushback too. The server lacks the method, so a stream ends when
/// it is no longer held back.
#[test]
fn a_pushback_holds_streams_back() {
    let mut host = Host::new();
    let node = host.network.share("server", &Intents::default());
    let channel = node.channel().clone();
    let (pushback, flood) = refuse_one(&host, &channel);
    let open = |timeout| {
        let request = Request::new(0u64).with_timeout(timeout);
        Box::pin(channel.server_streaming::<u64, u64>(&ABSENT_STREAM, request))
    };
    let (mut late, mut patient) = (open(5 * MS), open(Duration::from_secs(1)));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(late.as_mut().poll(&mut cx).is_pending());
    assert!(patient.as_mut().poll(&mut cx).is_pending());
    for _ in 0..8 {
        node.step();
    }
    let Poll::Ready(Err(error)) = late.as_mut().poll(&mut cx) else {
        panic!("its deadline comes before the end of the pushback");
    };
    assert!(matches!(error.cause(), Cause::PushedBack { .. }), "{error}");
    assert_eq!(error.execution(), Execution::NeverSent);
    assert!(patient.as_mut().poll(&mut cx).is_pending());
    // With jitter, at most twice that.
    host.network.advance(2 * pushback);
    for _ in 0..8 {
        node.step();
    }
    let Poll::Ready(Err(error)) = patient.as_mut().poll(&mut cx) else {
        panic!("the pushback has ended");
    };
    assert_eq!(error.code(), Code::Unimplemented);
    drop(flood);
    host.network.settle();
    host.network.assert_nothing_left();
}

/// When the time of a pushback has passed, calls are sent again.
#[test]
fn a_pushback_ends_with_its_time() {
    let mut host = Host::new();
    let node = host.network.share("server", &Intents::default());
    let channel = node.channel().clone();
    let (pushback, flood) = refuse_one(&host, &channel);
    // With jitter, at most twice that.
    host.network.advance(2 * pushback);
    let before = sent(&channel);
    let mut calls: Vec<_> = (0..4)
        .map(|_| shared_work(&channel, 0, Duration::from_secs(1)))
        .collect();
    for call in &mut calls {
        assert!(poll_call(call).is_none());
    }
    for _ in 0..8 {
        node.step();
    }
    assert_eq!(sent(&channel), before + 4);
    drop(flood);
    for call in &mut calls {
        host.network.try_run(call).unwrap().unwrap();
    }
    host.network.assert_nothing_left();
}

/// Four times the load from 400 clients that have few calls each: no queue of theirs is long.
#[test]
fn many_clients_with_few_calls_are_an_overload_as_well() {
    let mut host = Host::new();
    let intents = Intents {
        connections: 400,
        max_in_flight: 4,
        ..Intents::default()
    };
    let limits = rpc_core::Limits {
        receives_posted: 4 * 400,
        receives_reserved: 400,
        send_slots: 4 * 400,
        ..host.server.limits()
    };
    let clock = Rc::new(RefCell::new(Some(host.network.clock().clone())));
    let begun = Rc::clone(&host.begun);
    let sized = rpc_core::Limits {
        max_connections: intents.connections,
        max_in_flight: intents.max_in_flight,
        ..limits
    };
    host.server = host.network.add_sized("many", sized.clone(), |methods| {
        register_work(methods, &clock, &begun);
    });
    let client = host.network.add_sized("clients", sized, |_| ());
    let channels: Vec<_> = (0..400)
        .map(|_| client.poller().connect("many").unwrap())
        .collect();
    let outcome = offer(&host, &channels, 400, 3);
    assert!(outcome.good >= 2700, "{outcome}");
    assert!(
        outcome.useless * 20 <= i64::from(outcome.begun),
        "{outcome}"
    );
}

/// Two calls that take long, as after a cold start, do not make a server refuse the next ones.
#[test]
fn an_old_estimate_refuses_nobody() {
    let mut host = Host::new();
    let channel = host.client("client");
    let mut slow: Vec<_> = (0..3).map(|_| work(&channel, 5000, None)).collect();
    for call in &mut slow {
        assert!(poll_call(call).is_none());
    }
    for call in &mut slow {
        host.network.try_run(call).unwrap().unwrap();
    }
    host.network.advance(200 * MS);
    for _ in 0..10 {
        let mut burst: Vec<_> = (0..8).map(|_| work(&channel, 0, Some(1000 * MS))).collect();
        for call in &mut burst {
            assert!(poll_call(call).is_none());
        }
        for call in &mut burst {
            host.network.try_run(call).unwrap().unwrap();
        }
    }
}

/// After an overload, a load that the server can bear is served without a refusal, although its queue
/// never runs empty.
#[test]
fn an_overload_ends_although_the_queue_is_never_empty() {
    let mut host = Host::new();
    let channel = host.client("client");
    let limit = Some(100 * MS);
    let mut calls: Vec<_> = (0..128).map(|_| work(&channel, 1, limit)).collect();
    let mut served = 0;
    let mut late_refusals = 0;
    let overload_ends = host.network.clock().now() + 1000 * MS;
    let end = overload_ends + 3000 * MS;
    while host.network.clock().now() < end {
        let now = host.network.clock().now();
        let wanted = if now < overload_ends { 128 } else { 20 };
        host.network.step();
        host.network.advance(Duration::ZERO);
        calls.retain_mut(|call| match poll_call(call) {
            None => true,
            Some(Ok(_)) => {
                served += 1;
                false
            }
            Some(Err(_)) => {
                late_refusals += u32::from(now > overload_ends + 1000 * MS);
                false
            }
        });
        while calls.len() < wanted {
            let mut call = work(&channel, 1, limit);
            assert!(poll_call(&mut call).is_none());
            calls.push(call);
        }
    }
    assert_eq!(late_refusals, 0, "{served} served");
    assert!(served > 3500, "{served}");
}
